"""How much of a model is left: units by group, and blocks that become maps. And what that leaves of each node and weight."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.model.ops.float_ops import PRODUCTS
from quantkit.reduce.prune.blocks import ResidualBlock
from quantkit.reduce.prune.groups import ChannelGroup
from quantkit.reduce.prune.labels import Labels

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Widths:
    """What is left of a model.

    Attributes:
        kept: How many units a group keeps, by its name; a group that is not listed keeps all.
        mapped: The names of the blocks that become affine maps.
        in_order: Weights are fitted in the order of the graph, each behind the pruned ones before it; else each by itself.
    """

    kept: Mapping[str, int] = field(default_factory=dict)
    mapped: frozenset[str] = frozenset()
    in_order: bool = True

    @property
    def changes(self) -> bool:
        """Whether anything is removed."""
        return bool(self.kept or self.mapped)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "kept": dict(self.kept),
            "mapped": sorted(self.mapped),
            "in_order": self.in_order,
        }

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> "Widths":
        """Read what `to_json` returned."""
        return cls(
            kept=dict(plain["kept"]),
            mapped=frozenset(plain["mapped"]),
            in_order=plain["in_order"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """How much of each of some things is left, given the share of each group that is left.

    Attributes:
        names: What they are called.
        parts: For both of their axes that groups cut: which share of the axis each group has, (2, things, groups).
    """

    names: tuple[str, ...]
    parts: Floats

    def left(self, kept: Floats) -> Floats:
        """Return the share of each that is left, (..., things), if these shares of the groups are, (..., groups)."""
        first, second = (1 - (1 - kept) @ part.T for part in self.parts)
        found: Floats = first * second
        return found


def shares_of_nodes(
    model: ir.Model, labels: Labels, groups: Sequence[ChannelGroup]
) -> tuple[Shares, Shares]:
    """Return how the work of nodes, and the bytes of weights, depend on the groups."""
    owners = {int(unit): number for number, group in enumerate(groups) for unit in group.units}

    def parts(value: ir.Value) -> Floats:
        rows = []
        for own in labels.axes.get(value, ()):
            row = np.zeros(len(groups))
            for root in [] if own is None else labels.roots(own).tolist():
                if root in owners:
                    row[owners[root]] += 1 / len(own)  # type: ignore[arg-type]  # known: it has a root
            rows.append(row)
        rows.sort(key=lambda row: -float(row.sum()))
        return np.stack([*rows, np.zeros(len(groups)), np.zeros(len(groups))][:2])

    def table(held: Mapping[str, ir.Value]) -> Shares:
        found = [parts(value) for value in held.values()]
        array = np.stack(found, axis=1) if found else np.zeros((2, 0, len(groups)))
        return Shares(names=tuple(held), parts=array)

    weights = model.graph.initializers
    nodes: dict[str, ir.Value] = {}
    for node in model.graph:
        weight = node.inputs[1] if node.op_type in PRODUCTS and len(node.inputs) > 1 else None
        held = weight if weight is not None and weight.name in weights else node.outputs[0]
        nodes[node.name or ""] = held
    return table(nodes), table(dict(weights))


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """What each node takes, as a function of the share of its work that is left; piece by piece linear.

    Attributes:
        names: Of the nodes.
        shares: At which it was measured, ascending; (nodes, points).
        seconds: What was measured there.
    """

    names: tuple[str, ...]
    shares: Floats
    seconds: Floats

    @classmethod
    def of(cls, names: Sequence[str], shares: Floats, seconds: Floats) -> "Times":
        """Sort measurements; less work is not taken to last longer, which would be noise.

        Args:
            names: Of the nodes.
            shares: Of the work, (points, nodes).
            seconds: Measured, (points, nodes).
        """
        order = np.argsort(shares.T, axis=1, kind="stable")
        sorted_shares = np.take_along_axis(shares.T, order, axis=1)
        sorted_seconds = np.take_along_axis(seconds.T, order, axis=1)
        falling = np.minimum.accumulate(sorted_seconds[:, ::-1], axis=1)[:, ::-1]
        return cls(names=tuple(names), shares=sorted_shares, seconds=falling)

    def at(self, left: Floats) -> Floats:
        """Return the seconds of each node, (..., nodes), at these shares of its work."""
        found = np.empty_like(left)
        for number in range(len(self.names)):
            found[..., number] = np.interp(
                left[..., number], self.shares[number], self.seconds[number]
            )
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneCosts:
    """What a model with fewer units takes, weighs, and loses.

    Attributes:
        groups: The groups.
        blocks: The blocks.
        work: What is left of the work of each node.
        times: What each node takes.
        weights: What is left of each weight.
        nbytes: Bytes of each weight.
        inside: Nodes that a mapped block does not have, (blocks, nodes); weights likewise.
        map_seconds: What the map of a block takes.
        noise: Of the outputs, relative to their power: by group and number of units removed; and of each block.
    """

    groups: tuple[ChannelGroup, ...]
    blocks: tuple[ResidualBlock, ...]
    work: Shares
    times: Times
    weights: Shares
    nbytes: Floats
    inside: tuple[NDArray[np.bool_], NDArray[np.bool_]]
    map_seconds: Floats
    noise: tuple[tuple[Floats, ...], Floats]

    def of(self, states: Sequence[Widths]) -> tuple[Floats, Floats, Floats]:
        """Return the time, the bytes and the noise of each of some widths."""
        kept = np.array(
            [[one.kept.get(g.name, g.size) / g.size for g in self.groups] for one in states]
        ).reshape(len(states), len(self.groups))
        mapped = np.array([[b.name in one.mapped for b in self.blocks] for one in states], bool)
        mapped = mapped.reshape(len(states), len(self.blocks))
        there = [~(mapped.astype(int) @ inside.astype(int) > 0) for inside in self.inside]
        follows = np.zeros_like(mapped)
        follows[:, 1:] = mapped[:, :-1]  # one map for blocks in a row
        maps = mapped & ~follows
        seconds = (self.times.at(self.work.left(kept)) * there[0]).sum(axis=1)
        size = (self.weights.left(kept) * self.nbytes * there[1]).sum(axis=1)
        size += maps @ np.array([4.0 * block.width**2 for block in self.blocks])
        return seconds + maps @ self.map_seconds, size, self._noise(states)

    def _noise(self, states: Sequence[Widths]) -> Floats:
        found = np.zeros(len(states))
        for row, one in enumerate(states):
            gone = self.covered(one.mapped)
            for number, group in enumerate(self.groups):
                removed = group.size - one.kept.get(group.name, group.size)
                if removed and group.name not in gone:
                    found[row] += self.noise[0][number][removed - 1]
            found[row] += sum(
                float(self.noise[1][b.number]) for b in self.blocks if b.name in one.mapped
            )
        return found

    def covered(self, mapped: Collection[str]) -> frozenset[str]:
        """Return the groups that lie within blocks that become maps."""
        names = [block.nodes for block in self.blocks if block.name in mapped]
        return frozenset(g.name for g in self.groups if any(set(g.nodes) <= own for own in names))
