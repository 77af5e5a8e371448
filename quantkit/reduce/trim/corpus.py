"""Which tokens a corpus uses, and how many of the next texts they will cover.

Every text is judged by all others: it is uncovered if one of its tokens occurs in no other text (and does not stay anyway). That is the
leave-one-out estimate of what the next text of the same source meets, from all texts and in one pass. Memory holds two numbers a token.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from quantkit.numerics.rates import wilson
from quantkit.reduce.trim.pieces import Pieces

FEW = 100  # texts, below which the interval is wider than any use of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How many texts use kept pieces alone, each judged by the vocabulary of the others.

    Attributes:
        texts: How many there are.
        covered: Of these.
        low: Lower end of the 95 % interval of the share (Wilson).
        high: Its upper end.
    """

    texts: int
    covered: int
    low: float
    high: float

    @property
    def share(self) -> float:
        """The estimate."""
        return self.covered / self.texts

    def __str__(self) -> str:
        interval = f"95 % interval {self.low:.1%} to {self.high:.1%}"
        return f"{self.share:.1%} of the next texts covered ({interval}; {self.texts:,} texts)"

    def to_json(self) -> dict[str, float]:
        """Return plain data."""
        return {
            "texts": self.texts,
            "covered": self.covered,
            "share": self.share,
            "low": self.low,
            "high": self.high,
        }


@dataclass(slots=True)
class Counts:
    """In which texts the tokens of a corpus occur.

    Attributes:
        size: One more than the largest id.
        texts: How many texts were counted.
        first: The first text of each token; -1: it occurs in none.
        common: Whether it occurs in others too.
    """

    size: int
    texts: int = 0
    first: NDArray[np.int64] = field(init=False)
    common: NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        self.first = np.full(self.size, -1, np.int64)
        self.common = np.zeros(self.size, np.bool_)

    def add(self, ids: Iterable[int]) -> None:
        """Count the tokens of a text."""
        own = np.unique(np.fromiter(ids, np.int64))
        seen = self.first[own] >= 0
        self.common[own[seen]] = True
        self.first[own[~seen]] = self.texts
        self.texts += 1

    @property
    def used(self) -> list[int]:
        """The tokens that occur."""
        found: list[int] = np.flatnonzero(self.first >= 0).tolist()
        return found

    def without_rare(self, pieces: Pieces) -> frozenset[int]:
        """Return what stays of tokens that occur in several texts."""
        return pieces.closed(np.flatnonzero(self.common).tolist())

    def uncovered(self, pieces: Pieces) -> list[int]:
        """Return the numbers of the texts that the vocabulary of the others does not cover."""
        base = self.without_rare(pieces)
        rare = (i for i in self.used if i not in base)
        return sorted({int(self.first[i]) for i in rare})

    def coverage(self, pieces: Pieces) -> Coverage:
        """Return how many texts the others cover."""
        covered = self.texts - len(self.uncovered(pieces))
        low, high = wilson(covered, self.texts)
        return Coverage(texts=self.texts, covered=covered, low=low, high=high)


def evenly(count: int, most: int) -> Iterator[int]:
    """Yield at most so many of the numbers below a count, evenly spread."""
    yield from np.unique(np.linspace(0, count - 1, min(count, most)).astype(int)).tolist()
