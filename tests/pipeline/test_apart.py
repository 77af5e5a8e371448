"""A crash of onnxruntime ends a child process: one line, nothing written, and the caller goes on."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import graph, model, node, save, weight

from quantkit.cli.app import run
from quantkit.errors import VerifyError
from quantkit.pipeline.apart import compare_apart
from quantkit.runtime.check_result import compare, run_float
from quantkit.runtime.session import load_model


def product() -> onnx.ModelProto:
    return model(
        graph(
            [node("MatMul", ["x", "w"], ["y"])],
            {"x": [4, 64]},
            {"y": [4, 64]},
            {"w": weight(64, 64)},
        )
    )


@pytest.mark.parametrize(
    ("number", "named"),
    [
        (signal.SIGSEGV, "onnxruntime crashes (SIGSEGV)"),
        (signal.SIGABRT, "onnxruntime crashes (SIGABRT)"),
        (signal.SIGILL, "onnxruntime crashes (SIGILL)"),
        (signal.SIGKILL, "for want of memory"),
    ],
)
def test_a_crash_is_one_line_and_leaves_nothing(
    number: signal.Signals,
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    save(product(), tmp_path / "m.onnx")
    parent = os.getpid()

    def dying(*given: Any, **named: Any) -> Any:
        if os.getpid() != parent:
            os.kill(os.getpid(), number)
        return compare(*given, **named)

    monkeypatch.setattr("quantkit.pipeline.apart.compare", dying)
    monkeypatch.setattr("quantkit.pipeline.apart.can_fork", lambda: True)
    (tmp_path / "q.onnx").write_bytes(b"old")
    arguments = ["quantize", "float16", str(tmp_path / "m.onnx"), str(tmp_path / "q.onnx")]
    assert run(arguments) == 2
    said = capsys.readouterr().err
    assert named in said
    assert said.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx", "q.onnx"]
    assert (tmp_path / "q.onnx").read_bytes() == b"old"


@pytest.mark.slow
def test_a_child_that_is_stuck_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, parent = save(product(), tmp_path / "m.onnx"), os.getpid()

    def waiting(*given: Any, **named: Any) -> Any:
        if os.getpid() != parent:
            time.sleep(120)  # as for a lock that a thread of the parent held
        return compare(*given, **named)

    monkeypatch.setattr("quantkit.pipeline.apart.compare", waiting)
    monkeypatch.setattr("quantkit.pipeline.apart.can_fork", lambda: True)
    monkeypatch.setattr("quantkit.pipeline.apart._STUCK", 0.5)
    started = time.monotonic()
    found = compare_apart(path, run_float(load_model(path)), nbytes=path.stat().st_size)
    assert found.ran
    assert time.monotonic() - started < 60


@pytest.mark.parametrize("returncode", [-signal.SIGSEGV, 0xC0000005])
@pytest.mark.slow
def test_where_forking_is_not_safe_a_fresh_interpreter_crashes(
    returncode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(product(), tmp_path / "m.onnx")
    reference = run_float(load_model(path))
    monkeypatch.setattr("quantkit.pipeline.apart.can_fork", lambda: False)
    assert compare_apart(path, reference, nbytes=1000).ran
    crashed = subprocess.CompletedProcess([], returncode, "", "")
    monkeypatch.setattr("quantkit.evaluate.memory.subprocess.run", lambda *_, **__: crashed)
    with pytest.raises(VerifyError, match="onnxruntime crashes"):
        compare_apart(path, reference, nbytes=1000)


def test_without_processes_the_caller_compares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise OSError("no process left")

    path = save(product(), tmp_path / "m.onnx")
    reference = run_float(load_model(path))
    monkeypatch.setattr("quantkit.pipeline.apart.can_fork", lambda: True)
    monkeypatch.setattr("quantkit.calibration.forks.Crew.size", 0)
    monkeypatch.setattr("quantkit.evaluate.memory.subprocess.run", refused)
    assert compare_apart(path, reference, nbytes=1000).compared["y"] > 100


@pytest.mark.parametrize("perm", [[1, 0, 2], [1, 2, 0]])
@pytest.mark.slow
def test_a_transpose_of_the_batch_does_not_crash_in_float16(
    perm: list[int], tmp_path: Path
) -> None:
    shape = [0, 0, 0]
    for axis, extent in zip(perm, (5, 3, 64), strict=True):
        shape[axis] = extent
    nodes = [
        node("Transpose", ["x"], ["t"], "turn", perm=perm),
        node("Identity", ["t"], ["i"]),
        node("MatMul", ["i", "w"], ["m"]),
        node("MatMul", ["m", "v"], ["y"]),
    ]
    held = {"w": weight(64, 64), "v": weight(64, 64, seed=1)}
    save(model(graph(nodes, {"x": shape}, {"y": [5, 3, 64]}, held)), tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", x=np.ones(shape, np.float32))
    # A process of its own: if it crashes, the other tests go on.
    command = ["quantize", "float16", "m.onnx", "q.onnx", "--compute"]
    done = subprocess.run(
        [sys.executable, "-m", "quantkit", *command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "onnxruntime crashes where it fuses this Transpose" in done.stdout
    made = {n.op_type for n in onnx.load(tmp_path / "q.onnx").graph.node}
    assert {"Cast", "Transpose", "MatMul"} <= made
