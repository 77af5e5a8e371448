"""Where the items of a group stand to each other: layers by the longest path, places in them by barycentres.

That does not depend on which groups are open: the page only turns it into coordinates. A line that passes a layer has a
place in it, so that none runs through a box; what several items read of one is one line with branches. Lines into and out
of a group have places in its first and last layer. All of it is done in a few linear passes over each group.
"""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from quantkit.deploy.view.groups import Tree

_SWEEPS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Net:
    """A line with branches.

    Attributes:
        boxes: Whose values it stands for.
        start: The place where it begins.
        via: The places that it passes, one in each layer from the next to its start's on.
        ends: The places where branches end; each comes from the place of the line in the layer above it.
    """

    boxes: tuple[int, ...]
    start: int
    via: tuple[int, ...]
    ends: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A group: places are numbered, its items' first, in their order.

    Attributes:
        layers: The places of each layer, from left to right.
        nets: The lines.
        entries: Places at the top where lines enter, by the line of the group around it.
        exits: Places at the bottom where lines leave, by the line of the group around it.
    """

    layers: tuple[tuple[int, ...], ...]
    nets: tuple[Net, ...]
    entries: Mapping[int, int]
    exits: Mapping[int, int]


def lay_out(tree: Tree, reads: Sequence[Sequence[int]]) -> tuple[Layout, ...]:
    """Lay out every group by itself.

    Args:
        tree: The groups.
        reads: The boxes that each box reads.
    """
    flows = _flows(tree, reads)
    net_of: list[dict[int, int]] = []  # of each group: the line of a box's values
    layouts = []
    for number, group in enumerate(tree.groups):
        around = net_of[group.parent] if group.parent >= 0 else {}
        layout = _layout(group.items, flows[number], around)
        net_of.append({box: n for n, net in enumerate(layout.nets) for box in net.boxes})
        layouts.append(layout)
    return tuple(layouts)


_OUTSIDE = None


@dataclass(slots=True)
class _Flow:
    """How a box's values run through one group: from an item, or from outside, to items, and perhaps out of it."""

    start: int | None = _OUTSIDE
    ends: set[int] = field(default_factory=set)
    leaves: bool = False


def _flows(tree: Tree, reads: Sequence[Sequence[int]]) -> list[dict[int, _Flow]]:
    found: list[dict[int, _Flow]] = [defaultdict(_Flow) for _ in tree.groups]
    above = [tree.above(box) for box in range(len(reads))]
    for box, sources in enumerate(reads):
        for source in sources:
            ours, theirs = above[box], above[source]
            shared = sum(1 for a, b in zip(ours, theirs, strict=False) if a == b)
            into, out = _steps(ours, box), _steps(theirs, source)
            for at in range(shared - 1, len(theirs)):
                flow = found[theirs[at]][source]
                flow.start = out[at]
                flow.leaves |= at >= shared
            for at in range(shared - 1, len(ours)):
                found[ours[at]][source].ends.add(into[at])
    return found


def _steps(above: Sequence[int], box: int) -> list[int]:
    """Return the item of each group around a box that holds it."""
    return [*(-1 - group for group in above[1:]), box]


@dataclass(frozen=True, slots=True)
class _Wired:
    """The lines of a group, by where they begin and end, with the boxes whose values they are; and its ports, by the line outside."""

    wires: Mapping[tuple[int, tuple[int, ...]], list[int]]
    entries: Mapping[int, int]
    exits: Mapping[int, int]


def _wired(items: Sequence[int], flows: Mapping[int, _Flow], around: Mapping[int, int]) -> _Wired:
    """Number the places where lines enter and leave, behind the items, and put values that run alike on one line."""
    place = {item: i for i, item in enumerate(items)}
    outside = dict.fromkeys(around[box] for box, flow in flows.items() if flow.start is _OUTSIDE)
    entries = {net: len(items) + i for i, net in enumerate(outside)}
    leaving = dict.fromkeys(around[box] for box, flow in flows.items() if flow.leaves)
    exits = {net: len(items) + len(entries) + i for i, net in enumerate(leaving)}
    wires: dict[tuple[int, tuple[int, ...]], list[int]] = defaultdict(list)
    for box, flow in flows.items():
        start = entries[around[box]] if flow.start is None else place[flow.start]
        ends = sorted(place[end] for end in flow.ends)
        if flow.leaves:
            ends.append(exits[around[box]])
        wires[start, tuple(ends)].append(box)
    return _Wired(wires, entries, exits)


