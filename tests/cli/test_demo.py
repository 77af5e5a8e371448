from pathlib import Path

import pytest

from quantkit.cli.app import run
from quantkit.demo import run_demo


def test_demo_shrinks_four_times_and_keeps_its_accuracy(tmp_path: Path) -> None:
    result = run_demo(tmp_path / "demo", lambda _: None)
    base, *others = result.rows
    assert base.accuracy > 0.9
    for row in others:
        assert row.nbytes < 0.27 * base.nbytes
        assert row.accuracy > base.accuracy - 0.005
        assert row.agreement > 0.99
    assert result.report.read_text().count("| quantkit") == 3


def test_demo_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "-o", str(tmp_path / "demo")]) == 0
    out = capsys.readouterr().out
    assert "float32" in out
    assert "report:" in out


def test_demo_into_an_impossible_folder_is_one_clear_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert run(["demo", "-o", str(tmp_path / "file" / "demo")]) == 2
    assert "Cannot make the folder" in capsys.readouterr().err
