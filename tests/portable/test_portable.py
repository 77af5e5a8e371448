"""Every command that reads or writes a model, on a simulated system; run by ``make portable``.

Files are mapped whatever their size, and each command runs twice, so that the second run replaces what the first one wrote.
"""

import gc
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import simulated
from builders import graph, model, node, rng, weight

import quantkit.files
from quantkit.calibration import forks
from quantkit.cli.app import run
from quantkit.model.graph import mapping

K = 256
COMMANDS = {
    "dynamic": "quantize dynamic m.onnx q.onnx",
    "static": "quantize static m.onnx q.onnx --data d.npz",
    "weights": "quantize weights m.onnx q.onnx --data d.npz",
    "float16": "quantize float16 m.onnx q.onnx",
    "float16-compute": "quantize float16 m.onnx q.onnx --compute --data d.npz",
    "optimize": "optimize m.onnx q.onnx",
    "calibrate": "calibrate m.onnx --data d.npz -o q.calibration --workers 2",
    "evaluate": "evaluate m.onnx p.onnx --data d.npz -o result.json",
    "table": "calibrate m.onnx --data d.jsonl -o q.calibration",
    "verify": "verify p.onnx --float m.onnx",
    "diff": "diff m.onnx p.onnx",
    "view": "view m.onnx -o v.html",
    "inspect": "inspect m.onnx",
    "package": "package p.onnx -o folder --no-lock",
}
windows = pytest.mark.skipif(os.environ.get(simulated.SYSTEM) != "windows", reason="about Windows")


def write_inputs(*, external: bool) -> None:
    weights = {name: weight(K, K, seed=i, scale=0.1) for i, name in enumerate("ab")}
    nodes = [
        node("MatMul", ["x", "a"], ["h"], "first"),
        node("Relu", ["h"], ["r"], "relu"),
        node("MatMul", ["r", "b"], ["y"], "second"),
    ]
    proto = model(graph(nodes, {"x": ["N", K]}, {"y": ["N", K]}, weights))
    location = "m.data" if external else None
    onnx.save_model(proto, "m.onnx", save_as_external_data=external, location=location)
    rows = rng(1).standard_normal((64, K)).astype(np.float32)
    np.savez("d.npz", x=rows)
    lines = [json.dumps({"x": row.tolist()}) for row in rows]
    Path("d.jsonl").write_text("\n".join(lines), encoding="utf-8")


@pytest.mark.parametrize("external", [False, True], ids=["one-file", "external-data"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_runs_and_runs_again(
    command: str, *, external: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapping, "SMALL", 0)
    monkeypatch.chdir(tmp_path)
    write_inputs(external=external)
    own = ["--external-data"] if external else []
    arguments = COMMANDS[command].split()
    if "p.onnx" in arguments:
        assert run(["quantize", "dynamic", "m.onnx", "p.onnx", *own]) == 0
    if arguments[0] == "quantize":
        arguments += own
    gc.disable()  # that files are let go of must not be luck
    try:
        assert [run(arguments) for _ in range(2)] == [0, 0]
    finally:
        gc.enable()
    assert not list(tmp_path.rglob(".quantkit*"))


def test_processes_that_are_started_see_the_system_too(tmp_path: Path) -> None:
    code = "from quantkit.calibration import forks; print(forks.sys.platform, forks.can_fork())"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [vars(forks)["sys"].platform, "False"]


def test_quantkit_finds_no_proc_and_others_do() -> None:
    assert quantkit.files._start_of(os.getpid()) == "0" * 8
    assert Path("/proc/self/stat").exists()


@windows
def test_quantkit_finds_no_posix_names_and_others_do() -> None:
    seen = vars(quantkit.files)["os"]
    assert seen.name == "nt"
    assert os.name == "posix"
    for name in ("preadv", "chown", "fork", "getuid", "sched_getaffinity", "O_NOFOLLOW", "sysconf"):
        assert hasattr(os, name)
        assert not hasattr(seen, name)
    for name in ("replace", "getpid", "access", "umask", "O_WRONLY", "fsync", "cpu_count"):
        assert hasattr(seen, name)


@windows
def test_files_that_are_open_or_mapped_stay(tmp_path: Path) -> None:
    """Fails where the simulation itself sees no violation; quantkit is made to commit one of each kind."""
    path, new = tmp_path / "file", tmp_path / "new"
    path.write_bytes(b"content")
    new.write_bytes(b"other")
    with path.open("rb"), pytest.raises(PermissionError):
        quantkit.files.put(new, path)
    view = mapping.MappedFile(path)
    mapping.SMALL, small = 0, mapping.SMALL
    try:
        content = view.view()
    finally:
        mapping.SMALL = small
    with pytest.raises(PermissionError):
        quantkit.files.put(new, path)
    with quantkit.files.scratch(tmp_path) as folder:
        shutil.copy(path, folder / "open")
        held = io.open(folder / "open", "rb")  # noqa: SIM115, UP020 - it outlives the folder
    with held:
        assert folder.exists()
    assert len(simulated.VIOLATIONS) == 3
    simulated.VIOLATIONS.clear()
    content.release()
