"""What of a graph may be float16: by ONNX's schemas, by types, by what constants lose."""

from typing import Any

import numpy as np
import onnx
import pytest
from builders import MS, Array, graph, model, node, weight
from onnx import TensorProto, helper, numpy_helper

from quantkit.model.graph.half import computes_bfloat16
from quantkit.model.graph.load import load
from quantkit.model.graph.normalize import lift_floats
from quantkit.model.graph.opset import opset_of
from quantkit.model.graph.shapes import infer_types
from quantkit.model.graph.view import half_slots, half_view_of
from quantkit.model.ops.view import HalfSlots, HalfView

IMAGE = [1, 8, 6, 6]


def slots_of(
    op: str,
    shapes: dict[str, Any],
    constants: dict[str, np.ndarray] | None = None,
    *,
    opset: int = 17,
    types: dict[str, int] | None = None,
    **attributes: Any,
) -> HalfSlots | None:
    """Return the slots of one node that reads inputs of these shapes, then constants."""
    names = [*shapes, *(constants or {})]
    proto = graph(
        [node(op, names, ["y"], "n", **attributes)], shapes, {"y": None}, constants, types=types
    )
    loaded = load(model(proto, opset=opset))
    infer_types(loaded.model)
    return half_slots(next(iter(loaded.model.graph)), opset_of(loaded.model))


def channels(*names: str) -> dict[str, np.ndarray]:
    return {name: np.ones(8, np.float32) for name in names}


def test_a_product_reads_and_makes_halves_in_all_slots() -> None:
    assert slots_of("Conv", {"x": IMAGE}, {"w": weight(4, 8, 3, 3), "b": weight(4)}) == HalfSlots(
        frozenset({0, 1, 2}), frozenset({0})
    )


def test_what_has_a_type_of_its_own_stays_as_it_is() -> None:
    """An exponent, the statistics of a normalization, the scales of a Resize."""
    first = HalfSlots(frozenset({0}), frozenset({0}))
    assert slots_of("Pow", {"x": [4]}, {"two": np.array(2, np.float32)}) == first
    assert slots_of("BatchNormalization", {"x": IMAGE}, channels("g", "b", "m", "v")) == first
    roi, scales = np.zeros(0, np.float32), np.array([1, 1, 2, 2], np.float32)
    assert slots_of("Resize", {"x": IMAGE}, {"roi": roi, "scales": scales}) == first


def test_statistics_of_an_older_normalization_share_its_type() -> None:
    found = slots_of("BatchNormalization", {"x": IMAGE}, channels("g", "b", "m", "v"), opset=9)
    assert found == HalfSlots(frozenset(range(5)), frozenset({0}))


@pytest.mark.parametrize(
    ("op", "shapes", "types", "attributes"),
    [
        ("NonMaxSuppression", {"x": [1, 4, 4], "s": [1, 2, 4]}, {"y": TensorProto.INT64}, {}),
        ("ConstantOfShape", {"x": [2]}, {"x": TensorProto.INT64}, {}),
        ("RandomNormalLike", {"x": [2]}, {"x": TensorProto.INT64}, {"dtype": TensorProto.FLOAT}),
    ],
)
def test_operators_without_a_float16_input_have_no_slots(
    op: str, shapes: dict[str, Any], types: dict[str, int], attributes: dict[str, Any]
) -> None:
    assert slots_of(op, shapes, types=types, **attributes) is None


def test_quantized_operators_have_no_slots() -> None:
    scale, zero = np.array(0.1, np.float32), np.array(0, np.uint8)
    assert slots_of("QuantizeLinear", {"x": [4]}, {"s": scale, "z": zero}, opset=21) is None


def test_a_cast_has_the_floats_that_it_reads_and_makes() -> None:
    to_float = slots_of("Cast", {"x": [4]}, types={"x": TensorProto.INT64}, to=TensorProto.FLOAT)
    to_int = slots_of("Cast", {"x": [4]}, types={"y": TensorProto.INT64}, to=TensorProto.INT64)
    assert to_float == HalfSlots(frozenset(), frozenset({0}))
    assert to_int == HalfSlots(frozenset({0}), frozenset())


def test_the_inputs_of_a_concat_are_all_of_one_kind() -> None:
    found = slots_of("Concat", {"a": [2], "b": [2], "c": [2]}, axis=0)
    assert found == HalfSlots(frozenset({0, 1, 2}), frozenset({0}))


