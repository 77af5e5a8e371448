"""An interrupted run continues where it stopped, and its file is that of a run in one go."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import graph, model, node, rng, save, weight

from quantkit.calibration import Calibration, CalibratorOf, run
from quantkit.calibration.collect import CalibrateOptions
from quantkit.calibration.monitor import Silent
from quantkit.data import Sample
from quantkit.data.arrays import ArraySamples
from quantkit.errors import DataError
from quantkit.pipeline.calibrate import calibrate_model
from quantkit.settings import DataSettings

K = 8
ROWS = rng().standard_normal((120, K)).astype(np.float32)
# The command line, which saves every 50 ms instead of every three seconds, and whose samples take a millisecond.
PROGRAM = """
import sys, time
from quantkit.calibration import run as runs
from quantkit.data.arrays import ArraySamples
from quantkit.cli.app import run
runs._PAUSE = runs._SECONDS = 0.05
slow = float(sys.argv[1])
read = ArraySamples.__getitem__
def slowly(self, index):
    time.sleep(slow)
    return read(self, index)
ArraySamples.__getitem__ = slowly
sys.exit(run(sys.argv[2:]))
"""


def product() -> onnx.ModelProto:
    nodes = [node("MatMul", ["x", "w"], ["m"], "mm"), node("Relu", ["m"], ["y"], "r")]
    return model(graph(nodes, {"x": ["N", K]}, {"y": ["N", K]}, {"w": weight(K, K)}))


class Counting(Silent):
    def __init__(self) -> None:
        self.continued: list[int] = []

    def resumed(self, samples: int) -> None:
        self.continued.append(samples)


class Disk:
    """Where a file of rows is, which fails at one of them until it is mended."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, at: int = 77) -> None:
        self.at = at
        self.path = folder / "rows" / "x.npy"
        self.path.parent.mkdir()
        np.save(self.path, ROWS)
        read = ArraySamples.__getitem__

        def fragile(samples: ArraySamples, index: int) -> Sample:
            if index == self.at:
                raise DataError("The disk is gone.")
            return read(samples, index)

        patch.setattr(ArraySamples, "__getitem__", fragile)


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(CalibratorOf(name="mse"), id="mse"),
        pytest.param(CalibratorOf(name="moving_average"), id="moving_average"),
    ],
)
def test_a_run_that_failed_half_way_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: CalibratorOf
) -> None:
    monkeypatch.setattr(run, "_PAUSE", 0.0)
    settings = DataSettings(shuffle=False)
    options = CalibrateOptions(workers=1, method=method)
    target, whole = tmp_path / "c", tmp_path / "whole"
    disk = Disk(tmp_path, monkeypatch)
    with pytest.raises(DataError, match="disk"):
        calibrate_model(product(), disk.path, target, options, settings)
    assert not target.exists()
    assert (tmp_path / "c.partial").exists()
    disk.at = -1
    watch = Counting()
    calibrate_model(product(), disk.path, target, options, settings, watch)
    assert len(watch.continued) == 1
    assert 0 < watch.continued[0] < len(ROWS)
    assert not (tmp_path / "c.partial").exists()
    calibrate_model(product(), disk.path, whole, options, settings)
    if method.ordered:  # averages are merged to rounding
        found, expected = Calibration.load(target).ranges(), Calibration.load(whole).ranges()
        for tensor, ends in expected.items():
            assert found[tensor] == pytest.approx(ends, rel=1e-6)
    else:
        assert target.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize("change", ["data", "batch", "limit", "method-of-its-own"])
def test_another_job_does_not_continue_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.setattr(run, "_PAUSE", 0.0)
    target = tmp_path / "c"
    disk = Disk(tmp_path, monkeypatch)
    settings, options = DataSettings(shuffle=False), CalibrateOptions(workers=1)
    with pytest.raises(DataError):
        calibrate_model(product(), disk.path, target, options, settings)
    assert (tmp_path / "c.partial").exists()
    disk.at = -1
    match change:
        case "data":
            np.save(disk.path, ROWS + 1)
        case "batch":
            settings = DataSettings(shuffle=False, batch=2)
        case "limit":
            settings = DataSettings(shuffle=False, limit=100)
        case _:
            options = CalibrateOptions(method=CalibratorOf(name="moving_average"))
    watch = Counting()
    calibrate_model(product(), disk.path, target, options, settings, watch)
    assert watch.continued == []
    assert {path.name for path in tmp_path.iterdir()} == {"c", "rows"}


def test_data_in_memory_leaves_nothing_to_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "_PAUSE", 0.0)
    data = [{"x": row[None]} for row in ROWS]
    calibrate_model(product(), data, tmp_path / "c", CalibrateOptions(workers=1), DataSettings())
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def filled(folder: Path) -> Path:
    save(product(), folder / "m.onnx")
    np.save(folder / "x.npy", np.tile(ROWS, (10, 1)) * np.linspace(1, 2, 1200)[:, None])
    return folder


@pytest.fixture
def work(tmp_path: Path) -> Path:
    return filled(tmp_path)


def start(folder: Path, target: str, slow: float = 0.003) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, str(slow), "calibrate", "m.onnx", "--data", "x.npy"]
    return subprocess.Popen(
        [*command, "-o", target],
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + 40
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.005)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file of a run in one go."""
    folder = filled(tmp_path_factory.mktemp("whole"))
    code, _, err = finish(start(folder, "c.calibration", slow=0))
    assert code == 0, err
    assert "continuing" not in err
    return (folder / "c.calibration").read_bytes()


def continued(work: Path) -> int:
    """Give the same command; return after how many samples it says that it continues."""
    assert not (work / "c.calibration").exists()
    code, _, err = finish(start(work, "c.calibration", slow=0))
    assert code == 0, err
    said = re.search(r"continuing after (\d+) samples", err)
    assert said is not None
    assert not (work / "c.calibration.partial").exists()
    return int(said[1])


@pytest.mark.slow
def test_after_kill_9_the_same_command_continues(work: Path, whole: bytes) -> None:
    killed = start(work, "c.calibration")
    wait_for(work / "c.calibration.partial", killed)
    killed.send_signal(signal.SIGKILL)
    assert finish(killed)[0] == -signal.SIGKILL
    assert 0 < continued(work) < 1200
    assert (work / "c.calibration").read_bytes() == whole


@pytest.mark.slow
def test_after_ctrl_c_the_same_command_continues(work: Path, whole: bytes) -> None:
    process = start(work, "c.calibration")
    wait_for(work / "c.calibration.partial", process)
    process.send_signal(signal.SIGINT)
    code, out, err = finish(process)
    assert code == 130, err
    assert "Traceback" not in out + err
    said = re.search(r"interrupted after (\d+) samples; the same command continues", err)
    assert said is not None
    assert continued(work) == int(said[1])
    assert (work / "c.calibration").read_bytes() == whole


def test_ctrl_c_at_the_end_does_not_count_more_samples_than_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def at_the_end(samples: int) -> None:
        seen.append(samples)
        if samples and sum(seen) == 10:  # once: a second Ctrl-C does not wait
            signal.raise_signal(signal.SIGINT)

    watch = Silent()
    monkeypatch.setattr(watch, "tick", at_the_end)
    data = {"x": ROWS[:10]}
    with pytest.raises(KeyboardInterrupt, match="after 10 samples"):
        calibrate_model(
            product(), data, tmp_path / "c", CalibrateOptions(), DataSettings(batch=4), watch
        )
