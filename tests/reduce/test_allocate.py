"""Which widths are chosen: least noise for the time or the bytes saved, and never what lies within a block that is gone."""

import numpy as np
import pytest
from channel_graphs import channel_model
from hypothesis import given, settings
from hypothesis import strategies as st

from quantkit.model.graph.load import load
from quantkit.model.graph.products import products_of
from quantkit.model.graph.shapes import infer
from quantkit.model.graph.view import view_of
from quantkit.reduce.prune.allocate import first_below, removal_path
from quantkit.reduce.prune.blocks import ResidualBlock, joined
from quantkit.reduce.prune.couple import couple
from quantkit.reduce.prune.cut import cut
from quantkit.reduce.prune.groups import ChannelGroup, channel_groups
from quantkit.reduce.prune.widths import PruneCosts, Shares, Times, Widths, shares_of_nodes


def group(name: str, size: int, *nodes: str) -> ChannelGroup:
    return ChannelGroup(name=name, units=np.arange(size), readers=(), nodes=nodes or (name,))


def block(number: int, *nodes: str) -> ResidualBlock:
    name = f"block{number}"
    return ResidualBlock(
        name=name, before="a", after="b", width=8, nodes=frozenset(nodes), number=number
    )


def costs(grows: list[float], seconds: list[float], **more: object) -> PruneCosts:
    """Groups of 64 channels, one node and one weight each; noise grows with the square of what is removed."""
    count = len(grows)
    groups = tuple(group(f"g{n}", 64) for n in range(count))
    own = np.zeros((2, count, count))
    own[0] = np.eye(count)
    shares = Shares(names=tuple(one.name for one in groups), parts=own)
    curve = np.arange(1, 65) ** 2 / 64**2
    found = {
        "groups": groups,
        "blocks": (),
        "work": shares,
        "times": Times(
            names=shares.names,
            shares=np.tile([0.0, 1.0], (count, 1)),
            seconds=np.stack([np.zeros(count), np.array(seconds)], axis=1),
        ),
        "weights": shares,
        "nbytes": np.full(count, 100.0),
        "inside": (np.zeros((0, count), bool), np.zeros((0, count), bool)),
        "map_seconds": np.zeros(0),
        "noise": (tuple(n * curve for n in grows), np.zeros(0)),
    }
    return PruneCosts(**(found | more))  # type: ignore[arg-type]


@given(
    st.lists(st.floats(0.01, 1), min_size=1, max_size=4),
    st.lists(st.floats(0.1, 1), min_size=4, max_size=4),
    st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_every_step_saves(
    noise: list[float],
    seconds: list[float],
    by_size: bool,  # noqa: FBT001 - drawn
) -> None:
    path = removal_path(costs(noise, seconds[: len(noise)]), by_size=by_size)
    assert not path[0].widths.changes
    spent = [step.nbytes if by_size else step.seconds for step in path]
    assert spent == sorted(spent, reverse=True)
    assert len(set(spent)) == len(spent)
    assert [step.noise for step in path] == sorted(step.noise for step in path)
    assert all(kept % 16 == 0 for kept in path[-1].widths.kept.values())


def test_the_group_that_costs_least_for_its_time_goes_first() -> None:
    quiet, slow = costs([0.1, 1.0], [1.0, 1.0]), costs([1.0, 1.0], [1.0, 10.0])
    assert list(removal_path(quiet)[1].widths.kept) == ["g0"]
    assert list(removal_path(slow)[1].widths.kept) == ["g1"]
    assert first_below(removal_path(quiet), seconds=0.0) is None


def test_a_block_takes_its_groups_with_it() -> None:
    inside = (np.array([[True, False]]), np.array([[True, False]]))
    found = costs(
        [1.0, 1.0],
        [1.0, 1.0],
        blocks=(block(0, "g0"),),
        inside=inside,
        map_seconds=np.array([0.1]),
        noise=((np.full(64, 1.0), np.full(64, 1.0)), np.array([0.01])),
    )
    first = removal_path(found)[1]
    assert first.widths == Widths(mapped=frozenset({"block0"}))
    assert first.seconds == pytest.approx(1.1)
    assert first.nbytes == pytest.approx(100 + 4 * 64)
    assert all("g0" not in step.widths.kept for step in removal_path(found)[1:])


def test_blocks_in_a_row_are_one() -> None:
    found = joined([block(4), block(1), block(2)])
    assert [one.name for one in found] == ["block1", "block4"]


def test_less_work_never_lasts_longer() -> None:
    times = Times.of(["n"], np.array([[1.0], [0.5], [0.25]]), np.array([[2.0], [0.4], [0.6]]))
    assert times.at(np.array([[0.25], [0.5], [0.75], [1.0]]))[:, 0].tolist() == pytest.approx(
        [0.4, 0.4, 1.2, 2.0]
    )


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.sampled_from(["conv", "residual", "concat", "depthwise", "split"]), max_size=4),
    st.integers(0, 99),
)
def test_predicted_bytes_are_those_of_the_cut_model(pieces: list[str], seed: int) -> None:
    model = load(channel_model(["conv", *pieces], "pooled", seed)).model
    infer(model)
    labels = couple(model)
    groups = channel_groups(model, labels, products_of(view_of(model)))
    _, weights = shares_of_nodes(model, labels, groups)
    held = model.graph.initializers
    draw = np.random.default_rng(seed)
    kept = [int(draw.integers(1, one.size + 1)) for one in groups]
    left = weights.left(np.array([k / g.size for k, g in zip(kept, groups, strict=True)]))
    expected = {
        name: share * tensor.size
        for name, share in zip(weights.names, left, strict=True)
        if (tensor := held[name].const_value) is not None and tensor.dtype.is_floating_point()
    }
    cut(model, labels, [int(u) for k, g in zip(kept, groups, strict=True) for u in g.units[k:]])
    for name, size in expected.items():
        tensor = model.graph.initializers[name].const_value
        assert tensor is not None
        assert tensor.size == pytest.approx(size)