def described(proto: onnx.ModelProto, *, kind: str = "float16") -> HalfView:
    loaded = load(proto)
    lift_floats(loaded.model)
    return half_view_of(loaded.model, kind, computed=True)


def with_if() -> onnx.ModelProto:
    inner = graph([node("Add", ["r", "k"], ["t"], "inside")], {}, {"t": [4]}, {"k": weight(4)})
    other = graph([node("Neg", ["r"], ["e"], "else")], {}, {"e": [4]})
    nodes = [
        node("Relu", ["x"], ["r"], "relu"),
        node("If", ["c"], ["y"], "if", then_branch=inner, else_branch=other),
    ]
    types = {"c": TensorProto.BOOL}
    return model(graph(nodes, {"x": [4], "c": []}, {"y": [4]}, types=types))


def test_nodes_of_subgraphs_and_their_holders_have_no_slots() -> None:
    found = described(with_if())
    assert found.slots.keys() == {"relu"}
    assert found.holders == {"if"}
    assert "k" in found.constants  # what they hold is stored all the same
    assert set(found.floats) == {"x", "r", "y"}


def test_operators_of_other_domains_have_no_slots() -> None:
    nodes = [node("Gelu", ["x"], ["y"], "gelu", domain=MS)]
    assert not described(model(graph(nodes, {"x": [4]}, {"y": [4]}), domains={MS: 1})).slots


def test_floats_in_whichever_attribute_become_constants() -> None:
    nodes = [
        helper.make_node("Constant", [], ["a"], value_float=1e-12),
        helper.make_node(
            "Constant", [], ["b"], value=numpy_helper.from_array(np.array([3.0], np.float32))
        ),
        helper.make_node("Constant", [], ["i"], value_int=3),
        node("Add", ["x", "a"], ["m"], "first"),
        node("Add", ["m", "b"], ["y"], "second"),
    ]
    found = described(model(graph(nodes, {"x": [1]}, {"y": [1]})))
    assert found.constants.keys() == {"a", "b"}
    loss = found.constants["a"].loss
    assert loss is not None
    assert loss.vanishes


def test_how_many_values_are_added_up() -> None:
    nodes = [
        node("ReduceMean", ["x"], ["a"], "mean", axes=[2, 3]),
        node("GlobalAveragePool", ["x"], ["b"], "pool"),
        node("AveragePool", ["x"], ["c"], "window", kernel_shape=[3, 2]),
        node("ReduceMean", ["x"], ["d"], "batch", axes=[0]),
        node("ReduceMean", ["x"], ["e"], "all"),
        node("Relu", ["x"], ["f"], "relu"),
    ]
    outputs = dict.fromkeys("abcdef")
    found = described(model(graph(nodes, {"x": ["N", 8, 6, 5]}, outputs), opset=17))
    assert found.sums == {"mean": 30, "pool": 30, "window": 6}


def test_halves_count_among_the_floats_of_a_file() -> None:
    nodes = [node("Cast", ["h"], ["w"], to=TensorProto.FLOAT), node("MatMul", ["x", "w"], ["y"])]
    held: dict[str, Array] = {"h": weight(20, 30).astype(np.float16), "n": weight(10)}
    nodes.append(node("Add", ["x", "n"], ["z"]))
    found = described(model(graph(nodes, {"x": [1, 20]}, {"y": None, "z": None}, held)))
    assert found.float_bytes == 4 * (600 + 10)
    assert found.constants.keys() == {"n"}


def bfloat16(name: str, *shape: int) -> onnx.TensorProto:
    tensor = TensorProto(name=name, dims=shape, data_type=TensorProto.BFLOAT16)
    tensor.raw_data = np.zeros(shape, np.uint16).tobytes()
    return tensor


@pytest.mark.parametrize("stored", [True, False])
def test_a_model_that_only_holds_bfloat16_does_not_compute_in_it(*, stored: bool) -> None:
    nodes = [node("MatMul", ["x", "f" if stored else "w"], ["y"])]
    nodes[:0] = [node("Cast", ["w"], ["f"], to=TensorProto.FLOAT)] if stored else []
    kind = TensorProto.FLOAT if stored else TensorProto.BFLOAT16
    proto = graph(nodes, {"x": [1, 4]}, {"y": [1, 4]}, types={"x": kind, "y": kind})
    proto.initializer.append(bfloat16("w", 4, 4))
    assert computes_bfloat16(load(model(proto)).model) == (not stored)