def _layout(items: Sequence[int], flows: Mapping[int, _Flow], around: Mapping[int, int]) -> Layout:
    wired = _wired(items, flows, around)
    depth = _depths(len(items), len(wired.entries), len(wired.exits), list(wired.wires))
    nets = []
    for (start, ends), boxes in wired.wires.items():
        passed = max(0, max(depth[e] for e in ends) - depth[start] - 1)
        via = tuple(range(len(depth), len(depth) + passed))
        depth += [depth[start] + 1 + i for i in range(passed)]
        nets.append(Net(boxes=tuple(boxes), start=start, via=via, ends=ends))
    return Layout(
        layers=_arranged(depth, nets),
        nets=tuple(nets),
        entries=wired.entries,
        exits=wired.exits,
    )


def _depths(
    items: int, entries: int, exits: int, wires: Sequence[tuple[int, tuple[int, ...]]]
) -> list[int]:
    """Return the layer of each place: of items by the longest path, of those that read nothing just above who reads them."""
    top = 1 if entries else 0
    depth = [top] * items + [0] * entries + [0] * exits
    by_start: dict[int, list[int]] = defaultdict(list)
    fed = set()
    for start, ends in wires:
        inside = [e for e in ends if e < items]
        by_start[start] += inside
        fed.update(inside)
    for item in range(items):  # each comes after what it reads
        for end in by_start[item]:
            depth[end] = max(depth[end], depth[item] + 1)
    for item in range(items):
        if item not in fed and by_start[item]:
            depth[item] = max(top, min(depth[end] for end in by_start[item]) - 1)
    last = max(depth[:items], default=0) + 1
    depth[items + entries :] = [last] * exits
    return depth


def _arranged(depth: Sequence[int], nets: Sequence[Net]) -> tuple[tuple[int, ...], ...]:
    """Return the places of each layer in an order with few crossings."""
    layers: list[list[int]] = [[] for _ in range(max(depth, default=-1) + 1)]
    for place, at in enumerate(depth):
        layers[at].append(place)
    above: list[list[int]] = [[] for _ in depth]
    below: list[list[int]] = [[] for _ in depth]
    for upper, lower in _links(depth, nets):
        above[lower].append(upper)
        below[upper].append(lower)
    best, fewest = [list(layer) for layer in layers], _crossings(layers, below)
    for sweep in range(_SWEEPS):
        if not fewest:
            break
        down = sweep % 2 == 0
        others = above if down else below
        for layer in layers[1:] if down else layers[-2::-1]:
            _sort_layer(layer, others, layers, depth, -1 if down else 1)
        count = _crossings(layers, below)
        if count < fewest:
            best, fewest = [list(layer) for layer in layers], count
    return tuple(tuple(layer) for layer in best)


def _links(depth: Sequence[int], nets: Sequence[Net]) -> Iterator[tuple[int, int]]:
    """Yield the pieces of all lines, from a layer to the next."""
    for net in nets:
        chain = (net.start, *net.via)
        yield from zip(chain, net.via, strict=False)
        for end in net.ends:
            yield chain[depth[end] - depth[net.start] - 1], end


def _sort_layer(
    layer: list[int],
    others: Sequence[Sequence[int]],
    layers: Sequence[Sequence[int]],
    depth: Sequence[int],
    step: int,
) -> None:
    """Sort a layer by the mean place of what each is connected to in the layer before; what is connected to nothing stays."""
    if not layer:
        return
    fixed = {place: i for i, place in enumerate(layers[depth[layer[0]] + step])}
    scale = max(1, len(fixed)) / len(layer)
    mean = {
        place: sum(fixed[o] for o in others[place]) / len(others[place])
        if others[place]
        else i * scale
        for i, place in enumerate(layer)
    }
    layer.sort(key=mean.__getitem__)


def _crossings(layers: Sequence[Sequence[int]], below: Sequence[Sequence[int]]) -> int:
    """Count the pairs of lines that cross."""
    total = 0
    for upper, lower in pairwise(layers):
        at = {place: i for i, place in enumerate(lower)}
        seen: list[int] = []
        for place in upper:
            ends = sorted(at[end] for end in below[place])
            total += sum(len(seen) - bisect_left(seen, end + 1) for end in ends)
            for end in ends:
                insort(seen, end)
    return total
