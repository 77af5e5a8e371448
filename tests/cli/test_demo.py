"""`quantkit demo`: three candidates, a report with a verdict, and files that a user can go on with."""

from pathlib import Path

import pytest

from quantkit.cli.app import run
from quantkit.demo import run_demo
from quantkit.result import load_result


def test_demo_shrinks_four_times_and_keeps_its_accuracy(tmp_path: Path) -> None:
    done = run_demo(tmp_path / "demo")
    base = done.result.float_model.metric
    assert base is not None
    assert base.value > 0.9
    assert len(done.result.candidates) == 3
    for model, verdict in zip(done.result.candidates, done.result.verdicts, strict=True):
        assert model.size.ratio < 0.27
        assert model.metric is not None
        assert model.metric.drop is not None
        assert model.metric.drop < 0.005
        assert model.drift is not None
        assert model.drift.decision is not None
        assert model.drift.decision.flip_rate < 0.01
        assert verdict.outcome == "pass"
        assert not model.warnings
    written, page, text = done.files
    assert load_result(written) == done.result
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert "static int8" in text.read_text(encoding="utf-8")


def test_demo_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["demo"]) == 0
    out = capsys.readouterr().out
    for text in ("float32", "static int8", "report: quantkit-demo/report.html", "93.7"):
        assert text in out
    monkeypatch.chdir(tmp_path / "quantkit-demo")
    # What it says can be done again by hand.
    assert run(["gate", "result.json"]) == 0
    assert run(["verify", "fashion.static.onnx", "--float", "fashion.onnx"]) == 0


def test_demo_into_an_impossible_folder_is_one_clear_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert run(["demo", "-o", str(tmp_path / "file" / "demo")]) == 2
    assert "Cannot write into the folder" in capsys.readouterr().err
