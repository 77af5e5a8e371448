"""How often the gate passes a candidate whose true drop is exactly the budget (it may: 2.5 %), and one without any drop.

    python benchmarks/gate_error_rate.py [--times 1000] [--only TEXT] [--json FILE] [--output FILE.md]

Candidates are simulated sample by sample, and scored, given intervals and judged by the code that `evaluate` and `gate`
run. The true drop is that of a draw of 400,000 samples, or known. A failure that happens in fewer than 3 of n samples
is often not seen at all: then a candidate without any drop looks the same, and cannot pass either.
`gate_error_rate_before.json` holds the rates of the intervals that were used before.
"""

import argparse
import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantkit.evaluate.accuracy.chunks import Chunk, Unit
from quantkit.evaluate.accuracy.classes import F1
from quantkit.evaluate.accuracy.detection import AveragePrecision, ClassDetections
from quantkit.evaluate.accuracy.perplexity import Perplexity
from quantkit.evaluate.accuracy.regression import NumberScorer, Spearman
from quantkit.evaluate.accuracy.scorer import Figure, Mean, Ratio, metrics_of
from quantkit.evaluate.gate.figures import RuleFigure as Judged
from quantkit.evaluate.gate.judge import judge_rule
from quantkit.result import Rule

Array = NDArray[Any]
Draw = Callable[[np.random.Generator, int, float], Figure]
"""Draws samples and scores them; the last argument is how much of the failure the candidate has: 1, or 0 for no drop."""

