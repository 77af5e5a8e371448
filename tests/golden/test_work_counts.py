"""How often one `quantize_static`, and one `evaluate_models`, reads models, writes them, opens the data and makes a session.

Functions are counted as they are entered, by their names, so that it does not matter who imports them from where. Folders
and files of data are counted as the interpreter opens them.
"""

import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from builders import Array, graph, model, node, rng, save, weight

import quantkit

HOME = str(Path(quantkit.__file__).parent)
COUNTED = {
    "load": "model loads",  # of quantkit.model.graph.load
    "Stage.write": "model writes",
    "open_data": "data openings",
    "InferenceSession.__init__": "sessions",
}
_listening: list[Counter[str]] = []
_folders: list[str] = []


def _heard(event: str, arguments: tuple[Any, ...]) -> None:
    if not _listening or event not in {"open", "os.listdir", "os.scandir"}:
        return
    path = os.fspath(arguments[0]) if isinstance(arguments[0], str | os.PathLike) else ""
    if isinstance(path, str) and _folders and path.startswith(_folders[-1]):
        _listening[-1]["sample reads" if event == "open" else "folder listings"] += 1


sys.addaudithook(_heard)  # cannot be taken back, but hears nothing while nobody listens


@contextmanager
def counted(data: Path) -> Iterator[Counter[str]]:
    """Count in this process; with one core nothing runs in another."""
    found: Counter[str] = Counter()

    def entered(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or code.co_qualname not in COUNTED:
            return
        inside = code.co_filename.startswith(HOME)
        if inside and (code.co_qualname != "load" or code.co_filename.endswith("load.py")):
            found[COUNTED[code.co_qualname]] += 1
        elif code.co_qualname == "InferenceSession.__init__":
            found["sessions"] += 1

    before = sys.getprofile()
    _listening.append(found)
    _folders.append(str(data))
    sys.setprofile(entered)
    try:
        yield found
    finally:
        sys.setprofile(before)
        _folders.pop()
        _listening.pop()


@pytest.fixture
def one_core() -> Iterator[None]:
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("work is counted on one core, and this system cannot be told to use one")
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


def float_model(path: Path, *, equalized: bool) -> Path:
    """Two Conv with a Relu between, whose channels can be evened out, or a Sigmoid, which forbids that."""
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["a"], "one", pads=[1] * 4),
        node("Relu" if equalized else "Sigmoid", ["a"], ["r"], "act"),
        node("Conv", ["r", "w2", "b2"], ["y"], "two", pads=[1] * 4),
    ]
    spread = np.geomspace(0.02, 2.0, 8, dtype=np.float32)[:, None, None, None]
    weights: dict[str, Array] = {
        "w1": weight(8, 3, 3, 3) * (spread if equalized else 1),
        "w2": weight(8, 8, 3, 3, seed=1),
        "b1": weight(8, seed=2),
        "b2": weight(8, seed=3),
    }
    return save(model(graph(nodes, {"x": ["N", 3, 8, 8]}, {"y": None}, weights)), path)


def samples(folder: Path) -> Path:
    folder.mkdir()
    for i in range(4):
        np.save(folder / f"{i}.npy", rng(i).standard_normal((3, 8, 8)).astype(np.float32))
    return folder


@pytest.mark.parametrize("equalized", [True, False])
@pytest.mark.usefixtures("one_core")
@pytest.mark.slow
def test_the_work_of_one_call_is_counted(*, equalized: bool, tmp_path: Path) -> None:
    source, data = float_model(tmp_path / "m.onnx", equalized=equalized), samples(tmp_path / "data")
    quantkit.quantize_static(source, tmp_path / "warm.onnx", data)  # imports read files as well
    with counted(data) as found:
        quantkit.quantize_static(source, tmp_path / "q.onnx", data)
    work = {k: found[k] for k in COUNTED.values()}
    assert work == {
        "model loads": 3 if equalized else 2,  # the source, and each float model that is run
        "model writes": 3 if equalized else 2,  # the result among them
        "data openings": 1,
        # Two to fit ranges and to leave samples out in turn; one more in the child that compares the result.
        "sessions": 6 if equalized else 5,
    }
    assert 1 <= found["folder listings"] <= (16 if equalized else 12)
    assert 4 <= found["sample reads"] <= (46 if equalized else 30)


@pytest.mark.slow
def test_an_evaluation_opens_each_model_once(tmp_path: Path) -> None:
    source = float_model(tmp_path / "m.onnx", equalized=True)
    data = samples(tmp_path / "data")
    quantkit.quantize_static(source, tmp_path / "q.onnx", data)
    with counted(data) as found:
        quantkit.evaluate_models(
            source, tmp_path / "q.onnx", data, tmp_path / "out", skip=["memory"]
        )
    assert (tmp_path / "out" / "graph.html").exists()
    assert found["model loads"] == 2
    # Of each model one as users make it, one without optimization, one that tells the kernels, and one of its layers; one of
    # the float model behind the layers; and to try layers in float the candidate with switches, and those layers.
    assert found["sessions"] <= 13
