"""What a long run prints about its progress."""

import pytest

from quantkit.cli import progress


def test_long_runs_print_their_stages_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("quantkit.cli.progress.time.monotonic", lambda: now)
    with progress.progress() as show:
        show("Reading")
        now += 4
        show("Running the float model")
        now += 4
        for done in range(1, 41):
            show(f"Quantizing: {done} of 40 weights")
            now += 1
    assert capsys.readouterr().err.splitlines() == [
        "[4 s] Running the float model",
        "[8 s] Quantizing: 1 of 40 weights",
        "[23 s] Quantizing: 16 of 40 weights",
        "[38 s] Quantizing: 31 of 40 weights",
    ]


def test_short_runs_print_no_stages(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.progress() as show:
        show("Reading")
        show("Quantizing: 1 of 1 weights")
    assert capsys.readouterr().err == ""
