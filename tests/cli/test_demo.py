"""`quantkit demo`: three candidates, a report with a verdict, and files that a user can go on with."""

from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from quantkit.cli.app import run
from quantkit.result import load_result

pytestmark = pytest.mark.all_cores


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder that one run of the demo wrote, and what it said."""
    work, said = tmp_path_factory.mktemp("demo"), StringIO()
    with chdir(work), redirect_stdout(said):
        assert run(["demo"]) == 0
    return work / "quantkit-demo", said.getvalue()


@pytest.mark.slow
def test_demo_shrinks_four_times_and_keeps_its_accuracy(demo: tuple[Path, str]) -> None:
    result = load_result(demo[0] / "result.json")
    base = result.float_model.metric
    assert base is not None
    assert base.value > 0.9
    assert len(result.candidates) == 4
    assert result.candidates[3].size.ratio < 0.16
    for model, verdict in zip(result.candidates, result.verdicts, strict=True):
        assert model.size.ratio < 0.27
        assert model.metric is not None
        assert model.metric.drop is not None
        assert model.metric.drop < 0.005
        assert model.drift is not None
        assert model.drift.decision is not None
        assert model.drift.decision.flip_rate < 0.01
        assert verdict.outcome == "pass"
        assert not model.warnings
    assert (demo[0] / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert "static int8" in (demo[0] / "report.md").read_text(encoding="utf-8")


def test_demo_says_what_it_found_and_where(demo: tuple[Path, str]) -> None:
    for text in ("float32", "static int8", "report: quantkit-demo/report.html", "93.7"):
        assert text in demo[1]


def test_its_folder_is_one_to_go_on_with(
    demo: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(demo[0])
    assert run(["gate", "result.json"]) == 0
    assert run(["verify", "fashion.static.onnx", "--float", "fashion.onnx"]) == 0


def test_demo_into_an_impossible_folder_is_one_clear_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert run(["demo", "-o", str(tmp_path / "file" / "demo")]) == 2
    assert "Cannot write into the folder" in capsys.readouterr().err
