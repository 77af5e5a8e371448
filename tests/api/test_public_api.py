"""The public face: names, laziness, signatures."""

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import onnxruntime.quantization as peer
import pytest
from builders import matmul_model, save, weight

import quantkit
from quantkit import ort
from quantkit.errors import UsageError


@pytest.mark.parametrize("name", quantkit.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(quantkit, name) is not None


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        quantkit.nonsense  # noqa: B018


def test_dir_lists_the_public_names() -> None:
    assert set(dir(quantkit)) == set(quantkit.__all__)


def test_importing_quantkit_imports_nothing_heavy() -> None:
    code = (
        "import sys, quantkit; sys.exit(bool({'onnx', 'numpy', 'onnxruntime'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_first_call_everybody_makes(tmp_path: Path) -> None:
    source = save(matmul_model(), tmp_path / "in.onnx")
    before = source.read_bytes()
    result = quantkit.quantize_dynamic(str(source), str(tmp_path / "out.onnx"), quantkit.QUInt8)
    assert result.output_bytes == (tmp_path / "out.onnx").stat().st_size
    assert result.output_bytes < 0.3 * result.input_bytes
    assert source.read_bytes() == before


def test_a_model_proto_is_taken_and_left_alone(tmp_path: Path) -> None:
    proto = matmul_model()
    before = proto.SerializeToString()
    quantkit.quantize_dynamic(proto, tmp_path / "out.onnx")
    assert proto.SerializeToString() == before


@pytest.mark.parametrize(
    "weight_type",
    [quantkit.QInt8, "int8", "QInt8", peer.QuantType.QInt8, ort.QuantType.QInt8],
    ids=["ours", "string", "name", "onnxruntime", "compatible"],
)
def test_weight_types_by_any_of_their_names(tmp_path: Path, weight_type: object) -> None:
    quantkit.quantize_dynamic(matmul_model(), tmp_path / "o.onnx", weight_type)  # type: ignore[arg-type]
    stored = {t.name: t.data_type for t in onnx.load(tmp_path / "o.onnx").graph.initializer}
    assert stored["w_quantized"] == onnx.TensorProto.INT8


@pytest.mark.parametrize("weight_type", ["int3", peer.QuantType.QInt16, 5, None])
def test_unknown_weight_type_is_refused(tmp_path: Path, weight_type: object) -> None:
    with pytest.raises(UsageError, match="weight type"):
        quantkit.quantize_dynamic(matmul_model(), tmp_path / "o.onnx", weight_type)  # type: ignore[arg-type]


def test_keywords_of_onnxruntime_users(tmp_path: Path) -> None:
    result = quantkit.quantize_dynamic(
        model_input=matmul_model(),
        model_output=tmp_path / "o.onnx",
        weight_type=quantkit.QuantType.QInt8,
        per_channel=False,
        reduce_range=True,
        op_types_to_quantize=["MatMul"],
        nodes_to_quantize=["mm"],
        nodes_to_exclude=[],
        use_external_data_format=True,
        extra_options={"EnableSubgraph": True, "MatMulConstBOnly": True},
    )
    spec = result.plan.weight["w"].spec
    assert (spec.qmin, spec.qmax) == (-64, 63)
    assert len(list(tmp_path.glob("o.onnx.*.data"))) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"Frobnicate": 1}, "'Frobnicate' has no meaning"),
        ({"MatMulConstBOnly": False}, "only operators with a constant weight"),
        ({"EnableSubgraph": False}, "always quantized"),
    ],
)
def test_extra_options_without_meaning_are_explained(
    tmp_path: Path, options: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        quantkit.quantize_dynamic(matmul_model(), tmp_path / "o.onnx", extra_options=options)
    assert not (tmp_path / "o.onnx").exists()


def test_wrong_kind_of_model_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not as int"):
        quantkit.quantize_dynamic(3, tmp_path / "o.onnx")  # type: ignore[arg-type]


# --- quantkit.ort: one import line migrates a script ---


def test_ort_has_the_public_names_of_onnxruntime() -> None:
    public = {
        n for n in dir(peer) if not n.startswith("_") and not inspect.ismodule(getattr(peer, n))
    }
    public -= {"CudaQuantizer"}  # not for CPUs
    assert public - set(ort.__all__) == set()
    assert all(hasattr(ort, name) for name in ort.__all__)


@pytest.mark.parametrize(
    "name",
    [
        "DynamicQuantConfig",
        "MinMaxCalibrater",
        "StaticQuantConfig",
        "create_calibrator",
        "get_qdq_config",
        "load_tensors_data",
        "quant_pre_process",
        "quantize",
        "quantize_dynamic",
        "quantize_static",
        "save_tensors_data",
    ],
)
def test_ort_signatures_have_the_same_parameters_in_the_same_order(name: str) -> None:
    if not hasattr(peer, name):
        pytest.skip(f"this onnxruntime has no {name}")
    ours, theirs = (list(inspect.signature(getattr(m, name)).parameters) for m in (ort, peer))
    assert ours[: len(theirs)] == theirs  # an older onnxruntime has fewer


@pytest.mark.parametrize(
    "name", ["QuantType", "QuantFormat", "QuantizationMode", "CalibrationMethod"]
)
def test_ort_enums_have_the_same_members(name: str) -> None:
    ours, theirs = getattr(ort, name), getattr(peer, name)
    assert {m.name: m.value for m in ours} == {m.name: m.value for m in theirs}


def test_ort_script_runs_after_changing_the_import(tmp_path: Path) -> None:
    source = save(matmul_model(), tmp_path / "in.onnx")
    ort.quantize_dynamic(source, tmp_path / "a.onnx", weight_type=ort.QuantType.QUInt8)
    config = ort.DynamicQuantConfig(weight_type=ort.QuantType.QInt8, per_channel=True)
    ort.quantize(source, tmp_path / "b.onnx", config)
    assert (tmp_path / "a.onnx").exists()
    assert (tmp_path / "b.onnx").exists()


def test_ort_calibration_data_reader_is_an_iterator() -> None:
    class Reader(ort.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = 2

        def get_next(self) -> dict[str, object] | None:
            self.left -= 1
            return {"x": self.left} if self.left >= 0 else None

    reader = Reader()
    assert [next(reader), next(reader), next(reader, None)] == [{"x": 1}, {"x": 0}, None]


def test_enum_members_from_strings() -> None:
    assert ort.QuantType.from_string("QUInt8") is ort.QuantType.QUInt8
    assert ort.QuantFormat.from_string("QDQ") is ort.QuantFormat.QDQ


def test_a_proto_with_constant_nodes_is_left_alone(tmp_path: Path) -> None:
    proto = matmul_model(32, 48)
    constant = onnx.helper.make_node(
        "Constant", [], ["w"], name="c", value=proto.graph.initializer[0]
    )
    rest = list(proto.graph.node)
    del proto.graph.node[:]
    proto.graph.node.extend([constant, *rest])
    del proto.graph.initializer[0]
    before = proto.SerializeToString(deterministic=True)
    quantkit.quantize_dynamic(proto, tmp_path / "out.onnx")
    assert proto.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize(
    "parameter", ["nodes_to_exclude", "nodes_to_quantize", "op_types_to_quantize"]
)
def test_a_string_in_place_of_a_list_is_refused(tmp_path: Path, parameter: str) -> None:
    options: Any = {parameter: "mm"}
    with pytest.raises(UsageError, match=r"write \['mm'\]"):
        quantkit.quantize_dynamic(matmul_model(), tmp_path / "o.onnx", **options)


def test_rules_may_be_given_as_an_iterator(tmp_path: Path) -> None:
    """Opset 10 is planned twice; the second plan must know the rules too."""
    proto = matmul_model(opset=10)
    proto.graph.node.extend([onnx.helper.make_node("MatMul", ["y", "v"], ["z"], name="mm2")])
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weight(192, 256), "v"))
    proto.graph.output[0].name = "z"
    del proto.graph.output[0].type.tensor_type.shape.dim[:]
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    result = quantkit.quantize_dynamic(
        proto,
        tmp_path / "o.onnx",
        nodes_to_exclude=filter(None, ["mm2"]),  # type: ignore[arg-type]
    )
    assert result.plan.node["mm2"].why == "excluded"


def test_a_sample_without_verification_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="verify=True"):
        quantkit.quantize_dynamic(matmul_model(), tmp_path / "o.onnx", verify=False, sample={})


def test_ort_config_is_positional() -> None:
    assert ort.DynamicQuantConfig(ort.QuantType.QUInt8).weight_type is ort.QuantType.QUInt8


@pytest.mark.parametrize(
    ("target", "options"),
    [(None, {}), (["x.onnx"], {}), ("o.onnx", {"nodes_to_exclude": [1]})],
    ids=["no-output", "list-output", "number-for-a-name"],
)
def test_arguments_of_the_wrong_kind_are_named(target: Any, options: Any) -> None:
    with pytest.raises(UsageError, match=r"model_output|nodes_to_exclude"):
        quantkit.quantize_dynamic(matmul_model(), target, **options)
