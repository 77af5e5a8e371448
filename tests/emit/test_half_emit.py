"""The plan of 16 bits as a graph: bit for bit the rounded weights, float16 where it is planned, Casts only between."""

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from builders import (
    MS,
    Array,
    fused_ops,
    graph,
    initializers,
    model,
    node,
    op_types,
    rng,
    run,
    sqnr,
)
from builders import weight as made
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, numpy_helper

from quantkit.model.graph.load import load
from quantkit.model.graph.normalize import lift_floats
from quantkit.model.graph.protos import to_proto
from quantkit.model.graph.view import half_view_of
from quantkit.quantize.emit import emit_half
from quantkit.quantize.plan import Plan, plan_half
from quantkit.settings import Float16Settings

LEVELS = pytest.mark.parametrize("optimize", [True, False], ids=["optimized", "as it stands"])


def emitted(
    proto: onnx.ModelProto,
    given: Float16Settings,
    ranges: dict[str, tuple[float, float]] | None = None,
) -> tuple[onnx.ModelProto, Plan]:
    loaded = load(proto)
    if given.compute:
        lift_floats(loaded.model)
    plan = plan_half(half_view_of(loaded.model, given.dtype, computed=given.compute), given, ranges)
    emit_half(loaded.model, plan)
    result = to_proto(loaded.model)
    onnx.checker.check_model(result, full_check=True)
    return result, plan


