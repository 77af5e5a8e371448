"""What integers stand for, and how far two weights are apart."""

from typing import Any

import numpy as np
import onnx
import pytest
from builders import Array, graph, model, node, rng, weight
from hypothesis import given, settings
from hypothesis import strategies as st

from quantkit.evaluate.diff.stored import stored_constants
from quantkit.evaluate.diff.weights import WeightsDiff, weights_diff
from quantkit.evaluate.match import pair_nodes
from quantkit.model.graph.load import load


def compared(a: onnx.ModelProto, b: onnx.ModelProto) -> WeightsDiff:
    left, right = load(a).model, load(b).model
    return weights_diff(left, right, pair_nodes(left, right))


def product(w: Array) -> onnx.ModelProto:
    nodes = [node("MatMul", ["x", "w"], ["y"], "mm")]
    return model(graph(nodes, {"x": ["N", w.shape[0]]}, {"y": None}, {"w": w}))


def dequantized(q: Array, s: Array, z: Array, axis: int) -> onnx.ModelProto:
    nodes = [
        node("DequantizeLinear", ["w_quantized", "s", "z"], ["wd"], "d", axis=axis),
        node("MatMul", ["x", "wd"], ["y"], "mm"),
    ]
    return model(
        graph(nodes, {"x": ["N", q.shape[0]]}, {"y": None}, {"w_quantized": q, "s": s, "z": z})
    )


@given(
    st.integers(1, 6),
    st.integers(2, 7),
    st.sampled_from([0, 1]),
    st.booleans(),
    st.integers(0, 2**31),
)
@settings(max_examples=60, deadline=None)
def test_integers_stand_for_their_floats(
    rows: int,
    columns: int,
    axis: int,
    one: bool,  # noqa: FBT001 - drawn
    seed: int,
) -> None:
    draw = rng(seed)
    q = draw.integers(-128, 128, (rows, columns)).astype(np.int8)
    n = () if one else (q.shape[axis],)
    s = draw.uniform(0.01, 2, n).astype(np.float32)
    z = draw.integers(-10, 10, n).astype(np.int8)
    shape = (1, 1) if one else tuple(-1 if i == axis else 1 for i in (0, 1))
    expected = (q.astype(np.float32) - z.reshape(shape)) * s.reshape(shape)
    found = stored_constants(load(dequantized(q, s, z, axis)).model)
    assert list(found) == ["w_quantized"]  # scales and zero points are no weights
    np.testing.assert_array_equal(found["w_quantized"].floats(), expected)


def test_stored_form_and_dequantize_are_equal() -> None:
    q = rng(0).integers(0, 256, (8, 16)).astype(np.uint8)
    s, z = np.full(16, 0.02, np.float32), np.full(16, 3, np.float32)
    nodes = [
        node("Cast", ["w_quantized"], ["f"], "c", to=onnx.TensorProto.FLOAT),
        node("Sub", ["f", "z"], ["g"], "s"),
        node("Mul", ["g", "s"], ["w"], "m"),
        node("MatMul", ["x", "w"], ["y"], "mm"),
    ]
    a = model(graph(nodes, {"x": ["N", 8]}, {"y": None}, {"w_quantized": q, "s": s, "z": z}))
    found = compared(a, dequantized(q, s, z.astype(np.uint8), 1))
    assert found.equal == 1
    assert not found.changed


def test_other_scales_are_other_weights() -> None:
    q, s, z = np.ones((8, 16), np.int8), np.full(16, 0.5, np.float32), np.zeros(16, np.int8)
    found = compared(dequantized(q, s, z, 1), dequantized(q, 2 * s, z, 1))
    (change,) = found.changed
    assert change.largest == pytest.approx(0.5)
    assert change.sqnr_db == pytest.approx(0)
    assert change.note == "equal once axis 0 is rescaled"
    assert compared(dequantized(q, s, z, 1), dequantized(q, s, np.ones(16, np.int8), 1)).equal == 0


