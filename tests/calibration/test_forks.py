"""Forked workers end with their parent and at its word, and there may be fewer of them than asked for."""

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import graph, model, node, rng, weight

import quantkit
from quantkit.calibration.forks import Crew, Threads, can_fork, forked_map, make_crew
from quantkit.errors import QuantkitError

pytestmark = pytest.mark.all_cores

HERE = Path(__file__).parent
LONG = 600  # seconds: a test that waits for it has failed


def program(code: str) -> "subprocess.Popen[str]":
    """Start Python, in a process group of its own, with the functions of this file as `t`."""
    paths = [str(HERE), *sys.path]
    start = f"import sys; sys.path[:0] = {paths!r}\nimport test_forks as t\nassert t.can_fork()\n"
    return subprocess.Popen(
        [sys.executable, "-u", "-c", start + code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def gone(pids: list[int]) -> bool:
    """Wait until all processes have ended, a few seconds at most."""
    for _ in range(50):
        if not any(map(is_alive, pids)):
            return True
        time.sleep(0.1)
    return False


def idle_crew() -> None:
    """Say who the workers are, who then do nothing for long."""

    def wait(_: object, say: Callable[[Any], None]) -> None:
        say(os.getpid())
        time.sleep(LONG)

    with Crew(wait, 2) as crew:
        for _ in crew.work([1, 2], hear=print):
            pass


def busy_map() -> None:
    sys.stdout.write("begun\n")
    forked_map(time.sleep, [LONG] * 4, 2)


def workers_of(process: "subprocess.Popen[str]") -> list[int]:
    assert process.stdout is not None
    return [int(process.stdout.readline()) for _ in range(2)]


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_a_parent_that_is_killed(how: signal.Signals) -> None:
    process = program("t.idle_crew()")
    workers = workers_of(process)
    process.send_signal(how)
    process.communicate(timeout=30)  # until nobody has its output open
    assert process.returncode == -how
    assert gone(workers)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_ctrl_c_ends_parent_and_workers_at_once() -> None:
    process = program("t.idle_crew()")
    workers = workers_of(process)
    os.killpg(process.pid, signal.SIGINT)
    said = process.communicate(timeout=30)[1]
    assert said.count("KeyboardInterrupt") == 1  # of the parent alone
    assert gone(workers)


def test_ctrl_c_ends_a_map() -> None:
    process = program("t.busy_map()")
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)
    assert "KeyboardInterrupt" in process.communicate(timeout=30)[1]


def ranges(*, workers: int) -> dict[str, tuple[float, float]]:
    """Calibrate a small model."""
    nodes = [node("MatMul", ["x", "w"], ["y"], "mm")]
    proto = model(graph(nodes, {"x": ["N", 6]}, {"y": ["N", 6]}, {"w": weight(6, 6)}))
    rows = rng().standard_normal((150, 6)).astype(np.float32)
    return quantkit.calibrate(proto, {"x": rows}, workers=workers).ranges()


def few_forks(count: int, call: str) -> str:
    """Run a call in a process whose system gives it so many children only; return what it printed."""
    code = f"""
import os
real, left = os.fork, [{count}]
def fork():
    if not left[0]:
        raise BlockingIOError(11, "Resource temporarily unavailable")
    left[0] -= 1
    return real()
os.fork = fork
print({call})
"""
    process = program(code)
    out, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    return out.strip()


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_map_does_with_the_processes_that_there_are(count: int) -> None:
    expected = str([i * i for i in range(9)])
    assert few_forks(count, "t.forked_map(lambda i: i * i, range(9), 2)") == expected


@pytest.mark.parametrize("count", [0, 1])
def test_observing_does_with_the_processes_that_there_are(count: int) -> None:
    assert few_forks(count, "t.ranges(workers=2)") == str(ranges(workers=1))


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_nothing_is_forked_on_systems_other_than_linux(
    system: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> int:
        pytest.fail("forked")

    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(os, "fork", refuse)
    assert not can_fork()
    assert forked_map(lambda i: i * i, range(9), 2) == [i * i for i in range(9)]
    assert ranges(workers=2) == ranges(workers=1)

    def square(item: int, say: Callable[[int], None]) -> int:
        say(item)
        return item * item

    with make_crew(square, 2) as crew:
        heard: list[int] = []
        found = [result for result in crew.work(range(9), heard.append) if result is not None]
    assert (sorted(found), sorted(heard)) == ([i * i for i in range(9)], list(range(9)))


def test_a_thread_that_fails_ends_the_others_items() -> None:
    done: list[int] = []

    def fail(item: int, _: object) -> None:
        done.append(item)
        assert item != 2

    with pytest.raises(AssertionError), Threads(fail, 1) as crew:
        list(crew.work(range(100)))
    assert done in ([0, 1, 2], [0, 1, 2, 3])


class UnluckyError(Exception):
    """An error that cannot be made again from what it says, unless dask has taught errors to travel."""

    def __init__(self, *, reason: str) -> None:
        super().__init__(reason)


def unlucky(item: int) -> int:
    if item == 3:
        raise UnluckyError(reason="three")
    return item


def deadly(item: int) -> int:
    if item == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return item


@pytest.fixture
def forks() -> None:
    """Skip where other tests left threads: then this process itself does what workers are to do, and die of."""
    if not can_fork():
        pytest.skip("other threads run")


@pytest.mark.usefixtures("forks")
def test_what_fails_in_a_worker_fails_here() -> None:
    with pytest.raises((QuantkitError, UnluckyError), match="three"):
        forked_map(unlucky, range(8), 2)
    with pytest.raises(QuantkitError, match="A worker process died"):
        forked_map(deadly, range(8), 2)
    with pytest.raises(ZeroDivisionError):
        forked_map(lambda i: 1 // i, range(8), 2)


def test_results_come_in_order_and_each_is_told() -> None:
    told: list[int] = []
    found = forked_map(lambda i: np.full(3, i), range(20), 3, told.append)
    assert [int(a[0]) for a in found] == list(range(20))
    assert told == [1] * 20


class Joined:
    """Garbage that waits for ever when another process than its own collects it, as a session of onnxruntime does."""

    def __init__(self) -> None:
        self.home, self.itself = os.getpid(), self

    def __del__(self) -> None:
        if os.getpid() != self.home:
            os._exit(9)


@pytest.mark.usefixtures("forks")
def test_workers_do_not_collect_what_their_parent_left() -> None:
    gc.disable()
    try:
        Joined()
        assert forked_map(lambda i: i + 0 * gc.collect(), range(4), 2) == [0, 1, 2, 3]
    finally:
        gc.enable()
