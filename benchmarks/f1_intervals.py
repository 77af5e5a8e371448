"""How well intervals of a drop of macro F1 cover, and how wide they are: draws from populations whose drop is known.

    python benchmarks/f1_intervals.py [--times 400] [--output benchmarks/results/f1_intervals.md]

A population is a table of labels, float's answers and the candidate's; the drop of macro F1 of the table itself is what
intervals must hold, 95 times of 100. A width is compared with the narrowest that could do: 2 x 1.96 standard deviations
of the drop over the draws. Balance is the share of the misses that lie above the interval: 50 % is fair.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantkit.evaluate.accuracy.f1 import F1
from quantkit.numerics.statistics import (
    Bounds,
    bootstrap_mean,
    changes_interval,
    drop_interval,
    flips_interval,
    hull,
)

Array = NDArray[Any]
Method = Callable[[F1, int], Bounds | None]
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A population, and how many samples are drawn of it."""

    name: str
    rates: tuple[float, ...]
    right: float
    changed: float
    lost: float
    samples: int

    def table(self) -> tuple[Array, Array]:
        """Return the cells (label, before, now) and their probabilities."""
        kinds = len(self.rates)
        cells: dict[tuple[int, int, int], float] = {}
        for label, rate in enumerate(self.rates):
            for before in range(kinds):
                share = rate * (self.right if before == label else (1 - self.right) / (kinds - 1))
                for now in range(kinds):
                    cells[label, before, now] = share * self._move(label, before, now)
        keys = np.array(list(cells), np.int64)
        found = np.array(list(cells.values()))
        return keys[found > 0], found[found > 0] / found.sum()

    def _move(self, label: int, before: int, now: int) -> float:
        """Return how likely an answer becomes another: right ones are lost, wrong ones gained."""
        others = len(self.rates) - 1
        lost = min(self.changed * self.lost / self.right, 1.0)
        gained = min(self.changed * (1 - self.lost) / max(1 - self.right, 1e-9), 1.0)
        if before == label:
            return 1 - lost if now == label else lost / others
        return gained if now == label else 1 - gained if now == before else 0.0


def _cases(changed: tuple[float, ...]) -> list[Case]:
    """Return populations with so many changed answers to be expected in a draw."""
    shapes = {
        "2 even": (0.5, 0.5),
        "3 skewed": (0.9, 0.07, 0.03),
        "10 even": (0.1,) * 10,
    }
    return [
        Case(
            name=f"{shape}, {n} samples, {count:g} changed, {lost:.0%} lost",
            rates=rates,
            right=0.9,
            changed=count / n,
            lost=lost,
            samples=n,
        )
        for shape, rates in shapes.items()
        for n in (200, 2000)
        for count in changed
        for lost in (0.5, 0.9)
    ]


def macro_f1(cells: Array, weights: Array, column: int) -> float:
    """Return macro F1 of a table; column 1 is float, 2 the candidate."""
    found = []
    for kind in np.unique(cells[:, 0]):
        labelled, answered = cells[:, 0] == kind, cells[:, column] == kind
        total = weights[labelled].sum() + weights[answered].sum()
        found.append(2 * weights[labelled & answered].sum() / total)
    return float(np.mean(found))


def redrawn(figure: F1, seed: int) -> Bounds | None:
    """Percentiles of the drop over redrawn samples."""
    return figure.redrawn_drop(1, CONFIDENCE, seed)


def student(figure: F1, seed: int) -> Bounds | None:
    """What was used before: percentiles, hulled with the studentized bootstrap of the contributions."""
    found, own = redrawn(figure, seed), figure.contributions(1)
    mean = bootstrap_mean(own, seed=seed, confidence=CONFIDENCE)
    gained, lost = int((own < 0).sum()), int((own > 0).sum())
    if not gained + lost:
        return drop_interval(own, confidence=CONFIDENCE)
    flips = flips_interval(gained, lost, own.size, CONFIDENCE)
    step = float(np.abs(own).sum()) / (gained + lost)
    scaled = flips[0] * step, flips[1] * step
    return hull(hull(mean, scaled) if mean else scaled, found) if found else scaled


def score(figure: F1, _: int) -> Bounds | None:
    """The score interval of the changed answers alone, each worth what such changes are worth."""
    return changes_interval(figure.contributions(1), CONFIDENCE)


def used(figure: F1, seed: int) -> Bounds | None:
    """What quantkit uses."""
    return figure.drop_interval(1, CONFIDENCE, seed)


METHODS: dict[str, Method] = {
    "percentiles": redrawn,
    "with studentized": student,
    "score of changes": score,
    "used": used,
}


def measured(case: Case, times: int) -> dict[str, tuple[float, float, float]]:
    """Return coverage, width and balance of each method."""
    rng = np.random.default_rng(0)
    cells, shares = case.table()
    truth = macro_f1(cells, shares, 1) - macro_f1(cells, shares, 2)
    ends: dict[str, list[Bounds]] = {name: [] for name in METHODS}
    drops = []
    for seed in range(times):
        drawn = np.repeat(cells, rng.multinomial(case.samples, shares), axis=0)
        if len(np.unique(drawn[:, 0])) < len(case.rates):
            continue
        figure = F1(labels=drawn[:, 0], answers=drawn[:, 1:].T)
        drops.append(figure.value(0) - figure.value(1))
        for name, method in METHODS.items():
            ends[name].append(method(figure, seed) or (0.0, 0.0))
    spread = 2 * 1.96 * float(np.std(drops))
    found = {}
    for name, bounds in ends.items():
        low, high = np.array(bounds).T
        below, above = truth < low, truth > high
        missed = int(below.sum() + above.sum())
        found[name] = (
            float(np.mean(~below & ~above)),
            float(np.mean(high - low)) / spread if spread else float("nan"),
            float(above.sum()) / missed if missed else 0.5,
        )
    return found


def main() -> None:
    """Run all cases; write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--times", type=int, default=400)
    parser.add_argument("--changed", type=float, nargs="*", default=[1, 3, 10, 40])
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    rows = []
    totals: dict[str, list[tuple[float, float]]] = {name: [] for name in METHODS}
    for case in _cases(tuple(arguments.changed)):
        found = measured(case, arguments.times)
        cells = [f"{c:.1%}, {w:.2f}" for c, w, _ in found.values()]
        rows.append(f"| {case.name} | {' | '.join(cells)} |")
        print(rows[-1], flush=True)
        for name, (coverage, width, _) in found.items():
            totals[name].append((coverage, width))
    worst = [
        f"{min(c for c, _ in t):.1%}, {np.mean([w for _, w in t]):.2f}" for t in totals.values()
    ]
    rows.append(f"| **worst coverage, mean width** | {' | '.join(worst)} |")
    head = f"| population | {' | '.join(METHODS)} |\n|---|{'---:|' * len(METHODS)}"
    text = (
        "# Intervals of a drop of macro F1\n\n"
        f"Each cell: coverage at 95 %, and the width as a multiple of 2 x 1.96 standard deviations of the drop; "
        f"{arguments.times} draws each. `python benchmarks/f1_intervals.py`\n\n"
    )
    if arguments.output:
        arguments.output.write_text(text + "\n".join([head, *rows]) + "\n", encoding="utf-8")
    print(rows[-1])


if __name__ == "__main__":
    main()
