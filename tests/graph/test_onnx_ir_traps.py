"""What onnx-ir does that surprises, one test a trap (STYLE.md, section 4); links are in test_load."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from builders import graph, matmul_model, model, node, op_types, run, save, weight
from graph.cases import (
    BIG,
    MODELS,
    assert_same,
    feeds_for,
    nested_model,
    plain,
    with_external_data,
    written,
)
from onnx import TensorProto, helper, numpy_helper

from quantkit import quantize_dynamic
from quantkit.errors import ModelError, UsageError
from quantkit.model.graph.load import load

EXTERNAL = pytest.mark.parametrize("external", [False, True], ids=["one-file", "external-data"])


# 1. Views of weights are read-only.


@EXTERNAL
def test_weights_cannot_be_changed_through_a_view(
    external: bool,  # noqa: FBT001
    tmp_path: Path,
) -> None:
    store = with_external_data if external else save
    loaded = load(store(plain(), tmp_path / "m.onnx"))
    tensor = loaded.model.graph.initializers["w"].const_value
    assert tensor is not None
    view = tensor.numpy()
    assert not view.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        view[0, 0] = 1
    np.testing.assert_array_equal(view, weight(*BIG))


# 2. Saving over the file that the weights are read from.


def same_path(source: Path) -> Path:
    return source


def other_spelling(source: Path) -> Path:
    return source.parent / ".." / source.parent.name / source.name


def link_to_source(source: Path) -> Path:
    (source.parent / "link.onnx").symlink_to(source)
    return source.parent / "link.onnx"


def external_file(source: Path) -> Path:
    return source.parent / "weights.bin"


@pytest.mark.parametrize("verify", [True, False], ids=["verified", "unverified"])
@pytest.mark.parametrize(
    "target", [same_path, other_spelling, link_to_source, external_file], ids=lambda f: f.__name__
)
def test_the_input_is_never_overwritten(
    target: Callable[[Path], Path],
    verify: bool,  # noqa: FBT001
    tmp_path: Path,
) -> None:
    source = with_external_data(matmul_model(), tmp_path / "m.onnx")
    output = target(source)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    with pytest.raises(UsageError, match="would overwrite the input"):
        quantize_dynamic(source, output, verify=verify)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_the_data_file_of_the_output_is_never_that_of_the_input(tmp_path: Path) -> None:
    source = with_external_data(matmul_model(), tmp_path / "m.onnx", "q.onnx.data")
    before = (tmp_path / "q.onnx.data").read_bytes()
    for external in (True, False):
        quantize_dynamic(source, tmp_path / "q.onnx", use_external_data_format=external)
        assert (tmp_path / "q.onnx.data").read_bytes() == before


def test_a_hard_link_to_the_input_is_the_input(tmp_path: Path) -> None:
    source = save(matmul_model(), tmp_path / "m.onnx")
    before = source.read_bytes()
    (tmp_path / "q.onnx").hardlink_to(source)
    with pytest.raises(UsageError, match="would overwrite the input"):
        quantize_dynamic(source, tmp_path / "q.onnx")
    assert source.read_bytes() == before


# 3. Sparse initializers and training information would be dropped without a word.


def sparse() -> onnx.ModelProto:
    proto = matmul_model()
    values = numpy_helper.from_array(np.ones(2, np.float32), "sparse_w")
    indices = numpy_helper.from_array(np.array([0, 5]), "sparse_w_indices")
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [400]))
    return proto


def training() -> onnx.ModelProto:
    proto = matmul_model()
    proto.training_info.add(algorithm=plain().graph)
    return proto


@pytest.mark.parametrize("build", [sparse, training], ids=["sparse", "training"])
@pytest.mark.parametrize("verify", [True, False], ids=["verified", "unverified"])
def test_what_would_be_dropped_is_refused(
    build: Callable[[], onnx.ModelProto],
    verify: bool,  # noqa: FBT001
    tmp_path: Path,
) -> None:
    with pytest.raises(ModelError, match=r"sparse|training"):
        quantize_dynamic(build(), tmp_path / "q.onnx", verify=verify)
    assert not list(tmp_path.iterdir())


# 4. A saved model is not byte-identical, and need not be: what it computes is.


@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)
def test_a_model_loaded_and_saved_three_times_computes_the_same(
    build: Callable[[], onnx.ModelProto], tmp_path: Path
) -> None:
    proto = build()
    path = save(proto, tmp_path / "0.onnx")
    for i in range(1, 4):
        path = written(load(path).model, tmp_path / f"{i}.onnx", external=i == 2)
    feeds = feeds_for(proto)
    assert_same(run(proto, feeds, optimize=False), run(path, feeds, optimize=False))
    assert (tmp_path / "1.onnx").read_bytes() == path.read_bytes()


# 6. Graph traversal does not visit functions.


def large_function(opset: int = 17) -> onnx.ModelProto:
    """A function with a weight that is worth quantizing, called in both branches of an If."""
    body = [
        node("Constant", [], ["w"], value=numpy_helper.from_array(weight(128, 192))),
        node("MatMul", ["a", "w"], ["m"]),
        node("ReduceMean", ["m"], ["b"], axes=[1]),
    ]
    imports = [helper.make_opsetid("", opset)]
    function = helper.make_function("local", "F", ["a"], ["b"], body, imports)

    def part(name: str) -> onnx.GraphProto:
        call = node("F", ["x"], [f"{name}f"], domain="local")
        last = node("Neg" if name == "t" else "Exp", [f"{name}f"], [name])
        return graph([call, last], {}, {name: None}, name=name)

    nodes = [node("If", ["c"], ["y"], then_branch=part("t"), else_branch=part("e"))]
    types = {"c": TensorProto.BOOL}
    return model(
        graph(nodes, {"c": [], "x": ["N", 128]}, {"y": None}, types=types),
        opset=opset,
        domains={"local": 1},
        functions=[function],
    )


def test_weights_of_functions_are_quantized(tmp_path: Path) -> None:
    result = quantize_dynamic(large_function(), tmp_path / "q.onnx")
    quantized = onnx.load(tmp_path / "q.onnx")
    assert len(result.plan.weights) == 2
    assert not quantized.functions
    assert result.verification is not None
    assert result.verification.compared["y"] > 20


# 7. Raising the opset with functions and subgraphs (all operators are in test_opset).


def test_the_opset_is_raised_in_functions_and_branches(tmp_path: Path) -> None:
    result = quantize_dynamic(large_function(10), tmp_path / "q.onnx")
    quantized = onnx.load(tmp_path / "q.onnx")
    assert quantized.opset_import[0].version == 11
    assert result.warnings[0] == "Opset raised from 10 to 11."
    assert "MatMulInteger" in op_types(quantized)
    assert result.verification is not None
    assert result.verification.compared["y"] > 20


# 8 and 9. Work that grows with the square of the graph.


def test_nothing_looks_up_nodes_by_position(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("graph[i] is linear; iterate")

    proto = matmul_model(opset=10)
    proto.functions.extend(large_function(10).functions)
    proto.opset_import.append(helper.make_opsetid("local", 1))
    monkeypatch.setattr(ir.Graph, "__getitem__", refuse)
    load(nested_model())
    result = quantize_dynamic(proto, tmp_path / "q.onnx")
    assert result.output_bytes < result.input_bytes / 3


def long_chain(count: int) -> onnx.ModelProto:
    """Unnamed nodes, each with a constant of its own name; every second one an Identity."""
    nodes = []
    for i in range(count):
        nodes.append(node("Identity", ["w"], [f"w{i}"]))
        nodes.append(node("Add", [f"v{i}" if i else "x", f"w{i}"], [f"v{i + 1}"]))
    nodes.append(node("Neg", [f"v{count}"], ["y"]))
    return model(graph(nodes, {"x": [20, 20]}, {"y": [20, 20]}, {"w": weight(*BIG)}))


def test_names_of_many_nodes_are_found_at_once() -> None:
    """20000 nodes, two seconds; a search that grows with the square takes half a minute."""
    proto = long_chain(10_000)
    started = time.process_time()
    loaded = load(proto)
    assert time.process_time() - started < 15
    names = [item.name for item in loaded.model.graph]
    assert len(names) == len(set(names)) == 10_001
