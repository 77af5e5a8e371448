"""Workers of a dask cluster: the same bits, also when one of them is lost; a cluster that is gone is an error and no wait."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import graph, model, node, rng, save, weight

from quantkit.calibration import CalibratorOf
from quantkit.calibration.collect import CalibrateOptions
from quantkit.calibration.distributed import cluster
from quantkit.errors import UsageError
from quantkit.pipeline.calibrate import calibrate_model
from quantkit.settings import DataSettings

K = 6
ROWS = rng().standard_normal((200, K)).astype(np.float32)
# Samples that take their time, and a run that says how it goes and ends.
DRIVE = """
import sys, time
from pathlib import Path
import numpy as np
import quantkit.calibration.distributed as distributed
from quantkit.calibration.collect import CalibrateOptions
from quantkit.pipeline.calibrate import calibrate_model
from quantkit.errors import QuantkitError
from quantkit.calibration.monitor import Silent
from quantkit.settings import DataSettings
from slow import Slow

class Told(Silent):
    def tick(self, samples):
        print("tick", flush=True)

distributed._PATIENCE = 2.0
data = Slow() if sys.argv[2] == "slow" else Path("x.npy")
try:
    calibrate_model(
        Path("m.onnx"), data, Path("out"), CalibrateOptions(scheduler=sys.argv[1]), DataSettings(), Told()
    )
    print("done")
except QuantkitError as e:
    print("error:", e)
except KeyboardInterrupt as e:
    print("stopped:", e)
"""
SLOW = """
import time
import numpy as np

class Slow:
    rows = np.load("x.npy")
    def __len__(self):
        return len(self.rows)
    def __getitem__(self, index):
        time.sleep(0.02)
        return {"x": self.rows[index : index + 1]}
"""


def product() -> onnx.ModelProto:
    nodes = [node("MatMul", ["x", "w"], ["m"], "mm"), node("Relu", ["m"], ["y"], "r")]
    return model(graph(nodes, {"x": ["N", K]}, {"y": ["N", K]}, {"w": weight(K, K)}))


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    save(product(), tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", ROWS)
    (tmp_path / "drive.py").write_text(DRIVE)
    (tmp_path / "slow.py").write_text(SLOW)
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Dask:
    """A scheduler of the test's own, and its workers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "scheduler.json"
        self.started: list[subprocess.Popen[bytes]] = []
        self.scheduler = self._start("scheduler", "--port", "0", "--no-dashboard")
        while not self.file.exists():
            assert self.scheduler.poll() is None, (folder / "scheduler.log").read_text()
            time.sleep(0.05)

    def _start(self, what: str, *flags: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "dask", what, "--host", "127.0.0.1", *flags]
        with (self.folder / f"{what}.log").open("ab") as log:
            process = subprocess.Popen(
                [*command, "--scheduler-file", str(self.file)],
                cwd=self.folder,
                env=os.environ | {"PYTHONPATH": os.pathsep.join([*sys.path, str(self.folder)])},
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        self.started.append(process)
        return process

    def worker(self) -> subprocess.Popen[bytes]:
        scratch = str(self.folder / "scratch")
        return self._start(
            "worker",
            "--nthreads",
            "1",
            "--no-nanny",
            "--no-dashboard",
            "--local-directory",
            scratch,
        )

    @property
    def address(self) -> str:
        import json

        return str(json.loads(self.file.read_text())["address"])

    def drive(self, data: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "drive.py", self.address, data],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self) -> None:
        for process in self.started:
            process.kill()
            process.wait()


@pytest.fixture
def dask(work: Path) -> Iterator[Dask]:
    made = Dask(work)
    yield made
    made.end()


def after_the_first_tick(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line == "tick\n", (line, process.communicate())


def ended(process: subprocess.Popen[str]) -> str:
    """Return the last line that a run says; nothing else may be said."""
    out, err = process.communicate(timeout=60)
    assert err == ""
    return out.splitlines()[-1]


def local_file() -> bytes:
    options = CalibrateOptions(workers=1)
    calibrate_model(Path("m.onnx"), Path("x.npy"), Path("local"), options, DataSettings())
    return Path("local").read_bytes()


@pytest.mark.slow
def test_a_cluster_writes_the_file_of_a_local_run_also_without_one_of_its_workers(
    dask: Dask,
) -> None:
    first = dask.worker()
    dask.worker()
    assert ended(dask.drive("file")) == "done"
    assert Path("out").read_bytes() == local_file()
    run = dask.drive("slow")
    after_the_first_tick(run)
    first.kill()
    assert ended(run) == "done"


def test_a_scheduler_without_workers_is_an_error(dask: Dask) -> None:
    said = ended(dask.drive("file"))
    assert said.startswith(f"error: The dask scheduler at '{dask.address}' has no workers")
    assert f"start some with 'dask worker {dask.address}'" in said


@pytest.mark.slow
def test_the_last_worker_that_goes_is_an_error(dask: Dask) -> None:
    worker = dask.worker()
    run = dask.drive("slow")
    after_the_first_tick(run)
    worker.kill()
    assert ended(run).startswith("error: All workers of the cluster are gone: ")


@pytest.mark.slow
def test_a_scheduler_that_goes_is_an_error(dask: Dask) -> None:
    dask.worker()
    run = dask.drive("slow")
    after_the_first_tick(run)
    dask.scheduler.kill()
    assert ended(run).startswith("error: The dask scheduler was lost: ")


@pytest.mark.slow
def test_ctrl_c_does_not_wait_for_the_workers(dask: Dask) -> None:
    dask.worker()
    run = dask.drive("slow")
    after_the_first_tick(run)
    started = time.monotonic()
    run.send_signal(signal.SIGINT)
    assert ended(run).startswith("stopped: interrupted after ")
    assert time.monotonic() - started < 8


@pytest.mark.slow
def test_workers_of_this_machine_need_no_dask_and_open_no_port(work: Path) -> None:
    """A local cluster ran the code of any process of the machine that knew its port."""
    program = (
        "import sys\nfrom quantkit.cli.app import run\n"
        "code = run(sys.argv[1:])\n"
        "sys.exit(code or ('distributed' in sys.modules) or ('asyncio' in sys.modules))"
    )
    arguments = ("calibrate", "m.onnx", "--data", "x.npy", "-o", "two", "--workers", "2")
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (work / "two").read_bytes() == local_file()


@pytest.mark.parametrize("address", ["nonsense://nowhere", "127.0.0.1"])
def test_an_address_without_a_scheduler_is_a_usage_error(address: str) -> None:
    with (
        pytest.raises(UsageError, match="No dask scheduler answers at") as caught,
        cluster(address),
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
        cluster("tcp://127.0.0.1:9"),
    ):
        pass


def test_without_dask_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    options = CalibrateOptions(scheduler="tcp://127.0.0.1:9")
    with pytest.raises(UsageError, match=r"--scheduler needs dask: pip install .*\[distributed\]"):
        calibrate_model(product(), {"x": ROWS}, tmp_path / "c", options, DataSettings())
    assert list(tmp_path.iterdir()) == []


def test_what_depends_on_the_order_does_not_go_to_a_cluster() -> None:
    options = CalibrateOptions(
        scheduler="tcp://127.0.0.1:9", method=CalibratorOf(name="moving_average")
    )
    with pytest.raises(UsageError, match="depends on the order"):
        calibrate_model(product(), {"x": ROWS}, None, options, DataSettings())
