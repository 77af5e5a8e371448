"""Packed weights as a runtime sees them once a file is loaded: the integers that were packed, bit for bit."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from block_cases import codes_of, emitted, feeds, language_model, layers, planned, with_floats
from builders import Array, conv_model, graph, matmul_model, model, node, op_types, run, weight
from hypothesis import given, settings
from hypothesis import strategies as st

from quantkit.model.graph.load import load
from quantkit.model.graph.opset import raise_opset
from quantkit.model.graph.protos import to_proto
from quantkit.model.graph.unpack import STORED_BYTES, unpack
from quantkit.model.graph.view import view_of
from quantkit.numerics.blocks import BlockCodes, from_rows
from quantkit.quantize.emit import emit_dynamic
from quantkit.quantize.plan import Plan, plan_dynamic
from quantkit.quantize.plan.blocks import with_bits
from quantkit.quantize.plan.solved import SolvedIntegers

PROPERTY = settings(max_examples=25, deadline=None)


def unpacked(proto: onnx.ModelProto) -> tuple[ir.Model, int]:
    loaded = ir.from_proto(proto)
    return loaded, unpack(loaded)


def constants(built: ir.Model) -> dict[str, Array]:
    return {
        name: value.const_value.numpy()
        for name, value in built.graph.initializers.items()
        if value.const_value is not None
    }


def packed_dynamic(proto: onnx.ModelProto, bits: int) -> tuple[onnx.ModelProto, Plan, ir.Model]:
    """Return a dynamic model with weights of few bits in the file, its plan, and the float model."""
    built = raise_opset(load(proto).model, 17)
    view = view_of(built)
    plan = with_bits(plan_dynamic(view), view, dict.fromkeys(view.weights, bits))
    floats = raise_opset(load(proto).model, 17)
    emit_dynamic(built, plan, SolvedIntegers(blocks=few_bits(floats, plan)))
    return to_proto(built), plan, floats


def few_bits(floats: ir.Model, plan: Plan) -> dict[str, BlockCodes]:
    packed = Plan(nodes=(), weights=tuple(w for w in plan.weights if w.blocks), min_opset=0)
    return codes_of(floats, packed)


@PROPERTY
@given(
    bits=st.sampled_from([3, 5, 6, 7]),
    k=st.integers(60, 200),
    n=st.integers(60, 160),
    symmetric=st.booleans(),
)
def test_codes_of_kernels_are_those_that_were_packed(
    *, bits: int, k: int, n: int, symmetric: bool
) -> None:
    """Kernels read these numbers of bits as bytes."""
    built, plan = planned(layers(k, n), bits=bits, symmetric=symmetric)
    codes = codes_of(built, plan)
    proto = emitted(built, plan, codes)
    loaded, count = unpacked(proto)
    assert count >= 2
    held = constants(loaded)
    for product, tensor in zip(
        [x for x in loaded.graph if x.op_type == "MatMulNBits"], ("w1", "w2"), strict=True
    ):
        _, stored, steps, *_ = (value.name if value else "" for value in product.inputs)
        own, read = codes[tensor], held[stored or ""]
        shift = 128 - own.grid.middle if symmetric else 0
        found = read.reshape(read.shape[0], -1)[:, : own.codes.shape[1]]
        np.testing.assert_array_equal(found, own.codes + shift)
        np.testing.assert_array_equal(held[steps or ""], own.steps)
    assert op_types(to_proto(loaded)) == ["MatMulNBits", "Relu", "MatMulNBits"]


@pytest.mark.parametrize("bits", range(2, 8))
@pytest.mark.parametrize("proto", [layers(200, 230), matmul_model(250, 190)], ids=["two", "one"])
def test_integers_of_dynamic_kernels_are_those_that_were_packed(
    proto: onnx.ModelProto, bits: int
) -> None:
    packed, plan, floats = packed_dynamic(proto, bits)
    few = few_bits(floats, plan)
    assert few
    loaded, count = unpacked(packed)
    assert count == len(few)
    assert not {"BitShift", "Mod"} & set(op_types(to_proto(loaded)))
    held = constants(loaded)
    for tensor, own in few.items():
        stored = held[f"{tensor}_quantized"]
        assert stored.dtype == np.int8
        axis = plan.weight[tensor].spec.granularity.axis  # type: ignore[union-attr]
        np.testing.assert_array_equal(stored, from_rows(own.integers, stored.shape, axis))


@pytest.mark.parametrize("bits", range(2, 8))
def test_floats_that_become_so_at_load_are_what_codes_stand_for(bits: int) -> None:
    held = {"w": weight(64, 40, 3, 3)}
    shapes = {"x": [1, 40, 8, 8]}, {"y": [1, 64, 6, 6]}
    proto = model(graph([node("Conv", ["x", "w"], ["y"], "conv")], *shapes, held))
    built, plan = planned(proto, bits=bits)
    codes = codes_of(built, plan)
    loaded, count = unpacked(emitted(built, plan, codes))
    assert count == 1
    (found,) = constants(loaded).values()
    wanted = with_floats(proto, plan, codes).graph.initializer[0]
    np.testing.assert_array_equal(found, onnx.numpy_helper.to_array(wanted))
    assert op_types(to_proto(loaded)) == ["Conv"]


@pytest.mark.parametrize("bits", [3, 4, 6, 8])
def test_a_table_and_its_head_compute_the_same_when_unpacked(bits: int) -> None:
    proto = language_model()
    packed = emitted(*planned(proto, embedding_bits=bits, bits=5, symmetric=True))
    loaded, count = unpacked(packed)
    assert count
    plain = to_proto(loaded)
    assert not {"BitShift", "Mod", "Cast", "Reshape"} & set(op_types(plain))
    np.testing.assert_array_equal(run(packed, feeds(proto))[0], run(plain, feeds(proto))[0])


def test_what_a_constant_takes_in_the_file_is_known() -> None:
    packed, _, _ = packed_dynamic(matmul_model(256, 256, bias=False), 4)
    loaded, _ = unpacked(packed)
    value = loaded.graph.initializers["w_quantized"]
    codes, multipliers = 256 * 256 // 2, 256 * 16 * 3 / 8
    assert value.meta[STORED_BYTES] == pytest.approx(codes + multipliers, rel=0.02)
    assert value.const_value is not None
    assert value.const_value.nbytes == 256 * 256


@pytest.mark.parametrize("proto", [matmul_model(), conv_model(), language_model()])
def test_what_is_not_packed_stays_as_it_is(proto: onnx.ModelProto) -> None:
    loaded, count = unpacked(proto)
    assert count == 0
    assert op_types(to_proto(loaded)) == op_types(proto)
    assert set(constants(loaded)) == {t.name for t in proto.graph.initializer}


def test_bits_that_a_model_itself_takes_apart_keep_their_names_as_outputs() -> None:
    nodes = [
        node("BitShift", ["c", "one"], ["half"], "shift", direction="RIGHT"),
        node("Cast", ["half"], ["f"], "cast", to=onnx.TensorProto.FLOAT),
        node("Add", ["x", "f"], ["y"], "add"),
    ]
    held = {"c": np.arange(8, dtype=np.uint8), "one": np.array([1], np.uint8)}
    types = {"half": onnx.TensorProto.UINT8}
    proto = model(graph(nodes, {"x": [8]}, {"y": [8], "half": [8]}, held, types=types))
    loaded, _ = unpacked(proto)
    after = to_proto(loaded)
    onnx.checker.check_model(after)
    x = {"x": np.ones(8, np.float32)}
    for before, now in zip(run(proto, x), run(after, x), strict=True):
        np.testing.assert_array_equal(before, now)
