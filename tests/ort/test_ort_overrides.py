"""Overrides of single tensors: what they may say, and what configurations make of them."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import graph, initializers, model, node, rng
from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config

from quantkit import ort
from quantkit.ort.extra_options import Tensors, check_overrides

U8, U16, I4 = ort.QuantType.QUInt8, ort.QuantType.QUInt16, ort.QuantType.QInt4
TENSORS = Tensors(constants={"w": (4, 3)}, computed={"a"}, weights={"w"})
SCALE = {"scale": 0.5, "zero_point": 3}


def diamond() -> onnx.ModelProto:
    """x -> Abs 'a' -> t, which Tanh 'b' and Sigmoid 'c' read; their sum is y."""
    nodes = [
        node("Abs", ["x"], ["t"], "a"),
        node("Tanh", ["t"], ["u"], "b"),
        node("Sigmoid", ["t"], ["v"], "c"),
        node("Add", ["u", "v"], ["y"], "d"),
    ]
    return model(graph(nodes, {"x": [2, 3]}, {"y": [2, 3]}, {}), opset=18)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"z": [{}]}, "is not present in the model"),
        ({"w": {}}, "no list of dictionaries"),
        ({"w": [{"scales": 1.0}]}, "'scales' is unknown"),
        ({"a": [{"scale": 1.0}]}, "Must provide both 'scale' and 'zero_point'"),
        ({"a": [{"rmin": 1.0}]}, "Must provide both 'rmin' and 'rmax'"),
        ({"a": [{**SCALE, "rmax": 1.0, "rmin": 0.0}]}, r"option\(s\) \[.*\] are invalid"),
        ({"a": [{**SCALE, "symmetric": True}]}, r"option\(s\) \[symmetric\] are invalid"),
        ({"a": [{"axis": 0}]}, "'a' has per-channel overrides, but is not an initializer"),
        ({"w": [{}, SCALE]}, "names the axis"),
        ({"w": [{"axis": 2}]}, "out-of-bounds for tensor w"),
        ({"w": [{"axis": 0}, {}]}, "expected 4, but found 2"),
        (
            {"w": [{"axis": 1}, {"quant_type": U8}, {}]},
            "quantization types for tensor 'w' do not match",
        ),
        ({"w": [{"axis": 1, **SCALE}, {}, {}]}, "must do so for all channels"),
        (
            {"w": [{"convert": {"quant_type": U16}}]},
            "Cannot use 'convert' override for initializers",
        ),
        ({"a": [{"reduce_range": True}]}, "'reduce_range' is only supported for initializers"),
        ({"a": [{"convert": {}}]}, "must specify a 'quant_type'"),
        ({"a": [{"convert": {"quant_type": U8}}]}, "must differ from original quant_type"),
        ({"a": [{"symmetric": True}], "z": [{}]}, "is not present in the model"),
    ],
)
def test_overrides_that_make_no_sense_are_refused(overrides: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        check_overrides(overrides, TENSORS, U8)


def test_overrides_that_make_sense_pass() -> None:
    given: dict[str, Any] = {
        "w": [{"axis": -1, "quant_type": I4, **SCALE}, SCALE, SCALE],
        "a": [{"quant_type": U8, "convert": {"quant_type": U16, "recv_nodes": {"n"}}}],
    }
    check_overrides(given, TENSORS, U8)


def test_a_configuration_for_qnn_is_quantized_with_its_built_in_scales(tmp_path: Path) -> None:
    data = [{"x": rng(i).standard_normal((2, 3)).astype(np.float32)} for i in range(4)]
    config = get_qnn_qdq_config(diamond(), data, activation_type=U16)
    ort.quantize(diamond(), tmp_path / "q.onnx", config)
    held = initializers(onnx.load(tmp_path / "q.onnx"))
    assert held["v_scale"] == np.float32(2**-16)
    assert held["u_scale"] == np.float32(2**-15)
    assert held["u_zero_point"] == 1 << 15


def test_the_order_of_operators_in_onnxruntimes_configurations_changes_no_byte(
    tmp_path: Path,
) -> None:
    """onnxruntime lists them from a set, in an order that differs from run to run."""
    data = [{"x": rng(i).standard_normal((2, 3)).astype(np.float32)} for i in range(4)]
    for name, listed in (("a", ["Tanh", "Add"]), ("b", ["Add", "Tanh"])):
        config = get_qnn_qdq_config(diamond(), data, op_types_to_quantize=listed)
        ort.quantize(diamond(), tmp_path / f"{name}.onnx", config)
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_a_configuration_names_all_operators_of_the_model_and_asks_about_nodes() -> None:
    config = ort.get_qdq_config(diamond(), None, nodes_to_exclude=lambda _, n: n.name == "d")
    assert config.nodes_to_exclude == ["d"]
    assert config.op_types_to_quantize == ["Abs", "Sigmoid", "Tanh"]
    assert config.extra_options is not None
    assert config.extra_options["ForceQuantizeNoInputCheck"] is True
    assert ort.get_qdq_config(diamond(), None, op_types_to_quantize=["Mul"]).op_types_to_quantize


@pytest.mark.parametrize(("wide", "contrib"), [(False, True), (True, False)])
def test_4_bits_alone_need_onnxruntimes_operators_below_opset_21(
    *, wide: bool, contrib: bool
) -> None:
    config = ort.get_qdq_config(
        diamond(),
        None,
        activation_type=U16 if wide else U8,
        tensor_quant_overrides={"u": [{"quant_type": I4}]},
    )
    assert config.extra_options is not None
    assert config.extra_options.get("UseQDQContribOps", False) is contrib
