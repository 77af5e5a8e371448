"""What is stored twice is stored once; what nobody needs goes."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import graph, initializers, model, node, op_types, weight
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper
from rewrite.simplify.simplify_cases import (
    OPSETS,
    assert_kept,
    both_ways,
    build,
    if_graph,
    simplified,
)

from quantkit.model.graph.load import load
from quantkit.model.graph.mapping import MappedFile
from quantkit.quantize.rewrite.simplify.initializers import tie_weights


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("extent", [3, 40])
def test_equal_contents_are_stored_once(opset: int, extent: int) -> None:
    nodes = [
        node("MatMul", ["x", "v"], ["a"]),
        node("MatMul", ["a", "w"], ["b"]),
        node("MatMul", ["b", "u"], ["y"]),
    ]
    held = {
        "v": weight(extent, extent),
        "w": weight(extent, extent),
        "u": weight(extent, extent, seed=1),
    }
    proto = build(graph(nodes, {"x": [2, extent]}, {"y": None}, held), opset)
    assert set(initializers(assert_kept(proto, "initializers"))) == {"v", "u"}


def test_type_and_shape_count() -> None:
    held = {
        "a": np.zeros((2, 2), np.float32),
        "b": np.zeros(4, np.float32),
        "c": np.zeros((2, 2), np.int32),
        "d": np.zeros((), np.float32),
    }
    nodes = [node("Cast", [n], [f"c{n}"], to=1) for n in held]
    nodes += [node("ReduceSum", [f"c{n}"], [f"s{n}"], keepdims=0) for n in held]
    nodes += [node("Sum", ["x", *(f"s{n}" for n in held)], ["y"])]
    proto = build(graph(nodes, {"x": [1]}, {"y": None}, held))
    assert set(initializers(assert_kept(proto, "initializers"))) == set(held)


def test_a_default_and_an_output_stay() -> None:
    held = dict.fromkeys(("default", "output", "a", "b"), weight(3))
    nodes = [node("Sum", ["x", "default", "output", "a", "b"], ["y"])]
    proto = build(graph(nodes, {"x": [3], "default": [3]}, {"y": [3], "output": [3]}, held))
    assert set(initializers(assert_kept(proto, "initializers"))) == {"default", "output", "a"}


def test_the_unread_go() -> None:
    nodes = [node("Relu", ["x"], ["a"]), node("Neg", ["a"], ["b"]), node("Add", ["b", "w"], ["c"])]
    nodes += [node("Abs", ["x"], ["y"])]
    held = {"w": weight(3), "unread": weight(2), "default": weight(1)}
    proto = build(graph(nodes, {"x": [3], "default": [1]}, {"y": [3]}, held))
    result = assert_kept(proto, "initializers")
    assert op_types(result) == ["Abs"]
    assert set(initializers(result)) == {"default"}


def test_a_branch_that_nobody_needs_needs_nothing() -> None:
    """What only the subgraph of a dead node reads is dead."""
    before = [node("Add", ["x", "w"], ["outer"])]
    proto = if_graph([node("Relu", ["outer"], ["t"])], "t", before=before, weights={"w": weight(4)})
    proto.node.append(node("Neg", ["x"], ["z"]))
    proto.output[0].name = "z"
    result = both_ways(build(proto), "initializers")
    assert op_types(result) == ["Neg"]
    assert not initializers(result)


def test_in_a_branch() -> None:
    branch = [node("Abs", ["x"], ["dead"]), node("Sum", ["x", "v", "w"], ["t"])]
    inner = {"v": weight(4), "w": weight(4), "unread": weight(4, seed=2)}
    result = both_ways(build(if_graph(branch, "t", inner=inner)), "initializers")
    assert op_types(result) == ["If", "Neg", "Sum"]
    chosen = next(a.g for a in result.graph.node[0].attribute if a.name == "then_branch")
    assert [t.name for t in chosen.initializer] == ["v"]


def test_what_a_branch_reads_is_needed() -> None:
    before = [node("Relu", ["x"], ["outer"])]
    proto = build(
        if_graph([node("Add", ["outer", "w"], ["t"])], "t", before=before, weights={"w": weight(4)})
    )
    result = both_ways(proto, "initializers")
    assert op_types(result) == ["Relu", "If", "Neg", "Add"]


def test_nodes_of_unknown_domains_may_do_something() -> None:
    nodes = [node("Log", ["x"], ["unread"], domain="custom"), node("Abs", ["x"], ["y"])]
    proto = model(graph(nodes, {"x": [3]}, {"y": [3]}), domains={"custom": 1})
    assert op_types(simplified(proto, "initializers")[0]) == ["Log", "Abs"]


def _language_model(*, transposed: bool = True, gemm: bool = False) -> onnx.ModelProto:
    """Look up 'table', multiply by the head: its transpose, unless `transposed` is off."""
    table = weight(96, 64)
    head = table.T if transposed else weight(64, 96, seed=1)
    product = node("Gemm" if gemm else "MatMul", ["rows", "head"], ["y"], "head_product")
    nodes = [node("Gather", ["table", "ids"], ["rows"], "look_up"), product]
    held = {"table": table, "head": np.ascontiguousarray(head)}
    proto = graph(nodes, {"ids": [3]}, {"y": [3, 96]}, held, types={"ids": TensorProto.INT64})
    return build(proto)


@pytest.mark.parametrize("gemm", [False, True])
@pytest.mark.parametrize("passes", [("initializers",), ("constants", "initializers", "transposes")])
def test_a_head_that_is_the_tables_transpose_is_stored_once(
    passes: tuple[str, ...], *, gemm: bool
) -> None:
    ids = {"ids": np.array([1, 5, 95])}
    result = assert_kept(_language_model(gemm=gemm), *passes, feeds=ids, exact=False)
    assert {n for n, a in initializers(result).items() if a.size > 100} == {"table"}
    assert ("Transpose" in op_types(result)) != gemm  # a Gemm reads it the other way around


def test_another_matrix_of_the_same_extents_stays() -> None:
    result, _ = simplified(_language_model(transposed=False), "initializers")
    assert {"table", "head"} <= set(initializers(result))


@pytest.mark.parametrize("place", [(-1, -1), (3, 5)])
def test_what_differs_in_a_single_bit_is_no_transpose(place: tuple[int, int]) -> None:
    proto = _language_model()
    head = np.array(initializers(proto)["head"])
    head[place] = np.nextafter(head[place], 9)
    proto.graph.initializer[1].CopyFrom(numpy_helper.from_array(head, "head"))
    result, _ = simplified(proto, "initializers")
    assert "head" in initializers(result)


@pytest.mark.parametrize("alike", [False, True])
def test_weights_of_one_shape_are_not_read_for_every_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, alike: bool
) -> None:
    """Not at all where their first and last values differ, else each a few times at most, however many there are."""
    count, extent = 24, 64
    held = {f"w{i}": weight(extent, extent, seed=i) for i in range(count)}
    if alike:
        for matrix in held.values():
            matrix[0, 0] = matrix[-1, -1] = 1.0
    nodes = [node("MatMul", [f"h{i}", f"w{i}"], [f"h{i + 1}"], f"m{i}") for i in range(count)]
    proto = graph(nodes, {"h0": [1, extent]}, {f"h{count}": [1, extent]}, held)
    onnx.save(build(proto), tmp_path / "m.onnx")
    loaded, read = load(tmp_path / "m.onnx"), list[int]()
    plain = MappedFile.read

    def counted(self: MappedFile, nbytes: int, offset: int) -> NDArray[np.uint8]:
        read.append(nbytes)
        return plain(self, nbytes, offset)

    monkeypatch.setattr(MappedFile, "read", counted)
    assert tie_weights(loaded.model) == 0
    one = 4 * extent * extent
    assert sum(read) <= (4 * count * one if alike else one)
