"""Weights assembled from constants become initializers, with the same contents to the bit."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from builders import Array, Shape, graph, model, node, weight
from graph.cases import BIG, assert_unchanged, if_model, staging_folders
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from quantkit import quantize_dynamic
from quantkit.errors import QuantkitError
from quantkit.model.graph.load import load


def op_types(normal: ir.Model) -> list[str]:
    return [item.op_type for item in normal.graph.all_nodes()]


def assembled(
    nodes: Sequence[onnx.NodeProto], weights: dict[str, Array], *, opset: int = 17
) -> onnx.ModelProto:
    """y = 2 * the value 'v' that `nodes` assemble from `weights`."""
    last = node("Add", ["v", "v"], ["y"])
    return model(graph([*nodes, last], {}, {"y": None}, weights), opset=opset)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


W = weight(8, 48)
FOLDED: dict[str, tuple[list[onnx.NodeProto], dict[str, Array], int]] = {
    "transpose": ([node("Transpose", ["w"], ["v"])], {}, 17),
    "transpose-perm": ([node("Transpose", ["w"], ["v"], perm=[1, 0])], {}, 17),
    "reshape": ([node("Reshape", ["w", "s"], ["v"])], {"s": ints(4, -1)}, 17),
    "reshape-zero": ([node("Reshape", ["w", "s"], ["v"])], {"s": ints(0, 6, -1)}, 17),
    "unsqueeze-13": ([node("Unsqueeze", ["w", "a"], ["v"])], {"a": ints(0, -1)}, 17),
    "unsqueeze-11": ([node("Unsqueeze", ["w"], ["v"], axes=[0, 2])], {}, 11),
    "slice": (
        [node("Slice", ["w", "s", "e", "a"], ["v"])],
        {"s": ints(1), "e": ints(-1), "a": ints(1)},
        17,
    ),
    "slice-backwards": (
        [node("Slice", ["w", "s", "e", "a", "t"], ["v"])],
        {"s": ints(-1), "e": ints(-(2**62)), "a": ints(1), "t": ints(-2)},
        17,
    ),
    "slice-9": ([node("Slice", ["w"], ["v"], starts=[2], ends=[99], axes=[0])], {}, 9),
    "concat": ([node("Concat", ["w", "u"], ["v"], axis=-1)], {"u": weight(8, 48, seed=1)}, 17),
    "concat-twice": ([node("Concat", ["w", "w"], ["v"], axis=0)], {}, 17),
    "chain": (
        [
            node("Unsqueeze", ["w", "a"], ["p"]),
            node("Squeeze", ["p", "a"], ["q"]),
            node("Transpose", ["q"], ["r"]),
            node("Identity", ["r"], ["v"]),
        ],
        {"a": ints(0)},
        17,
    ),
}


@pytest.mark.parametrize(("nodes", "extra", "opset"), FOLDED.values(), ids=FOLDED)
def test_movement_of_a_weight_is_folded(
    nodes: list[onnx.NodeProto], extra: dict[str, Array], opset: int, tmp_path: Path
) -> None:
    proto = assembled(nodes, {"w": W, **extra}, opset=opset)
    normal = assert_unchanged(proto, {}, tmp_path)
    assert op_types(normal) == ["Add"]
    assert "w" not in normal.graph.initializers


def test_a_weight_read_through_transpose_and_directly_stays(tmp_path: Path) -> None:
    nodes = [
        node("Transpose", ["w"], ["wt"]),
        node("MatMul", ["x", "w"], ["a"]),
        node("MatMul", ["a", "wt"], ["y"]),
    ]
    proto = model(graph(nodes, {"x": [3, 20]}, {"y": [3, 20]}, {"w": weight(*BIG)}))
    normal = assert_unchanged(proto, {"x": weight(3, 20, seed=9)}, tmp_path)
    assert op_types(normal) == ["Transpose", "MatMul", "MatMul"]
    assert list(normal.graph.initializers) == ["w"]


def test_equal_results_are_stored_once(tmp_path: Path) -> None:
    nodes = [
        node("Transpose", ["w"], ["p"]),
        node("Transpose", ["w"], ["q"]),
        node("MatMul", ["x", "p"], ["a"]),
        node("MatMul", ["a", "q"], ["y"]),
    ]
    proto = model(graph(nodes, {"x": [3, 20]}, {"y": [3, 20]}, {"w": weight(*BIG)}))
    normal = assert_unchanged(proto, {"x": weight(3, 20, seed=9)}, tmp_path)
    assert op_types(normal) == ["MatMul", "MatMul"]
    assert len(normal.graph.initializers) == 1


def test_nothing_is_stored_twice_where_one_of_two_movements_stays(tmp_path: Path) -> None:
    nodes = [
        node("Transpose", ["w"], ["wt"]),
        node("Concat", ["w", "v"], ["c"], axis=0),  # stays: v is read as it is below
        node("MatMul", ["x", "wt"], ["a"]),
        node("MatMul", ["x2", "c"], ["b"]),
        node("MatMul", ["x", "v"], ["d"]),
    ]
    weights = {"w": weight(256, 256), "v": weight(256, 256, seed=1)}
    outputs: dict[str, Shape] = {"a": None, "b": None, "d": None}
    proto = model(graph(nodes, {"x": [1, 256], "x2": [1, 512]}, outputs, weights))
    feeds = {"x": weight(1, 256, seed=2), "x2": weight(1, 512, seed=3)}
    assert_unchanged(proto, feeds, tmp_path)
    assert (tmp_path / "out.onnx").stat().st_size < 1.1 * proto.ByteSize()


def test_a_weight_that_is_an_output_stays(tmp_path: Path) -> None:
    proto = assembled([node("Transpose", ["w"], ["v"])], {"w": W})
    proto.graph.output.append(onnx.helper.make_tensor_value_info("w", 1, W.shape))
    normal = assert_unchanged(proto, {}, tmp_path)
    assert op_types(normal) == ["Transpose", "Add"]


def test_a_movement_that_is_an_output_stays(tmp_path: Path) -> None:
    proto = assembled([node("Transpose", ["w"], ["v"])], {"w": W})
    proto.graph.output.append(onnx.helper.make_tensor_value_info("v", 1, None))
    assert op_types(assert_unchanged(proto, {}, tmp_path)) == ["Transpose", "Add"]


def test_small_constants_and_activations_are_not_folded(tmp_path: Path) -> None:
    nodes = [
        node("Transpose", ["s"], ["st"]),
        node("Transpose", ["x"], ["xt"]),
        node("MatMul", ["xt", "st"], ["y"]),
    ]
    proto = model(graph(nodes, {"x": [4, 3]}, {"y": None}, {"s": weight(5, 4)}))
    normal = assert_unchanged(proto, {"x": weight(4, 3, seed=9)}, tmp_path)
    assert op_types(normal) == ["Transpose", "Transpose", "MatMul"]


def test_parameters_may_be_shared_with_activations(tmp_path: Path) -> None:
    nodes = [
        node("Constant", [], ["axes"], value=numpy_helper.from_array(ints(0))),
        node("Unsqueeze", ["w", "axes"], ["v"]),
        node("Unsqueeze", ["x", "axes"], ["u"]),
        node("MatMul", ["u", "v"], ["y"]),
    ]
    proto = model(graph(nodes, {"x": [3, 20]}, {"y": None}, {"w": weight(*BIG)}))
    normal = assert_unchanged(proto, {"x": weight(3, 20, seed=9)}, tmp_path)
    assert op_types(normal) == ["Constant", "Unsqueeze", "MatMul"]


@pytest.mark.parametrize("taken", [True, False], ids=["then", "else"])
def test_an_outer_weight_moved_in_both_branches_is_stored_once(
    taken: bool,  # noqa: FBT001
    tmp_path: Path,
) -> None:
    def part(name: str) -> onnx.GraphProto:
        nodes = [
            node("Transpose", ["w"], [f"{name}w"]),
            node("MatMul", ["x", f"{name}w"], [f"{name}m"]),
            node("Neg" if name == "t" else "Exp", [f"{name}m"], [name]),
        ]
        return graph(nodes, {}, {name: None}, name=name)

    proto = if_model(part("t"), part("e"))
    proto.graph.initializer.append(numpy_helper.from_array(weight(*BIG), "w"))
    feeds = {"x": weight(3, 20, seed=9), "c": np.array(taken)}
    normal = assert_unchanged(proto, feeds, tmp_path)
    assert "Transpose" not in op_types(normal)
    assert sum(len(part.initializers) for part in normal.graphs()) == 1


WRONG: dict[str, onnx.NodeProto] = {
    "perm-repeats": node("Transpose", ["w"], ["v"], perm=[0, 0]),
    "perm-too-short": node("Transpose", ["w"], ["v"], perm=[0]),
    "perm-outside": node("Transpose", ["w"], ["v"], perm=[1, 7]),
    "shape-does-not-fit": node("Reshape", ["w", "s"], ["v"]),
    "concat-without-axis": node("Concat", ["w", "w"], ["v"]),
    "axis-outside": node("Concat", ["w", "w"], ["v"], axis=5),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_node_that_makes_no_sense_is_left_to_the_runtime(
    wrong: onnx.NodeProto, tmp_path: Path
) -> None:
    nodes = [wrong, node("MatMul", ["x", "v"], ["y"])]
    weights = {"w": weight(128, 192), "s": ints(7, 7)}
    proto = model(graph(nodes, {"x": ["N", 128]}, {"y": None}, weights))
    assert wrong.op_type in op_types(load(proto).model)
    with pytest.raises(QuantkitError):
        quantize_dynamic(proto, tmp_path / "q.onnx")
    assert not staging_folders(tmp_path)


@pytest.mark.parametrize("op_type", ["Transpose", "Identity", "Concat", "Slice", "Constant"])
def test_a_node_without_inputs_or_outputs_is_left_alone(op_type: str) -> None:
    nodes = [node(op_type, [], ["v"]), node(op_type, ["w"], []), node("Neg", ["w"], ["y"])]
    proto = model(graph(nodes, {}, {"y": None}, {"w": W}))
    assert op_types(load(proto).model) == [op_type, op_type, "Neg"]


@pytest.mark.parametrize(
    "wrong",
    [node("Transpose", [], ["v"]), node("Transpose", ["w"], [])],
    ids=["no-input", "no-output"],
)
def test_a_transpose_without_input_or_output_is_one_error(
    wrong: onnx.NodeProto, tmp_path: Path
) -> None:
    nodes = [wrong, node("MatMul", ["x", "v"], ["y"])]
    proto = model(graph(nodes, {"x": ["N", 128]}, {"y": None}, {"w": weight(128, 192)}))
    with pytest.raises(QuantkitError):
        quantize_dynamic(proto, tmp_path / "q.onnx")


LARGE: Array = weight(16, 384)  # cut in half four times it is still a weight


@st.composite
def movements(draw: st.DrawFn) -> tuple[list[onnx.NodeProto], dict[str, Array], Array]:
    """A random chain of movements, its parameters, and what numpy makes of it."""
    array = LARGE
    nodes: list[onnx.NodeProto] = []
    parameters: dict[str, Array] = {}
    for i in range(draw(st.integers(1, 4))):
        source, out = (f"v{i - 1}" if i else "w"), f"v{i}"

        def parameter(values: Sequence[int], name: str = f"p{i}") -> str:
            key = f"{name}_{len(parameters)}"
            parameters[key] = ints(*values)
            return key

        kind = draw(st.sampled_from(["Transpose", "Unsqueeze", "Reshape", "Slice", "Concat"]))
        if kind == "Transpose":
            perm = draw(st.permutations(range(array.ndim)))
            nodes.append(node(kind, [source], [out], perm=perm))
            array = array.transpose(perm)
        elif kind == "Unsqueeze" and array.ndim < 5:
            axis = draw(st.integers(-array.ndim - 1, array.ndim))
            nodes.append(node(kind, [source, parameter([axis])], [out]))
            array = np.expand_dims(array, axis)
        elif kind == "Reshape":
            nodes.append(node(kind, [source, parameter([array.shape[0], -1])], [out]))
            array = array.reshape(array.shape[0], -1)
        elif kind == "Slice":
            axis = draw(st.integers(0, array.ndim - 1))
            step = draw(st.sampled_from([1, 2, -1]))
            start, end = (0, 2**40) if step > 0 else (-1, -(2**40))
            inputs = [source, *(parameter([n]) for n in (start, end, axis, step))]
            nodes.append(node(kind, inputs, [out]))
            array = np.take(array, np.arange(array.shape[axis])[::step], axis)
        else:
            axis = draw(st.integers(-array.ndim, array.ndim - 1))
            nodes.append(node("Concat", [source, source], [out], axis=axis))
            array = np.concatenate([array, array], axis)
    nodes.append(node("Identity", [nodes[-1].output[0]], ["v"]))
    return nodes, parameters, array


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(case=movements())
def test_any_chain_of_movements_folds_to_what_numpy_makes_of_it(
    tmp_path: Path, case: tuple[list[onnx.NodeProto], dict[str, Array], Array]
) -> None:
    nodes, parameters, expected = case
    proto = assembled(nodes, {"w": LARGE, **parameters})
    normal = assert_unchanged(proto, {}, tmp_path)
    assert op_types(normal) == ["Add"]
    (value,) = normal.graph.initializers.values()
    assert value.const_value is not None
    np.testing.assert_array_equal(value.const_value.numpy(), expected)
