"""Commands killed at any moment: inputs and earlier results stay, no process goes on, and the next run tidies up."""

import itertools
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from builders import graph, model, node, rng, save, weight
from fuzzing import chance, seeds

OLD = b"an earlier result"
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
ENDED = {signal.SIGKILL: -9, signal.SIGTERM: 143, signal.SIGINT: 130}
COMMANDS = {
    "static": ("quantize", "static", "m.onnx", "out", "--data", "data"),
    "calibrate": ("calibrate", "m.onnx", "--data", "data", "-o", "out"),
}
# Says when signals are heeded; what came before is the interpreter's.
PROGRAM = """
import quantkit.cli.app as app
run = app.run
def told(arguments):
    print("ready", flush=True)
    return run(arguments)
app.run = told
from quantkit.cli import main
main()
"""


@dataclass(frozen=True)
class Whole:
    """What a run that nobody disturbs takes and writes."""

    seconds: float
    result: bytes


def prepare(folder: Path) -> dict[str, bytes]:
    """Write a model and data, and return them."""
    names = ["x", "a", "b", "c", "y"]
    nodes, held = [], {}
    for place, (source, result) in enumerate(itertools.pairwise(names)):
        held[f"w{place}"] = weight(16, 3 if place == 0 else 16, 3, 3, seed=place)
        conv = node("Conv", [source, f"w{place}"], [f"{result}_"], f"conv{place}", pads=[1] * 4)
        nodes += [conv, node("Relu", [f"{result}_"], [result], f"relu{place}")]
    shape = [1, 16, 32, 32]
    save(model(graph(nodes, {"x": [1, 3, 32, 32]}, {"y": shape}, held)), folder / "m.onnx")
    (folder / "data").mkdir()
    (folder / "tmp").mkdir()
    np.save(folder / "data" / "x.npy", rng().standard_normal((60, 3, 32, 32)).astype(np.float32))
    return {name: (folder / name).read_bytes() for name in ("m.onnx", "data/x.npy")}


def start(command: str, folder: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *COMMANDS[command]],
        cwd=folder,
        env=os.environ | {"TMPDIR": str(folder / "tmp")},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def undisturbed(command: str, folder: Path) -> Whole:
    process = start(command, folder)
    started = time.monotonic()
    process.communicate(timeout=120)
    assert process.returncode == 0
    return Whole(time.monotonic() - started, (folder / "out").read_bytes())


def session(number: int) -> list[str]:
    """Return the processes of a session that are alive."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, fields = path.read_text(errors="replace").rpartition(")")
        except OSError:
            continue
        state, _, _, own = fields.split()[:4]
        if own == str(number) and state not in "ZX":
            found.append(name)
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Whole]:
    found = {}
    for command in COMMANDS:
        folder = tmp_path_factory.mktemp(command)
        prepare(folder)
        found[command] = undisturbed(command, folder)
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are found in /proc")
@pytest.mark.parametrize("seed", seeds(4))
@pytest.mark.slow
def test_a_command_that_is_killed_loses_nothing(
    seed: int, whole: dict[str, Whole], tmp_path: Path
) -> None:
    source = chance(seed)
    command, number = source.choice(list(COMMANDS)), SIGNALS[seed % len(SIGNALS)]
    inputs = prepare(tmp_path)
    (tmp_path / "out").write_bytes(OLD)
    process = start(command, tmp_path)
    time.sleep(source.uniform(0, 1.1 * whole[command].seconds))
    if number is signal.SIGINT and process.poll() is None:
        os.killpg(process.pid, number)  # as a terminal does it
    else:
        process.send_signal(number)
    process.communicate(timeout=20)
    deadline = time.monotonic() + 2
    while (left := session(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left
    assert {name: (tmp_path / name).read_bytes() for name in inputs} == inputs
    result = (tmp_path / "out").read_bytes()
    assert result in {OLD, whole[command].result}
    # When everything is done and the interpreter ends, signals do what they do to any process.
    over = {0, -number} if result != OLD else set()
    assert process.returncode in {ENDED[number], *over}
    if number is not signal.SIGKILL:
        assert not list((tmp_path / "tmp").iterdir())
        assert not list(tmp_path.glob(".*"))
    again = undisturbed(command, tmp_path)
    assert again.result == whole[command].result
    assert not list((tmp_path / "tmp").iterdir())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data", "m.onnx", "out", "tmp"]
