"""A model without some channels computes what it computes with nobody reading them."""

import random

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from builders import run
from channel_graphs import ENDS, PIECES, channel_model
from hypothesis import given, settings
from hypothesis import strategies as st

from quantkit.model.graph.load import load
from quantkit.model.graph.products import products_of
from quantkit.model.graph.protos import to_proto
from quantkit.model.graph.save import copy_of
from quantkit.model.graph.shapes import infer
from quantkit.model.graph.view import view_of
from quantkit.reduce.prune.couple import couple
from quantkit.reduce.prune.cut import cut
from quantkit.reduce.prune.groups import ChannelGroup, channel_groups
from quantkit.reduce.prune.labels import Labels


def opened(proto: onnx.ModelProto) -> tuple[ir.Model, Labels, tuple[ChannelGroup, ...]]:
    model = load(proto).model
    infer(model)
    labels = couple(model)
    return model, labels, channel_groups(model, labels, products_of(view_of(model)))


def ignoring(
    model: ir.Model, removed: dict[str, tuple[ChannelGroup, list[int]]]
) -> onnx.ModelProto:
    """Return a copy in which nobody reads some units."""
    zeroed = copy_of(model)
    held = zeroed.graph.initializers
    for group, units in removed.values():
        for reader in group.readers:
            product = reader.product
            value = held[product.weight]
            assert value.const_value is not None
            rows = product.layout.rows(value.const_value.numpy()).copy()
            rows[0][:, reader.columns[units].reshape(-1)] = 0
            value.const_value = ir.Tensor(np.ascontiguousarray(product.layout.shaped(rows)))
    return to_proto(zeroed)


def check_cut(proto: onnx.ModelProto, seed: int) -> None:
    model, labels, groups = opened(proto)
    chance = random.Random(seed)  # noqa: S311 - a seed is a test's
    removed = {
        group.name + str(number): (
            group,
            chance.sample(range(group.size), chance.randint(1, group.size - 1)),
        )
        for number, group in enumerate(groups)
        if chance.random() < 0.7
    }
    expected = ignoring(model, removed)
    before = sum(v.const_value.size for v in model.graph.initializers.values() if v.const_value)
    gone = [int(g.units[u]) for g, units in removed.values() for u in units]
    cut(model, labels, gone)
    after = sum(v.const_value.size for v in model.graph.initializers.values() if v.const_value)
    assert after < before or not removed
    pruned = to_proto(model)
    onnx.checker.check_model(pruned, full_check=True)
    x = np.random.default_rng(seed).standard_normal((2, 3, 8, 8)).astype(np.float32)
    for optimize in (True, False):
        (want,) = run(expected, {"x": x}, optimize=optimize)
        (found,) = run(pruned, {"x": x}, optimize=optimize)
        np.testing.assert_allclose(found, want, rtol=1e-3, atol=1e-4 * float(np.abs(want).max()))


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("ends", ENDS)
def test_each_kind_of_coupling(piece: str, ends: str) -> None:
    proto = channel_model(["conv", piece, "conv"], ends, 3)
    _, _, groups = opened(proto)
    assert groups
    for seed in range(3):
        check_cut(proto, seed)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(sorted(PIECES)), min_size=1, max_size=6),
    st.sampled_from(ENDS),
    st.integers(0, 999),
)
def test_random_graphs(pieces: list[str], ends: str, seed: int) -> None:
    check_cut(channel_model(pieces, ends, seed), seed)


@pytest.mark.parametrize(
    ("piece", "width", "size"),
    [("attention", 4, 3), ("grouped", 3, 4), ("multiplied", 2, 8), ("conv", 1, 8)],
)
def test_units(piece: str, width: int, size: int) -> None:
    """Heads of attention, groups of a Conv and the channels of a depthwise one go as a whole."""
    _, _, groups = opened(channel_model([piece], "image", 0))
    assert (width, size) in {(group.wide, group.size) for group in groups}
