"""Overrides of single tensors: what they may say, and what they imply for their neighbours."""

from typing import Any

import numpy as np
import onnx
import pytest
from builders import graph, model, node, weight

from quantkit import ort
from quantkit.errors import UsageError
from quantkit.ort.execution_providers.qnn import get_qnn_qdq_config
from quantkit.ort.execution_providers.qnn.mixed_precision_overrides_utils import (
    MixedPrecisionTensorQuantOverridesFixer,
)
from quantkit.ort.tensor_quant_overrides import TensorQuantOverridesHelper, check_overrides

U8, U16, I4 = ort.QuantType.QUInt8, ort.QuantType.QUInt16, ort.QuantType.QInt4
SHAPES = {"w": (4, 3)}
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
        ({"a": [{**SCALE, "rmax": 1.0, "rmin": 0.0}]}, r"option\(s\) \[rmax, rmin\] are invalid"),
        ({"a": [{**SCALE, "symmetric": True}]}, r"option\(s\) \[symmetric\] are invalid"),
        ({"a": [{"axis": 0}]}, "only constants can be quantized per channel"),
        ({"w": [{}, {}]}, "names the axis"),
        ({"w": [{"axis": 2}]}, "axis 2 is out of range"),
        ({"w": [{"axis": 0}, {}]}, "2 dictionaries for 4 channels"),
        ({"w": [{"axis": 1}, {"quant_type": U8}, {}]}, "the 'quant_type' of the first"),
        ({"w": [{"axis": 1, **SCALE}, {}, {}]}, "for some channels and not for others"),
        ({"w": [{"convert": {"quant_type": U16}}]}, "'convert' is for computed tensors"),
        ({"a": [{"reduce_range": True}]}, "'reduce_range' is for constants"),
        ({"a": [{"convert": {}}]}, "must name a 'quant_type'"),
        ({"a": [{"convert": {"quant_type": U8}}]}, "has already"),
        ({"a": [{"symmetric": True}], "z": [{}]}, "is not present in the model"),
    ],
)
def test_overrides_that_make_no_sense_are_refused(overrides: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        check_overrides(overrides, SHAPES, {"a"}, U8)


def test_overrides_that_make_sense_pass() -> None:
    given: dict[str, Any] = {
        "w": [{"axis": -1, "quant_type": I4, **SCALE}, SCALE, SCALE],
        "a": [{"quant_type": U8, "convert": {"quant_type": U16, "recv_nodes": {"n"}}}],
    }
    check_overrides(given, SHAPES, {"a"}, U8)
    assert TensorQuantOverridesHelper(given).get_quant_types() == {I4, U8, U16}


def test_what_was_said_before_is_not_overwritten_unless_asked() -> None:
    helper = TensorQuantOverridesHelper({"w": [{"symmetric": True}]})
    assert not helper.update_tensor_overrides("w", {"symmetric": False}, overwrite=False)
    assert helper.update_tensor_overrides("w", {"quant_type": U8}, overwrite=False)
    assert helper["w"] == [{"symmetric": True, "quant_type": U8}]
    assert helper.update_tensor_overrides("new", {"symmetric": False})
    assert helper["new"] == [{"symmetric": False}]


def test_a_wider_type_spreads_to_the_nodes_beside_it_and_no_further() -> None:
    overrides = TensorQuantOverridesHelper({"u": [{"quant_type": U16}]})
    MixedPrecisionTensorQuantOverridesFixer.create_from_model(overrides, diamond(), U8).apply(
        U8, default_activation_symmetric=False
    )
    to_16 = {"quant_type": U16}
    assert overrides.get_dict() == {
        "u": [to_16],
        "t": [{"quant_type": U8, "convert": {**to_16, "recv_nodes": {"b"}}}],
        "v": [{"quant_type": U8, "convert": {**to_16, "recv_nodes": {"d"}}}],
        "y": [to_16],
    }


def test_types_that_cannot_be_reconciled_are_refused() -> None:
    given = {"u": [{"quant_type": U16}], "v": [{"quant_type": ort.QuantType.QInt16}]}
    fixer = MixedPrecisionTensorQuantOverridesFixer.create_from_model(
        TensorQuantOverridesHelper(given), diamond(), U8
    )
    with pytest.raises(UsageError, match="types"):
        fixer.apply(U8, default_activation_symmetric=False)


def test_results_of_16_bits_have_the_scale_that_qnn_has_built_in() -> None:
    config = get_qnn_qdq_config(diamond(), None, activation_type=U16)
    assert config.extra_options is not None
    said = config.extra_options["TensorQuantOverrides"]
    assert (said["v"][0]["scale"], said["v"][0]["zero_point"]) == (np.float32(2**-16), 0)
    assert (said["u"][0]["scale"], said["u"][0]["zero_point"]) == (np.float32(2**-15), 1 << 15)
    assert config.extra_options["UseQDQContribOps"] is True
    assert set(config.op_types_to_quantize or ()) == {"Abs", "Tanh", "Sigmoid", "Add"}


def test_qnn_has_no_matmul_per_channel_and_keeps_weights_narrow() -> None:
    nodes = [node("MatMul", ["x", "w"], ["y"], "m")]
    matmul = model(graph(nodes, {"x": [2, 3]}, {"y": [2, 4]}, {"w": weight(3, 4)}))
    for given in ({"per_channel": True}, {"activation_type": U16}):
        config = get_qnn_qdq_config(matmul, None, **given)
        assert config.extra_options is not None
        said = config.extra_options["TensorQuantOverrides"]
        assert said == {"w": [{"quant_type": U8, "symmetric": False}]}
    config = get_qnn_qdq_config(matmul, None)
    assert config.extra_options is not None
    assert config.extra_options["TensorQuantOverrides"] == {}


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
