"""A model run a stretch at a time: every node once and in order, and the same numbers as in one run."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from block_cases import chain, samples
from builders import Array, Shape, graph, model, node, rng, run, save, weight
from hypothesis import given, settings
from hypothesis import strategies as st

from quantkit.quantize.solve.stream import Stream, Stretch, stretches_of
from quantkit.runtime.pieces import Structure, read_structure


def residual() -> onnx.ModelProto:
    """x -> two products that read the same -> sum -> a product -> plus x, which is kept all the way -> y."""
    nodes = [
        node("MatMul", ["x", "wa"], ["a"], "a"),
        node("MatMul", ["x", "wb"], ["b"], "b"),
        node("Add", ["a", "b"], ["s"], "sum"),
        node("Relu", ["s"], ["r"], "relu"),
        node("MatMul", ["r", "wc"], ["c"], "c"),
        node("Add", ["c", "x"], ["y"], "skip"),
    ]
    held = {name: weight(16, 16, seed=i) for i, name in enumerate(("wa", "wb", "wc"))}
    return model(graph(nodes, {"x": ["N", 16]}, {"y": ["N", 16]}, held))


def stops(structure: Structure) -> list[str]:
    return [n.input[0] for n in structure.nodes if n.op_type == "MatMul"]


def cut(proto: onnx.ModelProto, folder: Path) -> tuple[Structure, tuple[Stretch, ...]]:
    structure = read_structure(save(proto, folder / "m.onnx"))
    weights = [t.name for t in proto.graph.initializer]
    return structure, stretches_of(structure, stops(structure), weights)


def taps(proto: onnx.ModelProto, names: list[str], x: Array) -> dict[str, Array]:
    """Return tensors of one run of the whole model, as it stands."""
    tapped = onnx.ModelProto()
    tapped.CopyFrom(proto)
    del tapped.graph.output[:]
    tapped.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names if n != "x")
    values = run(tapped, {"x": x}) if tapped.graph.output else []
    return {**dict(zip([n for n in names if n != "x"], values, strict=True)), "x": x}


@settings(max_examples=25, deadline=None)
@given(depth=st.integers(1, 6), seed=st.integers(0, 1000))
def test_stretches_cover_every_layer_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory, depth: int, seed: int
) -> None:
    proto = chain(depth, seed=seed, skips=True)
    structure, found = cut(proto, tmp_path_factory.mktemp("m"))
    order = [structure.maker.get(s.reads, -1) for s in found]
    assert order == sorted(order)
    assert [s.reads for s in found] == list(dict.fromkeys(stops(structure)))
    weights = [name for s in found for name in s.weights]
    assert len(weights) == len(set(weights)) == depth - 1  # what the last makes, nobody reads
    there = {"x"}
    for stretch in found:
        assert set(stretch.takes) <= there
        assert set(stretch.drops) <= set(stretch.takes)
        there = (there | set(stretch.leaves)) - set(stretch.drops)
    assert not there - {"x"}


def test_products_that_read_the_same_share_a_stretch(tmp_path: Path) -> None:
    _, found = cut(residual(), tmp_path)
    assert [s.reads for s in found] == ["x", "r"]
    assert [s.weights for s in found] == [(), ("wa", "wb")]


@pytest.mark.parametrize("proto", [residual(), chain(4), chain(3, skips=True)])
def test_stretches_compute_what_one_run_does(proto: onnx.ModelProto, tmp_path: Path) -> None:
    structure, found = cut(proto, tmp_path)
    held = {t.name: onnx.numpy_helper.to_array(t) for t in proto.graph.initializer}
    rough = {name: array + np.float32(0.01) for name, array in held.items()}
    other = onnx.ModelProto()
    other.CopyFrom(proto)
    for tensor in other.graph.initializer:
        tensor.CopyFrom(onnx.numpy_helper.from_array(rough[tensor.name], tensor.name))
    given_ = samples(proto, 5)

    def read(name: str, which: Any) -> Array:
        return held[name] if which == "exact" else rough[name]

    folder = tmp_path / "shelf"
    folder.mkdir()
    stream = Stream(structure, found, iter(given_), read, folder)
    assert stream.samples == 5
    names = [s.reads for s in found]
    expected = [[taps(p, names, feed["x"]) for feed in given_] for p in (proto, other)]
    for stretch in found:
        for number, pair in enumerate(stream.advance()):
            for which, array in enumerate(pair):
                wanted = expected[which][number][stretch.reads]
                np.testing.assert_allclose(array, wanted, rtol=1e-5, atol=1e-5)
    assert not list(folder.iterdir())  # what nobody needs any more is gone


def test_what_later_layers_need_is_kept_until_then(tmp_path: Path) -> None:
    proto = chain(4, skips=True)
    _, found = cut(proto, tmp_path)
    for before, after in pairwise(found):
        assert set(after.takes) <= set(before.leaves) | (set(before.takes) - set(before.drops))


def test_an_input_that_no_stretch_needs_is_not_kept(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["a"], "a"),
        node("MatMul", ["a", "v"], ["b"], "b"),
        node("Add", ["b", "z"], ["y"], "add"),
    ]
    held = {"w": weight(8, 8), "v": weight(8, 8, seed=1)}
    inputs: dict[str, Shape] = {"x": ["N", 8], "z": ["N", 8]}
    structure, found = cut(model(graph(nodes, inputs, {"y": ["N", 8]}, held)), tmp_path)
    feed = {name: rng().standard_normal((2, 8)).astype(np.float32) for name in inputs}
    folder = tmp_path / "shelf"
    folder.mkdir()
    Stream(structure, found, iter([feed]), lambda name, _: held[name], folder)
    assert len(list(folder.iterdir())) == 1
