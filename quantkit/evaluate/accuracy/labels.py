"""Labels as metrics need them: class indices or numbers; and what is wrong with those that are not.

`Column` gathers a few bytes per sample, chunk by chunk.
"""

from collections.abc import Sequence
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from quantkit.data import Label
from quantkit.errors import DataError
from quantkit.evaluate.accuracy.chunks import Array, Unit

__all__ = ["Column", "check_complete", "class_labels", "is_class", "is_number", "number_labels"]


class Column:
    """A growing column of numbers of one type."""

    __slots__ = ("_dtype", "_parts")

    def __init__(self, dtype: type[np.generic] = np.float64) -> None:
        self._dtype = dtype
        self._parts: list[NDArray[Any]] = []

    def add(self, values: NDArray[Any]) -> None:
        """Append values."""
        self._parts.append(np.asarray(values, self._dtype))

    @property
    def values(self) -> NDArray[Any]:
        """All values that were added, in order."""
        if len(self._parts) != 1:
            self._parts = [np.concatenate([np.empty(0, self._dtype), *self._parts])]
        return self._parts[0]


def is_class(label: Label) -> TypeGuard[int | float]:
    """Return True for a whole number."""
    return isinstance(label, int) or (isinstance(label, float) and label.is_integer())


def is_number(label: Label) -> TypeGuard[int | float]:
    """Return True for a finite number."""
    return isinstance(label, int | float) and bool(np.isfinite(label))


def check_complete(units: Sequence[Unit], *, labelled: bool) -> None:
    """Raise if some samples have a label and others have none."""
    for unit in units:
        if (unit.label is not None) != labelled:
            has, others = ("a label", "none") if not labelled else ("no label", "one")
            raise DataError(
                f"'{unit.name}' has {has} and samples before it have {others}: label all samples, or none."
            )


def class_labels(
    units: Sequence[Unit], scores: Sequence[Array] | None, metric: str
) -> NDArray[np.int64]:
    """Return the labels as class indices.

    Args:
        units: Whose.
        scores: Each unit's scores, one for each class; None: the output holds no scores.
        metric: Who asks.

    Raises:
        DataError: A label is a text, no whole number, or beyond the model's classes.
    """
    found = []
    for place, unit in enumerate(units):
        if not is_class(unit.label):
            what = "the text" if isinstance(unit.label, str) else "the number"
            raise DataError(
                f"The label of '{unit.name}' is {what} '{unit.label}', and {metric} needs the index of a "
                "class: number the classes from 0, in the order of the model's output."
            )
        index, classes = int(unit.label), None if scores is None else scores[place].size
        if classes is not None and not 0 <= index < classes:
            raise DataError(
                f"The label of '{unit.name}' is {index}, and the model has {classes} classes: use "
                f"labels from 0 to {classes - 1}."
            )
        found.append(index)
    return np.array(found, np.int64)


def number_labels(units: Sequence[Unit], metric: str) -> NDArray[np.float64]:
    """Return the labels as numbers.

    Raises:
        DataError: A label is no finite number.
    """
    for unit in units:
        if not is_number(unit.label):
            raise DataError(
                f"The label of '{unit.name}' is '{unit.label}', and {metric} needs a number."
            )
    return np.array([unit.label for unit in units], np.float64)
