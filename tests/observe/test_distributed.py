"""Workers of a dask cluster: the same bits, also when one of them is lost."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import graph, model, node, rng, save, weight

from quantkit.calibration import CalibrateOptions, calibrate_model
from quantkit.errors import UsageError
from quantkit.observe import CalibratorAsk
from quantkit.observe.distributed import cluster
from quantkit.recipe import DataSettings

K = 6
ROWS = rng().standard_normal((200, K)).astype(np.float32)
# Kills a worker when the first shard has come back; the others do not know of it.
KILLER = """
import os, signal, sys
from contextlib import contextmanager
from pathlib import Path
from quantkit import calibration
from quantkit.observe.monitor import Silent
from quantkit.recipe import DataSettings

pids = []
real = calibration.cluster

@contextmanager
def watched(scheduler, workers):
    with real(scheduler, workers) as client:
        pids.extend(client.run(os.getpid).values())
        yield client

class Killer(Silent):
    def tick(self, samples):
        if len(pids) == 2:
            os.kill(pids.pop(), signal.SIGKILL)

if __name__ == "__main__":
    calibration.cluster = watched
    options = calibration.CalibrateOptions(processes=True, workers=2)
    calibration.calibrate_model(
        Path("m.onnx"), Path("x.npy"), Path("killed"), options, DataSettings(), Killer()
    )
    print("killed", 2 - len(pids))
"""


def product() -> onnx.ModelProto:
    nodes = [node("MatMul", ["x", "w"], ["m"], "mm"), node("Relu", ["m"], ["y"], "r")]
    return model(graph(nodes, {"x": ["N", K]}, {"y": ["N", K]}, {"w": weight(K, K)}))


@pytest.fixture
def work(tmp_path: Path) -> Path:
    save(product(), tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", ROWS)
    return tmp_path


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def local_file(work: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    monkeypatch.chdir(work)
    options = CalibrateOptions(workers=1)
    calibrate_model(Path("m.onnx"), Path("x.npy"), Path("local"), options, DataSettings())
    return (work / "local").read_bytes()


def test_a_local_cluster_writes_the_file_of_a_local_run(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = "import sys; from quantkit.cli.app import run; sys.exit(run(sys.argv[1:]))"
    arguments = ("calibrate", "m.onnx", "--data", "x.npy", "-o", "dask", "--workers", "2")
    done = run(work, "-c", program, *arguments)
    assert done.returncode == 0, done.stderr
    assert (work / "dask").read_bytes() == local_file(work, monkeypatch)


def test_a_lost_worker_changes_nothing(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (work / "killer.py").write_text(KILLER)
    done = run(work, "killer.py")
    assert done.returncode == 0, done.stderr
    assert "killed 1" in done.stdout
    assert (work / "killed").read_bytes() == local_file(work, monkeypatch)
    assert not (work / "killed.partial").exists()


@pytest.mark.parametrize("address", ["nonsense://nowhere", "127.0.0.1"])
def test_an_address_without_a_scheduler_is_a_usage_error(address: str) -> None:
    with (
        pytest.raises(UsageError, match="No dask scheduler answers at") as caught,
        cluster(address, None),
    ):
        pass
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("error", [OSError, TimeoutError, ValueError])
def test_whatever_dask_says_of_a_dead_scheduler_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    import distributed

    def refused(*_: Any, **__: Any) -> None:
        raise error("Timed out trying to connect to tcp://127.0.0.1:9 after 10 s\nand more")

    monkeypatch.setattr(distributed, "Client", refused)
    with (
        pytest.raises(UsageError, match=r"tcp://127.0.0.1:9.*dask scheduler"),
        cluster("tcp://127.0.0.1:9", None),
    ):
        pass


def test_without_dask_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    options = CalibrateOptions(processes=True, workers=2)
    with pytest.raises(
        UsageError, match=r"pip install distributed, or 'quantkit-onnx\[distributed\]'"
    ):
        calibrate_model(product(), {"x": ROWS}, tmp_path / "c", options, DataSettings())
    assert list(tmp_path.iterdir()) == []


def test_what_depends_on_the_order_does_not_go_to_a_cluster() -> None:
    options = CalibrateOptions(processes=True, method=CalibratorAsk(name="moving_average"))
    with pytest.raises(UsageError, match="depends on the order"):
        calibrate_model(product(), {"x": ROWS}, None, options, DataSettings())
