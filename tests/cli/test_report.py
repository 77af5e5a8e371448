"""`quantkit report`: what it writes, prints, and how it exits."""

import json
from pathlib import Path

import pytest
import typer
from result_cases import example_result

from quantkit.cli.app import run
from quantkit.result import SCHEMA, save_result


@pytest.fixture
def result(tmp_path: Path) -> Path:
    path = tmp_path / "result.json"
    save_result(example_result(), path)
    return path


def call(*arguments: str | Path) -> int:
    return run(["report", *(str(a) for a in arguments)])


def test_writes_both_beside_the_result(result: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(result) == 0
    out = capsys.readouterr().out
    for name in ("report.html", "report.md"):
        assert name in out
        assert (result.parent / name).exists()


@pytest.mark.parametrize("form", ["html", "md"])
def test_one_format_into_a_new_folder(result: Path, tmp_path: Path, form: str) -> None:
    assert call(result, "-o", tmp_path / "out" / "deep", "--format", form) == 0
    assert [p.name for p in (tmp_path / "out" / "deep").iterdir()] == [f"report.{form}"]


def test_picture(result: Path, tmp_path: Path) -> None:
    assert call(result, "--picture", tmp_path / "picture.svg") == 0
    assert (tmp_path / "picture.svg").read_text(encoding="utf-8").startswith("<svg ")


def test_open(result: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(typer, "launch", opened.append)
    assert call(result, "--open") == 0
    assert opened == [str(result.parent / "report.html")]
    assert call(result, "--open", "--format", "md") == 2


def test_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--schema") == 0
    schema = json.loads(capsys.readouterr().out)
    assert "Result" in schema["$defs"]
    assert schema["$defs"]["Result"]["properties"]["schema"]["default"] == SCHEMA


def test_bad_input_is_one_line_and_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "no.json").write_text("{}")
    for path, words in (
        (tmp_path / "none.json", "Cannot read"),
        (tmp_path / "no.json", "no schema"),
    ):
        assert call(path) == 2
        said = capsys.readouterr().err
        assert words in said
        assert "Traceback" not in said


def test_unwritable_folder(result: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert call(result, "-o", tmp_path / "file" / "x") == 2
