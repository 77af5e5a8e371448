"""Which node is which: laws of the matching, attributes, names."""

import numpy as np
import onnx
import pytest
from builders import Array, graph, model, node, weight
from hypothesis import given, settings
from hypothesis import strategies as st

from quantkit.evaluate.diff.nodes import NodesDiff, nodes_diff
from quantkit.evaluate.match import base_name, pair_nodes
from quantkit.model.graph.load import load


def compared(a: onnx.ModelProto, b: onnx.ModelProto) -> NodesDiff:
    left, right = load(a).model, load(b).model
    return nodes_diff(left, right, pair_nodes(left, right))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("w", "w"),
        ("w_quantized", "w"),
        ("w_widened_dequantized", "w"),
        ("w_DequantizeLinear_Output", "w"),
        ("x_QuantizeLinear_Input", "x"),
        ("_quantized", "_quantized"),
    ],
)
def test_base_names(name: str, expected: str) -> None:
    assert base_name(name) == expected


def straight(ops: list[str], names: list[str]) -> onnx.ModelProto:
    """A chain of operators; tensors are named after nodes."""
    nodes, last = [], "x"
    for op, name in zip(ops, names, strict=True):
        nodes.append(node(op, [last], [f"{name}_out"], name))
        last = f"{name}_out"
    return model(graph(nodes, {"x": [2]}, {last: [2]}))


_OPS = st.lists(st.sampled_from(["Relu", "Neg", "Abs", "Exp"]), min_size=1, max_size=12)


@given(_OPS, st.data())
@settings(max_examples=60, deadline=None)
def test_counts_add_up_and_swapping_swaps(ops: list[str], data: st.DataObject) -> None:
    names = [f"n{i}" for i in range(len(ops))]
    kept = data.draw(st.lists(st.sampled_from(range(len(ops))), min_size=1, unique=True))
    changed = data.draw(
        st.lists(st.sampled_from(["Relu", "Neg"]), min_size=len(kept), max_size=len(kept))
    )
    a = straight(ops, names)
    b = straight(changed, [names[i] for i in sorted(kept)])
    forth, back = compared(a, b), compared(b, a)
    assert forth.same + len(forth.changed) + len(forth.only_a) == len(ops)
    assert forth.same + len(forth.changed) + len(forth.only_b) == len(kept)
    assert (forth.same, forth.only_a, forth.only_b) == (back.same, back.only_b, back.only_a)


@given(_OPS)
@settings(max_examples=30, deadline=None)
def test_a_model_is_itself(ops: list[str]) -> None:
    proto = straight(ops, [f"n{i}" for i in range(len(ops))])
    found = compared(proto, proto)
    assert found.same == len(ops)
    assert (found.changed, found.only_a, found.only_b) == ((), (), ())
    assert not found.renamed
    assert not found.operators


def test_by_tensor_where_names_are_missing() -> None:
    a = straight(["Relu", "Neg"], ["p", "q"])
    b = straight(["Relu", "Neg"], ["p", "q"])
    for item in b.graph.node:
        item.name = ""
    found = compared(a, b)
    assert found.same == 2
    assert found.renamed == 2


def test_another_operator_by_the_tensor_it_makes() -> None:
    a, b = straight(["Relu"], ["p"]), straight(["Exp"], ["p"])
    (change,) = compared(a, b).changed
    assert (change.a.op_type, change.b.op_type) == ("Relu", "Exp")
    assert [(o.op_type, o.before, o.after) for o in compared(a, b).operators] == [
        ("Exp", 0, 1),
        ("Relu", 1, 0),
    ]


