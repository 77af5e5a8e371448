"""Which units of channels carry least, and the weights that make up for those that are gone, from second moments.

A linear operator computes y = W x. Without the inputs Q, and with weights that are the best ones for the others, its mean squared error is

    tr( W_Q ((H^-1)_QQ)^-1 W_Q^T ),     H = E[x x^T], or the covariance of x where a bias takes up the mean

and the best weights are W - W_Q ((H^-1)_QQ)^-1 (H^-1)_Q: . So units go a few at a time: those whose removal costs least now, weights and inverse
brought up to date together (OBS, of which "optimal brain surgeon" is the short name). A group that several operators read goes by the sum of what
each loses, as a share of what it computes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

_SHRUNK, _LEAST = 0.5, 1e-4  # of moments: see `shrunk_moments`


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one linear operator makes of the units of a group.

    Attributes:
        weight: W, (channels, K).
        moments: H, (K, K), positive definite.
        columns: The inputs that hold each unit, (units, inputs).
    """

    weight: Floats
    moments: Floats
    columns: Ints

    @property
    def power(self) -> float:
        """The mean square of what it computes."""
        return max(float(np.einsum("nk,nk->", self.weight @ self.moments, self.weight)), 1e-30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """In which order the units of a group go, and what that costs.

    Attributes:
        order: Units, the first to go first; those that stay to the end are left out.
        error: After each of them: the error of what reads the group, as a share of its power.
    """

    order: tuple[int, ...]
    error: tuple[float, ...]

    def removed(self, count: int) -> tuple[int, ...]:
        """Return the units that go if so many do."""
        return tuple(sorted(self.order[:count]))


def shrunk_moments(moments: Floats, rows: int) -> Floats:
    """Return moments that trust correlations as far as samples tell them, positive definite.

    Off the diagonal they are scaled by 1 - min(.5, K / 2 rows); a ten thousandth of the mean of the diagonal is added to it.

    Args:
        moments: (K, K), symmetric.
        rows: How many rows they were taken from.
    """
    inputs = len(moments)
    found = moments * (1 - min(_SHRUNK, _SHRUNK * inputs / max(1, rows)))
    diagonal = np.diagonal(moments)
    mean = float(diagonal.mean())
    found[np.arange(inputs), np.arange(inputs)] = diagonal + (_LEAST * mean if mean > 0 else 1.0)
    return found


def rank_units(readings: Sequence[Reading], leave: int, at_once: int = 8) -> Ranking:
    """Order the units of a group by what their removal costs.

    Args:
        readings: Of each linear operator that reads the group.
        leave: How many units are never removed.
        at_once: How many go before costs are computed anew.
    """
    states = [_State(reading) for reading in readings]
    left = list(range(len(readings[0].columns)))
    order, errors, total = list[int](), list[float](), 0.0
    while len(left) > leave:
        costs = np.sum([state.costs(left) for state in states], axis=0)
        count = min(at_once, len(left) - leave)
        gone = [left[place] for place in np.argsort(costs, kind="stable")[:count]]
        added = max(0.0, sum(state.remove(gone) for state in states))
        errors += [total + added * (place + 1) / count for place in range(count)]
        total += added
        order += gone
        taken = set(gone)
        left = [unit for unit in left if unit not in taken]
    return Ranking(order=tuple(order), error=tuple(errors))


class _State:
    """Weights and inverse of one operator while units go."""

    def __init__(self, reading: Reading) -> None:
        self.columns = reading.columns
        self.weight = reading.weight.copy()
        self.inverse = np.linalg.inv(reading.moments)
        self.share = 1 / (reading.power)

    def costs(self, units: Sequence[int]) -> Floats:
        """Return what the removal of each unit by itself costs."""
        columns = self.columns[list(units)]
        blocks = np.linalg.inv(self.inverse[columns[:, :, np.newaxis], columns[:, np.newaxis, :]])
        own = self.weight[:, columns]  # channels, units, inputs
        found: Floats = np.einsum("nua,uab,nub->u", own, blocks, own, optimize=True) * self.share
        return found

    def remove(self, units: Sequence[int]) -> float:
        """Remove units together; return what that costs."""
        gone = self.columns[list(units)].reshape(-1)
        rows = self.inverse[gone]
        own = self.weight[:, gone]
        solved = np.linalg.solve(rows[:, gone], np.hstack([rows, own.T]))
        step, lost = solved[:, : len(self.inverse)], solved[:, len(self.inverse) :]
        cost = float(np.einsum("nq,qn->", own, lost)) * self.share
        self.weight -= own @ step
        self.inverse -= rows.T @ step
        self.weight[:, gone] = 0
        self.inverse[gone], self.inverse[:, gone] = 0, 0
        self.inverse[gone, gone] = 1
        return cost


def made_up(weight: Floats, moments: Floats, kept: NDArray[np.bool_]) -> Floats:
    """Return the best weights of some inputs for what all of them gave, zero for the others: W H_:S (H_SS)^-1.

    Args:
        weight: W, (channels, K).
        moments: H, positive definite.
        kept: Which inputs stay, (K,).
    """
    found = np.zeros_like(weight)
    own = moments[np.ix_(kept, kept)]
    found[:, kept] = np.linalg.solve(own, (weight @ moments[:, kept]).T).T
    return found
