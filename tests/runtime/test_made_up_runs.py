"""Runs on made-up inputs end: a model that makes its own length of what it reads may run for ever."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import Shape, graph, model, node, save, weight
from onnx import TensorProto

import quantkit
from quantkit.runtime import runs as sessions
from quantkit.runtime.runs import run_made_up
from quantkit.runtime.session import make_session


def speech(*, per_token: float = 40.0) -> onnx.ModelProto:
    """As many frames as tokens take at a speed; each frame is worked on a few times."""
    nodes = [
        node("Shape", ["ids"], ["shape"]),
        node("ReduceProd", ["shape"], ["tokens"], keepdims=0),
        node("Cast", ["tokens"], ["count"], to=TensorProto.FLOAT),
        node("Mul", ["count", "each"], ["steady"]),
        node("Div", ["steady", "speed"], ["long"]),
        node("Squeeze", ["long"], ["length"]),
        node("Cast", ["length"], ["frames"], to=TensorProto.INT64),
        node("Range", ["zero", "frames", "one"], ["places"]),
        node("Cast", ["places"], ["x0"], to=TensorProto.FLOAT),
        node("Unsqueeze", ["x0", "axis"], ["x1"]),
        node("MatMul", ["x1", "first"], ["h0"]),
    ]
    for i in range(20):
        nodes += [node("MatMul", [f"h{i}", "w"], [f"m{i}"]), node("Tanh", [f"m{i}"], [f"h{i + 1}"])]
    weights = {
        "each": np.asarray(per_token, np.float32),
        "zero": np.asarray(0),
        "one": np.asarray(1),
        "axis": np.asarray([1]),
        "first": weight(1, 256),
        "w": weight(256, 256),
    }
    inputs: dict[str, Shape] = {"ids": [1, "tokens"], "speed": [1]}
    types = {"ids": TensorProto.INT64}
    return model(graph(nodes, inputs, {"h20": ["frames", 256]}, weights, types=types))


def test_settings_of_a_model_are_made_up_as_one(tmp_path: Path) -> None:
    found = run_made_up(make_session(str(save(speech(), tmp_path / "m.onnx"))))
    assert found.feeds["speed"].tolist() == [1.0]
    assert found.outputs["h20"].shape == (16 * 40, 256)


@pytest.mark.parametrize("limit", ["time", "memory"])
def test_a_run_that_takes_too_much_is_stopped_and_less_is_tried(
    limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if limit == "time":
        monkeypatch.setattr(sessions, "_MADE_UP_SECONDS", 0.3)
    else:
        monkeypatch.setattr(sessions, "memory_of", lambda _: 60 << 20)
    monkeypatch.setattr(sessions, "_LOOKED_EVERY", 0.002)
    path = save(speech(per_token=20_000.0), tmp_path / "m.onnx")
    found = run_made_up(make_session(str(path)))
    # Sixteen tokens are too many; one may be few enough.
    assert not found.feeds or found.feeds["ids"].size < 16
    assert found.feeds or "a run takes more than" in found.reason


@pytest.mark.slow
def test_a_model_that_never_ends_is_quantized_and_not_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "_MADE_UP_SECONDS", 0.05)
    monkeypatch.setattr(sessions, "_LOOKED_EVERY", 0.002)
    path = save(speech(per_token=200_000.0), tmp_path / "m.onnx")
    result = quantkit.quantize_dynamic(path, tmp_path / "q.onnx")
    assert result.verification is not None
    assert not result.verification.compared
    assert any("a run takes more than 0.05 CPU seconds" in text for text in result.warnings)


def test_nodes_and_edges_of_a_graph_are_made_up(tmp_path: Path) -> None:
    nodes = [node("Gather", ["x", "to"], ["g"], axis=0), node("MatMul", ["g", "w"], ["y"])]
    inputs: dict[str, Shape] = {"x": ["nodes", 8], "to": ["edges"]}
    proto = graph(nodes, inputs, {"y": None}, {"w": weight(8, 8)}, types={"to": TensorProto.INT64})
    found = run_made_up(make_session(str(save(model(proto), tmp_path / "m.onnx"))))
    assert found.outputs["y"].shape == (4, 8)
    inputs["to"] = [2, "edges"]  # beside it the nodes look like a batch, of one
    proto = graph(nodes, inputs, {"y": None}, {"w": weight(8, 8)}, types={"to": TensorProto.INT64})
    found = run_made_up(make_session(str(save(model(proto), tmp_path / "m.onnx"))))
    assert found.outputs["y"].shape == (2, 16, 8)
