"""Groups of boxes by name scope, nested, such that no two items of a group read each other in a circle, and their layout.

A scope whose boxes lie on both sides of another's (a module that is called twice) becomes several groups. A scope with
one item is none. What is left with too many items is cut along its order, where fewest lines are cut.

Within a group items stand in layers by the longest path, in places by barycentres. That does not depend on which groups are
open: the page only turns it into coordinates. A line that passes a layer has a place in it, so that none runs through a box;
what several items read of one is one line with branches. Lines into and out of a group have places in its first and last layer.
"""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import cycle, islice, pairwise

Scope = tuple[str, ...]

_MOST = 80  # items that one sees at a time
_PIECE = 40  # pieces that a group of more is cut into, and items of one, about
_DEEPEST = 12  # scopes within each other; more are one


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Boxes and groups that are drawn inside of one frame.

    Attributes:
        label: Its name within its parent.
        parent: The group around it; -1 for the whole.
        items: What it holds, each after what it reads: boxes by their numbers, groups as ``-1 - number``.
    """

    label: str
    parent: int
    items: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """All groups, each after the one around it, the whole first; and the group of each box."""

    groups: tuple[Group, ...]
    home: tuple[int, ...]

    def above(self, box: int) -> list[int]:
        """Return the groups around a box, the whole first."""
        found, group = [], self.home[box]
        while group >= 0:
            found.append(group)
            group = self.groups[group].parent
        return found[::-1]


@dataclass(frozen=True, slots=True)
class _Part:
    """What becomes a group, or a box: its boxes in order, and how many scopes they surely have in common."""

    label: str
    boxes: tuple[int, ...]
    depth: int


def group_boxes(scopes: Sequence[Scope], reads: Sequence[Sequence[int]]) -> Tree:
    """Group boxes that are in an order in which each comes after those it reads. Linear, for each scope within another.

    Args:
        scopes: The names of the scopes around each box, the outermost first.
        reads: The boxes that each reads.
    """
    named = [tuple(filter(None, scope)) for scope in scopes]
    bounded = [
        s if len(s) <= _DEEPEST else (*s[: _DEEPEST - 1], "/".join(s[_DEEPEST - 1 :]))
        for s in named
    ]
    open_ = [_Part("", tuple(range(len(scopes))), 0)]
    parents = [-1]
    groups: list[Group] = []
    home = [0] * len(scopes)
    for number, group in enumerate(open_):  # it grows
        items = []
        for part in _divided(group, bounded, reads):
            if len(part.boxes) == 1:
                items.append(part.boxes[0])
                home[part.boxes[0]] = number
            else:
                items.append(-1 - len(open_))
                open_.append(part)
                parents.append(number)
        groups.append(Group(label=group.label, parent=parents[number], items=tuple(items)))
    return Tree(groups=tuple(groups), home=tuple(home))


def _divided(group: _Part, scopes: Sequence[Scope], reads: Sequence[Sequence[int]]) -> list[_Part]:
    """Return the items of a group, each after those it reads."""
    parts = [
        _shortened(_Part(label, boxes, group.depth + bool(label)), scopes)
        for label, boxes in _by_scope(group, scopes, reads)
    ]
    sources = _sources([part.boxes for part in parts], reads)
    ordered = [parts[i] for i in topological(sources)]
    if len(ordered) <= _MOST:
        return ordered
    return _pieces(ordered, reads, group.depth)


def _shortened(part: _Part, scopes: Sequence[Scope]) -> _Part:
    """Return a group with the scopes that all its boxes share in one name."""
    label, depth, first = part.label, part.depth, scopes[part.boxes[0]]
    if not label:
        return part
    while all(scopes[b][: depth + 1] == first[: depth + 1] for b in part.boxes):
        if depth >= len(first):
            break
        label, depth = f"{label}/{first[depth]}", depth + 1
    return _Part(label, part.boxes, depth)


def _by_scope(
    group: _Part, scopes: Sequence[Scope], reads: Sequence[Sequence[int]]
) -> list[tuple[str, tuple[int, ...]]]:
    """Return boxes by the next scope, a box without one alone ("")."""
    key: dict[int, str | int] = {
        b: scopes[b][group.depth] if len(scopes[b]) > group.depth else b for b in group.boxes
    }
    by_key: dict[str | int, list[int]] = defaultdict(list)
    for box in group.boxes:
        by_key[key[box]].append(box)
    keys = list(by_key)
    tangled = {keys[i] for i in _circles(_sources(list(by_key.values()), reads))}
    found = [(_label(k), tuple(boxes)) for k, boxes in by_key.items() if k not in tangled]
    inside = [box for box in group.boxes if key[box] in tangled]
    times: dict[str, int] = defaultdict(int)
    for run in _runs(inside, key, reads):
        label = _label(key[run[0]])
        times[label] += 1
        again = f" ({times[label]})" if label and times[label] > 1 else ""
        found.append((label + again, run))
    return found


def _label(key: str | int) -> str:
    return key if isinstance(key, str) else ""


def _sources(parts: Sequence[Collection[int]], reads: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return for each part the other parts that it reads, each once."""
    part_of = {box: number for number, boxes in enumerate(parts) for box in boxes}
    found = []
    for number, boxes in enumerate(parts):
        seen = dict.fromkeys(part_of[s] for b in boxes for s in reads[b] if s in part_of)
        found.append([source for source in seen if source != number])
    return found


