"""`quantkit.ort`, static: a script for onnxruntime.quantization runs after its import line is changed."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime.quantization as peer
import pytest
from builders import conv_model, graph, model, node, op_types, rng, run, save, sqnr, weight

from quantkit import ort
from quantkit.errors import UsageError
from quantkit.ort.extra_options import read_extra_options

SAMPLES = 8


def samples() -> Any:
    return rng(3).standard_normal((SAMPLES, 1, 3, 8, 8)).astype(np.float32)


class Reader(ort.CalibrationDataReader):  # type: ignore[misc]
    def __init__(self) -> None:
        self.rest = iter(samples())

    def get_next(self) -> dict[str, Any] | None:
        found = next(self.rest, None)
        return None if found is None else {"x": found}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return save(conv_model(), tmp_path / "in.onnx")


@pytest.mark.filterwarnings("ignore")  # onnxruntime's own
@pytest.mark.parametrize("library", [peer, ort], ids=["onnxruntime", "quantkit"])
@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
def test_the_same_script_runs_in_both(
    library: Any, form: str, source: Path, tmp_path: Path
) -> None:
    prepared, target = tmp_path / "prepared.onnx", tmp_path / "out.onnx"
    library.quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
    library.quantize_static(
        str(prepared),
        str(target),
        Reader(),
        quant_format=library.QuantFormat[form],
        op_types_to_quantize=["Conv", "Relu"],
        per_channel=True,
        reduce_range=False,
        activation_type=library.QuantType.QUInt8,
        weight_type=library.QuantType.QInt8,
        nodes_to_exclude=[],
        use_external_data_format=False,
        calibrate_method=library.CalibrationMethod.MinMax,
        calibration_providers=["CPUExecutionProvider"],
        extra_options={"ActivationSymmetric": False, "WeightSymmetric": True},
    )
    feeds = {"x": samples()[0]}
    expected = run(source, feeds)[0]
    for optimize in (True, False):
        assert sqnr(expected, run(target, feeds, optimize=optimize)[0]) > 25
    assert ("QLinearConv" in op_types(onnx.load(target))) == (form == "QOperator")


def test_what_is_left_out_is_quantkits_choice(source: Path, tmp_path: Path) -> None:
    result = ort.quantize_static(source, tmp_path / "o.onnx", Reader())
    assert {a.dtype.name for a in result.plan.activations} == {"uint8"}
    assert result.plan.weight["w1"].spec.dtype.name == "int8"
    assert type(result.plan.weight["w1"].spec.granularity).__name__ == "PerAxis"


def test_what_is_given_is_done(source: Path, tmp_path: Path) -> None:
    result = ort.quantize_static(
        source,
        tmp_path / "o.onnx",
        Reader(),
        per_channel=False,
        activation_type=ort.QuantType.QInt8,
        reduce_range=True,
        nodes_to_exclude=["c2"],
        calibration_providers=["CUDAExecutionProvider"],
        calibrate_method=ort.CalibrationMethod.Percentile,
        extra_options={
            "ActivationSymmetric": True,
            "CalibPercentile": 99.0,
            "CalibMaxIntermediateOutputs": 4,
            "DedicatedQDQPair": False,
            "SmoothQuant": False,
        },
    )
    assert {(a.dtype.name, a.zero_point) for a in result.plan.activations} == {("int8", 0)}
    assert type(result.plan.weight["w1"].spec.granularity).__name__ == "PerTensor"
    assert result.plan.node["c2"].mode != "static"
    assert any("reduce_range" in warning for warning in result.warnings)
    assert any("calibration_providers has no effect" in warning for warning in result.warnings)


def test_onnxruntimes_own_members_and_readers_are_taken(source: Path, tmp_path: Path) -> None:
    class Theirs(peer.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.rest = iter(samples())

        def get_next(self) -> Any:
            found = next(self.rest, None)
            return None if found is None else {"x": found}

    result = ort.quantize_static(
        source,
        tmp_path / "o.onnx",
        Theirs(),
        quant_format=peer.QuantFormat.QOperator,
        activation_type=peer.QuantType.QUInt8,
        calibrate_method=peer.CalibrationMethod.Entropy,
    )
    assert "QLinearConv" in op_types(onnx.load(tmp_path / "o.onnx"))
    assert result.verification is not None


@pytest.mark.parametrize("library", [peer, ort], ids=["onnxruntime", "quantkit"])
def test_a_type_that_is_given_as_format_is_qdq_with_a_warning_as_onnxruntime_reads_it(
    library: Any, source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.onnx"
    given = ort.quantize_static(source, out, Reader(), quant_format=library.QuantType.QInt8)
    assert any("quant_format=QInt8 is a type" in warning for warning in given.warnings)
    assert "QuantizeLinear" in op_types(onnx.load(out))


def test_ranges_are_those_of_onnxruntime_for_minmax(source: Path, tmp_path: Path) -> None:
    result = ort.quantize_static(
        source, tmp_path / "o.onnx", Reader(), calibrate_method=ort.CalibrationMethod.MinMax
    )
    assert result.plan.activation["x"].high == pytest.approx(samples().max(), rel=1e-2)
    assert result.plan.activation["x"].low == pytest.approx(samples().min(), rel=1e-2)


def test_a_moving_average_has_onnxruntimes_constant(source: Path, tmp_path: Path) -> None:
    options = {"CalibMovingAverage": True, "CalibMovingAverageConstant": 0.25}
    result = ort.quantize_static(source, tmp_path / "o.onnx", Reader(), extra_options=options)
    high = samples()[0].max()
    for array in samples()[1:]:
        high = 0.75 * high + 0.25 * array.max()
    assert result.plan.activation["x"].high == pytest.approx(high, rel=2e-2)


def test_configurations(source: Path, tmp_path: Path) -> None:
    config = ort.StaticQuantConfig(Reader(), ort.CalibrationMethod.MinMax, ort.QuantFormat.QDQ)
    assert ort.quantize(source, tmp_path / "a.onnx", config).plan.node["c1"].mode == "static"
    qdq = ort.get_qdq_config(
        source,
        Reader(),
        calibrate_args={"percentile": 99.9},
        calibrate_method=ort.CalibrationMethod.Percentile,
        activation_type=ort.QuantType.QUInt8,
        activation_symmetric=True,
        nodes_to_exclude=lambda _model, node: node.name == "c2",
    )
    result = ort.quantize(source, tmp_path / "b.onnx", qdq)
    assert result.plan.node["c2"].mode != "static"
    assert {a.zero_point for a in result.plan.activations} == {128}
    with pytest.raises(UsageError, match="calibrate_args has no 'bins'"):
        ort.get_qdq_config(source, Reader(), calibrate_args={"bins": 3})
    with pytest.raises(UsageError, match="not dict"):
        ort.quantize(source, tmp_path / "c.onnx", {})


# --- extra_options ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ActivationSymetric": True}, "did you mean 'ActivationSymmetric'"),
        ({"SmoothQuant": True, "SmoothQuantAlpha": 0.7}, "quantkit chooses"),
        ({"BlockSize": "many"}, "extra_options BlockSize takes a whole number"),
        ({"WeightSymmetric": "yes"}, "WeightSymmetric takes true or false"),
        ({"CalibPercentile": 300}, "300"),
        ({"CalibMovingAverage": True, "CalibMovingAverageConstant": -1}, "momentum"),
        ({"TensorQuantOverrides": []}, None),
        ({"TensorQuantOverrides": [1]}, "maps tensor names"),
        ({"TensorQuantOverrides": {"x": {}}}, "list of dictionaries"),
        ({"TensorQuantOverrides": {"x": [{}, {}]}}, "names the axis"),
        ({"TensorQuantOverrides": {"x": [{"scale": 0.1}]}}, "Must provide both"),
        ({"TensorQuantOverrides": {"x": [{"rmin": 0.1}]}}, "Must provide both"),
        ({"TensorQuantOverrides": {"x": [{"scale": 0.1, "zero_point": 999}]}}, "uint8"),
        ({"TensorQuantOverrides": {"x": [{"axis": 0}]}}, "not an initializer"),
        ({"TensorQuantOverrides": {"x": [{"convert": {}}]}}, "must specify a 'quant_type'"),
        ({"TensorQuantOverrides": {"x": [{"reduce_range": True}]}}, "reduce_range"),
        ({"TensorQuantOverrides": {"q": [{"rmin": -1, "rmax": 1}]}}, "not present in the model"),
    ],
)
def test_options_that_cannot_be_had_are_explained(
    options: dict[str, Any], message: str | None, source: Path, tmp_path: Path
) -> None:
    target = tmp_path / "o.onnx"
    if message is None:
        ort.quantize_static(source, target, Reader(), extra_options=options)
        assert target.exists()
        return
    with pytest.raises(UsageError, match=message):
        ort.quantize_static(source, target, Reader(), extra_options=options)
    assert not target.exists()


def test_every_option_of_onnxruntime_is_known() -> None:
    """The keys that onnxruntime's docstring lists are read, accepted or refused by name; none is unknown."""
    listed = [
        line.split(" = ")[0].strip()
        for line in (peer.quantize_static.__doc__ or "").splitlines()
        if " = " in line and not line.strip().startswith(("'", "Use"))
    ]
    keys = [key for key in listed if key.isalnum() and key[0].isupper()]
    assert "SmoothQuantAlpha" in keys
    for key in keys:
        try:
            read_extra_options({key: object()})
        except (UsageError, TypeError) as e:
            assert "unknown" not in str(e), key  # noqa: PT017


