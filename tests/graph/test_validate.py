"""What no runtime could load is refused by name, once, for every command; what one loads is taken."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import graph, matmul_model, model, node, rng, run, save, weight
from onnx import ModelProto, TensorProto, helper, numpy_helper

from quantkit import optimize, quantize_dynamic
from quantkit.cli.app import run as quantkit
from quantkit.errors import ModelError
from quantkit.model.graph.load import load
from quantkit.runtime.session import RUNTIME_ERRORS, load_model

ONE_LINE = ("inspect", "optimize", "dynamic", "static", "calibrate")


def changed(change: Callable[[ModelProto], object]) -> ModelProto:
    proto = matmul_model()
    change(proto)
    return proto


def cycle() -> ModelProto:
    proto = matmul_model()
    proto.graph.node[0].input[0] = "y"
    return proto


def short_bytes() -> ModelProto:
    proto = matmul_model()
    proto.graph.initializer[1].raw_data = proto.graph.initializer[1].raw_data[:-4]
    return proto


def external(**note: str) -> ModelProto:
    proto = matmul_model()
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in note.items():
        tensor.external_data.add(key=key, value=value)
    return proto


def wrong_attribute() -> ModelProto:
    proto = matmul_model()
    proto.graph.node.add(op_type="Softmax", input=["y"], output=["z"]).attribute.append(
        helper.make_attribute("axis", "last")
    )
    return proto


def add_constant(proto: ModelProto) -> onnx.AttributeProto:
    tensor = numpy_helper.from_array(np.zeros(1, np.float32), "k")
    constant = proto.graph.node.add(op_type="Constant", output=["k"])
    constant.attribute.append(helper.make_attribute("value", tensor))
    proto.graph.node.add(op_type="Add", input=["y", "k"], output=["z"])
    proto.graph.output[0].name = "z"
    attribute: onnx.AttributeProto = constant.attribute[0]
    return attribute


def without_value() -> ModelProto:
    proto = matmul_model()
    add_constant(proto).ClearField("t")
    return proto


def two_kinds(proto: ModelProto) -> None:
    add_constant(proto).f = 1.0


def mislabelled(proto: ModelProto) -> None:
    add_constant(proto).type = onnx.AttributeProto.FLOAT


BROKEN: dict[str, tuple[ModelProto, str]] = {
    "cycle": (cycle(), "reads what is computed from its own result"),
    "nothing makes an input": (
        changed(lambda m: m.graph.node[0].input.__setitem__(0, "nowhere")),
        "nothing makes 'nowhere'",
    ),
    "a value made twice": (
        changed(lambda m: m.graph.node[0].output.append("y")),
        "'y' is made twice",
    ),
    "two inputs of one name": (
        changed(lambda m: m.graph.input.append(m.graph.input[0])),
        "input 'x' is listed twice",
    ),
    "an input without a name": (changed(lambda m: m.graph.input.add()), "an input has no name"),
    "no operator": (changed(lambda m: m.graph.node[0].ClearField("op_type")), "has no operator"),
    "too few bytes": (short_bytes(), "its shape asks for 768"),
    "too few values": (
        changed(
            lambda m: m.graph.initializer[1].CopyFrom(
                TensorProto(name="b", dims=[192], data_type=1, float_data=[1.0])
            )
        ),
        "has 1 values, its shape asks for 192",
    ),
    "a negative extent": (
        changed(lambda m: m.graph.initializer[0].dims.__setitem__(0, -1)),
        "negative extent",
    ),
    "an absurd size": (
        changed(lambda m: m.graph.initializer[0].dims.__setitem__(0, 2**62)),
        "too large for any file",
    ),
    "no type": (
        changed(lambda m: m.graph.initializer[0].ClearField("data_type")),
        "no type that is known",
    ),
    "an offset that is no number": (external(location="w.bin", offset="x"), "'x' for its offset"),
    "a length that does not fit": (
        external(location="w.bin", length="7"),
        "has 7 bytes, its shape asks for",
    ),
    "nowhere": (external(offset="0"), "does not say in which"),
    "an attribute of another kind": (wrong_attribute(), "axis"),
    "an attribute without a value": (
        without_value(),
        "attribute 'value' of node 'Constant' has no value",
    ),
    "an attribute of no function": (
        changed(lambda m: m.graph.node[0].attribute.add(name="a", ref_attr_name="b", type=2)),
        "stands for one of a function",
    ),
}


@pytest.mark.parametrize("command", ONE_LINE)
@pytest.mark.parametrize("case", BROKEN)
def test_what_is_no_model_is_the_same_line_in_every_command(
    case: str, command: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    proto, expected = BROKEN[case]
    path, out = str(save(proto, tmp_path / "in.onnx")), str(tmp_path / "out.onnx")
    (tmp_path / "w.bin").write_bytes(bytes(128 * 192 * 4))
    np.savez(tmp_path / "x.npz", x=np.ones((4, 128), np.float32))
    line = {
        "inspect": ["inspect", path],
        "optimize": ["optimize", path, out],
        "dynamic": ["quantize", "dynamic", path, out],
        "static": ["quantize", "static", path, out, "--data", str(tmp_path / "x.npz")],
        "calibrate": ["calibrate", path, "--data", str(tmp_path / "x.npz"), "-o", out],
    }[command]
    assert quantkit(line) == 2
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert expected in captured.err
    assert "is not valid ONNX" in captured.err
    assert not Path(out).exists()
    with pytest.raises(RUNTIME_ERRORS):  # nor does onnxruntime take it
        run(path, {"x": np.ones((1, 128), np.float32)})


def doubled_initializer(proto: ModelProto) -> None:
    proto.graph.initializer.insert(0, numpy_helper.from_array(weight(128, 192, seed=9), "w"))


LOADED: dict[str, Callable[[ModelProto], object]] = {
    "unsorted": lambda m: m.graph.node.append(m.graph.node.pop(0)),
    "an initializer twice": doubled_initializer,
    "an initializer without a name": lambda m: m.graph.initializer.append(
        numpy_helper.from_array(weight(3), "")
    ),
    "no name for the graph": lambda m: m.graph.ClearField("name"),
    "no names for nodes": lambda m: [n.ClearField("name") for n in m.graph.node],
    "no type for the output": lambda m: m.graph.output[0].ClearField("type"),
    "an output twice": lambda m: m.graph.output.append(m.graph.output[0]),
    "two fields of values": lambda m: m.graph.initializer[0].float_data.append(1.0),
    "a value that is not there is described": lambda m: m.graph.value_info.add(name="nowhere"),
    "an attribute that is not what it says": mislabelled,
    "an attribute with two values": two_kinds,
    "a constant called value that is a number": lambda m: add_constant(m).CopyFrom(
        helper.make_attribute("value", 0.5)
    ),
    "IR version 3": lambda m: setattr(m, "ir_version", 3),
}


@pytest.mark.parametrize("case", LOADED)
def test_what_onnxruntime_loads_is_quantized(case: str, tmp_path: Path) -> None:
    proto = matmul_model()
    LOADED[case](proto)
    x = rng().standard_normal((4, 128)).astype(np.float32)
    path = save(proto, tmp_path / "in.onnx")
    expected = run(path, {"x": x})
    quantize_dynamic(path, tmp_path / "out.onnx")
    optimize(path, tmp_path / "small.onnx")
    for float_output, output in zip(expected, run(tmp_path / "out.onnx", {"x": x}), strict=True):
        assert np.abs(float_output - output).max() < 0.1 * np.abs(float_output).max()


def test_nodes_in_a_branch_are_sorted_and_may_read_what_comes_later() -> None:
    inner = [node("Neg", ["a"], ["t"]), node("Relu", ["late"], ["a"])]
    then, other = graph(inner, {}, {"t": None}), graph([node("Neg", ["x"], ["e"])], {}, {"e": None})
    nodes = [
        node("If", ["q"], ["y"], "if", then_branch=then, else_branch=other),
        node("Mul", ["x", "x"], ["late"]),
    ]
    built = graph(nodes, {"x": [4], "q": []}, {"y": [4]}, types={"q": TensorProto.BOOL})
    loaded = load(model(built)).model
    assert [n.op_type for n in loaded.graph] == ["Mul", "If"]
    branch = loaded.graph[1].attributes["then_branch"].as_graph()
    assert [n.op_type for n in branch] == ["Relu", "Neg"]


def test_nodes_that_are_in_order_stay_where_they_are() -> None:
    nodes = [node("Neg", ["x"], ["a"]), node("Relu", ["x"], ["b"]), node("Add", ["a", "b"], ["y"])]
    nodes.append(node("Abs", ["x"], ["c"]))
    loaded = load(model(graph(nodes, {"x": [4]}, {"y": [4]})))
    assert [n.op_type for n in loaded.model.graph] == ["Neg", "Relu", "Add", "Abs"]


def test_what_only_the_checker_refuses_is_taken_on_onnxruntimes_word(tmp_path: Path) -> None:
    """LayerNormalization below opset 17 is an operator of onnxruntime's own, in the default domain."""
    nodes = [
        node("MatMul", ["x", "w"], ["m"], "mm"),
        node("LayerNormalization", ["m", "s"], ["y"], "norm", axis=-1),
    ]
    weights = {"w": weight(128, 192), "s": np.ones(192, np.float32)}
    proto = model(graph(nodes, {"x": ["N", 128]}, {"y": ["N", 192]}, weights), opset=13)
    path = save(proto, tmp_path / "in.onnx")
    assert "LayerNormalization" in load(path).complaint
    load_model(path)
    result = quantize_dynamic(path, tmp_path / "out.onnx")
    assert result.verification is not None
    assert result.verification.compared["y"] > 25
    assert onnx.load(tmp_path / "out.onnx").opset_import[0].version == 13


def test_the_onnx_libraries_log_nothing_in_front_of_an_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    proto = matmul_model()
    proto.graph.output[0].name = "nowhere"
    with pytest.raises(ModelError, match="nothing makes 'nowhere'"):
        load(save(proto, tmp_path / "m.onnx"))
    assert capfd.readouterr().err == ""
