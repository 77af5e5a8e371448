"""Which channels must go together: every channel of every tensor has a label, and labels are joined."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.model.graph.shapes import dims

Ints = NDArray[np.intp]


@dataclass(slots=True)
class Labels:
    """Labels of the channels along each axis of each value, and which of them are joined.

    Channels with one label are removed together or not at all. Axes whose extent depends on the inputs have no labels.

    Attributes:
        parent: A label that each label was joined with; itself, if none.
        fixed: Labels whose channels must stay; right for the last label of a chain only.
        axes: The labels of a value, by axis; None: its extent is not known.
        stops: Operators without a rule, which keep all channels of what they read and make, and how many nodes there are of each.
    """

    parent: list[int] = field(default_factory=list)
    fixed: list[bool] = field(default_factory=list)
    axes: dict[ir.Value, list[Ints | None]] = field(default_factory=dict)
    stops: Counter[str] = field(default_factory=Counter)

    def on(self, model: ir.Model) -> "Labels":
        """Return the same labels for a copy of the model that these are of."""
        names = {value.name: own for value, own in self.axes.items()}
        values = [v for node in model.graph for v in (*node.outputs, *node.inputs) if v is not None]
        values += model.graph.initializers.values()
        axes = {value: list(names[value.name]) for value in values if value.name in names}
        return Labels(parent=self.parent, fixed=self.fixed, axes=axes)

    def new(self, count: int, *, fixed: bool = False) -> Ints:
        """Return labels that were not used before."""
        start = len(self.parent)
        self.parent.extend(range(start, start + count))
        self.fixed.extend([fixed] * count)
        return np.arange(start, start + count)

    def of(self, value: ir.Value) -> list[Ints | None]:
        """Return the labels of a value by axis; nothing if not even its rank is known."""
        if value not in self.axes:
            extents = dims(value) or ()
            self.axes[value] = [None if n is None else self.new(n) for n in extents]
        return self.axes[value]

    def root(self, label: int) -> int:
        """Return the label that stands for all that this one is joined with."""
        while self.parent[label] != label:
            self.parent[label] = self.parent[self.parent[label]]
            label = self.parent[label]
        return label

    def roots(self, labels: Ints) -> Ints:
        """Return the labels that stand for these."""
        return np.array([self.root(int(label)) for label in labels], np.intp)

    def is_fixed(self, labels: Ints) -> bool:
        """Say whether none of these channels can be removed."""
        return all(self.fixed[self.root(int(label))] for label in labels)

    def join(self, first: Ints | None, second: Ints | None) -> None:
        """Join labels pair by pair; where one side is unknown or of another length, the other is fixed."""
        if first is None or second is None or len(first) != len(second):
            self.fix(first)
            self.fix(second)
            return
        for one, other in zip(first.tolist(), second.tolist(), strict=True):
            a, b = self.root(one), self.root(other)
            self.parent[b] = a
            self.fixed[a] = self.fixed[a] or self.fixed[b]

    def join_rows(self, table: NDArray[Any]) -> None:
        """Join all labels of each row of a table."""
        for column in table.T[1:]:
            self.join(table[:, 0], column)

    def fix(self, labels: Ints | None) -> None:
        """Keep channels."""
        for label in () if labels is None else labels.tolist():
            self.fixed[self.root(label)] = True

    def fix_value(self, value: ir.Value | None, axes: Iterable[int] | None = None) -> None:
        """Keep all channels of a value, or those of some axes."""
        own = [] if value is None else self.of(value)
        for axis in range(len(own)) if axes is None else axes:
            self.fix(own[axis])

    def join_axes(
        self, first: ir.Value, second: ir.Value, axes: Callable[[int], bool] = lambda _: True
    ) -> None:
        """Join two values of one rank axis by axis, and keep the channels of axes that are left out."""
        one, other = self.of(first), self.of(second)
        if len(one) != len(other):
            self.fix_value(first)
            self.fix_value(second)
            return
        for axis, (a, b) in enumerate(zip(one, other, strict=True)):
            if axes(axis):
                self.join(a, b)
            else:
                self.fix(a)
                self.fix(b)
