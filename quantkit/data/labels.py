"""Labels of samples: which arrays are labels, and how a description words them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from quantkit.data.boxes import Boxes
from quantkit.data.model import Array, Label

__all__ = [
    "LABEL_NAMES",
    "array_labels_line",
    "labels_line",
    "labels_of",
    "mislabelled",
    "plain_label",
    "plural",
]


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


def mislabelled(labels: Array, samples: int, where: str) -> str:
    """Return that labels are of another length than samples; "" if they are not, or are masks or vectors.

    `where`: The file or key, for the message.

    Args:
        labels: As they are stored.
        samples: How many there should be.
        where: The file or key, for the message.
    """
    found = labels_of(labels)
    if found is None or len(found) in {0, samples}:
        return ""
    count = plural(len(found), "label", "labels")
    return f"{where} has {count} for {plural(samples, 'sample', 'samples')}"


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
