"""Which nodes are one box, what it is called, and what is told of it."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import conv_model, graph, matmul_model, model, node, save, weight
from numpy.typing import NDArray
from odd_graphs import odd_graph
from random_graphs import random_graph

from quantkit import QInt8, quantize_dynamic, quantize_static
from quantkit.deploy.view.facts import Box, Page
from quantkit.deploy.view.fold import fold, nodes_in_order
from quantkit.evaluate.match import SharedModel
from quantkit.model.graph.load import load
from quantkit.pipeline.view import ViewOptions, view
from quantkit.samples import __file__ as samples

SAMPLE = Path(samples).parent / "fashion_cnn.onnx"
IMAGES = np.load(Path(samples).parent / "fashion_test.npz")


def images(count: int = 8) -> list[dict[str, NDArray[np.float32]]]:
    found = next(IMAGES[name] for name in IMAGES.files if IMAGES[name].ndim > 1)[:count]
    return [{"image": one.reshape(1, 1, 28, 28).astype(np.float32) / 255} for one in found]


def heads(proto: onnx.ModelProto) -> dict[str, list[str]]:
    """Return the operators of each box by the name of its first node that counts."""
    return {
        box.head.name or "": [n.op_type for n in box.nodes]
        for box in fold(load(proto).model)
        if box.head is not None
    }


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("make", [random_graph, odd_graph])
@pytest.mark.parametrize("raw", [False, True])
def test_every_node_is_in_exactly_one_box(
    make: Callable[[int], onnx.ModelProto],
    seed: int,
    raw: bool,  # noqa: FBT001 - a parameter of pytest
) -> None:
    loaded = load(make(seed)).model
    boxes = fold(loaded, raw=raw)
    nodes = Counter(n for box in boxes for n in box.nodes)
    assert nodes == Counter(nodes_in_order(loaded))
    assert all(source < number for number, box in enumerate(boxes) for source in box.reads)
    assert not raw or all(len(box.nodes) <= 1 for box in boxes)


def test_a_layer_is_its_product_with_what_follows() -> None:
    assert heads(conv_model()) == {"c1": ["Conv", "Relu"], "c2": ["Conv"]}
    assert heads(matmul_model()) == {"mm": ["MatMul", "Add"]}


def test_conversions_and_weights_go_to_their_layer(tmp_path: Path) -> None:
    quantize_static(SAMPLE, tmp_path / "q.onnx", images())
    page = view([SharedModel(SAMPLE), SharedModel(tmp_path / "q.onnx")])
    first, second = page.drawings
    names = [[b.name for b in d.boxes if b.role == "layer"] for d in (first, second)]
    assert set(names[1]) <= set(names[0])
    assert any(b.runs is not None and b.runs.kind == "int8" for b in second.boxes)
    assert {p.status for p in page.pairs} <= {"same", "changed", "removed"}
    product = next(b for b in second.boxes if b.op_type == "Conv" and b.makes[0].scale)
    assert product.makes[0].integers == "uint8"
    assert product.makes[0].low is not None
    assert any(w.dtype == "int8" and len(w.shape) == 4 for w in product.weights)


def layers(page: Page, side: int = 0) -> dict[str, Box]:
    return {box.name: box for box in page.drawings[side].boxes if box.role == "layer"}


def test_a_dynamic_product_is_called_as_in_the_float_model(tmp_path: Path) -> None:
    base = save(matmul_model(), tmp_path / "m.onnx")
    quantize_dynamic(base, tmp_path / "q.onnx", QInt8)
    found = layers(view([SharedModel(base), SharedModel(tmp_path / "q.onnx")]), 1)
    assert set(found) == {"mm"}
    assert found["mm"].op_type == "MatMulInteger"
    runs = found["mm"].runs
    assert runs is not None
    assert runs.kind == "dynamic"


def test_a_float_model_alone_says_what_would_become_of_it(tmp_path: Path) -> None:
    base = save(conv_model(), tmp_path / "m.onnx")
    page = view([SharedModel(base)])
    planned = layers(page)["c1"].planned
    assert planned is not None
    assert planned.kind == "stored"
    assert planned.why
    assert page.plan


def test_shapes_are_folded_into_who_needs_them() -> None:
    nodes = [
        node("Shape", ["x"], ["s"], "shape"),
        node("Gather", ["s", "i"], ["n"], "gather"),
        node("Unsqueeze", ["n", "axes"], ["u"], "unsqueeze"),
        node("Concat", ["u", "rest"], ["shape"], "concat", axis=0),
        node("Relu", ["x"], ["r"], "relu"),
        node("Reshape", ["r", "shape"], ["y"], "reshape"),
    ]
    constants = {"i": _ints(0, scalar=True), "axes": _ints(0), "rest": _ints(-1)}
    proto = model(graph(nodes, {"x": ["N", 2, 3]}, {"y": ["N", 6]}, constants))
    found = heads(proto)
    assert set(found) == {"relu", "reshape"}
    assert sorted(found["reshape"]) == ["Concat", "Gather", "Reshape", "Shape", "Unsqueeze"]


def _ints(value: int, *, scalar: bool = False) -> NDArray[np.int64]:
    return np.array(value if scalar else [value], np.int64)


def test_scopes_come_from_names_of_nodes_or_of_weights(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", ["x", "enc.0.q.weight"], ["a"], "n0"),
        node("MatMul", ["a", "enc.0.k.weight"], ["b"], "n1"),
        node("Add", ["a", "b"], ["c"], "n2"),
        node("MatMul", ["c", "w"], ["y"], "/head/deep/out"),
    ]
    weights = {name: weight(4, 4) for name in ("enc.0.q.weight", "enc.0.k.weight", "w")}
    proto = model(graph(nodes, {"x": ["N", 4]}, {"y": ["N", 4]}, weights))
    found = layers(view([SharedModel(save(proto, tmp_path / "m.onnx"))]))
    assert found["n0"].scope == ("enc", "0")
    assert found["n2"].scope == ("enc", "0")
    assert found["/head/deep/out"].scope == ("head", "deep")


def test_time_is_measured_where_it_is_asked_for(tmp_path: Path) -> None:
    base = save(conv_model(), tmp_path / "m.onnx")
    timed = layers(view([SharedModel(base)], ViewOptions(time=True)))
    assert sum(box.seconds or 0 for box in timed.values()) > 0


def test_a_box_is_shown_with_what_its_layer_makes_not_with_a_weight_that_it_restores(
    tmp_path: Path,
) -> None:
    nodes = [
        node("DequantizeLinear", ["w", "s"], ["restored"], "dequantize"),
        node("MatMul", ["x", "restored"], ["a"], "one"),
        node("MatMul", ["a", "restored"], ["y"], "two"),
    ]
    held: dict[str, NDArray[Any]] = {"w": np.ones((4, 4), np.int8), "s": np.array(0.5, np.float32)}
    proto = model(graph(nodes, {"x": ["N", 3, 4]}, {"y": ["N", 3, 4]}, held))
    page = view([SharedModel(save(proto, tmp_path / "m.onnx"))])
    makes = {box.name: [t.name for t in box.makes] for box in page.drawings[0].boxes}
    assert makes["one"] == ["a", "restored"]
