"""quantkit.ort.onnx_model.ONNXModel, and the questions about models that onnxruntime's quant_utils answers."""

import copy
from pathlib import Path

import numpy as np
import onnx
import onnxruntime.quantization.onnx_model as peer
import onnxruntime.quantization.quant_utils as peer_utils
import pytest
from builders import graph, matmul_model, model, node, op_types, rng, run, save, weight
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import convert_model_to_external_data

from quantkit.errors import ModelError, UsageError
from quantkit.ort import quant_utils
from quantkit.ort.onnx_model import ONNXModel


def chain() -> onnx.ModelProto:
    """x -> a -> {b, c} -> d -> y, and constants that nobody reads."""
    nodes = [
        node("Relu", ["x"], ["1"], "a"),
        node("MatMul", ["1", "w"], ["2"], "b"),
        node("Neg", ["1"], ["3"], "c_7"),
        node("Add", ["2", "3"], ["y"], "d"),
        helper.make_node("Constant", [], ["k"], "k", value_float=1.0),
    ]
    held = {"w": weight(4, 4), "unused_2": weight(3)}
    return model(graph(nodes, {"x": ["N", 4]}, {"y": ["N", 4]}, held))


@given(st.permutations(range(5)))
def test_nodes_are_sorted_whatever_their_order(order: list[int]) -> None:
    proto = chain()
    nodes = [copy.deepcopy(proto.graph.node[index]) for index in order]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    ONNXModel(proto).topological_sort()
    onnx.checker.check_model(proto)
    assert len(proto.graph.node) == len(order)


def test_what_a_subgraph_reads_is_waited_for() -> None:
    branch = graph([node("Neg", ["late"], ["n"], "inner")], {}, {"n": [2]}, {})
    nodes = [
        helper.make_node("If", ["c"], ["y"], "if", then_branch=branch, else_branch=branch),
        node("Relu", ["x"], ["late"], "r"),
    ]
    proto = model(graph(nodes, {"x": [2]}, {"y": [2]}, {"c": np.array(True)}))
    ONNXModel(proto).topological_sort()
    assert op_types(proto)[0] == "Relu"
    held = ONNXModel(proto)
    held.remove_unused_constant()
    assert held.get_initializer_name_set() == {"c"}


def test_a_circle_is_an_error() -> None:
    nodes = [node("Add", ["x", "b"], ["a"], "1"), node("Neg", ["a"], ["b"], "2")]
    proto = model(graph(nodes, {"x": [2]}, {"b": [2]}, {}))
    with pytest.raises(ModelError, match="circle"):
        ONNXModel(proto).topological_sort()


def test_questions_are_answered_as_onnxruntime_answers_them() -> None:
    ours, theirs = ONNXModel(chain()), peer.ONNXModel(chain())
    for question in ("get_initializer_name_set", "get_non_initializer_inputs", "ir_version"):
        assert getattr(ours, question)() == getattr(theirs, question)()
    for name in ("x", "y", "w", "k", "2", "none"):
        assert ours.is_graph_input(name) == theirs.is_graph_input(name)
        assert ours.is_graph_output(name) == theirs.is_graph_output(name)
        assert str(ours.get_initializer(name)) == str(theirs.get_initializer(name))
        assert str(ours.get_tensor_type(name)) == str(theirs.get_tensor_type(name))
        np.testing.assert_array_equal(
            str(ours.get_constant_value(name)), str(theirs.get_constant_value(name))
        )
    for one, other in zip(ours.nodes(), theirs.nodes(), strict=True):
        assert [n.name for n in ours.get_children(one)] == [
            n.name for n in theirs.get_children(other)
        ]
        assert [n.name for n in ours.get_parents(one)] == [
            n.name for n in theirs.get_parents(other)
        ]
        assert str(ours.get_parent(one, 0)) == str(theirs.get_parent(other, 0))
        assert ours.get_parent(one, 5) is None
    assert ours.get_largest_node_name_suffix("c_") == 7
    assert ours.get_largest_initializer_name_suffix("unused_") == 2
    assert ours.get_largest_initializer_name_suffix("none") == -1


def test_changes_are_those_of_onnxruntime() -> None:
    changed = []
    for kind in (ONNXModel, peer.ONNXModel):
        held = kind(chain())
        held.replace_input_of_all_nodes("1", "one")
        held.replace_output_of_all_nodes("1", "one")
        held.replace_input_of_nodes("3", "x", {"d"})
        held.replace_output_of_nodes("3", "three", {"c_7"})
        held.add_initializer(numpy_helper.from_array(np.ones(2, np.float32), "more"))
        held.add_initializer(numpy_helper.from_array(np.ones(3, np.float32), "more"))
        held.add_nodes([node("Abs", ["one"], ["4"], "last")])
        held.remove_nodes([n for n in held.nodes() if n.name == "last"])
        held.set_opset_import("com.microsoft", 1)
        held.set_opset_import("com.microsoft", 2)
        held.remove_unused_constant()
        changed.append(held.model.SerializeToString(deterministic=True))
    assert changed[0] == changed[1]


