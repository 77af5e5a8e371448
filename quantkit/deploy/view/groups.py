"""Groups of boxes by name scope, nested, such that no two items of a group read each other in a circle.

A scope whose boxes lie on both sides of another's (a module that is called twice) becomes several groups. A scope with
one item is none. What is left with too many items is cut along its order, where fewest lines are cut.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import pairwise

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