def _readers(sources: Sequence[Sequence[int]]) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in sources]
    for number, several in enumerate(sources):
        for source in several:
            found[source].append(number)
    return found


def topological(sources: Sequence[Sequence[int]]) -> list[int]:
    """Return an order in which each comes after its sources, near to the given one; those in circles are left out."""
    readers, missing = _readers(sources), [len(several) for several in sources]
    ready = [i for i, count in enumerate(missing) if not count]
    heapify(ready)
    order = []
    while ready:
        i = heappop(ready)
        order.append(i)
        for reader in readers[i]:
            missing[reader] -= 1
            if not missing[reader]:
                heappush(ready, reader)
    return order


def _circles(sources: Sequence[Sequence[int]]) -> list[int]:
    """Return those in circles, and what lies between circles: what is left when sources and sinks are taken away."""
    after = set(range(len(sources))) - set(topological(sources))
    if not after:
        return []
    left = after - set(topological(_readers(sources)))
    return sorted(left)


def _runs(
    boxes: Iterable[int], key: Mapping[int, str | int], reads: Sequence[Sequence[int]]
) -> list[tuple[int, ...]]:
    """Return boxes in an order in which each comes after those it reads, in runs of one scope, as long as they can be."""
    listed = list(boxes)
    inside = set(listed)
    readers: dict[int, list[int]] = {b: [] for b in listed}
    missing = dict.fromkeys(listed, 0)
    for box in listed:
        for source in inside.intersection(reads[box]):
            readers[source].append(box)
            missing[box] += 1
    ready: dict[str | int, list[int]] = defaultdict(list)
    for box in (b for b in listed if not missing[b]):
        heappush(ready[key[box]], box)
    waiting = [least[0] for least in ready.values()]  # one of each scope at least; some are gone
    heapify(waiting)
    runs: list[tuple[int, ...]] = []
    while waiting:
        scope = key[heappop(waiting)]
        run = []
        while ready[scope]:
            box = heappop(ready[scope])
            run.append(box)
            for reader in readers[box]:
                missing[reader] -= 1
                if not missing[reader]:
                    heappush(ready[key[reader]], reader)
                    heappush(waiting, reader)
        if run:
            runs.append(tuple(run))
    return runs


def _pieces(parts: Sequence[_Part], reads: Sequence[Sequence[int]], depth: int) -> list[_Part]:
    """Return the parts, which are in order, in pieces, cut where few lines are cut."""
    sources = _sources([part.boxes for part in parts], reads)
    last = list(range(len(parts)))  # the last part that reads each
    for number, several in enumerate(sources):
        for source in several:
            last[source] = max(last[source], number)
    ends: dict[int, int] = defaultdict(int)
    crossing, count = [], 0  # lines that a cut before each part would cut
    for number in range(len(parts)):
        count -= ends[number]
        crossing.append(count)
        count += 1
        ends[last[number] + 1 if last[number] > number else number + 1] += 1
    pieces = min(_PIECE, -(-len(parts) // _PIECE))
    length = len(parts) / pieces
    cuts = [0]
    for piece in range(1, pieces):
        middle, reach = round(piece * length), max(1, round(length / 4))
        near = range(max(cuts[-1] + 1, middle - reach), min(len(parts), middle + reach + 1))
        cuts.append(min(near, key=lambda at: (crossing[at], abs(at - middle))))
    cuts.append(len(parts))
    return [
        _Part(
            f"part {n} of {pieces}",
            tuple(sorted(box for part in parts[start:end] for box in part.boxes)),
            depth,
        )
        for n, (start, end) in enumerate(pairwise(cuts), 1)
    ]


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
    above, below = _neighbours(depth, nets)
    best, fewest = [list(layer) for layer in layers], _crossings(layers, below)
    # Down and up in turns: what is sorted, by which neighbours, and the step to the layer that these are in.
    turns = cycle(((slice(1, None), above, -1), (slice(-2, None, -1), below, 1)))
    for chosen, others, step in islice(turns, _SWEEPS):
        if not fewest:
            break
        for layer in layers[chosen]:
            _sort_layer(layer, others, layers, depth, step)
        count = _crossings(layers, below)
        if count < fewest:
            best, fewest = [list(layer) for layer in layers], count
    return tuple(tuple(layer) for layer in best)


def _neighbours(depth: Sequence[int], nets: Sequence[Net]) -> tuple[list[list[int]], ...]:
    """Return what each place is connected to in the layer above it, and in the layer below."""
    above: list[list[int]] = [[] for _ in depth]
    below: list[list[int]] = [[] for _ in depth]
    for upper, lower in _links(depth, nets):
        above[lower].append(upper)
        below[upper].append(lower)
    return above, below


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
