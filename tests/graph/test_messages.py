"""Types that onnx-ir does not know go through every command unharmed."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import graph, model, node, rng, run, save, sqnr, weight
from onnx import TensorProto, helper

from quantkit import optimize, quantize_dynamic, quantize_static
from quantkit.cli.app import run as quantkit
from quantkit.model.graph.load import load
from quantkit.model.graph.protos import to_ir, to_proto
from quantkit.runtime.runs import as_array

CLASSES = 10


def map_type() -> onnx.TypeProto:
    value = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    return helper.make_sequence_type_proto(helper.make_map_type_proto(TensorProto.INT64, value))


def classifier(*, opset: int = 17) -> onnx.ModelProto:
    """What scikit-learn's exporter writes: labels, and a list of maps from class to probability."""
    nodes = [
        node("MatMul", ["x", "w0"], ["h"], "mm0"),
        node("Relu", ["h"], ["r"], "relu"),
        node("MatMul", ["r", "w1"], ["l"], "mm1"),
        node("Softmax", ["l"], ["s"], "softmax", axis=-1),
        node("ArgMax", ["s"], ["label"], "argmax", axis=1, keepdims=0),
    ]
    labels = list(range(CLASSES))
    nodes += [node("ZipMap", ["s"], ["p"], "zip", domain="ai.onnx.ml", classlabels_int64s=labels)]
    weights = {"w0": weight(128, 256), "w1": weight(256, CLASSES, seed=1)}
    built = graph(nodes, {"x": ["N", 128]}, {"label": ["N"]}, weights, types={"label": 7})
    built.output.append(helper.make_value_info("p", map_type()))
    return model(built, opset=opset, domains={"ai.onnx.ml": 1})


def sequences() -> onnx.ModelProto:
    """An output that is a sequence of tensors."""
    nodes = [
        node("MatMul", ["x", "w"], ["h"], "mm"),
        node("SplitToSequence", ["h"], ["s"], "split", axis=1, keepdims=1),
    ]
    built = graph(nodes, {"x": ["N", 128]}, {}, {"w": weight(128, 192)})
    value = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    built.output.append(helper.make_value_info("s", helper.make_sequence_type_proto(value)))
    return model(built)


def test_a_map_type_is_kept_beside_its_value_and_the_message_is_left_as_it_was() -> None:
    proto = classifier()
    before = proto.SerializeToString()
    again = to_proto(to_ir(proto))
    assert proto.SerializeToString() == before
    assert [o.type for o in again.graph.output] == [o.type for o in proto.graph.output]


@pytest.mark.parametrize("make", [classifier, sequences])
def test_maps_and_sequences_are_compared_with_float(make: object, tmp_path: Path) -> None:
    assert callable(make)
    path = save(make(), tmp_path / "in.onnx")
    out = onnx.load(path).graph.output[-1]
    result = quantize_dynamic(path, tmp_path / "out.onnx")
    assert result.verification is not None
    assert 25 < result.verification.compared[out.name] < 100
    assert onnx.load(tmp_path / "out.onnx").graph.output[-1].type == out.type
    x = rng().standard_normal((5, 128)).astype(np.float32)
    expected, actual = (as_array(run(p, {"x": x})[-1]) for p in (path, tmp_path / "out.onnx"))
    assert sqnr(expected, actual) > 25


def test_every_command_takes_what_scikit_learn_exports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(save(classifier(), tmp_path / "in.onnx"))
    data = str(tmp_path / "x.npz")
    np.savez(data, x=rng().standard_normal((16, 128)).astype(np.float32))
    out = str(tmp_path / "out.onnx")
    for line in (
        ["inspect", path, "--json"],
        ["optimize", path, out, "--json"],
        ["quantize", "dynamic", path, out, "--json"],
        ["quantize", "static", path, out, "--data", data, "--json"],
        ["calibrate", path, "--data", data, "-o", str(tmp_path / "c.calibration"), "--json"],
    ):
        capsys.readouterr()
        assert quantkit(line) == 0
        found = json.loads(capsys.readouterr().out)
        assert found


def test_a_simplified_model_gives_the_same_maps(tmp_path: Path) -> None:
    path = save(classifier(), tmp_path / "in.onnx")
    checked = optimize(path, tmp_path / "out.onnx").verification
    assert checked is not None
    assert set(checked.compared) == {"label", "p"}


def test_maps_survive_a_higher_opset(tmp_path: Path) -> None:
    path = save(classifier(opset=9), tmp_path / "in.onnx")
    x = rng().standard_normal((16, 128)).astype(np.float32)
    quantize_static(path, tmp_path / "out.onnx", {"x": x})
    result = onnx.load(tmp_path / "out.onnx")
    kept = result.graph.output[-1].type.sequence_type.elem_type
    assert kept.map_type.key_type == TensorProto.INT64
    assert result.opset_import[0].version > 9


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ([{"b": 0.5, "a": 0.25}, {"a": 1.0, "b": 0.0}], [[0.25, 0.5], [1.0, 0.0]]),
        ({2: 1.0, 1: 3.0}, [3.0, 1.0]),
        ([np.zeros((1, 2)), np.ones((1, 2))], [[[0, 0]], [[1, 1]]]),
        ([np.zeros((1, 2)), np.ones(1)], [0, 0, 1]),
        (["a", "b"], ["a", "b"]),
    ],
    ids=["maps", "map", "arrays", "arrays of several shapes", "texts"],
)
def test_outputs_become_arrays(output: object, expected: object) -> None:
    assert as_array(output).tolist() == expected


def test_what_is_no_list_or_map_stays_as_it_is() -> None:
    array = np.zeros(3)
    assert as_array(array) is array
    assert as_array([]) == []
    assert as_array(None) is None


def test_loading_knows_maps(tmp_path: Path) -> None:
    assert load(save(classifier(), tmp_path / "m.onnx")).model.graph.outputs[1].type is None
