"""Workers on this machine: processes or threads, the same bits; in order where the order matters."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from builders import graph, model, node, rng, weight

import quantkit
from quantkit.calibration import CalibratorOf, Request
from quantkit.calibration import run as engine
from quantkit.calibration.collect import CalibrateOptions
from quantkit.calibration.forks import can_fork
from quantkit.calibration.job import Job, Shard, ShardResult
from quantkit.calibration.requests import Observations
from quantkit.errors import DataError
from quantkit.pipeline.calibrate import calibrate_model
from quantkit.settings import DataSettings

pytestmark = pytest.mark.all_cores

K = 6
ROWS = rng().standard_normal((150, K)).astype(np.float32)


def product() -> onnx.ModelProto:
    nodes = [node("MatMul", ["x", "w"], ["m"], "mm"), node("Relu", ["m"], ["y"], "r")]
    return model(graph(nodes, {"x": ["N", K]}, {"y": ["N", K]}, {"w": weight(K, K)}))


@contextmanager
def another_thread() -> Iterator[None]:
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def file_of(path: Path, data: object, **options: Any) -> bytes:
    calibrate_model(product(), data, path, CalibrateOptions(**options), DataSettings(batch=2))
    return path.read_bytes()


def in_a_process_of_its_own(call: str, folder: Path) -> str:
    """Run a function of this file where no test before it has left threads behind, so that it may fork."""
    here = Path(__file__).parent
    code = f"import sys; sys.path[:0] = {[str(here), *sys.path]!r}\n"
    code += f"import test_local_engine as t\nassert t.can_fork()\nt.{call}"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


@pytest.mark.slow
def test_processes_threads_and_one_worker_give_the_same_bytes(tmp_path: Path) -> None:
    data = {"x": ROWS}
    assert (
        in_a_process_of_its_own("file_of(t.Path('forked'), {'x': t.ROWS}, workers=2)", tmp_path)
        == ""
    )
    forked = (tmp_path / "forked").read_bytes()
    with another_thread():
        assert not can_fork()
        assert file_of(tmp_path / "threaded", data, workers=2) == forked
    assert file_of(tmp_path / "one", data, workers=1) == forked
    assert file_of(tmp_path / "three", data, workers=3) == forked
    assert sorted(p.name for p in tmp_path.iterdir()) == ["forked", "one", "threaded", "three"]


class Deadly:
    """A sequence one of whose elements ends the process that reads it, unless it is the test."""

    def __init__(self) -> None:
        self.parent = os.getpid()

    def __len__(self) -> int:
        return len(ROWS)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == 100 and os.getpid() != self.parent:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"x": ROWS[index]}


@pytest.mark.slow
def test_a_killed_worker_is_one_clear_error(tmp_path: Path) -> None:
    said = in_a_process_of_its_own("file_of(t.Path('c'), t.Deadly(), workers=2)", tmp_path)
    last = said.splitlines()[-1]
    assert last.startswith("quantkit.calibration.forks.WorkerDiedError: A worker process died")
    assert "continues" in last
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("threads", [True, False], ids=["threads", "processes"])
def test_an_error_of_a_worker_comes_out_as_it_is(tmp_path: Path, *, threads: bool) -> None:
    rows = [{"x": row} for row in ROWS]
    rows[70] = {"x": ROWS[70][:-1]}
    with (
        another_thread() if threads else nullcontext(),
        pytest.raises(DataError, match="sample 70"),
    ):
        file_of(tmp_path / "c", rows, workers=2)
    assert list(tmp_path.iterdir()) == []


def reference(values: np.ndarray[Any, Any]) -> tuple[float, float]:
    low, high = float(values[0].min()), float(values[0].max())
    for row in values:
        low, high = 0.9 * low + 0.1 * float(row.min()), 0.9 * high + 0.1 * float(row.max())
    return min(low, 0.0), max(high, 0.0)


def test_a_moving_average_sees_the_samples_in_their_order() -> None:
    rows = ROWS * np.linspace(1, 20, len(ROWS), dtype=np.float32)[:, None]
    settings = DataSettings(shuffle=False)
    found = quantkit.calibrate(product(), {"x": rows}, method="moving_average", settings=settings)
    assert found.ranges()["x"] == pytest.approx(reference(rows), rel=1e-5)


def instant(job: Job, shard: Shard, *_: Any, **__: Any) -> ShardResult:
    del job
    return ShardResult(shard=shard, last=shard.last, seconds=0, seen=Observations({}, {}))


def test_one_worker_gives_its_results_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "observe_shard", instant)
    monkeypatch.setattr(engine, "opened", lambda *_: None)
    job = Job(key="", model="", samples=None, groups=((),))
    shards = [Shard(group=0, segment=0, first=i, last=i + 1) for i in range(20)]
    real = futures.wait

    def late(pending: Any, *_: Any) -> Any:
        """Look when both are done; a set has no order, so take the one that matters."""
        done = real(pending).done
        return SimpleNamespace(done=sorted(done, key=lambda f: -f.result().shard.first))

    monkeypatch.setattr(futures, "wait", late)
    running = engine.run_locally(job, iter(shards), 1, tick=lambda _: None, stopped=lambda: False)
    assert [result.shard.first for result in running] == list(range(20))


def test_a_request_that_depends_on_the_order_runs_on_one_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from quantkit.calibration import collect
    from quantkit.calibration.run import observe

    asked: list[int] = []

    def watched(job: Job, **kwargs: Any) -> Any:
        asked.append(kwargs["workers"])
        return observe(job, **kwargs)

    monkeypatch.setattr(collect, "observe", watched)
    request = Request(tensor="x", statistic=CalibratorOf(name="moving_average"))
    quantkit.calibrate(product(), {"x": ROWS}, requests=[request], workers=2)
    assert asked == [1]