def test_overrides_of_tensors(source: Path, tmp_path: Path) -> None:
    overrides = {
        "x": [{"scale": 0.05, "zero_point": 100, "quant_type": ort.QuantType.QUInt8}],
        "a": [{"rmin": 0.5, "rmax": 2.0}],
    }
    result = ort.quantize_static(
        source, tmp_path / "o.onnx", Reader(), extra_options={"TensorQuantOverrides": overrides}
    )
    x = result.plan.activation["x"]
    assert x.scale == pytest.approx(0.05, rel=1e-6)
    assert x.zero_point == 100
    assert result.plan.activation["a"].high == pytest.approx(2.0, rel=1e-6)
    assert result.plan.activation["a"].zero_point == 0


# --- other arguments ---


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"quant_format": "QLinear"}, "Unknown format"),
        ({"activation_type": ort.QuantType.QFLOAT8E4M3FN}, "float8e4m3fn"),
        ({"calibrate_method": "Median"}, "Unknown calibration method"),
        ({"nodes_to_exclude": "c1"}, r"write \['c1'\]"),
        ({"nodes_to_quantize": ["c9"]}, "no node 'c9'"),
        ({"model_output": 3}, "model_output"),
    ],
)
def test_arguments_that_make_no_sense(
    arguments: dict[str, Any], message: str, source: Path, tmp_path: Path
) -> None:
    given = {"model_output": tmp_path / "o.onnx", "calibration_data_reader": Reader()}
    with pytest.raises(UsageError, match=message):
        ort.quantize_static(source, **{**given, **arguments})
    assert not (tmp_path / "o.onnx").exists()