BEFORE = Path(__file__).with_name("gate_error_rate_before.json")
BEFORE_NOTE = (
    '"Before" has fewer candidates for usual budgets: 10 for Spearman and 100 for perplexity, WER and MSE with 5,000 '
    "samples, 100 for mAP. Before, the scorer charged NaN more than the budget of the NaN row assumes."
)
TRUTH = 400_000
RIGHT = 0.9  # of float's answers
SELECTION = 150  # samples that `tune` chooses by


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A kind of candidate.

    Attributes:
        name: For the table.
        draw: Draws samples.
        sizes: Numbers of samples.
        relative: The budget is a part of float's value.
        copies: How often each sample occurs; "half": every other one twice.
        best_of: Candidates of which one is chosen on other samples, as `tune` does.
        held_out: Judged on samples that did not choose; else on all.
        budget: None: the true drop of the failing candidate, and both columns are simulated.
    """

    name: str
    draw: Draw
    sizes: tuple[int, ...]
    relative: bool = False
    copies: int | str = 1
    best_of: int = 1
    held_out: bool = True
    budget: float | None = None


def _hits(rng: np.random.Generator, n: int, fail: float, *, right: float = 0.8) -> Figure:
    """4 % of the answers change: 3 % lost, 1 % gained; without a drop 2 % and 2 %."""
    before = rng.random(n) < right
    flip = rng.random(n)
    lost, gained = (0.02 + 0.01 * fail) / right, (0.02 - 0.01 * fail) / (1 - right)
    now = np.where(before, flip >= lost, flip < gained)
    return Mean(name="top-1", scores=np.stack([before, now]).astype(np.float64))


def _classes(
    rng: np.random.Generator, n: int, fail: float, *, rare: float, part: float = 0.1
) -> Figure:
    """A part of the right answers of the rare class is lost; of even classes, of both."""
    labels = (rng.random(n) < rare).astype(np.int64)
    right = rng.random(n) < RIGHT
    before = np.where(right, labels, 1 - labels)
    flip = rng.random(n)
    lost = part * fail * ((labels == 1) | (rare == 0.5))
    now = np.where(right & (flip < lost), 1 - labels, before)
    return F1(labels=labels, answers=np.stack([before, now]))


def _ranks(
    rng: np.random.Generator,
    n: int,
    fail: float,
    *,
    random: float = 0.0,
    steps: int = 0,
    like_constant: bool = False,
) -> Figure:
    """Answers with a little noise, of which some are random."""
    labels = rng.standard_normal(n)
    before = labels + 0.5 * rng.standard_normal(n)
    now = before + (0.03 if random or not fail else 0.25) * rng.standard_normal(n)
    now = np.where(rng.random(n) < random * fail, 1.12 * rng.standard_normal(n), now)
    if steps:
        labels, before, now = (
            np.clip(np.rint(steps * x / 4), -steps, steps) for x in (labels, before, now)
        )
    if like_constant:
        labels, before, now = (np.where(x > 2, x, 0.0) for x in (labels, before, now))
    return Spearman(labels=labels, answers=np.stack([before, now]))


def _texts(rng: np.random.Generator, n: int, fail: float, *, rate: float = 0.01) -> Figure:
    """Surprises of 3 nats a token; catastrophic texts have 7 more."""
    tokens = rng.integers(50, 400, n).astype(np.float64)
    before = 3 + 0.5 * rng.standard_normal(n)
    now = before + 0.02 * rng.standard_normal(n)
    now += 7.0 * (rng.random(n) < rate * fail)
    return Perplexity(parts=np.stack([before, now]) * tokens, wholes=tokens, chance=32_000.0)


def _words(rng: np.random.Generator, n: int, fail: float, *, lost: float = 0.0) -> Figure:
    """Errors among 5 to 30 words; a part of the texts is lost as a whole, or every word is wrong a little more often."""
    words = rng.integers(5, 30, n)
    before = rng.binomial(words, 0.1)
    more = rng.binomial(words - before, 0.01 if not lost else 0.003)
    fewer = rng.binomial(before, 0.09 if not lost else 0.027) if fail < 1 or lost else 0
    now = before + more - np.minimum(before, fewer)
    now = np.where(rng.random(n) < lost * fail, words, now)
    parts = np.stack([before, now]).astype(np.float64)
    return Ratio(
        name="wer", parts=parts, wholes=words.astype(np.float64), higher_is_better=False, chance=1.0
    )


def _squares(
    rng: np.random.Generator,
    n: int,
    fail: float,
    *,
    random: float = 0.0,
    tail: bool = False,
    nan: float = 0.0,
) -> Figure:
    """Squared errors of the scorer of numbers: R2 of 0.8; random answers, heavy tails of the added noise, or NaN."""
    labels, errors = rng.standard_normal((2, n))
    if nan:  # bounded, so that the worst answer is about the same in samples of any size
        labels, errors = rng.uniform(-(3**0.5), 3**0.5, (2, n))
    before = labels + 0.5 * errors
    scale = 0.2 * fail if not random and not nan else 0.02
    noise = rng.standard_t(3, n) / np.sqrt(3) if tail else rng.standard_normal(n)
    now = before + scale * noise
    now = np.where(rng.random(n) < random * fail, rng.standard_normal(n), now)
    now = np.where(rng.random(n) < nan * fail, np.nan, now)
    if n >= TRUTH:
        return _numbers(labels, before, now)
    scorer = NumberScorer("y", "mse")
    units = [Unit(name="", label=float(label), length=1) for label in labels]
    answers = [{"y": list(column[:, None])} for column in (before, now)]
    scorer.observe(Chunk(units=units, answers=answers))
    return scorer.figures()[0]


def _numbers(labels: Array, before: Array, now: Array) -> Figure:
    """What the scorer makes of as many samples as the truth is taken of."""
    squares = np.stack([before - labels, now - labels]) ** 2
    squares[np.isnan(squares)] = 2 * np.var(labels)
    return Mean(name="mse", scores=squares, higher_is_better=False)


def _boxes(
    rng: np.random.Generator, n: int, fail: float, *, rare: float = 1.0, part: float = 0.05
) -> Figure:
    """One box on each image, a fifth not found, false alarms on a fifth; of the rare class some finds are lost."""
    kinds = np.where(rng.random(n) < rare, 0, 1)
    found, alarm = rng.random((2, n)) < np.array([[0.8], [0.2]])
    lost = found & (rng.random(n) < np.where(kinds == 0, part * fail, 0.0))
    scores = rng.random((2, n)) + np.array([[0.3], [0.0]])
    noise = 0.02 * rng.standard_normal((2, n))
    classes = [
        tuple(
            _detections(np.flatnonzero(kinds == kind), own, alarm, s) for kind in np.unique(kinds)
        )
        for own, s in ((found, scores), (found & ~lost, scores + noise))
    ]
    return AveragePrecision(found=tuple(classes), images=n, name="map-50")


def _detections(images: Array, found: Array, alarm: Array, scores: Array) -> ClassDetections:
    hits, others = images[found[images]], images[alarm[images]]
    order = np.argsort(-np.concatenate([scores[0, hits], scores[1, others]]), kind="stable")
    hit = np.concatenate([np.ones(hits.size, np.bool_), np.zeros(others.size, np.bool_)])[order]
    image = np.concatenate([hits, others])[order]
    return ClassDetections(
        image=image, hit=hit[None], counts=np.ones((1, hit.size), np.bool_), wanted=images
    )


def _overlaps(rng: np.random.Generator, n: int, fail: float) -> Figure:
    """A score between 0 and 1, with a little noise; of 1 % of the samples nothing is left."""
    before = rng.beta(8, 2, n)
    now = np.clip(before + 0.01 * rng.standard_normal(n), 0, 1)
    now = np.where(rng.random(n) < 0.01 * fail, 0.0, now)
    return Mean(name="iou", scores=np.stack([before, now]))


def settings() -> list[Setting]:
    """Return all settings, those at the budget first."""
    small, usual = (50, 100, 200, 400), (100, 300, 1000)
    return [
        Setting(name="Spearman, 1 % random answers", draw=partial(_ranks, random=0.01), sizes=small),
        Setting(name="Spearman, 2 % random answers", draw=partial(_ranks, random=0.02), sizes=(20, *small)),
        Setting(name="Spearman, 5 % random answers", draw=partial(_ranks, random=0.05), sizes=small),
        Setting(
            name="Spearman with ties, 2 % random answers",
            draw=partial(_ranks, random=0.02, steps=5),
            sizes=small,
        ),
        Setting(
            name="Spearman, nearly constant, 2 % random answers",
            draw=partial(_ranks, random=0.02, like_constant=True),
            sizes=(100, 400),
        ),
        Setting(name="Spearman, noise on all answers", draw=_ranks, sizes=(20, *small)),
        Setting(
            name="F1, 10 % of a 5 % class lost", draw=partial(_classes, rare=0.05), sizes=(100, 200, 400, 1000)
        ),
        Setting(
            name="F1, 40 % of a 5 % class lost",
            draw=partial(_classes, rare=0.05, part=0.4),
            sizes=(50, 100, 200, 400),
        ),
        Setting(name="F1, balanced", draw=partial(_classes, rare=0.5, part=0.05), sizes=small),
        Setting(name="perplexity, 1 % catastrophic texts", draw=_texts, sizes=(30, 100, 300), relative=True),
        Setting(
            name="perplexity, 5 % catastrophic texts",
            draw=partial(_texts, rate=0.05),
            sizes=(30, 100, 300),
            relative=True,
        ),
        Setting(name="top-1", draw=_hits, sizes=(20, 100, 300, 1000)),
        Setting(name="top-1, every sample twice", draw=_hits, sizes=(100, 300, 1000), copies=2),
        Setting(name="top-1, every sample five times", draw=_hits, sizes=(100, 300), copies=5),
        Setting(name="top-1, every other sample twice", draw=_hits, sizes=(100, 300), copies="half"),
        Setting(name="WER, every word", draw=_words, sizes=(30, *usual)),
        Setting(name="WER, 1 % lost texts", draw=partial(_words, lost=0.01), sizes=(30, *usual)),
        Setting(name="IoU, 1 % lost", draw=_overlaps, sizes=usual),
        Setting(name="MSE, noise on all answers", draw=_squares, sizes=usual, relative=True),
        Setting(name="MSE, noise with heavy tails", draw=partial(_squares, tail=True), sizes=usual, relative=True),
        Setting(name="MSE, 1 % random answers", draw=partial(_squares, random=0.01), sizes=usual, relative=True),
        Setting(name="MSE, 1 % NaN", draw=partial(_squares, nan=0.01), sizes=(100, 300)),
        Setting(name="mAP-50, 5 % lost", draw=_boxes, sizes=(50, 100, 300)),
        Setting(
            name="mAP-50, 40 % of a 10 % class lost", draw=partial(_boxes, rare=0.1, part=0.4), sizes=(50, 100, 300)
        ),
        Setting(name="tune, best of 20, top-1", draw=_hits, sizes=(225,), best_of=20),
        Setting(name="tune, best of 20, Spearman", draw=partial(_ranks, random=0.02), sizes=(225,), best_of=20),
        Setting(
            name="best of 20, top-1, were it judged on all samples (tune does not)",
            draw=_hits,
            sizes=(225,),
            best_of=20,
            held_out=False,
        ),
    ]  # fmt: skip


def usual_budgets() -> list[Setting]:
    """Return candidates with a little noise and no failure, with budgets as people set them."""
    sizes = (200, 1000, 5000)
    return [
        Setting(name="top-1, 1 point", draw=_hits, sizes=sizes, budget=0.01),
        Setting(name="F1 with a 5 % class, 1 point", draw=partial(_classes, rare=0.05), sizes=sizes, budget=0.01),
        Setting(name="F1 balanced, 1 point", draw=partial(_classes, rare=0.5), sizes=sizes, budget=0.01),
        Setting(name="Spearman, 0.01", draw=_ranks, sizes=sizes, budget=0.01),
        Setting(name="perplexity, 5 %", draw=_texts, sizes=sizes, relative=True, budget=0.05),
        Setting(name="WER, 1 point", draw=_words, sizes=sizes, budget=0.01),
        Setting(name="MSE, 5 %", draw=_squares, sizes=sizes, relative=True, budget=0.05),
        Setting(name="mAP-50, 1 point", draw=_boxes, sizes=sizes[:2], budget=0.01),
    ]  # fmt: skip


def loss(figure: Figure, *, relative: bool) -> float:
    """Return the drop, positive where the candidate is worse."""
    drop = figure.value(0) - figure.value(1)
    drop = drop if figure.higher_is_better else -drop
    return drop / figure.value(0) if relative else drop


@cache
def truth(setting: Setting) -> float:
    """Return the true drop of the failing candidate."""
    return loss(setting.draw(np.random.default_rng(99), TRUTH, 1.0), relative=setting.relative)


def passes(setting: Setting, n: int, fail: float, seed: int) -> bool:
    """Return whether the gate passes one simulated candidate."""
    rng = np.random.default_rng([seed, n, zlib.crc32(setting.name.encode())])
    figure = setting.draw(rng, n, fail)
    if setting.best_of > 1:
        figure = _chosen(setting, rng, n, fail)
    first = np.arange(figure.samples)
    if setting.copies != 1:
        times = (
            np.where(np.arange(n) % 2, 1, 2)
            if setting.copies == "half"
            else np.full(n, setting.copies)
        )
        repeated = np.repeat(first, times)
        first = np.unique(repeated, return_index=True)[1]
        figure = figure.only(repeated)
    (metric,) = metrics_of(
        [figure], 1, main=figure.name, confidence=0.95, seed=seed, distinct=first
    )
    limit = setting.budget if setting.budget is not None else truth(setting)
    scale = abs(figure.value(0)) if setting.relative else 1.0
    ends = metric.drop_interval
    if ends is not None:
        ends = type(ends)(low=ends.low / scale, high=ends.high / scale, confidence=0.95)
    found = Judged("drop", (metric.drop or 0.0) / scale, "plain", ends, count=n)
    rule = Rule(key="max_drop", limit=limit, confidence=0.95)
    return judge_rule(rule, found).outcome == "pass"


def _chosen(setting: Setting, rng: np.random.Generator, n: int, fail: float) -> Figure:
    """Return the samples that judge the candidate that was best on the selection samples; all have the same true drop."""
    chance = rng.spawn(setting.best_of)
    drawn = [setting.draw(own, SELECTION + n, fail) for own in chance]
    selection, rest = np.arange(SELECTION), np.arange(SELECTION, SELECTION + n)
    best = min(drawn, key=lambda figure: loss(figure.only(selection), relative=setting.relative))
    return best.only(rest if setting.held_out else np.arange(SELECTION + n))


def rate(setting: Setting, n: int, fail: float, times: int) -> float:
    """Return the share of simulated candidates that pass."""
    return float(np.mean([passes(setting, n, fail, seed) for seed in range(times)]))


def main() -> None:
    """Simulate all settings; write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--times", type=int, default=1000, help="candidates per setting")
    parser.add_argument("--only", default="", help="settings whose name has this in it")
    parser.add_argument("--json", type=Path, help="where rates go, to be compared with")
    parser.add_argument("--output", type=Path, help="where the tables go")
    arguments = parser.parse_args()
    before = json.loads(BEFORE.read_text(encoding="utf-8")) if BEFORE.exists() else {}
    rates: dict[str, list[float]] = {}
    tables: list[list[str]] = [[], []]
    for table, group in enumerate((settings(), usual_budgets())):
        for setting in (s for s in group if arguments.only in s.name):
            for n in setting.sizes:
                key = f"{setting.name} | {n}"
                columns = (1.0, 0.0) if setting.budget is None else (0.0,)
                rates[key] = [rate(setting, n, fail, arguments.times) for fail in columns]
                pairs = zip(before.get(key, [None] * len(columns)), rates[key], strict=True)
                cells = [f"{'-' if b is None else f'{b:.1%}'} | {a:.1%}" for b, a in pairs]
                tables[table].append(f"| {key} | {' | '.join(cells)} |")
                print(tables[table][-1], flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rates, indent=1) + "\n", encoding="utf-8")
    if arguments.output:
        arguments.output.write_text(_page(tables, arguments.times), encoding="utf-8")


def _page(tables: list[list[str]], times: int) -> str:
    one = "| candidate | samples | drop = budget, before | now | no drop, before | now |\n|---|--:|--:|--:|--:|--:|"
    two = "| candidate, budget | samples | before | now |\n|---|--:|--:|--:|"
    return "\n".join(
        [
            "# How often the gate passes",
            "",
            f"`python benchmarks/gate_error_rate.py --times {times}`; each rate is of {times} simulated candidates.",
            BEFORE_NOTE,
            "",
            "## Candidates whose true drop is exactly the budget",
            "",
            "At most 2.5 % of them may pass. Next to it, with the same budget, candidates without any drop.",
            "",
            one,
            *tables[0],
            "",
            "## Candidates without a drop, budgets as people set them",
            "",
            two,
            *tables[1],
            "",
        ]
    )


if __name__ == "__main__":
    main()
