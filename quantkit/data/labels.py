"""Labels of samples: which arrays are labels, and how a description words them."""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from quantkit.data.boxes import Boxes
from quantkit.data.model import Array, InputSpec, Label

LABEL_NAMES = ("label", "labels", "y", "score", "target")
"""Keys and columns that hold the label where nothing else is said, the first found wins."""


def labels_of(labels: Array) -> Array | None:
    """Return an array of labels, one for each sample, of one axis.

    Shapes (n,) and (n, 1) are labels; a mask or a vector for each sample is none that a metric for
    classes could use, and gives None.
    """
    if labels.ndim and labels.size != labels.shape[0]:
        return None
    return labels.reshape(-1)


def plain_label(value: Any) -> Label:
    """Return one label as a plain value."""
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, bytes):
        return plain.decode(errors="replace")
    return plain if isinstance(plain, int | float | str) else None


def usual_label(names: Container[str], inputs: Sequence[InputSpec]) -> str | None:
    """Return the first usual name of labels that the data has and that no input of the model has."""
    taken = {spec.name for spec in inputs}
    return next((n for n in LABEL_NAMES if n in names and n not in taken), None)


@dataclass(frozen=True, slots=True)
class ArrayLabels:
    """Labels in an array, if there is one per sample.

    Attributes:
        values: One label per sample; None: the array is not used.
        note: Why it is not used; else "".
        wrong: There are more or fewer labels than samples; "" otherwise, also of masks and vectors.
    """

    values: Array | None
    note: str = ""
    wrong: str = ""

    @classmethod
    def of(cls, stored: Array, samples: int, where: str) -> "ArrayLabels":
        """Check an array against the number of samples; `where`: the file or key, for the messages."""
        found = labels_of(stored)
        if found is not None and len(found) == samples:
            return cls(found)
        wrong = ""
        if found is not None and len(found):
            count = plural(len(found), "label", "labels")
            wrong = f"{where} has {count} for {plural(samples, 'sample', 'samples')}"
        return cls(None, f"{where} is not one label per sample: not used.", wrong)


def array_labels_line(labels: Sequence[Array | None], source: str) -> str:
    """Return what a `Description` says of labels in arrays, of which there may be very many."""
    distinct = [np.unique(known) for known in labels if known is not None and known.size]
    plain = {plain_label(value) for known in distinct for value in known}
    return labels_line(tuple(plain), source)


def labels_line(labels: Sequence[Label], source: str) -> str:
    """Return what a `Description` says of labels: "10 classes from labels.csv"."""
    known = [label for label in labels if label is not None]
    if not known:
        return "none"
    if boxes := [label for label in known if isinstance(label, Boxes)]:
        count = sum(len(label.boxes) for label in boxes)
        return f"{plural(count, 'box', 'boxes')} on {plural(len(boxes), 'image', 'images')} from {source}"
    if any(isinstance(label, float) and not label.is_integer() for label in known):
        return f"numbers from {source}"
    return f"{plural(len(set(known)), 'class', 'classes')} from {source}"


def plural(count: int, one: str, many: str) -> str:
    """Return "1 class", "2 classes".

    Args:
        count: How many.
        one: The word for one of them.
        many: The word for any other number.
    """
    return f"{count} {one if count == 1 else many}"
