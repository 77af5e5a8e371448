"""The error that each layer alone brings, against brute force; and what cannot be looked at."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import Array, graph, model, node, rng, run, save, sqnr, weight
from layer_cases import Feeds, cnn, cnn_feeds, float_model, quantized
from onnx import TensorProto, helper

from quantkit.evaluate import layers as module
from quantkit.evaluate.layers import layers_of
from quantkit.evaluate.match import ModelPair
from quantkit.result import Layer, Layers


def by_node(found: Layers) -> dict[str, Layer]:
    return {layer.node: layer for layer in found.layers}


def spliced(source: Path, candidate: Path, name: str) -> onnx.ModelProto:
    """Take one node of a QDQ candidate, with all that quantizes what it reads, into the float model."""
    proto, other = onnx.load(source), onnx.load(candidate)
    place = next(i for i, n in enumerate(proto.graph.node) if n.name == name)
    made = next(n for n in other.graph.node if n.name == name)
    makers = {o: n for n in other.graph.node for o in n.output}
    known = {o for n in proto.graph.node for o in n.output} | {i.name for i in proto.graph.input}
    taken, queue = [made], [made]
    while queue:
        for read in queue.pop().input:
            if read in makers and read not in known and makers[read] not in taken:
                taken.append(makers[read])
                queue.append(makers[read])
    node_ = onnx.NodeProto()
    node_.CopyFrom(made)
    node_.output[0] = proto.graph.node[place].output[0]
    added = [n for n in other.graph.node if n in taken and n is not made]
    # A Relu that is gone in the candidate is in the float model: the integers read what it makes.
    before = list(proto.graph.node)[:place]
    after = list(proto.graph.node)[place + 1 :]
    del proto.graph.node[:]
    proto.graph.node.extend([*before, *added, node_, *after])
    made_anew = {o for n in added for o in n.output}
    kept = [t for t in proto.graph.initializer if t.name not in made_anew]
    there = {t.name for t in kept}
    kept += [t for t in other.graph.initializer if t.name not in there]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(kept)
    return proto


@pytest.mark.parametrize("kind", ["ort qdq u8", "ort qdq s8"])
def test_alone_is_what_brute_force_says(kind: str, tmp_path: Path) -> None:
    source, feeds = float_model("cnn", tmp_path)
    candidate = quantized(kind, source, tmp_path, feeds)
    found = by_node(layers_of(ModelPair.of(source, candidate), feeds[:1]))
    expected = run(source, feeds[0], optimize=False)[0]
    for name in ("stem", "wide", "deep", "narrow", "add"):
        actual = run(spliced(source, candidate, name), feeds[0], optimize=False)[0]
        assert found[name].alone_db == pytest.approx(sqnr(expected, actual), abs=0.02), name


def test_noise_of_layers_adds_up_to_about_that_of_the_model(tmp_path: Path) -> None:
    """Small errors are independent: powers add."""
    source, feeds = float_model("fashion", tmp_path)
    candidate = quantized("qdq", source, tmp_path, feeds)
    found = layers_of(ModelPair.of(source, candidate), feeds)
    total = sum(10 ** (-(x.alone_db or np.inf) / 10) for x in found.layers)
    logits = by_node(found)["fc2"].accumulated_db
    assert logits == pytest.approx(-10 * np.log10(total), abs=4)


@pytest.mark.slow
def test_equalized_and_smoothed_channels_are_no_error(tmp_path: Path) -> None:
    source, feeds = float_model("cnn", tmp_path)
    for kind in ("qdq", "qoperator"):
        found = layers_of(ModelPair.of(source, quantized(kind, source, tmp_path, feeds)), feeds[:2])
        assert min(x.local_db or np.inf for x in found.layers) > 30
        assert min(x.accumulated_db or np.inf for x in found.layers) > 25


def test_the_float_model_itself_has_no_layers(tmp_path: Path) -> None:
    source, feeds = float_model("cnn", tmp_path)
    assert layers_of(ModelPair.of(source, source), feeds[:2]) == Layers(layers=(), samples=2)


def test_no_samples_no_layers(tmp_path: Path) -> None:
    source, _ = float_model("cnn", tmp_path)
    assert layers_of(ModelPair.of(source, source), []) == Layers(layers=(), samples=0)


def encoder() -> tuple[onnx.ModelProto, list[Feeds]]:
    """Look up, normalize, multiply, twice; one output is integers, nodes have no names."""
    nodes = [
        node("Gather", ["table", "ids"], ["e"], "lookup"),
        node("MatMul", ["e", "w1"], ["m1"], "first"),
        node("Tanh", ["m1"], ["t"], "tanh"),
        node("MatMul", ["t", "w2"], ["m2"]),
        node("Softmax", ["m2"], ["y"], "soft"),
        node("ArgMax", ["y"], ["best"], "best", axis=2, keepdims=0),
    ]
    weights = {"table": weight(200, 128), "w1": weight(128, 256), "w2": weight(256, 128, seed=1)}
    proto = model(
        graph(
            nodes,
            {"ids": ["N", "T"]},
            {"best": ["N", "T"], "y": ["N", "T", 128]},
            weights,
            types={"ids": TensorProto.INT64, "best": TensorProto.INT64},
        )
    )
    feeds: list[Feeds] = [{"ids": rng(n).integers(0, 200, (1, 3 + n))} for n in range(4)]
    return proto, feeds


@pytest.mark.parametrize("kind", ["qdq", "dynamic", "ort qdq u8", "ort dynamic"])
def test_products_and_tables_of_an_encoder(kind: str, tmp_path: Path) -> None:
    proto, feeds = encoder()
    source = save(proto, tmp_path / "encoder.onnx")
    found = layers_of(ModelPair.of(source, quantized(kind, source, tmp_path, feeds)), feeds)
    assert not found.note
    # onnxruntime's dynamic product reads the integers of the table: one layer.
    expected = {"first", "MatMul"} | ({"lookup"} if kind != "ort dynamic" else set())
    assert expected <= by_node(found).keys()
    for layer in found.layers:
        assert layer.alone_db is not None
        assert layer.alone_db > 15
        assert layer.local_db is not None
        assert layer.local_db > 15


@pytest.mark.parametrize("kind", ["dynamic", "ort dynamic"])
def test_an_lstm_is_one_layer(kind: str, tmp_path: Path) -> None:
    nodes = [
        node("LSTM", ["x", "w", "r"], ["all", "last", "state"], "lstm", hidden_size=128),
        node("Add", ["last", "state"], ["y"], "add"),
        node("Relu", ["all"], ["z"], "relu"),
    ]
    weights = {"w": weight(1, 512, 64, scale=0.1), "r": weight(1, 512, 128, seed=1, scale=0.1)}
    shape = [5, 1, 64]
    outputs = {"y": [1, 1, 128], "z": [5, 1, 1, 128]}
    source = save(model(graph(nodes, {"x": shape}, outputs, weights)), tmp_path / "lstm.onnx")
    feeds: list[Feeds] = [{"x": weight(*shape, seed=n, scale=1)} for n in range(3)]
    (layer,) = layers_of(
        ModelPair.of(source, quantized(kind, source, tmp_path, feeds)), feeds
    ).layers
    assert layer.node == "lstm"
    assert layer.op_type == "LSTM"
    assert layer.share == 1
    assert 20 < (layer.alone_db or 0) < 80


def test_dynamic_convolutions_of_onnxruntime(tmp_path: Path) -> None:
    source, feeds = float_model("cnn", tmp_path)
    found = layers_of(
        ModelPair.of(source, quantized("ort dynamic", source, tmp_path, feeds)), feeds[:2]
    )
    assert {"stem", "wide", "deep", "narrow", "head"} <= by_node(found).keys()
    assert min(x.local_db or 0 for x in found.layers) > 25


def test_fewer_layers_than_there_are(tmp_path: Path) -> None:
    source, feeds = float_model("cnn", tmp_path)
    candidate = quantized("qdq", source, tmp_path, feeds)
    every = layers_of(ModelPair.of(source, candidate), feeds[:1])
    some = layers_of(ModelPair.of(source, candidate), feeds[:1], most=3)
    assert len(some.layers) == 3
    assert f"{len(every.layers) - 3} of {len(every.layers)} layers" in some.note
    worst = sorted(every.layers, key=lambda x: x.local_db or np.inf)[:3]
    assert {x.node for x in some.layers} == {x.node for x in worst}


def test_groups_that_fit_into_memory_give_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, feeds = float_model("cnn", tmp_path)
    candidate = quantized("qdq", source, tmp_path, feeds)
    said: list[str] = []
    once = layers_of(ModelPair.of(source, candidate), feeds[:2])
    monkeypatch.setattr(module, "HELD", 1)
    many = layers_of(ModelPair.of(source, candidate), feeds[:2], progress=said.append)
    assert len(said) == 2 + len(once.layers)
    for one, other in zip(once.layers, many.layers, strict=True):
        assert one.node == other.node
        assert one.alone_db == pytest.approx(other.alone_db, abs=1e-3)


def test_layers_inside_an_if_are_named_in_the_note(tmp_path: Path) -> None:
    def branch(name: str, sign: str) -> onnx.GraphProto:
        return graph([node(sign, ["m"], [f"{name}_y"], name)], {}, {f"{name}_y": None}, name=name)

    nodes = [
        node("MatMul", ["x", "w"], ["m"], "product"),
        node(
            "If", ["c"], ["y"], "if", then_branch=branch("a", "Neg"), else_branch=branch("b", "Abs")
        ),
    ]
    types = {"c": TensorProto.BOOL}
    parts = graph(
        nodes, {"x": [4, 128], "c": []}, {"y": [4, 128]}, {"w": weight(128, 128)}, types=types
    )
    source = save(model(parts), tmp_path / "if.onnx")
    feeds: list[Feeds] = [{"x": weight(4, 128, seed=n), "c": np.array(n == 1)} for n in range(2)]
    found = layers_of(ModelPair.of(source, quantized("dynamic", source, tmp_path, feeds)), feeds)
    assert "1 If, Loop or Scan" in found.note
    (layer,) = found.layers
    assert layer.node == "product"
    assert layer.alone_db == pytest.approx(layer.local_db, abs=0.1)


def test_functions_are_looked_into(tmp_path: Path) -> None:
    body = helper.make_function(
        "local", "Dense", ["a", "b"], ["c"], [node("MatMul", ["a", "b"], ["c"], "inner")],
        [helper.make_opsetid("", 17)],
    )  # fmt: skip
    nodes = [
        helper.make_node("Dense", ["x", "w"], ["m"], name="dense", domain="local"),
        node("Relu", ["m"], ["y"], "relu"),
    ]
    parts = graph(nodes, {"x": [4, 128]}, {"y": [4, 128]}, {"w": weight(128, 128)})
    source = save(
        model(parts, functions=[body], domains={"local": 1}, ir_version=8), tmp_path / "f.onnx"
    )
    feeds: list[Feeds] = [{"x": weight(4, 128)}]
    found = layers_of(ModelPair.of(source, quantized("dynamic", source, tmp_path, feeds)), feeds)
    assert [x.op_type for x in found.layers] == ["MatMul"]


def test_infinite_masks_and_values_that_are_no_numbers(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["m"], "product"),
        node("Where", ["c", "m", "low"], ["y"], "mask"),
    ]
    weights: dict[str, Array] = {"w": weight(128, 128), "low": np.array(-np.inf, np.float32)}
    types = {"c": TensorProto.BOOL}
    parts = graph(nodes, {"x": [4, 128], "c": [4, 128]}, {"y": [4, 128]}, weights, types=types)
    source = save(model(parts), tmp_path / "mask.onnx")
    feeds: list[Feeds] = [{"x": weight(4, 128), "c": rng().random((4, 128)) > 0.5}]
    (layer,) = layers_of(
        ModelPair.of(source, quantized("dynamic", source, tmp_path, feeds)), feeds
    ).layers
    assert 25 < (layer.alone_db or 0) < 80


def test_another_opset_and_external_data(tmp_path: Path) -> None:
    """Float in opset 11 with its weights beside it; the candidate is raised to 13 or more."""
    proto = cnn()
    proto.opset_import[0].version = 11
    source = tmp_path / "deep" / "cnn.onnx"
    source.parent.mkdir()
    onnx.save(proto, source, save_as_external_data=True, location="w.bin", size_threshold=0)
    feeds = cnn_feeds(8)
    candidate = quantized("qdq", source, tmp_path, feeds)
    assert onnx.load(candidate).opset_import[0].version > 11
    found = layers_of(ModelPair.of(source, candidate), feeds[:1])
    assert "stem" in by_node(found)
    assert min(x.local_db or 0 for x in found.layers) > 30