def test_where_all_is_quantized_parameters_stand_first_in_the_order_of_operators(
    source: Path, tmp_path: Path
) -> None:
    target = tmp_path / "out.onnx"
    ort.quantize_static(source, target, Reader(), activation_type=ort.QuantType.QUInt8)
    names = [tensor.name for tensor in onnx.load(target).graph.initializer]
    parameters = [name for name in names if not name.endswith("_quantized")]
    assert names[: len(parameters)] == parameters
    assert parameters[:4] == ["x_zero_point", "x_scale", "w1_zero_point", "w1_scale"]
    assert parameters[-2:] == ["y_zero_point", "y_scale"]


def test_an_excluded_node_that_the_model_does_not_have_is_a_warning(
    source: Path, tmp_path: Path
) -> None:
    name = onnx.load(source).graph.node[-1].name
    result = ort.quantize_static(
        source, tmp_path / "q.onnx", Reader(), nodes_to_exclude=["Softmax", name]
    )
    assert result.plan.node[name].why == "excluded"
    assert "nodes_to_exclude: the model has no node 'Softmax'." in result.warnings


def test_what_stands_in_a_subgraph_is_refused_where_it_is_asked_for(
    source: Path, tmp_path: Path
) -> None:
    inner = graph([node("Neg", ["x"], ["n"], "inner")], {}, {"n": [1, 3, 8, 8]}, {})
    nodes = [
        node("Conv", ["x", "w"], ["c"], "conv"),
        onnx.helper.make_node("If", ["b"], ["i"], "if", then_branch=inner, else_branch=inner),
        node("Add", ["c", "i"], ["y"], "add"),
    ]
    held = {"w": weight(3, 3, 1, 1), "b": np.array(True)}
    proto = model(graph(nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 3, 8, 8]}, held))
    branched, target = save(proto, tmp_path / "branched.onnx"), tmp_path / "out.onnx"
    options: dict[str, Any] = {"activation_type": ort.QuantType.QUInt8}
    with pytest.raises(UsageError, match=r"inner.*no values are observed"):
        ort.quantize_static(
            branched, target, Reader(), **options, extra_options={"EnableSubgraph": True}
        )
    assert not target.exists()
    ort.quantize_static(branched, target, Reader(), **options)
    ort.quantize_static(source, target, Reader(), **options, extra_options={"EnableSubgraph": True})
