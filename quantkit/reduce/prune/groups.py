"""Groups of channels that can be removed: what makes them, what reads them, how many may go."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

import numpy as np
import onnx_ir as ir

from quantkit.model.graph.products import Product
from quantkit.model.ops.float_ops import PRODUCTS
from quantkit.reduce.prune.labels import Ints, Labels


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """A linear operator that sums over channels of a group.

    Attributes:
        product: The operator.
        columns: The columns of its weight that read each unit of the group, (units, columns).
    """

    product: Product
    columns: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelGroup:
    """Units of channels that are alike: each can be removed, with all that is joined to it.

    Attributes:
        name: The first node that makes its channels, with a number if others have that node too.
        units: The label of each unit, in the order of the first tensor that has them.
        readers: The linear operators that read them.
        nodes: The linear operators whose size depends on it.
        wide: The most channels that a unit has in a tensor: 1, or those of an attention head.
    """

    name: str
    units: Ints
    readers: tuple[Reader, ...]
    nodes: tuple[str, ...]
    wide: int = 1

    @property
    def size(self) -> int:
        """How many units there are."""
        return len(self.units)

    @property
    def step(self) -> int:
        """How many units to remove at a time, so that kernels find widths that they are fast with.

        Float kernels work on blocks of 16 channels; multiples of 8 were as good where there are few channels.
        """
        return max(1, (16 if self.size * self.wide >= _MANY else 8) // self.wide)

    @property
    def levels(self) -> tuple[int, ...]:
        """How many units to keep, from one step less than all of them to one step."""
        first = (self.size - 1) // self.step * self.step
        return tuple(range(first, 0, -self.step))


_MANY = 64  # channels from which on they go by 16


def channel_groups(
    model: ir.Model,
    labels: Labels,
    products: Sequence[Product],
    exclude: Collection[str] = (),
) -> tuple[ChannelGroup, ...]:
    """Return the groups of a model, in the order in which the graph makes them.

    Args:
        model: The model.
        labels: Of its channels.
        products: Its linear operators whose inputs can be observed.
        exclude: Patterns of names; what these nodes make or read stays.
    """
    known = {product.node: product for product in products}
    for node in model.graph:
        if any(fnmatchcase(node.name or "", pattern) for pattern in exclude):
            for value in (*node.inputs, *node.outputs):
                labels.fix_value(value)
    families = _families(model, labels)
    readers, makers, stuck = _ends_of(model, labels, known)
    found = []
    for units in families:
        ours = set(units.tolist())
        if ours & stuck or len(units) < 2:
            continue
        own = [
            Reader(product=known[n], columns=c)
            for n, r in readers.items()
            if (c := _columns(r, units)).size
        ]
        made = [name for name, roots in makers.items() if ours & set(roots.tolist())]
        if own and made:
            found.append(
                ChannelGroup(
                    name=made[0],
                    units=units,
                    readers=tuple(own),
                    nodes=tuple(dict.fromkeys([*made, *(r.product.node for r in own)])),
                    wide=max(int((makers[name] == units[0]).sum()) for name in made),
                )
            )
    order = {node.name: number for number, node in enumerate(model.graph)}
    found.sort(key=lambda group: order[group.name])
    seen = Counter[str]()
    for number, group in enumerate(found):
        seen[group.name] += 1
        if seen[group.name] > 1:  # channels of one node that go to different consumers
            found[number] = replace(group, name=f"{group.name}#{seen[group.name]}")
    return tuple(found)


def _families(model: ir.Model, labels: Labels) -> list[Ints]:
    """Return labels that stand equally often in the same axes of the same constants, each list in order."""
    places: dict[int, Counter[tuple[str, int]]] = defaultdict(Counter)
    for name, value in model.graph.initializers.items():
        for axis, own in enumerate(labels.axes.get(value, ())):
            for root in [] if own is None else labels.roots(own).tolist():
                if not labels.fixed[root]:
                    places[root][name, axis] += 1
    families: dict[frozenset[tuple[tuple[str, int], int]], list[int]] = defaultdict(list)
    for root, where in places.items():
        families[frozenset(where.items())].append(root)
    return [np.array(roots, np.intp) for roots in families.values()]


def _ends_of(
    model: ir.Model, labels: Labels, known: Mapping[str, Product]
) -> tuple[dict[str, Ints], dict[str, Ints], set[int]]:
    """Return what each linear operator sums over, what it makes, and the labels that one reads of which nothing is observed."""
    readers: dict[str, Ints] = {}
    makers: dict[str, Ints] = {}
    stuck: set[int] = set()
    for node in model.graph:
        if node.domain or node.op_type not in PRODUCTS:
            continue
        product = known.get(node.name or "")
        read = _channels(labels, node, node.inputs[0])
        if product is None:
            stuck |= set(read.tolist())
            continue
        makers[product.node] = _channels(labels, node, node.outputs[0])
        if product.window.group == 1:
            readers[product.node] = np.tile(read, product.layout.inputs // max(1, len(read)))
    return readers, makers, stuck


def _channels(labels: Labels, node: ir.Node, value: ir.Value | None) -> Ints:
    """Return the labels of the channels that a linear operator reads or makes, in their order."""
    own = [] if value is None else labels.of(value)
    axis = 1 if node.op_type.startswith("Conv") else -1
    channels = own[axis] if len(own) > 1 else None
    return np.empty(0, np.intp) if channels is None else labels.roots(channels)


def _columns(read: Ints, units: Ints) -> Ints:
    """Return the places of each unit among what is read, (units, places)."""
    order = {root: place for place, root in enumerate(units.tolist())}
    rows: list[list[int]] = [[] for _ in units]
    for place, root in enumerate(read.tolist()):
        if root in order:
            rows[order[root]].append(place)
    return np.array(rows, np.intp)