def test_products_by_their_weight() -> None:
    """QLinearConv has another name and another output than the Conv whose weight it reads."""
    w = weight(4, 3, 1, 1)
    a = model(
        graph([node("Conv", ["x", "w"], ["c"], "conv")], {"x": [1, 3, 4, 4]}, {"c": None}, {"w": w})
    )
    held: dict[str, Array] = {
        "s": np.array(0.1, np.float32),
        "z": np.array(0, np.uint8),
        "w_quantized": np.ones((4, 3, 1, 1), np.int8),
        "wz": np.array(0, np.int8),
    }
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["xq"], "q"),
        node("QLinearConv", ["xq", "s", "z", "w_quantized", "s", "wz", "s", "z"], ["other"], "o"),
        node("DequantizeLinear", ["other", "s", "z"], ["y"], "d"),
    ]
    b = model(graph(nodes, {"x": [1, 3, 4, 4]}, {"y": None}, held))
    (change,) = compared(a, b).changed
    assert (change.a.op_type, change.b.op_type) == ("Conv", "QLinearConv")


def conv(**attributes: object) -> onnx.ModelProto:
    nodes = [node("Conv", ["x", "w"], ["y"], "c", **attributes)]
    return model(graph(nodes, {"x": [1, 3, 8, 8]}, {"y": None}, {"w": weight(2, 3, 3, 3)}))


def test_attributes_count_with_their_defaults() -> None:
    assert compared(conv(), conv(group=1)).same == 1
    (change,) = compared(conv(), conv(pads=[1, 1, 1, 1])).changed
    assert [(c.what, c.a, c.b) for c in change.attributes] == [("pads", "", "[1, 1, 1, 1]")]


def test_an_attribute_that_became_an_input_is_the_same() -> None:
    old = model(
        graph([node("Unsqueeze", ["x"], ["y"], "u", axes=[1])], {"x": [2]}, {"y": [2, 1]}), opset=11
    )
    new = model(
        graph(
            [node("Unsqueeze", ["x", "axes"], ["y"], "u")],
            {"x": [2]},
            {"y": [2, 1]},
            {"axes": np.array([1])},
        ),
        opset=13,
    )
    assert compared(old, new).same == 1


def test_quantization_between_two_nodes_is_looked_through() -> None:
    a = straight(["Relu", "Neg"], ["p", "q"])
    held: dict[str, Array] = {"s": np.array(0.1, np.float32), "z": np.array(0, np.uint8)}
    nodes = [
        node("Relu", ["x"], ["p_out"], "p"),
        node("QuantizeLinear", ["p_out", "s", "z"], ["p_out_quantized"], "p_q"),
        node("DequantizeLinear", ["p_out_quantized", "s", "z"], ["p_out_dequantized"], "p_d"),
        node("Neg", ["p_out_dequantized"], ["q_out"], "q"),
    ]
    found = compared(a, model(graph(nodes, {"x": [2]}, {"q_out": [2]}, held)))
    assert found.same == 2
    assert not found.changed


def test_rewiring_is_a_change() -> None:
    def add(first: str, second: str) -> onnx.ModelProto:
        nodes = [
            node("Relu", ["x"], ["a"], "ra"),
            node("Neg", ["x"], ["b"], "rb"),
            node("Sub", [first, second], ["y"], "sub"),
        ]
        return model(graph(nodes, {"x": [2]}, {"y": [2]}))

    (change,) = compared(add("a", "b"), add("b", "a")).changed
    assert change.reads is not None
    assert (change.reads.a, change.reads.b) == ("a, b", "b, a")


def test_subgraphs_are_compared_too() -> None:
    def branches(op: str) -> onnx.ModelProto:
        parts = [
            graph(
                [node(kind, ["x"], [f"o{kind}{i}"], f"in{i}")],
                {},
                {f"o{kind}{i}": [2]},
                name=f"g{i}",
            )
            for i, kind in enumerate(("Relu", op))
        ]
        choice = node("If", ["c"], ["y"], "if", then_branch=parts[0], else_branch=parts[1])
        return model(
            graph([choice], {"c": [], "x": [2]}, {"y": [2]}, types={"c": onnx.TensorProto.BOOL})
        )

    found = compared(branches("Neg"), branches("Abs"))
    assert found.same == 2
    (change,) = found.changed
    assert (change.a.op_type, change.b.op_type) == ("Neg", "Abs")
