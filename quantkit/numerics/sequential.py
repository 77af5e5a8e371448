"""Tests that may be looked at after every sample: is the mean of what samples lose clearly below a limit, or clearly above?

An interval of `quantkit.numerics.statistics` holds for one look at a number of samples that was fixed before. Who looks
after every chunk and stops when it suits errs more often, without bound. Here the chance of a wrong answer is at most
``alpha`` over all looks together, for any distribution of bounded values and however few samples there are.

**The test** is a bet against the limit (an e-process; Ville's inequality). Let every x lie in [low, high] and the
hypothesis be "the mean is at least m". Starting from 1, a gambler who thinks the mean lower stakes a share c of what
could be lost:

    K_t = K_(t-1) * (1 + c (m - x_t) / (high - m))

Each factor is at least ``1 - c > 0``, and at most 1 on average if the hypothesis is true: K is a supermartingale, so
``P(K_t >= 1 / alpha for any t) <= alpha``. A mean of several K, each with its own c, is one as well, and needs no
guess of which c is good: `_STAKES`, from nearly all (best where nothing is ever lost) down to 1 in 2000 (best where
values scatter far), the large ones with more weight. The other side is the same with signs changed.

**Samples without return.** Of ``population`` samples in random order the mean of those not yet seen is
``m_t = (N m - x_1 - ... - x_(t-1)) / (N - t + 1)`` under the hypothesis, which takes the place of m. That needs no
assumption about the samples at all, decides earlier, and when all have been seen the answer is exact.

**What it needs**: an order of samples that has nothing to do with their values (shuffled by a seed, not by class), one
value per sample, bounds that hold, and a figure that is a mean of the samples' own (hits, squared errors that are cut,
edit distances; not F1 or mAP). ``alpha`` is of one candidate and one side: of k candidates, k times as much.
"""

from dataclasses import dataclass
from math import log
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quantkit.numerics.statistics import Bounds

# Each stake is half the one before; the weights 1/2, 1/6, 1/12, ... add up to 1 with the last.
_STAKES = tuple(0.99 * 2.0**-k for k in range(12))
_WEIGHTS = (*(1 / ((k + 1) * (k + 2)) for k in range(11)), 1 / 12)
_ROUNDING = 1e-9  # of sums of values of order 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequential:
    """What can be said after some samples.

    Attributes:
        verdict: "in": the mean is at most the limit; "out": it is above; "open": not decided yet.
        seen: After how many samples that was sure; all there are, if it is open.
        mean: Of the samples given; 0 without any.
    """

    verdict: Literal["in", "out", "open"]
    seen: int
    mean: float


def decide(
    values: ArrayLike,
    limit: float,
    *,
    alpha: float = 0.05,
    bounds: Bounds = (-1.0, 1.0),
    population: int | None = None,
) -> Sequential:
    """Say whether the mean of values is clearly at most a limit, clearly above, or open.

    The answer depends on the order of the values alone, not on when it was asked for: once "in" or "out", more
    values do not change it. Invariant: if the mean is above the limit, the chance of "in" at any time is at most
    `alpha`; if it is below, the chance of "out" is.

    Args:
        values: Of the samples so far, in a random order: how much worse each fares than with float (1: a hit was lost,
            -1: one was won).
        limit: That the mean must not exceed.
        alpha: The chance of a wrong answer.
        bounds: Between which every value must lie.
        population: How many samples there are in all, and the mean is that of all of them; None: the samples are
            draws, and the mean is that of what they are drawn from.

    Raises:
        ValueError: A value lies outside the bounds, or there are more values than samples.
    """
    column = _checked(values, bounds, population)
    mean = float(column.mean()) if len(column) else 0.0
    if limit >= bounds[1]:  # what is always so needs no test
        return Sequential(verdict="in", seen=0, mean=mean)
    below = _crossing(column, limit, alpha, bounds, population)
    above = _crossing(-column, -limit, alpha, (-bounds[1], -bounds[0]), population)
    if min(below, above) <= len(column):
        verdict: Literal["in", "out", "open"] = "in" if below <= above else "out"
        return Sequential(verdict=verdict, seen=min(below, above), mean=mean)
    whole = population == len(column)
    verdict = ("in" if mean <= limit + _ROUNDING else "out") if whole else "open"
    return Sequential(verdict=verdict, seen=len(column), mean=mean)


def _crossing(
    column: NDArray[np.float64], limit: float, alpha: float, bounds: Bounds, population: int | None
) -> int:
    """Return after how many values "the mean is at least the limit" is refuted; more than there are: it is not."""
    n, high = len(column), bounds[1]
    if limit > high:
        return 0
    left = np.full(n + 1, limit)
    if population is not None:
        seen = np.concatenate([[0.0], np.cumsum(column)])
        left = (population * limit - seen) / np.maximum(population - np.arange(n + 1), 1)
    # What was not seen yet would have to be above the highest there is: after so many values that is known.
    beyond = left > high + _ROUNDING
    known = int(np.argmax(beyond)) if beyond.any() else n
    gain = (left[:known] - column[:known]) / np.maximum(high - left[:known], _ROUNDING)
    wealth = np.full(known, -np.inf)
    for stake, weight in zip(_STAKES, _WEIGHTS, strict=True):
        grown = np.cumsum(np.log1p(np.maximum(stake * gain, -stake)))
        wealth = np.logaddexp(wealth, grown + log(weight))
    enough = wealth >= -log(alpha)
    if enough.any():
        return int(np.argmax(enough)) + 1
    return known if beyond.any() else n + 1


def _checked(values: ArrayLike, bounds: Bounds, population: int | None) -> NDArray[np.float64]:
    column = np.asarray(values, np.float64)
    if population is not None and len(column) > population:
        raise ValueError(f"{len(column)} values of {population} samples.")
    if len(column) and not (bounds[0] <= column.min() and column.max() <= bounds[1]):
        raise ValueError(f"Values must lie between {bounds[0]} and {bounds[1]}.")
    return column
