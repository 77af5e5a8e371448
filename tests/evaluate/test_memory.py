import sys
from pathlib import Path

import numpy as np
import pytest
from builders import matmul_model, save

from quantkit.evaluate.memory import Usage, growth, measure_memory, usage
from quantkit.result import Memory

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
FEEDS = {"x": np.ones((1, 1024), np.float32)}


@linux
@pytest.mark.slow
def test_weights_are_in_memory(tmp_path: Path) -> None:
    path = save(matmul_model(1024, 4096), tmp_path / "m.onnx")  # 16 MB of weights
    found = measure_memory(path, FEEDS)
    assert found is not None
    assert found.peak >= found.resident >= 12 << 20


def test_a_model_that_does_not_run_has_no_figure(tmp_path: Path) -> None:
    path = save(matmul_model(64, 64), tmp_path / "m.onnx")
    assert measure_memory(path, FEEDS) is None


def test_without_an_interpreter_there_is_no_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "")
    assert measure_memory(tmp_path / "m.onnx", FEEDS) is None


@linux
def test_the_system_says_how_much() -> None:
    found = usage()
    assert found is not None
    assert found.peak >= found.resident > 0


@pytest.mark.parametrize(
    ("before", "after", "resident", "peak"),
    [
        (Usage(100, 100), Usage(150, 180), 50, 80),
        (Usage(100, 200), Usage(150, 200), 50, 50),  # the peak is from before
        (Usage(100, 100), Usage(90, 100), 0, 0),
    ],
)
def test_growth(before: Usage, after: Usage, resident: int, peak: int) -> None:
    assert growth(before, after) == Memory(resident=resident, peak=peak)
