"""onnxruntime's options and overrides of single tensors: each does what it says, in a file that runs as it is written."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import graph, model, node, rng, run, save, sqnr, weight
from onnx import numpy_helper

from quantkit import ort
from quantkit.errors import UsageError

T = ort.QuantType


def network() -> onnx.ModelProto:
    """x -> Conv 'c' -> Relu 'r' -> Sigmoid 's' -> t, which Conv 'd' and Tanh 'h' read; two results."""
    nodes = [
        node("Conv", ["x", "w", "b"], ["m"], "c", pads=[1, 1, 1, 1]),
        node("Relu", ["m"], ["a"], "r"),
        node("Sigmoid", ["a"], ["t"], "s"),
        node("Conv", ["t", "v", "u"], ["y"], "d"),
        node("Tanh", ["t"], ["z"], "h"),
    ]
    held = {"w": weight(6, 3, 3, 3), "b": weight(6, seed=1)}
    held |= {"v": weight(4, 6, 1, 1, seed=2), "u": weight(4, seed=3)}
    made = {"y": [1, 4, 6, 6], "z": [1, 6, 6, 6]}
    return model(graph(nodes, {"x": [1, 3, 6, 6]}, made, held), opset=21, ir_version=10)


def matmul() -> onnx.ModelProto:
    """x [4, 64] @ w [64, 32] -> y."""
    nodes = [node("MatMul", ["x", "w"], ["y"], "m")]
    return model(graph(nodes, {"x": [4, 64]}, {"y": [4, 32]}, {"w": weight(64, 32)}), opset=17)


class Reader(ort.CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, shape: tuple[int, ...]) -> None:
        self.rest = iter(rng(5).standard_normal((6, *shape)).astype(np.float32))

    def get_next(self) -> dict[str, Any] | None:
        found = next(self.rest, None)
        return None if found is None else {"x": found}


def quantized(
    made: onnx.ModelProto, folder: Path, *, least: float = 15, **given: Any
) -> onnx.ModelProto:
    """Quantize, and run what comes of it as it is written and as onnxruntime optimizes it."""
    shape = tuple(d.dim_value for d in made.graph.input[0].type.tensor_type.shape.dim)
    source, target = save(made, folder / "in.onnx"), folder / "out.onnx"
    given = {"quant_format": ort.QuantFormat.QDQ, **given}
    ort.quantize_static(source, target, Reader(shape), **given)
    feeds = {"x": rng(7).standard_normal(shape).astype(np.float32)}
    expected = run(source, feeds)
    for optimize in (True, False):
        for one, other in zip(expected, run(target, feeds, optimize=optimize), strict=True):
            assert sqnr(one, other) > least
    found = onnx.load(target)
    onnx.checker.check_model(found, full_check=True)
    return found


def tensor(made: onnx.ModelProto, name: str) -> onnx.TensorProto:
    found: onnx.TensorProto = {t.name: t for t in made.graph.initializer}[name]
    return found


def array(made: onnx.ModelProto, name: str) -> Any:
    return numpy_helper.to_array(tensor(made, name))


def makers(made: onnx.ModelProto) -> dict[str, onnx.NodeProto]:
    return {name: n for n in made.graph.node for name in n.output}


def reads(made: onnx.ModelProto, name: str) -> onnx.NodeProto:
    found: onnx.NodeProto = {n.name: n for n in made.graph.node}[name]
    return found


def count(made: onnx.ModelProto, op_type: str) -> int:
    return sum(n.op_type == op_type for n in made.graph.node)


@pytest.mark.parametrize("kind", [T.QInt4, T.QUInt4, T.QInt16, T.QUInt16, T.QInt8, T.QUInt8])
@pytest.mark.parametrize("per_channel", [False, True])
def test_weights_have_the_type_that_is_asked_for(
    kind: Any, tmp_path: Path, *, per_channel: bool
) -> None:
    activation = T.QInt16 if kind in {T.QInt16, T.QUInt16} else T.QUInt8
    made = quantized(
        network(),
        tmp_path,
        least=8 if kind in {T.QInt4, T.QUInt4} else 20,
        weight_type=kind,
        activation_type=activation,
        per_channel=per_channel,
    )
    assert tensor(made, "w_quantized").data_type == kind.tensor_type
    assert tensor(made, "w_zero_point").data_type == kind.tensor_type
    assert list(tensor(made, "w_scale").dims) == ([6] if per_channel else [])


def test_onnxruntimes_own_operators_have_all_types_below_opset_21(tmp_path: Path) -> None:
    made = quantized(
        matmul(),
        tmp_path,
        activation_type=T.QUInt16,
        weight_type=T.QInt8,
        extra_options={"UseQDQContribOps": True},
    )
    pairs = [n for n in made.graph.node if n.op_type in {"QuantizeLinear", "DequantizeLinear"}]
    assert {n.domain for n in pairs} == {"com.microsoft"}
    assert {o.domain: o.version for o in made.opset_import} == {"": 17, "com.microsoft": 1}


def test_blocks_have_a_scale_each_and_raise_the_opset(tmp_path: Path) -> None:
    made = quantized(matmul(), tmp_path, least=30, extra_options={"BlockSize": 16})
    assert list(tensor(made, "w_scale").dims) == [4, 32]
    (restored,) = [n for n in made.graph.node if any(a.name == "block_size" for a in n.attribute)]
    assert {a.name: a.i for a in restored.attribute} == {"axis": 0, "block_size": 16}
    assert made.opset_import[0].version == 21
    with pytest.raises(NotImplementedError, match="Blocks are for matrices"):
        quantized(network(), tmp_path, extra_options={"BlockSize": 16})
    with pytest.raises(UsageError, match="no blocks"):
        quantized(
            matmul(),
            tmp_path,
            quant_format=ort.QuantFormat.QOperator,
            extra_options={"BlockSize": 16},
        )


def test_scales_go_along_the_axis_that_is_named(tmp_path: Path) -> None:
    options = {"QDQOpTypePerChannelSupportToAxis": {"MatMul": 0}}
    made = quantized(
        matmul(), tmp_path, target="qnn", per_channel=True, extra_options=options, least=20
    )
    shape = list(tensor(made, "w_scale").dims)
    assert shape in ([64], [])  # a target without scales per channel for MatMul has one


def test_zero_points_of_weights_are_where_they_fit(tmp_path: Path) -> None:
    skewed = network()
    for held in skewed.graph.initializer:
        if held.name == "w":
            held.CopyFrom(numpy_helper.from_array(np.abs(numpy_helper.to_array(held)), "w"))
    made = quantized(
        skewed, tmp_path, weight_type=T.QUInt8, extra_options={"WeightSymmetric": False}
    )
    assert array(made, "w_zero_point") == 0
    made = quantized(
        skewed, tmp_path, weight_type=T.QUInt8, extra_options={"WeightSymmetric": True}
    )
    assert (array(made, "w_zero_point") == 128).all()


def test_zero_points_of_activations_are_restricted_and_ranges_widened(tmp_path: Path) -> None:
    made = quantized(network(), tmp_path, extra_options={"ActivationRestrictedAsymmetric": True})
    names = [t.name for t in made.graph.initializer if t.name.endswith("_zero_point")]
    zeros = {int(array(made, n)) for n in names if tensor(made, n).data_type == 2}
    assert zeros == {0, 128}
    made = quantized(network(), tmp_path, least=0, extra_options={"MinimumRealRange": 25.5})
    assert array(made, "t_scale") == np.float32(0.1)


def test_pairs_on_weights_and_for_each_reader(tmp_path: Path) -> None:
    made = quantized(
        network(),
        tmp_path,
        op_types_to_quantize=["Conv", "Sigmoid", "Tanh"],
        extra_options={"AddQDQPairToWeight": True, "DedicatedQDQPair": True},
    )
    by = makers(made)
    restored = by[reads(made, "c").input[1]]
    assert by[restored.input[0]].op_type == "QuantizeLinear"
    assert reads(made, "d").input[0] != reads(made, "h").input[0]


def test_biases_and_results_stay_float_and_clips_stay(tmp_path: Path) -> None:
    options = {
        "QuantizeBias": False,
        "OpTypesToExcludeOutputQuantization": ["Tanh"],
        "QDQKeepRemovableActivations": True,
    }
    made = quantized(
        network(),
        tmp_path,
        op_types_to_quantize=["Conv", "Relu", "Tanh", "Sigmoid"],
        extra_options=options,
    )
    assert reads(made, "c").input[2] in {t.name for t in made.graph.initializer}
    assert makers(made)["z"].op_type == "Tanh"
    assert count(made, "Relu") == 1


def test_overrides_of_weights_are_done_as_they_say(tmp_path: Path) -> None:
    overrides = {
        "w": [{"quant_type": T.QInt8, "symmetric": True, "reduce_range": True}],
        "v": [
            {"axis": 0, "scale": 0.01, "zero_point": 3, "quant_type": T.QUInt8},
            *[{"scale": 0.01 * i, "zero_point": 3 * i} for i in (2, 3, 4)],
        ],
        "u": [{"quant_type": T.QInt8}],
    }
    made = quantized(
        network(), tmp_path, least=0, extra_options={"TensorQuantOverrides": overrides}
    )
    held = {t.name: numpy_helper.to_array(t) for t in network().graph.initializer}
    assert array(made, "w_scale") == np.float32(np.abs(held["w"]).max() / 64)
    nearest = np.rint(held["w"] / array(made, "w_scale"))
    np.testing.assert_array_equal(array(made, "w_quantized"), nearest)
    np.testing.assert_array_equal(
        array(made, "v_scale"), np.asarray([0.01, 0.02, 0.03, 0.04], np.float32)
    )
    np.testing.assert_array_equal(array(made, "v_zero_point"), [3, 6, 9, 12])
    assert tensor(made, "u_quantized").data_type == onnx.TensorProto.INT8


def test_ranges_that_are_given_to_channels_become_their_scales(tmp_path: Path) -> None:
    ends = [{"rmin": -0.1 * i, "rmax": 0.2 * i} for i in (1, 2, 3, 4)]
    overrides = {"v": [{"axis": 0, "quant_type": T.QInt8, **ends[0]}, *ends[1:]]}
    made = quantized(
        network(), tmp_path, least=0, extra_options={"TensorQuantOverrides": overrides}
    )
    expected = np.asarray([0.2 * i / 127 for i in (1, 2, 3, 4)], np.float32)
    np.testing.assert_allclose(array(made, "v_scale"), expected, rtol=1e-6)


@pytest.mark.parametrize(("readers", "restored"), [(None, 1), ({"h"}, 2)])
def test_a_tensor_is_converted_for_some_of_its_readers(
    readers: Any, restored: int, tmp_path: Path
) -> None:
    convert: dict[str, Any] = {"quant_type": T.QUInt16}
    if readers is not None:
        convert["recv_nodes"] = readers
    made = quantized(
        network(),
        tmp_path,
        activation_type=T.QUInt8,
        extra_options={"TensorQuantOverrides": {"t": [{"convert": convert}]}},
    )
    assert tensor(made, "t_zero_point").data_type == onnx.TensorProto.UINT8
    assert tensor(made, "t_zero_point_convert").data_type == onnx.TensorProto.UINT16
    by = makers(made)
    first = [
        n for n in made.graph.node if n.op_type == "DequantizeLinear" and n.input[1] == "t_scale"
    ]
    assert len(first) == restored
    assert by[reads(made, "h").input[0]].input[1] == "t_scale_convert"
    other = by[reads(made, "d").input[0]].input[1]
    assert other == ("t_scale_convert" if readers is None else "t_scale")


def test_a_node_that_does_not_read_the_tensor_is_no_reader_of_its_conversion(
    tmp_path: Path,
) -> None:
    convert = {"quant_type": T.QUInt16, "recv_nodes": {"c"}}
    with pytest.raises(ValueError, match="'c' of recv_nodes does not read it"):
        quantized(
            network(),
            tmp_path,
            extra_options={"TensorQuantOverrides": {"t": [{"convert": convert}]}},
        )


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"w": [{"quant_type": T.QInt4}]}, "no QLinear operators"),
        ({"t": [{"convert": {"quant_type": T.QInt8}}]}, "converts it for some nodes"),
        ({"b": [{"quant_type": T.QInt8}]}, "integers of its own"),
    ],
)
def test_what_qlinear_operators_cannot_have_is_refused(
    overrides: Any, said: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=said):
        quantized(
            network(),
            tmp_path,
            quant_format=ort.QuantFormat.QOperator,
            extra_options={"TensorQuantOverrides": overrides},
        )


def test_numbers_stand_where_scripts_for_onnxruntime_look_for_them(tmp_path: Path) -> None:
    made = quantized(network(), tmp_path, activation_type=T.QUInt8, per_channel=False)
    for name in ("x", "w", "t"):
        assert len(tensor(made, f"{name}_scale").float_data) == 1
        assert len(tensor(made, f"{name}_zero_point").int32_data) == 1


def test_nnapis_sigmoid_and_products_of_two_activations(tmp_path: Path) -> None:
    made = quantized(network(), tmp_path, extra_options={"extra.Sigmoid.nnapi": True})
    assert array(made, "t_scale") == np.float32(1 / 256)
    nodes = [node("MatMul", ["x", "x"], ["y"], "m")]
    square = model(graph(nodes, {"x": [8, 8]}, {"y": [8, 8]}, {}))
    for only, pairs in ((True, 0), (False, 2)):
        made = quantized(
            square,
            tmp_path,
            least=10,
            extra_options={"MatMulConstBOnly": only},
            op_types_to_quantize=["MatMul"],
        )
        assert count(made, "QuantizeLinear") == pairs


@pytest.mark.parametrize(
    "options",
    [
        {"EnableSubgraph": False},
        {"MatMulConstBOnly": False},
        {"WeightSymmetric": True},
        {"WeightSymmetric": None},
        {"extra.Sigmoid.nnapi": False},
        {"ForceQuantizeNoInputCheck": False},
        {"BlockSize": 0, "MinimumRealRange": None, "TensorQuantOverrides": {}},
    ],
)
def test_onnxruntimes_own_defaults_change_nothing(options: Any, tmp_path: Path) -> None:
    source = save(network(), tmp_path / "in.onnx")
    written = []
    both: tuple[Any, ...] = ({}, options)
    for given in both:
        result = ort.quantize_static(
            source, tmp_path / "out.onnx", Reader((1, 3, 6, 6)), extra_options=given
        )
        written.append((result.plan.coverage, [a.scale for a in result.plan.activations]))
    assert written[0] == written[1]
    assert written[0][0] == "gain"


def test_a_model_that_computes_in_float16_has_scales_in_float16(tmp_path: Path) -> None:
    half = onnx.TensorProto.FLOAT16
    nodes = [node("Sigmoid", ["x"], ["a"], "s"), node("Add", ["a", "k"], ["y"], "p")]
    made = model(
        graph(
            nodes,
            {"x": [2, 8]},
            {"y": [2, 8]},
            {"k": np.linspace(-1, 1, 8, dtype=np.float16)},
            types={"x": half, "y": half},
        ),
        opset=17,
    )
    source, target = save(made, tmp_path / "in.onnx"), tmp_path / "out.onnx"
    data = rng(1).standard_normal((6, 2, 8)).astype(np.float16)
    ort.quantize_static(
        source, target, [{"x": one} for one in data], op_types_to_quantize=["Sigmoid", "Add"]
    )
    found = onnx.load(target)
    onnx.checker.check_model(found, full_check=True)
    for name in ("x", "a", "k", "y"):
        assert tensor(found, f"{name}_scale").data_type == half
    assert found.opset_import[0].version == 21
    for optimize in (True, False):
        (after,) = run(target, {"x": data[0]}, optimize=optimize)
        assert after.dtype == np.float16
        assert sqnr(run(source, {"x": data[0]})[0], after) > 25


def test_weights_that_are_integers_already_stay_and_all_else_is_quantized(tmp_path: Path) -> None:
    integers = rng(2).integers(-60, 60, (4, 3, 1, 1)).astype(np.int8)
    nodes = [
        node("DequantizeLinear", ["q", "qs"], ["w"], "dq"),
        node("Conv", ["x", "w", "b"], ["y"], "c"),
    ]
    held: dict[str, Any] = {"q": integers, "qs": np.asarray(0.02, np.float32)}
    held["b"] = weight(4, seed=1)
    made = model(
        graph(nodes, {"x": [1, 3, 6, 6]}, {"y": [1, 4, 6, 6]}, held), opset=21, ir_version=10
    )
    found = quantized(made, tmp_path, least=25, op_types_to_quantize=["Conv"])
    by, conv = makers(found), reads(found, "c")
    assert by[conv.input[1]].input[:2] == ["q", "qs"]
    assert by[conv.input[0]].op_type == "DequantizeLinear"
    assert tensor(found, by[conv.input[2]].input[0]).data_type == onnx.TensorProto.INT32
    assert by["y"].op_type == "DequantizeLinear"
