"""The verdict in words: one for the whole, one card a candidate."""

from dataclasses import dataclass
from math import inf
from typing import Literal

from quantkit.report import numbers
from quantkit.report.plots.svg import shorten
from quantkit.result import Evaluated, Judged, Objection, Outcome, Result, Verdict

__all__ = ["Card", "Figure", "Headline", "State", "cards", "headline"]

_NAMED = 3  # names in a sentence
_LONG = 300  # pixels of a name in a sentence

State = Literal["pass", "fail", "undecided", "invalid", "neutral"]


@dataclass(frozen=True, slots=True)
class Headline:
    """What the page opens with."""

    state: State
    word: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Figure:
    """A key figure: what it is, the figure, and what belongs to it."""

    label: str
    value: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Card:
    """A candidate at a glance.

    Attributes:
        name: The candidate.
        state: What the gate said.
        word: That as a word; "" without a gate.
        why: One line.
        figures: The key ones.
        broken: Rules that fail or cannot be decided.
        objections: Why its figures prove nothing; those that are allowed are told too.
        rules: All of them.
        warnings: What a reviewer should know.
    """

    name: str
    state: State
    word: str
    why: str
    figures: tuple[Figure, ...]
    broken: tuple[Judged, ...]
    objections: tuple[Objection, ...]
    rules: tuple[Judged, ...]
    warnings: tuple[str, ...]


def headline(result: Result) -> Headline:
    """Sum up: fail if any candidate fails, else invalid or undecided if any is, else pass."""
    prepared = [m.calibration.differs for m in result.candidates if m.calibration]
    differs = next(filter(None, prepared), ())
    if differs and not result.verdicts:
        said = "; ".join(differs)
        return Headline("invalid", "Other preprocessing than in calibration", f"{said}.")
    if not result.verdicts:
        return Headline("neutral", "No gate set", _facts(result))
    by: dict[Outcome, list[str]] = {"pass": [], "fail": [], "undecided": [], "invalid": []}
    for verdict in result.verdicts:
        by[verdict.outcome].append(verdict.candidate)
    count = len(result.verdicts)
    if by["fail"]:
        sentence = "The candidate breaks the gate."
        if count > 1:
            broke = f"{len(by['fail'])} of {count} candidates {_verb(by['fail'], 'break')} the gate"
            sentence = f"{broke}: {_listed(by['fail'])}."
        kept = (
            f" {_listed(by['pass'])} {_verb(by['pass'], 'keep')} every rule." if by["pass"] else ""
        )
        return Headline("fail", "Fail", sentence + kept)
    if by["invalid"]:
        return _invalid(result, by["invalid"])
    if by["undecided"]:
        word = _undecided_word([r for v in result.verdicts for r in v.rules])
        whom = "It" if count == 1 else _listed(by["undecided"])
        return Headline(
            "undecided", word, f"{whom} can neither be passed nor failed on this evidence."
        )
    whom = "The candidate keeps" if count == 1 else f"All {count} candidates keep"
    return Headline("pass", "Pass", f"{whom} every rule of the gate.")


def _invalid(result: Result, names: list[str]) -> Headline:
    """Open with what stands against the evidence, and what to do about it."""
    first = next(v for v in result.verdicts if v.candidate in names)
    gravest = next(o for o in first.objections if not o.allowed)
    whom = "" if len(result.verdicts) == 1 else f"{_listed(names)}: "
    sentence = gravest.sentence[:1].upper() + gravest.sentence[1:]
    return Headline("invalid", gravest.title, f"{whom}{sentence}.")


def _verb(names: list[str], verb: str) -> str:
    return verb if len(names) > 1 else f"{verb}s"


def _listed(names: list[str]) -> str:
    if len(names) > _NAMED:
        return f"{len(names)} candidates"
    short = [shorten(name, _LONG) for name in names]
    return short[0] if len(short) == 1 else f"{', '.join(short[:-1])} and {short[-1]}"


