"""Every row of a quantized operator says what the operator's schema says."""

import onnx
import onnxruntime.capi.onnxruntime_pybind11_state as runtime
import pytest
from onnx.defs import OpSchema

from quantkit.model.ops.integer_ops import (
    CONVERSIONS,
    INTEGER_OPS,
    INTEGER_PRODUCTS,
    MICROSOFT,
    STATIC_OPS,
    IntegerOp,
    is_quantized,
    quantized_among,
    scale_slots,
    stands_for,
)

_CONTRIB = {
    schema.name: schema
    for schema in runtime.get_all_operator_schema()
    if schema.domain == MICROSOFT
}
_ROWS = pytest.mark.parametrize("row", INTEGER_OPS.values(), ids=INTEGER_OPS)
_UNNAMED = {"MatMulBnb4": {2}}  # its scales are called absmax


def _names(row: IntegerOp) -> list[str]:
    """Return the names of an operator's inputs; those of one with any number of them for two operands."""
    schema = _CONTRIB[row.op_type] if row.domain else onnx.defs.get_schema(row.op_type)
    names = [formal.name.lower() for formal in schema.inputs]
    if row.repeated:
        names[-1:] = ["x", "x_scale", "x_zero_point"] * 2
    return names


@_ROWS
def test_a_row_names_exactly_the_scales_and_zero_points_of_its_schema(row: IntegerOp) -> None:
    names = _names(row)
    meant = {i for i, name in enumerate(names) if "scale" in name or "zero_point" in name}
    assert set(scale_slots(row.op_type, len(names))) == meant | _UNNAMED.get(row.op_type, set())


@_ROWS
def test_scales_and_zero_points_are_told_apart(row: IntegerOp) -> None:
    names = _names(row)
    operands = row.operands(len(names) if not row.repeated else 2)
    scales = [o.scale for o in operands] + ([row.result[0]] if row.result else [])
    zeros = [o.zero_point for o in operands] + ([row.result[1]] if row.result else [])
    unnamed = _UNNAMED.get(row.op_type, set())
    assert all("scale" in names[i] for i in scales if i is not None and i not in unnamed)
    assert all("zero_point" in names[i] for i in zeros if i is not None)


@_ROWS
def test_every_slot_is_an_input_and_is_named_once(row: IntegerOp) -> None:
    names = _names(row)
    operands = row.operands(2 if row.repeated else len(names))
    slots = [s for o in operands for s in (o.values, o.scale, o.zero_point) if s is not None]
    slots += [*(row.result or ()), *row.passed, *([] if row.bias is None else [row.bias])]
    assert len(set(slots)) == len(slots)
    assert all(0 <= slot < len(names) for slot in slots)


@_ROWS
def test_a_bias_is_where_the_schema_has_one(row: IntegerOp) -> None:
    known = {"b", "bias", "c"} if row.role.name == "MULTIPLIES" else set()
    operands = {o.values for o in (*row.reads, *row.weights)}
    found = [i for i, name in enumerate(_names(row)) if name in known and i not in operands]
    assert found == ([] if row.bias is None else [row.bias])


@_ROWS
def test_integers_are_of_an_integer_type(row: IntegerOp) -> None:
    schema = _CONTRIB[row.op_type] if row.domain else onnx.defs.get_schema(row.op_type)
    for operand in (*row.reads, *row.weights):
        types = schema.inputs[min(operand.values, len(schema.inputs) - 1)].types
        assert any("int" in t for t in types) or row.repeated, operand


@_ROWS
def test_a_quantized_operator_stands_for_a_float_one(row: IntegerOp) -> None:
    assert stands_for(row.op_type) == (row.float_op or row.op_type)
    assert (row.float_op == "") == (row.op_type in CONVERSIONS)
    if row.float_op:
        assert onnx.defs.has(row.float_op) or row.float_op in _CONTRIB


@pytest.mark.parametrize("float_op", STATIC_OPS)
def test_given_scales_take_over_what_the_float_operator_reads(float_op: str) -> None:
    row = STATIC_OPS[float_op]
    inputs = onnx.defs.get_schema(float_op).inputs
    operands = [f for f in inputs if f.option is OpSchema.FormalParameterOption.Single]
    optional = float_op in {"Gemm", "ReduceMean"}  # a bias, axes
    read = len(row.reads) + len(row.weights) + len(row.passed)
    assert row.repeated or read == len(operands) or optional


def test_every_quantized_operator_of_onnxruntime_has_a_row() -> None:
    named = {name for name in _CONTRIB if name.startswith("QLinear")}
    assert named <= INTEGER_OPS.keys()
    standard = {s.name for s in onnx.defs.get_all_schemas() if s.domain == ""}
    assert {n for n in standard if is_quantized(n)} <= INTEGER_OPS.keys()


def test_products_multiply_by_weights() -> None:
    assert all(INTEGER_OPS[op].weights for op in INTEGER_PRODUCTS)
    assert {op for op in INTEGER_PRODUCTS if INTEGER_OPS[op].makes_sums} == {
        "ConvInteger",
        "MatMulInteger",
    }


def test_what_is_quantized_already_is_told_by_any_row_but_one() -> None:
    assert quantized_among(["QGemm", "Relu", "QuantizeLinear", "QGemm"]) == ["QGemm"]
    assert quantized_among(["Conv", "QuantizeLinear"]) == []


def test_any_number_of_operands_is_concatenated() -> None:
    assert scale_slots("QLinearConcat", 11) == (0, 1, 3, 4, 6, 7, 9, 10)
    assert scale_slots("Conv", 3) == ()