def network() -> onnx.ModelProto:
    nodes = [
        node("Conv", ["x", "w0", "b0"], ["c"], "conv0", pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"], "relu"),
        node("Conv", ["r", "w1"], ["d"], "conv1", strides=[4, 4]),
        node("Flatten", ["d"], ["f"], "flat"),
        node("Gemm", ["f", "w2", "b2"], ["g"], "gemm"),
        node("Softmax", ["g"], ["y"], "softmax"),
    ]
    held = {"w0": made(16, 3, 3, 3), "b0": made(16), "w1": made(32, 16, 3, 3, seed=1)}
    held |= {"w2": made(128, 40, seed=2), "b2": made(40, seed=3)}
    return model(graph(nodes, {"x": ["N", 3, 8, 8]}, {"y": ["N", 40]}, held))


def images() -> dict[str, Array]:
    return {"x": rng().standard_normal((2, 3, 8, 8)).astype(np.float32)}


def rounded(proto: onnx.ModelProto, names: set[str], kind: type) -> onnx.ModelProto:
    """Return the float model with some weights rounded."""
    copied = onnx.ModelProto()
    copied.CopyFrom(proto)
    for tensor in copied.graph.initializer:
        if tensor.name in names:
            array = numpy_helper.to_array(tensor).astype(kind).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return copied


@LEVELS
@pytest.mark.parametrize(
    ("dtype", "kind"), [("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)]
)
def test_stored_weights_give_the_bits_of_rounded_ones(
    dtype: str, kind: type, *, optimize: bool
) -> None:
    proto = network()
    result, plan = emitted(proto, Float16Settings(dtype=dtype))  # type: ignore[arg-type]
    assert plan.half.keys() == {"w0", "w1", "w2"}
    expected = run(rounded(proto, set(plan.half), kind), images(), optimize=optimize)[0]
    actual = run(result, images(), optimize=optimize)[0]
    assert actual.tobytes() == expected.tobytes()


def test_stored_weights_have_half_the_bytes_and_vanish_as_casts_at_load(tmp_path: Path) -> None:
    proto = network()
    result, _ = emitted(proto, Float16Settings())
    kinds = {t.name: t.data_type for t in result.graph.initializer}
    assert [name for name, kind in kinds.items() if kind == TensorProto.FLOAT16] == [
        "w0",
        "w1",
        "w2",
    ]
    assert op_types(result).count("Cast") == 3
    path = tmp_path / "m.onnx"
    path.write_bytes(result.SerializeToString())
    before = tmp_path / "f.onnx"
    before.write_bytes(proto.SerializeToString())
    assert fused_ops(path, tmp_path) == fused_ops(before, tmp_path)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32 - 1), st.integers(-3, 3))
def test_the_error_of_a_stored_product_is_bounded(seed: int, exponent: int) -> None:
    """|y - y'| <= |x| |w| 2^-11, and what float32 itself rounds."""
    generator = np.random.default_rng(seed)
    w = (generator.uniform(0.5, 1, (20, 30)) * 10.0**exponent).astype(np.float32)
    x = generator.standard_normal((3, 20)).astype(np.float32)
    proto = model(
        graph([node("MatMul", ["x", "w"], ["y"])], {"x": [3, 20]}, {"y": [3, 30]}, {"w": w})
    )
    result, plan = emitted(proto, Float16Settings())
    assert plan.halves
    difference = np.abs(run(result, {"x": x})[0].astype(np.float64) - x.astype(np.float64) @ w)
    assert (difference <= np.abs(x).astype(np.float64) @ np.abs(w) * (2.0**-11 + 1e-5)).all()


@LEVELS
def test_float16_arithmetic_is_near_float_and_keeps_the_ends(*, optimize: bool) -> None:
    proto = network()
    result, plan = emitted(proto, Float16Settings(compute=True))
    assert len(plan.nodes) == 6
    kinds = {t.name: t.data_type for t in result.graph.initializer}
    assert set(kinds.values()) == {TensorProto.FLOAT16}
    ends = [*result.graph.input, *result.graph.output]
    assert [(v.name, v.type.tensor_type.elem_type) for v in ends] == [("x", 1), ("y", 1)]
    assert op_types(result).count("Cast") == 2
    expected, actual = run(proto, images())[0], run(result, images(), optimize=optimize)[0]
    assert actual.dtype == np.float32
    assert sqnr(expected, actual) > 45


def test_every_value_has_the_type_that_its_readers_want() -> None:
    """With a float32 island in the middle, a full check of types passes and Casts are shared."""
    proto = network()
    settings_ = Float16Settings(compute=True, exclude=("relu",))
    result, plan = emitted(proto, settings_)
    casts = [n for n in result.graph.node if n.op_type == "Cast"]
    assert sorted(n.output[0] for n in casts) == ["c_float32", "r_float16", "x_float16", "y"]
    assert plan.node["relu"].why == "excluded"


def test_one_cast_serves_all_readers_and_stands_before_the_first() -> None:
    nodes = [
        node("FusedMatMul", ["x", "w"], ["a"], "one", domain=MS),
        node("MatMul", ["x", "w"], ["b"], "half"),
        node("FusedMatMul", ["a", "w"], ["y"], "two", domain=MS),
    ]
    proto = graph(nodes, {"x": [2, 40]}, {"y": [2, 40], "b": [2, 40]}, {"w": made(40, 40)})
    whole = model(proto, domains={MS: 1})
    result, _ = emitted(whole, Float16Settings(compute=True))
    assert op_types(result) == ["Cast", "FusedMatMul", "Cast", "MatMul", "Cast", "FusedMatMul"]
    read = [n.input[1] for n in result.graph.node if n.op_type != "Cast"]
    assert read == ["w_float32", "w", "w_float32"]
    feeds = {"x": rng().standard_normal((2, 40)).astype(np.float32)}
    for expected, actual in zip(run(whole, feeds), run(result, feeds), strict=True):
        assert sqnr(expected, actual) > 55


def with_branches() -> onnx.ModelProto:
    """Weights inside of a branch, one of the outer graph that only a branch reads, and a half that a branch captures."""
    inner = graph(
        [node("MatMul", ["a", "k"], ["t"], "inside")], {}, {"t": [2, 40]}, {"k": made(40, 40)}
    )
    other = graph([node("MatMul", ["a", "outer"], ["e"], "else")], {}, {"e": [2, 40]})
    nodes = [
        node("MatMul", ["x", "w"], ["a"], "mm"),
        node("If", ["c"], ["b"], "if", then_branch=inner, else_branch=other),
        node("Relu", ["b"], ["y"], "relu"),
    ]
    held = {"w": made(40, 40, seed=1), "outer": made(40, 40, seed=2)}
    types = {"c": TensorProto.BOOL}
    return model(graph(nodes, {"x": [2, 40], "c": []}, {"y": [2, 40]}, held, types=types))


@pytest.mark.parametrize("compute", [False, True])
@pytest.mark.parametrize("taken", [False, True])
def test_subgraphs_read_float32(tmp_path: Path, *, compute: bool, taken: bool) -> None:
    proto = with_branches()
    result, plan = emitted(proto, Float16Settings(compute=compute))
    assert plan.half.keys() == {"w", "outer", "k"}
    feeds = {"x": rng().standard_normal((2, 40)).astype(np.float32), "c": np.array(taken)}
    assert sqnr(run(proto, feeds)[0], run(result, feeds)[0]) > 60
    path = tmp_path / "m.onnx"
    path.write_bytes(result.SerializeToString())
    left = fused_ops(path, tmp_path).count("Cast")
    assert left <= (2 if compute else 0)  # Casts of weights are gone in branches too


@pytest.mark.parametrize("compute", [False, True])
def test_ends_in_float16(*, compute: bool) -> None:
    proto = network()
    given_ = Float16Settings(compute=compute, half_inputs=True, half_outputs=True)
    result, _ = emitted(proto, given_)
    ends = [*result.graph.input, *result.graph.output]
    assert [(v.name, v.type.tensor_type.elem_type) for v in ends] == [("x", 10), ("y", 10)]
    actual = run(result, {"x": images()["x"].astype(np.float16)})[0]
    assert actual.dtype == np.float16
    assert sqnr(run(proto, images())[0], actual.astype(np.float32)) > 45


def test_an_output_that_others_read_keeps_its_name_and_type() -> None:
    nodes = [node("MatMul", ["x", "w"], ["m"], "mm"), node("MatMul", ["m", "v"], ["y"], "end")]
    held = {"w": made(16, 16), "v": made(16, 16, seed=1)}
    proto = model(graph(nodes, {"x": [2, 16]}, {"m": [2, 16], "y": [2, 16]}, held))
    for halves in (False, True):
        result, _ = emitted(proto, Float16Settings(compute=True, half_outputs=halves))
        kinds = {v.name: v.type.tensor_type.elem_type for v in result.graph.output}
        assert kinds == dict.fromkeys(("m", "y"), 10 if halves else 1)
        feeds = {"x": rng().standard_normal((2, 16)).astype(np.float32)}
        for expected, actual in zip(run(proto, feeds), run(result, feeds), strict=True):
            assert sqnr(expected, actual.astype(np.float32)) > 55


def test_a_cast_of_integers_makes_halves_at_once() -> None:
    nodes = [
        node("Cast", ["i"], ["f"], "cast", to=TensorProto.FLOAT),
        node("MatMul", ["f", "w"], ["y"], "mm"),
    ]
    proto = model(
        graph(
            nodes,
            {"i": [2, 16]},
            {"y": [2, 16]},
            {"w": made(16, 16)},
            types={"i": TensorProto.INT64},
        )
    )
    result, _ = emitted(proto, Float16Settings(compute=True))
    assert op_types(result) == ["Cast", "MatMul", "Cast"]
    assert result.graph.node[0].attribute[0].i == TensorProto.FLOAT16


def test_a_bound_that_is_too_large_becomes_infinite_without_a_word() -> None:
    nodes = [node("MatMul", ["x", "w"], ["a"]), node("Clip", ["a", "l", "h"], ["y"])]
    held = {"w": made(16, 16), "l": np.array(-1, np.float32), "h": np.array(3e38, np.float32)}
    result, _ = emitted(
        model(graph(nodes, {"x": [2, 16]}, {"y": [2, 16]}, held)), Float16Settings(compute=True)
    )
    assert initializers(result)["h"] == np.inf
