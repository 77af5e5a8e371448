"""The form that later stages rely on, reached without changing a bit of any output."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from builders import MS, Shape, graph, matmul_model, model, node, rng, run, save, sqnr, weight
from graph.cases import (
    BIG,
    assert_same,
    assert_unchanged,
    branch,
    constant_nodes,
    feeds_for,
    function_model,
    if_model,
    loop_model,
    nested_model,
    plain,
    written,
)
from onnx import TensorProto, helper, numpy_helper

from quantkit import optimize, quantize_dynamic, quantize_static
from quantkit.model.graph.load import load
from quantkit.quantize.plan import Mode

CONDITION = pytest.mark.parametrize("taken", [True, False], ids=["then", "else"])


def op_types(normal: ir.Model) -> list[str]:
    return [item.op_type for item in normal.graph.all_nodes()]


def node_names(normal: ir.Model) -> list[str | None]:
    return [item.name for item in normal.graph.all_nodes()]


def weight_names(normal: ir.Model) -> list[str]:
    return [name for part in normal.graphs() for name in part.initializers]


# --- functions ---------------------------------------------------------------------------------


def test_functions_are_inlined(tmp_path: Path) -> None:
    proto = function_model()
    normal = assert_unchanged(proto, feeds_for(proto), tmp_path)
    assert not normal.functions
    assert op_types(normal) == ["MatMul", "LeakyRelu"] * 2
    assert len(weight_names(normal)) == 2


def function(
    name: str, nodes: list[onnx.NodeProto], inputs: tuple[str, ...] = ("a",), **domains: int
) -> onnx.FunctionProto:
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    imports += [helper.make_opsetid(d.replace("_", "."), v) for d, v in domains.items()]
    return helper.make_function("local", name, list(inputs), ["b"], nodes, imports)


def calls(*functions: onnx.FunctionProto, weights: bool = False) -> onnx.ModelProto:
    """Call the first function twice."""
    extra = ["w"] if weights else []
    nodes = [
        node(functions[0].name, ["x", *extra], ["h"], domain="local"),
        node(functions[0].name, ["h", *extra], ["y"], domain="local"),
    ]
    part = graph(
        nodes,
        {"x": ["N", 20]},
        {"y": ["N", 20]},
        {"w": weight(*BIG)} if weights else {},
    )
    return model(part, domains={"local": 1}, functions=functions)


def default_attribute() -> onnx.ModelProto:
    leaky = node("LeakyRelu", ["a"], ["b"])
    leaky.attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    made = function("F", [leaky])
    made.attribute_proto.append(helper.make_attribute("slope", 0.75))
    return calls(made)


def function_with_branches() -> onnx.ModelProto:
    parts = [
        graph([node("MatMul", ["a", "w"], [n])], {}, {n: None}, {"w": weight(*BIG, seed=i)}, name=n)
        for i, n in enumerate(("t", "e"))
    ]
    nodes = [
        node("ReduceMin", ["a"], ["low"], keepdims=0),
        node("Cast", ["low"], ["c"], to=TensorProto.BOOL),
        node("If", ["c"], ["b"], then_branch=parts[0], else_branch=parts[1]),
    ]
    return calls(function("F", nodes))


FUNCTIONS: dict[str, Callable[[], onnx.ModelProto]] = {
    "weight-as-argument": lambda: calls(
        function("F", [node("MatMul", ["a", "w"], ["b"])], ("a", "w")), weights=True
    ),
    "nested": lambda: calls(
        function("F", [node("G", ["a"], ["m"], domain="local"), node("Neg", ["m"], ["b"])]),
        function("G", [node("Exp", ["a"], ["b"])]),
    ),
    "default-attribute": default_attribute,
    "branches": function_with_branches,
    "other-domain": lambda: calls(
        function("F", [node("FastGelu", ["a"], ["b"], domain=MS)], com_microsoft=1)
    ),
    "same-names-inside": lambda: calls(
        function("F", [node("Neg", ["a"], ["h"], "n"), node("Exp", ["h"], ["b"], "m")])
    ),
}


@pytest.mark.parametrize("build", FUNCTIONS.values(), ids=FUNCTIONS)
def test_functions_of_every_kind_are_inlined(
    build: Callable[[], onnx.ModelProto], tmp_path: Path
) -> None:
    proto = build()
    normal = assert_unchanged(proto, feeds_for(proto), tmp_path)
    assert not normal.functions
    assert "local" not in {item.domain for item in normal.graph.all_nodes()}


def test_a_function_called_in_branches_is_inlined(tmp_path: Path) -> None:
    def part(name: str) -> onnx.GraphProto:
        return graph([node("F", ["x"], [name], domain="local")], {}, {name: None}, name=name)

    proto = if_model(part("t"), part("e"))
    tensor = numpy_helper.from_array(weight(*BIG))
    nodes = [node("Constant", [], ["k"], value=tensor), node("MatMul", ["a", "k"], ["b"])]
    proto.functions.append(function("F", nodes))
    proto.opset_import.append(helper.make_opsetid("local", 1))
    normal = assert_unchanged(proto, feeds_for(proto), tmp_path)
    assert op_types(normal).count("MatMul") == 2


def test_a_function_nobody_calls_is_dropped(tmp_path: Path) -> None:
    proto = plain()
    proto.functions.append(function("F", [node("Exp", ["a"], ["b"])]))
    proto.opset_import.append(helper.make_opsetid("local", 1))
    assert not assert_unchanged(proto, feeds_for(proto), tmp_path).functions


# --- constants ---------------------------------------------------------------------------------


def test_large_constant_nodes_are_initializers_and_small_ones_stay(tmp_path: Path) -> None:
    normal = assert_unchanged(constant_nodes(), feeds_for(constant_nodes()), tmp_path)
    assert weight_names(normal) == ["w"]
    assert op_types(normal) == ["Constant", "MatMul", "Add"]


def test_a_constant_that_is_an_output_stays(tmp_path: Path) -> None:
    proto = constant_nodes()
    proto.graph.output.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, BIG))
    normal = assert_unchanged(proto, feeds_for(proto), tmp_path)
    assert op_types(normal).count("Constant") == 2


def test_constants_of_one_name_in_both_branches_are_kept_apart(tmp_path: Path) -> None:
    def part(name: str, seed: int) -> onnx.GraphProto:
        tensor = numpy_helper.from_array(weight(*BIG, seed=seed))
        nodes = [node("Constant", [], ["k"], value=tensor), node("MatMul", ["x", "k"], [name])]
        return graph(nodes, {}, {name: None}, name=name)

    for taken in (True, False):
        proto = if_model(part("t", 1), part("e", 2))
        normal = assert_unchanged(proto, feeds_for(proto, taken=taken), tmp_path)
        assert weight_names(normal) == ["k", "k_1"]


# --- Identity ----------------------------------------------------------------------------------


def test_identity_of_a_weight_is_that_weight(tmp_path: Path) -> None:
    nodes = [
        node("Identity", ["w"], ["w2"]),
        node("Identity", ["w2"], ["w3"]),
        node("MatMul", ["x", "w"], ["a"]),
        node("MatMul", ["a", "w2"], ["b"]),
        node("MatMul", ["b", "w3"], ["y"]),
    ]
    proto = model(graph(nodes, {"x": ["N", 20]}, {"y": ["N", 20]}, {"w": weight(*BIG)}))
    normal = assert_unchanged(proto, feeds_for(proto), tmp_path)
    assert op_types(normal) == ["MatMul"] * 3
    assert len(normal.graph.initializers["w"].uses()) == 3


def test_identity_of_an_outer_weight_in_a_branch_is_that_weight(tmp_path: Path) -> None:
    nodes = [node("Identity", ["w"], ["v"]), node("MatMul", ["x", "v"], ["t"])]
    proto = if_model(graph(nodes, {}, {"t": None}, name="t"), branch("e", 2, tensor="own"))
    proto.graph.initializer.append(numpy_helper.from_array(weight(*BIG, seed=5), "w"))
    normal = assert_unchanged(proto, feeds_for(proto), tmp_path)
    assert "Identity" not in op_types(normal)


def test_identity_stays_where_it_names_an_output(tmp_path: Path) -> None:
    nodes = [node("Identity", ["w"], ["z"]), node("MatMul", ["x", "w"], ["y"])]
    outputs: dict[str, Shape] = {"y": ["N", 20], "z": BIG}
    proto = model(graph(nodes, {"x": ["N", 20]}, outputs, {"w": weight(*BIG)}))
    assert op_types(assert_unchanged(proto, feeds_for(proto), tmp_path)) == ["Identity", "MatMul"]


def test_identity_of_an_input_stays(tmp_path: Path) -> None:
    nodes = [node("Identity", ["x"], ["h"]), node("Neg", ["h"], ["y"])]
    proto = model(graph(nodes, {"x": ["N", 20]}, {"y": ["N", 20]}))
    assert op_types(assert_unchanged(proto, feeds_for(proto), tmp_path)) == ["Identity", "Neg"]


# --- names -------------------------------------------------------------------------------------


def chain(*names: str) -> onnx.ModelProto:
    values = ["x", *(f"v{i}" for i in range(1, len(names))), "y"]
    nodes = [node("Neg", [values[i]], [values[i + 1]], name) for i, name in enumerate(names)]
    return model(graph(nodes, {"x": ["N", 20]}, {"y": ["N", 20]}))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["", "", ""], ["Neg", "Neg_1", "Neg_2"]),
        (["a", "a", "a"], ["a", "a_1", "a_2"]),
        (["a", "a", "a_1"], ["a", "a_2", "a_1"]),
        (["", "Neg"], ["Neg_1", "Neg"]),
        (["a", "b"], ["a", "b"]),
    ],
    ids=["unnamed", "equal", "equal-and-taken", "unnamed-and-taken", "good"],
)
def test_nodes_get_names_of_their_own_and_good_names_stay(
    given: list[str], expected: list[str], tmp_path: Path
) -> None:
    normal = load(save(chain(*given), tmp_path / "m.onnx")).model
    assert node_names(normal) == expected
    path = written(normal, tmp_path / "out.onnx")
    feeds = {"x": weight(3, 20)}  # onnxruntime refuses equal names: compare with good ones
    good = chain(*(f"n{i}" for i in range(len(given))))
    assert_same(run(good, feeds, optimize=False), run(path, feeds, optimize=False))


@pytest.mark.parametrize(
    "build", [if_model, nested_model, loop_model], ids=["if", "nested-if", "loop"]
)
def test_names_are_unique_over_all_graphs(
    build: Callable[[], onnx.ModelProto], tmp_path: Path
) -> None:
    proto = build()
    normal = assert_unchanged(proto, feeds_for(proto), tmp_path)
    for names in (node_names(normal), weight_names(normal)):
        assert all(names)
        assert len(names) == len(set(names))


@CONDITION
def test_weights_of_one_name_in_both_branches_are_kept_apart(
    taken: bool,  # noqa: FBT001
    tmp_path: Path,
) -> None:
    proto = if_model()
    normal = assert_unchanged(proto, feeds_for(proto, taken=taken), tmp_path)
    assert weight_names(normal) == ["w", "w_1"]


@CONDITION
def test_a_new_name_is_not_that_of_a_value(taken: bool, tmp_path: Path) -> None:  # noqa: FBT001
    proto = if_model()
    proto.graph.node[0].output[0] = "z"
    proto.graph.node.insert(0, node("Neg", ["x"], ["w_1"]))
    proto.graph.node.append(node("Add", ["z", "w_1"], ["y"]))
    normal = assert_unchanged(proto, feeds_for(proto, taken=taken), tmp_path)
    assert weight_names(normal) == ["w", "w_2"]


@CONDITION
def test_a_weight_does_not_keep_the_name_of_a_value_in_the_other_branch(
    taken: bool,  # noqa: FBT001
    tmp_path: Path,
) -> None:
    nodes = [node("Neg", ["x"], ["w"]), node("Exp", ["w"], ["e"])]
    proto = if_model(other=graph(nodes, {}, {"e": None}, name="e"))
    normal = assert_unchanged(proto, feeds_for(proto, taken=taken), tmp_path)
    assert weight_names(normal) == ["w_1"]


@CONDITION
def test_a_folded_weight_does_not_take_the_name_of_a_value_in_the_other_branch(
    taken: bool,  # noqa: FBT001
    tmp_path: Path,
) -> None:
    folded = [node("Transpose", ["w"], ["v"]), node("MatMul", ["x", "v"], ["t"])]
    other = [node("Neg", ["x"], ["v"]), node("Exp", ["v"], ["e"])]
    proto = if_model(
        graph(folded, {}, {"t": None}, name="t"), graph(other, {}, {"e": None}, name="e")
    )
    proto.graph.initializer.append(numpy_helper.from_array(weight(*BIG), "w"))
    normal = assert_unchanged(proto, feeds_for(proto, taken=taken), tmp_path)
    assert "Transpose" not in op_types(normal)
    assert weight_names(normal) == ["v_1"]


def test_outer_weights_captured_under_a_name_that_looks_new_stay(tmp_path: Path) -> None:
    def part(name: str, seed: int) -> onnx.GraphProto:
        made = branch(f"{name}m", seed)
        made.node.append(node("Add", [f"{name}m", "w_1"], [name]))
        made.output[0].name = name
        return made

    for taken in (True, False):
        proto = if_model(part("t", 1), part("e", 2))
        proto.graph.initializer.append(numpy_helper.from_array(weight(20, seed=3), "w_1"))
        normal = assert_unchanged(proto, feeds_for(proto, taken=taken), tmp_path)
        assert weight_names(normal) == ["w_1", "w", "w_2"]


def test_inputs_and_outputs_of_the_graph_keep_their_names(tmp_path: Path) -> None:
    proto = if_model(branch("t", 1, tensor="own"), branch("e", 2, tensor="own"))
    proto.graph.initializer.append(numpy_helper.from_array(weight(*BIG, seed=7), "w"))
    proto.graph.output.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, BIG))
    normal = assert_unchanged(proto, feeds_for(proto), tmp_path)
    assert [value.name for value in normal.graph.inputs] == ["c", "x"]
    assert [value.name for value in normal.graph.outputs] == ["y", "w"]


# --- listed initializers -----------------------------------------------------------------------


def listed(ir_version: int) -> onnx.ModelProto:
    nodes = [
        node("Identity", ["w"], ["w2"]),
        node("Transpose", ["w2"], ["wt"]),
        node("MatMul", ["x", "wt"], ["m"]),
        node("Add", ["m", "b"], ["y"]),
    ]
    inputs: dict[str, Shape] = {"x": ["N", 20], "w": BIG, "b": [20]}
    weights = {"w": weight(*BIG), "b": weight(20)}
    return model(graph(nodes, inputs, {"y": ["N", 20]}, weights), opset=8, ir_version=ir_version)


def test_listed_initializers_of_ir_version_3_are_weights(tmp_path: Path) -> None:
    normal = assert_unchanged(listed(3), feeds_for(listed(3)), tmp_path)
    assert normal.ir_version == 4
    assert [value.name for value in normal.graph.inputs] == ["x"]
    assert op_types(normal) == ["MatMul", "Add"]


def test_listed_initializers_of_later_ir_versions_stay_inputs(tmp_path: Path) -> None:
    normal = assert_unchanged(listed(4), feeds_for(listed(4)), tmp_path)
    assert [value.name for value in normal.graph.inputs] == ["x", "w", "b"]
    other = feeds_for(listed(4)) | {"w": weight(*BIG, seed=9)}
    assert_same(
        run(listed(4), other, optimize=False),
        run(tmp_path / "out.onnx", other, optimize=False),
    )


def test_a_model_of_ir_version_3_is_quantized(tmp_path: Path) -> None:
    proto = matmul_model(opset=8)
    proto.ir_version = 3
    for name, shape in (("w", [128, 192]), ("b", [192])):
        proto.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
    result = quantize_dynamic(save(proto, tmp_path / "m.onnx"), tmp_path / "q.onnx")
    assert result.output_bytes < result.input_bytes / 3
    assert result.verification is not None
    assert result.verification.compared["y"] > 30


# --- shapes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["input", "output"])
def test_inputs_and_outputs_may_come_without_a_shape(side: str, tmp_path: Path) -> None:
    proto = matmul_model()
    getattr(proto.graph, side)[0].type.tensor_type.ClearField("shape")
    feeds = {"x": weight(2, 128, seed=9)}
    assert_unchanged(proto, feeds, tmp_path)
    quantize_dynamic(proto, tmp_path / "q.onnx", sample=feeds)
    stored = onnx.load(tmp_path / "q.onnx")
    assert not getattr(stored.graph, side)[0].type.tensor_type.HasField("shape")


def test_normalizing_twice_changes_nothing(tmp_path: Path) -> None:
    proto = nested_model()
    once = assert_unchanged(proto, feeds_for(proto), tmp_path)
    twice = load(tmp_path / "out.onnx").model
    assert node_names(once) == node_names(twice)
    assert weight_names(once) == weight_names(twice)
    for part, again in zip(once.graphs(), twice.graphs(), strict=True):
        for name, value in part.initializers.items():
            other = again.initializers[name].const_value
            assert value.const_value is not None
            assert other is not None
            np.testing.assert_array_equal(value.const_value.numpy(), other.numpy())


def overridable(ir_version: int) -> onnx.ModelProto:
    """`matmul_model` with its weight and bias among the inputs."""
    proto = matmul_model()
    proto.ir_version = ir_version
    for tensor in proto.graph.initializer:
        described = helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
        proto.graph.input.append(described)
    return proto


@pytest.mark.parametrize("ir_version", [3, 8])
@pytest.mark.parametrize("how", ["dynamic", "static"])
def test_inputs_with_a_value_of_their_own_become_constants(
    how: str, ir_version: int, tmp_path: Path
) -> None:
    path, out = save(overridable(ir_version), tmp_path / "m.onnx"), tmp_path / "o.onnx"
    x = rng().standard_normal((16, 128)).astype(np.float32)
    if how == "dynamic":
        result = quantize_dynamic(path, out)
    else:
        result = quantize_static(path, out, {"x": x})
    assert [i.name for i in onnx.load(out).graph.input] == ["x"]
    assert out.stat().st_size < path.stat().st_size / 2
    said = any("are constants now (the first: 'w')" in t for t in (*result.warnings, *result.notes))
    assert said == (ir_version > 3)  # there it had to be listed, and says nothing


@pytest.mark.parametrize("how", ["dynamic", "static", "environment"])
def test_inputs_with_a_value_of_their_own_are_kept_in_float_when_asked(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proto = overridable(8)
    proto.graph.node.append(node("MatMul", ["y", "v"], ["z"], "second"))
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weight(192, 192), "v"))
    proto.graph.output[0].name = "z"
    path, out = save(proto, tmp_path / "m.onnx"), tmp_path / "o.onnx"
    x = rng().standard_normal((16, 128)).astype(np.float32)
    if how == "static":
        result = quantize_static(path, out, {"x": x}, keep_inputs=True)
    elif how == "dynamic":
        result = quantize_dynamic(path, out, keep_inputs=True)
    else:
        monkeypatch.setenv("QUANTKIT_KEEP_INPUTS", "1")
        result = quantize_dynamic(path, out)
    assert result.plan.node["second"].mode is not Mode.FLOAT
    feeds = {"x": x[:4], "w": weight(128, 192, seed=7)}
    expected, actual = run(path, feeds)[0], run(out, feeds)[0]
    assert sqnr(expected, actual) > 30


@pytest.mark.parametrize("ir_version", [3, 8])
def test_optimizing_keeps_the_interface(ir_version: int, tmp_path: Path) -> None:
    path = save(overridable(ir_version), tmp_path / "m.onnx")
    optimize(path, tmp_path / "o.onnx")
    kept = {i.name for i in onnx.load(tmp_path / "o.onnx").graph.input}
    assert kept == ({"x"} if ir_version == 3 else {"x", "w", "b"})