def test_constants_that_nobody_reads_go() -> None:
    held = ONNXModel(chain())
    cleaned, unknown = held.clean_initializers()
    assert (held.get_initializer_name_set(), unknown) == ({"w"}, set())
    assert cleaned is held.graph()
    with pytest.raises(UsageError, match="no constant"):
        held.initializer_extend([])


@pytest.mark.parametrize("external", [False, True])
def test_a_model_is_written_whole(*, external: bool, tmp_path: Path) -> None:
    source = matmul_model()
    target = tmp_path / "out.onnx"
    feeds = {"x": rng(1).standard_normal((2, 128)).astype(np.float32)}
    ONNXModel(source).save_model_to_file(target, external)
    np.testing.assert_array_equal(run(target, feeds)[0], run(source, feeds)[0])
    assert quant_utils.model_has_external_data(target) == external
    source.graph.node[0].op_type = "NoSuchOperator"
    with pytest.raises(ModelError, match="not valid"):
        ONNXModel(source).save_model_to_file(tmp_path / "bad.onnx")
    assert not (tmp_path / "bad.onnx").exists()


def test_shapes_are_inferred_and_nothing_is_written(tmp_path: Path) -> None:
    source = tmp_path / "in.onnx"
    proto = matmul_model()
    convert_model_to_external_data(proto, location="weights", size_threshold=0)
    onnx.save_model(proto, source)
    before = sorted(tmp_path.iterdir())
    found = quant_utils.load_model_with_shape_infer(source)
    assert sorted(tmp_path.iterdir()) == before
    assert quant_utils.model_has_infer_metadata(found)
    assert peer_utils.model_has_infer_metadata(found)
    assert ONNXModel(found).get_tensor_type("m") is not None
    assert not quant_utils.model_has_external_data(found)


def test_what_is_noted_in_a_model_is_onnxruntimes_note() -> None:
    proto = matmul_model()
    assert not quant_utils.model_has_pre_process_metadata(proto)
    quant_utils.add_pre_process_metadata(proto)
    quant_utils.add_pre_process_metadata(proto)
    assert peer_utils.model_has_pre_process_metadata(proto)
    assert len(proto.metadata_props) == 1


@pytest.mark.parametrize(
    ("types", "version"),
    [
        (("QInt8", None), 17),
        (("QInt16", None), 21),
        (("QInt8", "QUInt16"), 21),
        (("QFLOAT8E4M3FN", None), 19),
        (("QInt4", None), 21),
    ],
)
def test_the_opset_is_raised_as_far_as_types_need(
    types: tuple[str, str | None], version: int
) -> None:
    kinds = [None if name is None else quant_utils.QuantType[name] for name in types]
    proto = matmul_model(opset=17)
    raised = quant_utils.update_opset_version(proto, kinds[0], kinds[1])
    assert quant_utils.get_opset_version(raised) == version
    feeds = {"x": rng(1).standard_normal((2, 128)).astype(np.float32)}
    np.testing.assert_array_equal(run(raised, feeds)[0], run(proto, feeds)[0])
    block = quant_utils.update_opset_version(proto, kinds[0], block_size=32)
    assert quant_utils.get_opset_version(block) == 21
    single = {"m": [{"quant_type": kinds[0], "convert": {"quant_type": TensorProto.UINT16}}]}
    overridden = quant_utils.update_opset_version(proto, kinds[0], None, single)
    assert quant_utils.get_opset_version(overridden) == 21


def test_attributes_become_keywords() -> None:
    made = helper.make_node("X", [], [], f=1.5, i=2, s="t", ints=[1, 2])
    found: dict[str, object] = {}
    for attribute in made.attribute:
        found |= quant_utils.attribute_to_kwarg(attribute)
    assert {**found, "ints": [1, 2]} == {"f": 1.5, "i": 2, "s": b"t", "ints": [1, 2]}
    with pytest.raises(UsageError, match="type"):
        quant_utils.attribute_to_kwarg(onnx.AttributeProto(name="a"))


def test_a_model_imports_one_opset(tmp_path: Path) -> None:
    proto = matmul_model()
    proto.opset_import.add(domain="ai.onnx", version=18)
    with pytest.raises(UsageError, match="2 opsets"):
        quant_utils.get_opset_version(proto)
    source = save(matmul_model(), tmp_path / "in.onnx")
    quant_utils.optimize_model(source, tmp_path / "out.onnx")
    assert (tmp_path / "out.onnx").exists()