def test_blocks_of_a_channel() -> None:
    q = rng(0).integers(-8, 8, (8, 4)).astype(np.int8)
    s = rng(1).uniform(0.1, 1, (4, 4)).astype(np.float32)
    nodes = [
        node("DequantizeLinear", ["w_quantized", "s"], ["wd"], "d", axis=0, block_size=2),
        node("MatMul", ["x", "wd"], ["y"], "mm"),
    ]
    held: dict[str, Array] = {"w_quantized": q, "s": s}
    proto = model(graph(nodes, {"x": ["N", 8]}, {"y": None}, held), opset=21, ir_version=10)
    (found,) = stored_constants(load(proto).model).values()
    np.testing.assert_allclose(found.floats(), q * np.repeat(s, 2, 0))


def test_a_table_of_rows() -> None:
    q = rng(0).integers(0, 256, (10, 8)).astype(np.uint8)
    s = rng(1).uniform(0.1, 1, (10, 1)).astype(np.float32)
    nodes = [
        node("Gather", ["t_quantized", "i"], ["r"], "g"),
        node("Gather", ["s", "i"], ["rs"], "gs"),
        node("Cast", ["r"], ["f"], "c", to=onnx.TensorProto.FLOAT),
        node("Mul", ["f", "rs"], ["y"], "m"),
    ]
    proto = model(
        graph(
            nodes,
            {"i": ["N"]},
            {"y": None},
            {"t_quantized": q, "s": s},
            types={"i": onnx.TensorProto.INT64},
        )
    )
    (found,) = stored_constants(load(proto).model).values()
    np.testing.assert_allclose(found.floats(), q * s)


def test_transposed_weights_are_compared() -> None:
    w = weight(16, 8)
    nodes = [node("Gemm", ["x", "w"], ["y"], "mm", transB=1)]
    a = model(graph(nodes, {"x": ["N", 16]}, {"y": None}, {"w": w.T.copy()}))
    (change,) = compared(a, product(w)).changed
    assert change.note == "transposed"
    assert change.largest == 0
    assert change.sqnr_db is None


@pytest.mark.parametrize("axis", [0, 1])
def test_evened_channels_are_recognised(axis: int) -> None:
    w = weight(32, 24)
    factors = np.exp(rng(5).uniform(-2, 2, w.shape[axis])).astype(np.float32)
    scaled = w * factors.reshape((-1, 1) if axis == 0 else (1, -1))
    (change,) = compared(product(w), product(scaled + 1e-3 * weight(32, 24, seed=9))).changed
    assert change.note.endswith(f" dB once axis {axis} is rescaled")
    assert float(change.note.split()[0]) > 40
    assert change.sqnr_db is not None
    assert change.sqnr_db < 25


def test_other_weights_are_not_explained_away() -> None:
    (change,) = compared(product(weight(32, 24)), product(weight(32, 24, seed=7))).changed
    assert change.note == ""
    assert change.sqnr_db is not None
    assert change.sqnr_db < 0


def test_another_shape_is_said() -> None:
    (change,) = compared(product(weight(32, 24)), product(weight(32, 20))).changed
    assert change.note == "of another shape"
    assert change.largest is None


@pytest.mark.parametrize("kind", [np.int64, np.bool_])
def test_other_constants_that_are_no_weights(kind: Any) -> None:
    def proto(last: int) -> onnx.ModelProto:
        held = {"k": np.array([0, 1, last]).astype(kind)}
        return model(graph([node("Identity", ["x"], ["y"])], {"x": [1]}, {"y": [1]}, held))

    assert compared(proto(0), proto(0)).equal == 1
    (change,) = compared(proto(0), proto(1)).changed
    assert change.largest is None
    assert change.note


def test_weights_that_are_not_finite_are_not_called_equal() -> None:
    w = rng(3).normal(size=(8, 8)).astype(np.float32)
    broken = w.copy()
    broken[0, 0] = np.nan
    (change,) = compared(product(w), product(broken)).changed
    assert change.note == "values that are not finite"
    assert change.largest is None
