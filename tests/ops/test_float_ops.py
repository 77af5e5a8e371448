"""What is said of float operators agrees with their schemas, and with who reads it."""

import onnx
import onnxruntime.capi.onnxruntime_pybind11_state as runtime
import pytest

from quantkit.model.ops import FACTS, OpFact, channel_axis, float_ops
from quantkit.model.ops.float_ops import (
    BIASED,
    BY_CONSTANT,
    CLIPS,
    FLOAT_PRODUCTS,
    MATRIX_PRODUCTS,
    MOVES,
    PRODUCTS,
    REARRANGES,
    SEEN_THROUGH,
    Trait,
    activation_slots,
    having,
)
from quantkit.model.ops.integer_ops import INTEGER_OPS, STATIC_OPS
from quantkit.targets import TARGETS, Target

_CONTRIB = {s.name: s for s in runtime.get_all_operator_schema() if s.domain == "com.microsoft"}
_FACTS = pytest.mark.parametrize("fact", FACTS.values(), ids=[f.op_type for f in FACTS.values()])


def test_every_operator_with_a_trait_exists_and_is_not_quantized() -> None:
    named = having(~Trait(0))
    assert {op for op in named if not onnx.defs.has(op)} <= _CONTRIB.keys()
    assert named.isdisjoint(INTEGER_OPS)


@_FACTS
def test_weights_are_inputs(fact: OpFact) -> None:
    schema = _CONTRIB[fact.op_type] if fact.domain else onnx.defs.get_schema(fact.op_type)
    variadic = fact.op_type == "Einsum"
    assert variadic or all(0 <= slot < schema.max_input for slot in fact.weights)


@_FACTS
def test_what_holds_weights_is_observed_unless_it_looks_rows_up(fact: OpFact) -> None:
    assert (fact.op_type in float_ops.COMPUTES) == (fact.op_type != "Gather")


def test_the_channel_axis_of_float_and_quantized_products_is_one() -> None:
    for op_type in PRODUCTS & STATIC_OPS.keys():
        axis = STATIC_OPS[op_type].weights[0].axis
        assert axis is not None
        rank = 4 if op_type == "Conv" else 2
        assert channel_axis(FACTS["", op_type], 1, rank, {}) == axis % rank
    assert channel_axis(FACTS["", "Gemm"], 1, 2, {"transB": 1}) == 0
    assert channel_axis(FACTS["", "MatMul"], 0, 2, {}) == 0


def test_products_with_a_bias_take_a_third_input() -> None:
    for op_type in PRODUCTS:
        assert (onnx.defs.get_schema(op_type).max_input == 3) == (op_type in BIASED)
    assert {"Gemm", "MatMul"} == MATRIX_PRODUCTS
    assert PRODUCTS < FLOAT_PRODUCTS


@pytest.mark.parametrize("op_type", sorted(MOVES))
def test_what_moves_gives_the_type_that_it_reads_and_takes_integers(op_type: str) -> None:
    schema = onnx.defs.get_schema(op_type)
    assert schema.outputs[0].type_str == schema.inputs[0].type_str
    assert "tensor(int8)" in schema.inputs[0].types


def test_weights_are_assembled_by_movement_alone() -> None:
    assert REARRANGES <= SEEN_THROUGH


def test_constants_only_scale_or_shift() -> None:
    assert {"Add", "Mul"} == BY_CONSTANT
    assert {"Clip", "Relu"} == CLIPS


def test_integers_are_read_where_the_quantized_operator_reads_them() -> None:
    for op_type, row in STATIC_OPS.items():
        if row.repeated or op_type == "ReduceMean":
            continue
        count = len(row.reads) + len(row.weights)
        inputs = count + len(row.passed)
        read = activation_slots(op_type, inputs, product=op_type in BIASED)
        assert len(read) == (1 if op_type in BIASED else count)
        assert set(read).isdisjoint(row.passed)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_targets_name_operators_that_exist(target: Target) -> None:
    assert {op for op in target.operators if not onnx.defs.has(op)} == set()
