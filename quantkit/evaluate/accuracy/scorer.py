"""What each sample scores: what all scorers have in common.

A scorer keeps a few bytes per sample, gathered chunk by chunk in a `SampleColumn`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quantkit.data import Label
from quantkit.errors import DataError
from quantkit.evaluate.accuracy.chunks import Chunk, Unit
from quantkit.evaluate.accuracy.figures import Figure


class Scorer(ABC):
    """Takes in chunks, and knows at the end what came of them. Without labels of a kind, and without notes by default.

    Attributes:
        main: The metric that is judged.
        together: Units that are one sample of the metric: 2 for pairs.
    """

    main: str
    together: int = 1

    @abstractmethod
    def observe(self, chunk: Chunk) -> None:
        """Take in a chunk."""

    @abstractmethod
    def figures(self) -> tuple[Figure, ...]:
        """Return every metric of all models."""

    def classes(self) -> NDArray[np.int64] | None:
        """Return the class of each sample, where labels are classes."""
        return None

    def numbers(self) -> NDArray[np.float64] | None:
        """Return the label of each sample, where labels are numbers."""
        return None

    def notes(self) -> tuple[str, ...]:
        """Return what a reader should know about how samples were scored."""
        return ()

    @abstractmethod
    def answer(self, model: int, unit: int) -> str:
        """Return a model's answer to a unit, for people."""


class SampleColumn:
    """A growing column of numbers of one type, or one of each model: samples are the last axis."""

    __slots__ = ("_dtype", "_parts")

    def __init__(self, dtype: type[np.generic] = np.float64) -> None:
        self._dtype = dtype
        self._parts: list[NDArray[Any]] = []

    def add(self, values: ArrayLike) -> None:
        """Append values: (samples,), or (models, samples)."""
        self._parts.append(np.asarray(values, self._dtype))

    @property
    def values(self) -> NDArray[Any]:
        """All values that were added, in order."""
        if len(self._parts) != 1:
            self._parts = [np.concatenate(self._parts or [np.empty(0, self._dtype)], axis=-1)]
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
