"""Every reason for float is proved: with it a product stays float, mended it runs in integers."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from builders import graph, model, node, save, weight
from fusion_cases import Case
from onnx import TensorProto

from quantkit.result import NodeRuns
from quantkit.runtime.kernels import reasons as site
from quantkit.runtime.kernels import runtime_of
from quantkit.runtime.kernels.reasons import why_float

GOOD = Case(bias="int32")
GEMM = Case(op="Gemm", bias="int32")
MATMUL = Case(op="MatMul")


def judged(proto: onnx.ModelProto, tmp_path: Path, name: str = "product") -> NodeRuns:
    (found,) = [n for n in runtime_of(save(proto, tmp_path / "m.onnx")).nodes if n.node == name]
    return found


@pytest.mark.parametrize(
    ("good", "fault", "why"),
    [
        (GOOD, {"made": None}, "the output is not quantized: it is an output of the model"),
        (GOOD, {"made": None, "between": ("Tanh",)}, "the output is not quantized, or not for all"),
        (GOOD, {"other": True}, "the output is not quantized, or not for all"),
        (MATMUL, {"other": True}, "the output is not quantized, or not for all"),
        (GOOD, {"read": None}, "the weight has 8 bits in the file and becomes float"),
        (GEMM, {"read": None}, "8 bits in the file"),
        (GOOD, {"read": None, "weight": None}, "weight and input are float in the file"),
        (MATMUL, {"weight": None}, "the weight is float in the file"),
        (GOOD, {"read": np.uint16, "made": np.uint16}, "16-bit integers"),
        (GEMM, {"read": np.int16, "made": np.int16}, "16-bit integers"),
        (MATMUL, {"read": np.uint16, "made": np.uint16}, "16-bit integers"),
        (GOOD, {"between": ("BatchNormalization", "Relu")}, "BatchNormalization stands between"),
        (replace(GOOD, between=("Relu",)), {"zero": 128}, "Relu between the layer and QuantizeLinear"),
        (GOOD, {"bias": "computed"}, "the bias is computed at run time"),
        (GOOD, {"bias": "wrong"}, "the scale of the bias is not x_scale * w_scale"),
        (GOOD, {"bias": "shifted"}, "the bias has a zero point that is not 0"),
        (GOOD, {"bias": "uint8"}, "the bias is uint8, not int32"),
        (replace(GEMM, made=None), {"bias": "float"}, "the bias is float"),
        (GEMM, {"attributes": {"alpha": 2.0}}, "Gemm with alpha or beta other than 1"),
        (replace(GEMM, channels=1), {"channels": 0}, "scales along an axis that is summed over"),
        (replace(GEMM, bias=""), {"zeros": False}, "QGemm needs explicit zero points"),
        (replace(GOOD, bias=""), {"integers": True, "read": np.int8, "made": np.int8}, "int8 inputs that no"),
        (replace(MATMUL, made=None), {"integers": True, "read": np.int8}, "int8 inputs that no"),
    ],
)  # fmt: skip
def test_a_fault_makes_it_float_and_is_named(
    tmp_path: Path, good: Case, fault: dict[str, Any], why: str
) -> None:
    assert judged(good.build(), tmp_path).runs == "integer"
    bad = judged(replace(good, **fault).build(), tmp_path)
    assert bad.runs == "float"
    assert bad.why.startswith(why) or why in bad.why
    assert bad.fix
    assert bad.op_type == good.op


@pytest.mark.parametrize("op", ["Conv", "Gemm", "MatMul"])
def test_four_bits_beside_eight(tmp_path: Path, op: str) -> None:
    proto = Case(op=op).build()
    for item in proto.graph.initializer:
        if item.name in {"w", "wz"}:
            values = (onnx.numpy_helper.to_array(item) % 7).reshape(-1).tolist()
            item.CopyFrom(
                onnx.helper.make_tensor(item.name, TensorProto.INT4, list(item.dims), values)
            )
    found = judged(proto, tmp_path)
    assert (found.runs, found.why) == ("float", "int4 beside 8-bit integers has no kernel")


@pytest.mark.parametrize("op", ["ConvTranspose", "GRU", "LSTM", "RNN"])
def test_operators_without_a_static_kernel(tmp_path: Path, op: str) -> None:
    if op == "ConvTranspose":
        found = judged(Case(op=op).build(), tmp_path)
    else:
        gates = {"GRU": 3, "LSTM": 4, "RNN": 1}[op]
        constants = {"w": weight(1, 8 * gates, 8), "r": weight(1, 8 * gates, 8)}
        proto = model(
            graph([node(op, ["x", "w", "r"], ["y"], "product", hidden_size=8)], {"x": [3, 1, 8]}, {"y": None}, constants)
        )  # fmt: skip
        found = judged(proto, tmp_path)
    assert found.runs == "float"
    assert ("at run time" if op == "LSTM" else f"no integer kernel for {op}") in found.why


def test_two_activations(tmp_path: Path) -> None:
    proto = model(
        graph(
            [node("MatMul", ["a", "b"], ["y"], "product")], {"a": [4, 4], "b": [4, 4]}, {"y": None}
        )
    )
    found = judged(proto, tmp_path)
    assert (found.runs, found.kernel) == ("float", "MatMul")
    assert "two activations" in found.why


def shared(read: type, op: str) -> onnx.ModelProto:
    """A product whose integers another node reads too."""
    proto = Case(op=op, read=read, made=read).build()
    proto.graph.node.append(node("Neg", ["xd"], ["n"], "other"))
    proto.graph.output.append(onnx.helper.make_empty_tensor_value_info("n"))
    return proto


@pytest.mark.parametrize("op", ["Conv", "Gemm", "MatMul"])
def test_int8_with_several_readers(tmp_path: Path, op: str) -> None:
    single = judged(Case(op=op, read=np.int8, made=np.int8).build(), tmp_path)
    assert single.runs == "integer"
    assert judged(shared(np.uint8, op), tmp_path).runs == "integer"
    found = judged(shared(np.int8, op), tmp_path)
    if found.runs == "integer":
        pytest.skip("this CPU has kernels for int8 activations")
    assert "int8 activations that several nodes read" in found.why
    assert "it reads 'x', which other read too" in found.why
    assert "QUInt8" in found.fix
    assert "quantkit quantize static" in found.fix


def test_a_tensor_with_many_readers_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    many = 40
    proto = Case(op="MatMul", read=np.int8, made=None).build()
    last = proto.graph.node.pop()
    proto.graph.node.extend(
        node("MatMul", last.input, [f"m{i}"], f"product {i}") for i in range(many)
    )
    looked: list[str | None] = []
    found_behind = site._behind

    def counted(value: ir.Value) -> Iterator[ir.Node]:
        looked.append(value.name)
        return found_behind(value)

    monkeypatch.setattr(site, "_behind", counted)
    readers = site.Readers()
    products = [n for n in ir.serde.deserialize_model(proto).graph if n.op_type == "MatMul"]
    whys = [why_float(product, readers).why for product in products]
    assert looked == ["xq"]
    assert f"which product 1, product 2, product 3 and {many - 4} more read too" in whys[0]
    assert f"which product 0, product 1, product 2 and {many - 4} more read too" in whys[-1]


def test_one_node_may_read_a_tensor_twice() -> None:
    proto = Case(op="MatMul", read=np.int8, made=None).build()
    proto.graph.node[-1].input[1] = proto.graph.node[-1].input[0]
    (product,) = (n for n in ir.serde.deserialize_model(proto).graph if n.op_type == "MatMul")
    assert "(it reads 'x' more than once)" in why_float(product, site.Readers()).why


def test_what_several_nodes_read_of_an_int8_output(tmp_path: Path) -> None:
    proto = Case(read=np.int8, made=np.int8).build()
    proto.graph.node.append(node("Neg", ["y"], ["n"], "other"))
    proto.graph.output.append(onnx.helper.make_empty_tensor_value_info("n"))
    found = judged(proto, tmp_path)
    if found.runs == "integer":
        pytest.skip("this CPU has kernels for int8 activations")
    assert "it makes 'm', which" in found.why


def test_integers_of_an_outer_graph(tmp_path: Path) -> None:
    inner = Case(op="MatMul", made=None).build().graph
    branches = {}
    for name in ("then", "else"):
        product = node("MatMul", ["xd", "wd"], [f"y_{name}"], name)
        branches[f"{name}_branch"] = graph([product], {}, {f"y_{name}": None})
    outer = [n for n in inner.node if n.name in {"xq", "xd", "wd"}]
    choice = node("If", ["flag"], ["y"], **branches)
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in inner.initializer}
    inputs = {"x": [2, 4], "flag": []}
    proto = model(
        graph([*outer, choice], inputs, {"y": None}, constants, types={"flag": TensorProto.BOOL}),
        opset=21,
        ir_version=10,
    )
    found = judged(proto, tmp_path, "then")
    assert found.runs == "float"
    assert "outside of the If" in found.why


def test_where_no_rule_is_known_that_is_said(tmp_path: Path) -> None:
    proto = Case(op="Gemm", made=None).build()
    proto.graph.initializer[0].CopyFrom(
        onnx.numpy_helper.from_array(np.full(8, 0.05, np.float32), "xs")
    )
    proto.graph.initializer[1].CopyFrom(onnx.numpy_helper.from_array(np.zeros(8, np.uint8), "xz"))
    for item in proto.graph.node:
        if "xs" in item.input:
            item.attribute.append(onnx.helper.make_attribute("axis", 1))
    found = judged(proto, tmp_path)
    assert found.runs == "float"
    assert found.why.startswith("onnxruntime's patterns do not match (it reads DequantizeLinear")