def _undecided_word(rules: list[Judged]) -> str:
    open_ = [r for r in rules if r.outcome == "undecided"]
    return "Not enough samples" if any(r.estimate is not None for r in open_) else "Not measured"


def _facts(result: Result) -> str:
    """Say what was found of the most accurate candidate, without judging it."""
    ranked = sorted(result.candidates, key=_harm)
    if not ranked:
        return "Only the float model was measured."
    first = ranked[0]
    which = (
        f"{first.name} is nearest to float of {len(ranked)} candidates: "
        if len(ranked) > 1
        else f"{first.name}: "
    )
    return which + _sentence(first)


def _harm(model: Evaluated) -> float:
    """Return how far from float it is; what was not measured is furthest."""
    if model.metric is not None and model.metric.drop is not None:
        return model.metric.drop
    return inf if model.worst_output is None else -model.worst_output.db


def _sentence(model: Evaluated) -> str:
    parts = [f"{numbers.percent(model.size.ratio)} of float's size"]
    timed = model.typical_latency
    if timed is not None:
        parts.append(f"{numbers.ratio(timed.ratio)} its time")
    metric, output = model.metric, model.worst_output
    if metric is not None and metric.drop is not None:
        parts.append(f"{numbers.drop(metric)} {numbers.drop_unit(metric)} of {metric.name} lost")
    elif output is not None:
        same, noise = "outputs identical to float's", "signal to noise at the output"
        parts.append(same if output.db == inf else f"{numbers.sqnr(output)} {noise}")
    return ", ".join(parts) + "."


def cards(result: Result) -> tuple[Card, ...]:
    """Return one card for each candidate."""
    verdicts = {v.candidate: v for v in result.verdicts}
    return tuple(_card(model, verdicts.get(model.name)) for model in result.candidates)


def _card(model: Evaluated, verdict: Verdict | None) -> Card:
    rules = verdict.rules if verdict else ()
    broken = tuple(r for r in rules if r.outcome != "pass")
    words = {"pass": "Pass", "fail": "Fail", "undecided": _undecided_word(list(rules))}
    words["invalid"] = "Invalid"
    objections = verdict.objections if verdict else ()
    if verdict is None:
        why = _sentence(model)
    elif verdict.outcome == "invalid":
        why = (
            f"{', '.join(o.title for o in objections if not o.allowed)}: its figures prove nothing."
        )
    elif broken:
        why = f"{len(broken)} of {len(rules)} rules {'is' if len(broken) == 1 else 'are'} not kept."
    else:
        why = "Every rule is kept." if len(rules) > 1 else "The rule is kept."
    return Card(
        name=model.name,
        state=verdict.outcome if verdict else "neutral",
        word=words[verdict.outcome] if verdict else "",
        why=why,
        figures=_figures(model),
        broken=broken,
        objections=objections,
        rules=rules,
        warnings=model.warnings,
    )


def _figures(model: Evaluated) -> tuple[Figure, ...]:
    """Return drop, size, time and int8 share: what was measured of them."""
    found, metric, output = [], model.metric, model.worst_output
    if metric is not None and metric.drop is not None:
        unit = " points" if metric.is_fraction else ""
        drop = numbers.difference(metric.drop, metric, metric.drop_interval) + unit
        spread = numbers.spread(metric.drop_interval, metric) if metric.drop_interval else ""
        found.append(Figure(f"{metric.name} drop", drop, spread))
    elif output is not None:
        spread = numbers.interval(output.sqnr_interval, digits=1) if output.sqnr_interval else ""
        found.append(Figure("signal to noise", numbers.sqnr(output), spread))
    found.append(Figure("size", numbers.percent(model.size.ratio), numbers.size(model.size.disk)))
    timed = model.typical_latency
    if timed is not None:
        spread = numbers.interval(timed.ratio_interval) if timed.ratio_interval else ""
        found.append(Figure("time", numbers.ratio(timed.ratio), spread))
    runtime = model.runtime
    if runtime is not None:
        of = f"{runtime.integer} of {runtime.products}"
        found.append(Figure("in int8", numbers.percent(runtime.share), of))
    return tuple(found)
