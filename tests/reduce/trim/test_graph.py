"""A graph with fewer tokens computes the same for kept ids: over tables, heads and forms of storage."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import Shape, graph, model, node, op_types, rng, run, save, weight
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

import quantkit
from quantkit.errors import ModelError, NothingToQuantizeError
from quantkit.model.graph.load import load
from quantkit.model.graph.protos import to_proto
from quantkit.reduce.trim.graph import KEPT, Cut, Tokens, trim_graph
from quantkit.runtime.check_result import Reference

ROWS, WIDTH, UNKNOWN = 45, 32, 1
INT64 = TensorProto.INT64
IDS = np.array([[3, 17, 44, 3], [1, 0, 29, 17]], np.int64)


def table_nodes(storage: str) -> tuple[list[onnx.NodeProto], dict[str, Any]]:
    """Return nodes and constants that make 'table', of ROWS x WIDTH, from what a file holds."""
    full = weight(ROWS, WIDTH)
    if storage == "float16":
        return [node("Cast", ["half"], ["table"], to=TensorProto.FLOAT)], {
            "half": full.astype(np.float16)
        }
    if storage == "int8":
        codes = rng(1).integers(-127, 127, (ROWS, WIDTH)).astype(np.int8)
        held = {"codes": codes, "scale": weight(ROWS), "zero": np.zeros(ROWS, np.int8)}
        return [node("DequantizeLinear", ["codes", "scale", "zero"], ["table"], axis=0)], held
    if storage == "steps":
        held = {
            "codes": rng(1).integers(0, 9, (ROWS, 2, 16)).astype(np.float32),
            "step": weight(ROWS, 1, 1),
            "flat": np.array([ROWS, WIDTH]),
        }
        nodes = [
            node("Mul", ["codes", "step"], ["blocks"]),
            node("Reshape", ["blocks", "flat"], ["table"]),
        ]
        return nodes, held
    if storage == "mixed":  # blocks run along tokens
        held = {
            "codes": weight(9, 5 * WIDTH),
            "step": weight(9, 1),
            "flat": np.array([ROWS, WIDTH]),
        }
        nodes = [
            node("Mul", ["codes", "step"], ["blocks"]),
            node("Reshape", ["blocks", "flat"], ["table"]),
        ]
        return nodes, held
    return [], {"table": full}


def head_nodes(head: str) -> tuple[list[onnx.NodeProto], dict[str, Any]]:
    """Return nodes and constants that compute 'y' from 'x'; with a head it has a value per token."""
    if head == "tied":
        nodes = [
            node("Transpose", ["table"], ["turned"], perm=[1, 0]),
            node("MatMul", ["x", "turned"], ["y"]),
        ]
        return nodes, {}
    if head == "copy":  # with a bias, scaled, and shaped
        held = {
            "head": weight(WIDTH, ROWS, seed=2),
            "bias": weight(ROWS),
            "shape": np.array([-1, ROWS]),
        }
        nodes = [node("MatMul", ["x", "head"], ["z"]), node("Add", ["bias", "z"], ["s"])]
        return [*nodes, node("Reshape", ["s", "shape"], ["y"])], held
    if head == "gemm":
        held = {
            "flat": np.array([-1, WIDTH]),
            "head": weight(ROWS, WIDTH, seed=2),
            "bias": weight(ROWS),
        }
        nodes = [
            node("Reshape", ["x", "flat"], ["f"]),
            node("Gemm", ["f", "head", "bias"], ["y"], transB=1),
        ]
        return nodes, held
    return [node("Relu", ["x"], ["y"])], {}


def text_model(
    storage: str = "plain", head: str = "none", *, compare: bool = False, opset: int = 17
) -> onnx.ModelProto:
    nodes, held = table_nodes(storage)
    more, others = head_nodes(head)
    held |= others | {"places": weight(8, WIDTH, seed=3), "at": np.arange(4)}
    nodes.append(node("Gather", ["table", "input_ids"], ["rows"], name="look_up"))
    nodes += [node("Gather", ["places", "at"], ["place"]), node("Add", ["rows", "place"], ["sum"])]
    if compare:
        held |= {"pad": np.array(29), "axes": np.array([2])}
        nodes += [
            node("Equal", ["input_ids", "pad"], ["is_pad"]),
            node("Cast", ["is_pad"], ["mask"], to=1),
        ]
        nodes += [
            node("Unsqueeze", ["mask", "axes"], ["column"]),
            node("Add", ["sum", "column"], ["x"]),
        ]
    else:
        nodes.append(node("Identity", ["sum"], ["x"]))
    whole: Shape = ["B", 4, WIDTH if head == "none" else ROWS]
    shape = None if head in {"copy", "gemm"} else whole
    proto = graph(
        nodes + more, {"input_ids": ["B", 4]}, {"y": shape}, held, types={"input_ids": INT64}
    )
    return model(proto, opset=opset)


def trimmed(
    full: onnx.ModelProto, ids: Collection[int], *, same_ids: bool = False
) -> tuple[onnx.ModelProto, Tokens, tuple[Cut, ...]]:
    loaded = load(full)
    kept = Tokens(
        ids=tuple(sorted(ids)),
        rows=ROWS,
        unknown=UNKNOWN,
        inputs=("input_ids",),
        same_ids=same_ids,
    )
    found, cuts = trim_graph(loaded.model, kept)
    return to_proto(loaded.model), found, cuts


def assert_same(
    full: onnx.ModelProto, small: onnx.ModelProto, kept: Tokens, ids: Any = IDS
) -> None:
    (before,) = run(full, {"input_ids": ids})
    reference = Reference(feeds={"input_ids": ids}, outputs={"y": before})
    expected = kept.translated(reference)
    (after,) = run(small, dict(expected.feeds))
    wanted = expected.outputs["y"]
    assert after.shape == wanted.shape
    if kept.logits:
        np.testing.assert_allclose(after, wanted, rtol=1e-5, atol=1e-5)
    else:
        np.testing.assert_array_equal(after, wanted)


@settings(max_examples=60, deadline=None)
@given(
    storage=st.sampled_from(["plain", "float16", "int8", "steps", "mixed"]),
    head=st.sampled_from(["none", "tied", "copy", "gemm"]),
    compare=st.booleans(),
    same_ids=st.booleans(),
    more=st.sets(st.integers(0, ROWS - 1), max_size=ROWS - 8),
)
def test_a_smaller_graph_computes_the_same_for_kept_ids(
    *, storage: str, head: str, compare: bool, same_ids: bool, more: set[int]
) -> None:
    full = text_model(storage, head, compare=compare)
    ids = {UNKNOWN, *IDS.reshape(-1).tolist(), *more}
    small, kept, cuts = trimmed(full, ids, same_ids=same_ids)
    assert_same(full, small, kept)
    assert kept.logits == (() if head == "none" else ("y",))
    assert {cut.part for cut in cuts} == (
        {"table", "head"} if head in {"copy", "gemm"} else {"table"}
    )
    assert len(onnx.load_from_string(small.SerializeToString()).graph.initializer) > 0
    if storage == "plain":
        assert cuts[0].after == len(ids) * WIDTH * 4


@pytest.mark.parametrize("bits", [2, 5, 8])
@pytest.mark.parametrize("same_ids", [False, True])
@pytest.mark.parametrize(("width", "tied"), [(96, True), (128, True), (128, False)])
def test_tables_and_heads_in_blocks_of_few_bits_are_cut(
    tmp_path: Path, *, bits: int, same_ids: bool, width: int, tied: bool
) -> None:
    # Of a number of rows for which planes of bits end within a byte.
    rows = 1021
    held = {"table": weight(rows, width)} | ({} if tied else {"head": weight(width, rows, seed=4)})
    turn = [node("Transpose", ["table"], ["head"], perm=[1, 0])] if tied else []
    nodes = [
        node("Gather", ["table", "input_ids"], ["rows"]),
        node("Relu", ["rows"], ["x"]),
        *turn,
        node("MatMul", ["x", "head"], ["y"]),
    ]
    types = {"input_ids": INT64}
    proto = graph(nodes, {"input_ids": ["B", 4]}, {"y": ["B", 4, rows]}, held, types=types)
    source, out = save(model(proto), tmp_path / "m.onnx"), tmp_path / "q.onnx"
    quantkit.quantize_weights(source, out, bits=bits, embedding_bits=bits, verify=False)
    full = onnx.load(out)
    assert op_types(full) != op_types(model(proto))
    loaded = load(full)
    ids = (0, 1, 3, 17, 29, 44, 700, 1020)
    kept = Tokens(ids=ids, rows=rows, unknown=1, inputs=("input_ids",), same_ids=same_ids)
    found, cuts = trim_graph(loaded.model, kept)
    assert_same(full, to_proto(loaded.model), found, np.array([[3, 17, 44, 1020]], np.int64))
    assert found.logits == ("y",)
    assert sum(c.after for c in cuts) < sum(c.before for c in cuts) / 60


@pytest.mark.parametrize("form", ["dynamic", "float16", "float16 compute"])
def test_quantized_tables_are_cut(tmp_path: Path, form: str) -> None:
    rows = 2000
    held = {"table": weight(rows, 64), "w": weight(64, 64)}
    nodes = [node("Gather", ["table", "input_ids"], ["x"]), node("MatMul", ["x", "w"], ["y"])]
    proto = graph(
        nodes, {"input_ids": ["B", 4]}, {"y": ["B", 4, 64]}, held, types={"input_ids": INT64}
    )
    source, out = save(model(proto), tmp_path / "m.onnx"), tmp_path / "q.onnx"
    if form == "dynamic":
        quantkit.quantize_dynamic(source, out)
    else:
        quantkit.quantize_float16(source, out, compute="compute" in form)
    full = onnx.load(out)
    loaded = load(full)
    kept = Tokens(ids=(0, 1, 3, 17, 1999), rows=rows, unknown=1, inputs=("input_ids",))
    found, _ = trim_graph(loaded.model, kept)
    assert_same(full, to_proto(loaded.model), found, np.array([[3, 17, 1999, 0]], np.int64))


def test_removed_ids_are_looked_up_as_the_unknown_token() -> None:
    full = text_model()
    small, kept, _ = trimmed(full, [0, 1, 3], same_ids=True)
    (unknown,) = run(full, {"input_ids": np.array([[1, 1, 3, 1]])})
    (found,) = run(small, {"input_ids": np.array([[44, 2, 3, 1]])})
    np.testing.assert_array_equal(found, unknown)
    assert kept.places.dtype == np.int64


def test_logits_of_removed_tokens_are_the_lowest_number_with_the_old_ids() -> None:
    small, kept, _ = trimmed(text_model(head="copy"), {1, *IDS.reshape(-1).tolist()}, same_ids=True)
    (logits,) = run(small, {"input_ids": IDS})
    assert logits.shape == (8, ROWS)
    removed = [i for i in range(ROWS) if i not in kept.ids]
    assert (logits[:, removed] == np.finfo(np.float32).min).all()
    assert (logits[:, list(kept.ids)] > -100).all()


@pytest.mark.parametrize("same_ids", [False, True])
def test_the_declared_shape_of_logits_is_that_of_their_values(same_ids: bool) -> None:  # noqa: FBT001
    small, kept, _ = trimmed(text_model(head="tied"), {0, 1, 3, 44}, same_ids=same_ids)
    declared = [d.dim_value for d in small.graph.output[0].type.tensor_type.shape.dim]
    (logits,) = run(small, {"input_ids": np.array([[0, 1, 3, 1]])})
    assert declared[-1] == logits.shape[-1] == (ROWS if same_ids else 4)
    assert kept.logits == ("y",)


def test_ids_that_the_graph_compares_with_get_their_new_number() -> None:
    full = text_model(compare=True)
    small, kept, _ = trimmed(full, {1, *IDS.reshape(-1).tolist()})
    assert_same(full, small, kept)
    pads = {
        int(onnx.numpy_helper.to_array(t))
        for t in small.graph.initializer
        if t.name.startswith("kept_id")
    }
    assert pads == {kept.ids.index(29)}


def computing(*more: onnx.NodeProto, **held: Any) -> onnx.ModelProto:
    nodes = [node("Gather", ["table", "input_ids"], ["rows"]), *more]
    weights = {"table": weight(ROWS, WIDTH), **held}
    return model(
        graph(nodes, {"input_ids": ["B", 4]}, {"y": None}, weights, types={"input_ids": INT64})
    )


def test_other_uses_of_ids_are_refused_by_name_unless_the_ids_stay() -> None:
    full = computing(
        node("Cast", ["input_ids"], ["f"], to=1),
        node("Sqrt", ["f"], ["root"], name="root"),
        node("ReduceMean", ["rows"], ["mean"], axes=[2], keepdims=0),
        node("Add", ["mean", "root"], ["y"]),
    )
    with pytest.raises(
        ModelError, match=r"Node 'root' \(Sqrt\) computes with token ids.*--keep-tokenizer"
    ):
        trimmed(full, [0, 1, 3])
    small, kept, _ = trimmed(full, {1, *IDS.reshape(-1).tolist()}, same_ids=True)
    assert_same(full, small, kept)


def test_a_table_that_something_else_uses_is_refused_by_name() -> None:
    full = computing(
        node("ReduceMean", ["table"], ["mean"], name="mean", axes=[0]),
        node("Add", ["rows", "mean"], ["y"]),
    )
    with pytest.raises(
        ModelError, match=r"Node 'mean' \(ReduceMean\) uses the whole table 'table'"
    ):
        trimmed(full, [0, 1, 3])


def test_probabilities_over_the_vocabulary_are_refused() -> None:
    full = computing(
        node("Transpose", ["table"], ["turned"], perm=[1, 0]),
        node("MatMul", ["rows", "turned"], ["logits"], name="head"),
        node("Softmax", ["logits"], ["y"], axis=-1),
    )
    with pytest.raises(ModelError, match="uses the whole table"):
        trimmed(full, [0, 1, 3])


def test_a_model_without_a_table_has_nothing_to_trim() -> None:
    proto = graph(
        [node("Cast", ["input_ids"], ["y"], to=1)],
        {"input_ids": ["B", 4]},
        {"y": ["B", 4]},
        types={"input_ids": INT64},
    )
    with pytest.raises(NothingToQuantizeError, match="no table is looked up by input_ids"):
        trimmed(model(proto), [0, 1])


def test_the_list_of_kept_ids_is_in_the_model() -> None:
    small, kept, _ = trimmed(text_model(), [0, 1, 3, 44])
    held = {p.key: p.value for p in small.metadata_props}
    assert held[KEPT] == "[0,1,3,44]"
    assert Tokens.of(kept.record(), held) == kept
