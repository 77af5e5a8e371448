from pathlib import Path

import numpy as np
import pytest
from builders import graph, matmul_model, model, node, save, weight
from graph.cases import function_model, if_model, with_external_data

from quantkit.api.quantize import Task, quantize
from quantkit.errors import ModelError
from quantkit.evaluate.changes import changes_of
from quantkit.evaluate.match import ModelPair
from quantkit.result import OperatorChange
from quantkit.samples import fashion_mnist
from quantkit.settings import DynamicSettings


def test_a_model_does_not_differ_from_itself(tmp_path: Path) -> None:
    path = save(matmul_model(), tmp_path / "m.onnx")
    found = changes_of(ModelPair.of(path, path))
    assert (found.operators, found.notes) == ((), ())
    assert found.weights == {"float32": (128 * 192 + 192) * 4}
    assert found.kept == found.weights["float32"]


def test_operators_and_types_of_a_quantized_model(tmp_path: Path) -> None:
    quantize(Task(source=fashion_mnist().model, how=DynamicSettings()), tmp_path / "q.onnx")
    found = changes_of(ModelPair.of(fashion_mnist().model, tmp_path / "q.onnx"))
    assert found.operators[0] == OperatorChange(op_type="Mul", before=0, after=5)
    sizes = [abs(c.after - c.before) for c in found.operators]
    assert sizes == sorted(sizes, reverse=True)
    assert min(sizes) > 0
    assert found.nodes_after - found.nodes_before == sum(
        c.after - c.before for c in found.operators
    )
    assert list(found.weights) == ["uint8", "float32"]
    assert found.kept == found.weights["float32"]


def test_versions_and_ports_are_named(tmp_path: Path) -> None:
    before, after = matmul_model(), matmul_model()
    after.ir_version = 9
    after.opset_import[0].version = 18
    after.opset_import.add(domain="com.microsoft", version=1)
    after.graph.input[0].name = after.graph.node[0].input[0] = "z"
    after.graph.output[0].type.tensor_type.elem_type = 10
    found = changes_of(
        ModelPair.of(save(before, tmp_path / "a.onnx"), save(after, tmp_path / "b.onnx"))
    )
    assert found.notes == (
        "opset 17 -> 18",
        "opset of com.microsoft: 1, new",
        "IR version 8 -> 9",
        "input 'x' is called 'z'",
        "output 'y': float32[N, 192] -> float16[N, 192]",
    )


def test_what_was_rewritten_is_named(tmp_path: Path) -> None:
    norm = [node("BatchNormalization", ["x", "s", "s", "s", "s"], ["y"])]
    part = graph(norm, {"x": [1, 4]}, {"y": None}, {"s": np.ones(4, np.float32)})
    plain = graph([node("Add", ["x", "w"], ["y"])], {"x": [1, 4]}, {"y": None}, {"w": weight(1, 4)})
    a, b = save(model(part), tmp_path / "a.onnx"), save(model(plain), tmp_path / "b.onnx")
    assert changes_of(ModelPair.of(a, b)).notes == ("1 BatchNormalization folded",)


def test_functions_and_subgraphs_are_counted(tmp_path: Path) -> None:
    a = save(function_model(), tmp_path / "a.onnx")
    b = save(if_model(), tmp_path / "b.onnx")
    found = changes_of(ModelPair.of(a, b))
    assert (found.nodes_before, found.nodes_after) == (5, 3)
    assert "functions inlined (1 -> 0)" in found.notes
    assert "inputs 1 -> 2" in found.notes


def test_external_data_is_named(tmp_path: Path) -> None:
    a = save(matmul_model(), tmp_path / "a.onnx")
    b = with_external_data(matmul_model(), tmp_path / "b.onnx")
    assert changes_of(ModelPair.of(a, b)).notes == ("weights in a file beside it",)
    assert changes_of(ModelPair.of(b, a)).notes == ("weights in the model file",)


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.onnx").write_bytes(b"\xff\xff")
    with pytest.raises(ModelError):
        changes_of(ModelPair.of(tmp_path / "a.onnx", tmp_path / "a.onnx"))
