"""The verdict in words: one for the whole, one card a candidate."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal, TypeVar

from quantkit.evaluate.report import numbers
from quantkit.evaluate.report.svg import shorten
from quantkit.result import (
    SAME_DB,
    Evaluated,
    Judged,
    Metric,
    Objection,
    Outcome,
    OutputDrift,
    Result,
    Verdict,
)

_NAMED = 3  # names in a sentence
_LONG = 600  # pixels of a name in a sentence
_SHORT = 160  # and in a few words
_Value = TypeVar("_Value", int, float)

State = Literal["pass", "fail", "undecided", "invalid", "neutral"]


@dataclass(frozen=True, slots=True)
class Headline:
    """What the page opens with."""

    state: State
    word: str
    sentence: str


@dataclass(frozen=True, slots=True)
class KeyFigure:
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
    figures: tuple[KeyFigure, ...]
    broken: tuple[Judged, ...]
    objections: tuple[Objection, ...]
    rules: tuple[Judged, ...]
    warnings: tuple[str, ...]


def headline(result: Result) -> Headline:
    """Sum up: fail if any candidate fails, else invalid or undecided if any is, else pass."""
    # A failure outranks `invalid`: where one candidate fails for sure, that is the news. Then doubt before praise: one
    # undecided candidate of five makes no passing headline.
    if not result.verdicts:
        return _unjudged(result)
    by: dict[Outcome, list[str]] = {"pass": [], "fail": [], "undecided": [], "invalid": []}
    for verdict in result.verdicts:
        by[verdict.outcome].append(verdict.candidate)
    count = len(result.verdicts)
    if by["fail"]:
        sentence = "The candidate fails the gate."
        if count > 1:
            broke = f"{len(by['fail'])} of {count} candidates {_verb(by['fail'], 'fail')} the gate"
            sentence = f"{broke}: {_names_text(by['fail'])}."
        if by["pass"]:
            verb = "passes" if len(by["pass"]) == 1 else "pass"
            sentence += f" {_names_text(by['pass'])} {verb} every rule."
        return Headline("fail", "Fail", sentence)
    if by["invalid"]:
        return _invalid(result, by["invalid"])
    if by["undecided"]:
        word = _undecided_word([r for v in result.verdicts for r in v.rules])
        whom = "It" if count == 1 else _names_text(by["undecided"])
        sentence = f"{whom} can neither be passed nor failed on this evidence."
        return Headline("undecided", word, sentence)
    whom = "All gate rules pass" if count == 1 else f"All {count} candidates pass every gate rule"
    return Headline("pass", "Pass", f"{whom}.")


def _unjudged(result: Result) -> Headline:
    """Open without a gate."""
    # A difference of preprocessing outranks the missing gate: without rules nobody objects, and the page would open
    # with figures that mean nothing. With rules the same fact is an objection already.
    prepared = [m.calibration.differs for m in result.candidates if m.calibration]
    differs = next(filter(None, prepared), ())
    if differs:
        said = "; ".join(differs)
        return Headline("invalid", "Other preprocessing than in calibration", f"{said}.")
    if result.tuning is None:
        return Headline("neutral", "No gate set", _facts(result))
    model = next((m for m in result.candidates if m.name == result.tuning.chosen), None)
    if model is None:
        return Headline("fail", "Nothing chosen", result.tuning.sentence)
    said = f"{_sentence(model)} {result.tuning.sentence}"
    return Headline("neutral", f"{shorten(model.name, _SHORT)} chosen", said)


def _invalid(result: Result, names: list[str]) -> Headline:
    """Open with what stands against the evidence, and what to do about it."""
    first = next(v for v in result.verdicts if v.candidate in names)
    gravest = next(o for o in first.objections if not o.allowed)
    whom = "" if len(result.verdicts) == 1 else f"{_names_text(names)}: "
    sentence = gravest.sentence[:1].upper() + gravest.sentence[1:]
    return Headline("invalid", gravest.title, f"{whom}{sentence}.")


def _verb(names: list[str], verb: str) -> str:
    return verb if len(names) > 1 else f"{verb}s"


def _names_text(names: list[str]) -> str:
    if len(names) > _NAMED:
        return f"{len(names)} candidates"
    short = [shorten(name, _LONG) for name in names]
    return short[0] if len(short) == 1 else f"{', '.join(short[:-1])} and {short[-1]}"


def _undecided_word(rules: list[Judged]) -> str:
    open_ = [r for r in rules if r.outcome == "undecided"]
    return "Not enough samples" if any(r.estimate is not None for r in open_) else "Not measured"


def _facts(result: Result) -> str:
    """Say what was found of the candidate nearest to float, without judging it."""
    ranked = sorted(result.candidates, key=_distance)
    if not ranked:
        return "Only the float model was measured."
    first = ranked[0]
    nearest = f" is nearest to float of {len(ranked)} candidates" if len(ranked) > 1 else ""
    return f"{first.name}{nearest}: {_sentence(first)}"


def _distance(model: Evaluated) -> tuple[float, float]:
    """Return how far from float it is, by its outputs, then by its metric; what was not measured is furthest."""
    output, metric = model.worst_output, model.metric
    drop = metric.drop if metric is not None else None
    return inf if output is None else -output.db, inf if drop is None else abs(drop)


def _sentence(model: Evaluated) -> str:
    parts = [f"{numbers.percent(model.size.ratio)} of float's size"]
    timed = model.typical_latency
    if timed is not None:
        parts.append(f"{numbers.ratio(timed.ratio)} its time")
    metric, output = model.metric, model.worst_output
    if metric is not None and metric.drop is not None:
        parts.append(_change(metric))
    elif output is not None:
        same, noise = "outputs identical to float's", "signal to noise at the output"
        parts.append(same if output.db == inf else f"{numbers.sqnr(output)} {noise}")
    return ", ".join(parts) + "."


def _change(metric: Metric) -> str:
    """Say what became of a metric: "0.30 points of top-1 lost"."""
    shown = numbers.difference(metric.drop, metric, metric.drop_interval)
    what = f"{numbers.drop_unit(metric)} of {metric.name}" if metric.is_fraction else metric.name
    if set(shown) <= set("0."):
        return f"no change of {metric.name}"
    word = "gained" if shown.startswith(numbers.MINUS) else "lost"
    return f"{shown.removeprefix(numbers.MINUS)} {what} {word}"


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
        why = _broken(rules)
    else:
        why = "All gate rules pass." if len(rules) > 1 else "The gate rule passes."
    return Card(
        name=model.name,
        state=verdict.outcome if verdict else "neutral",
        word=words[verdict.outcome] if verdict else "",
        why=why,
        figures=tuple(_figures(model)),
        broken=broken,
        objections=objections,
        rules=rules,
        warnings=model.remarks,
    )


def _broken(rules: tuple[Judged, ...]) -> str:
    """Count the rules that fail, and those that cannot be decided."""
    failed, open_ = (sum(r.outcome == o for r in rules) for o in ("fail", "undecided"))
    said = [f"{failed} of {len(rules)} rules {'fails' if failed == 1 else 'fail'}"] * (failed > 0)
    of = "" if failed else f" of {len(rules)} rules"
    said += [f"{open_}{of} cannot be decided"] * (open_ > 0)
    return f"{', '.join(said)}."


def _figures(model: Evaluated) -> Iterator[KeyFigure]:
    """Yield drop, flips, signal to noise, size, time and int8 share: what was measured of them."""
    if model.metric is not None and model.metric.drop is not None:
        yield _drop_figure(model.metric)
    if (decision := model.decision) is not None:
        of = f"{numbers.integer(decision.flips)} of {numbers.integer(decision.samples)}"
        yield KeyFigure("flips", numbers.percent(decision.flip_rate, 2), of)
    if (output := model.worst_output) is not None:
        yield KeyFigure("SQNR", numbers.sqnr(output), _noise_detail(model, output))
    yield KeyFigure("size", numbers.percent(model.size.ratio), numbers.size(model.size.disk))
    if (timed := model.typical_latency) is not None:
        spread = numbers.interval(timed.ratio_interval) if timed.ratio_interval else ""
        yield KeyFigure("time", numbers.ratio(timed.ratio), spread)
    if (runtime := model.runtime) is not None:
        of = f"{runtime.integer} of {runtime.products}"
        yield KeyFigure("in int8", numbers.percent(runtime.share), of)


def _drop_figure(metric: Metric) -> KeyFigure:
    shown = numbers.difference(metric.drop, metric, metric.drop_interval)
    word = "gain" if shown.startswith(numbers.MINUS) else "drop"
    unit = " points" if metric.is_fraction else ""
    spread = numbers.spread(metric.drop_interval, metric) if metric.drop_interval else ""
    return KeyFigure(f"{metric.name} {word}", shown.removeprefix(numbers.MINUS) + unit, spread)


def _noise_detail(model: Evaluated, output: OutputDrift) -> str:
    """Return what single samples have at worst; the interval where that is not known (files of older versions)."""
    if model.worst_percentile is None or model.worst_percentile[1].worst >= SAME_DB:
        return numbers.interval(output.sqnr_interval, digits=1) if output.sqnr_interval else ""
    found = model.worst_percentile[1]
    if found.has_percentile:
        return f"1 % of samples below {numbers.decimals(found.p1, 1)}"
    return f"worst sample {numbers.decimals(found.worst, 1)}"


def advice_of(result: Result) -> list[tuple[str, list[str]]]:
    """Return what would help most, and whom: the same advice is given once."""
    whom: dict[str, list[str]] = {}
    for model in result.candidates:
        for advice in model.advice:
            whom.setdefault(advice, []).append(model.name)
    return list(whom.items())


def gists(result: Result) -> dict[str, str]:
    """Return what each section of the page found, in a few words; "" for one that found nothing."""
    # A gist stands beside a folded section, so that a reader need not open it to know that nothing is in it. Each
    # part of a result may be missing (a run without timing, a file of an older version): then the gist is empty, and
    # never a zero. Several candidates are one range, from least to most; of what cannot be ranged (which layer, which
    # share) the worst or the distinct ones.
    models, disk = result.candidates, result.float_model.size.disk
    return {
        "tuning": _found(result),
        "picture": "",
        "drift": _furthest(models),
        "size": f"{_range([m.size.ratio for m in models], numbers.percent)} of float's {numbers.size(disk)}",
        "latency": _times(result),
        "layers": _worst_layer(models),
        "runtime": _int8_shares(models),
        "fidelity": _portable(models),
        "calibration": _calibrated(models),
        "changes": _node_counts(models),
        "provenance": f"{len(result.models)} files · {result.data.samples:,} samples",
    }


def _times(result: Result) -> str:
    ratios = [m.typical_latency.ratio for m in result.candidates if m.typical_latency]
    timed = result.float_model.typical_latency
    of = f" of float's {numbers.significant(timed.median_ms)} ms" if timed else ""
    return f"{_range(ratios, numbers.ratio)}{of}" if ratios else ""


def _int8_shares(models: Sequence[Evaluated]) -> str:
    known = [m.runtime for m in models if m.runtime]
    shares = dict.fromkeys(f"{runtime.integer} of {runtime.products}" for runtime in known)
    return f"{' · '.join(shares)} layers" if 0 < len(shares) <= _NAMED else ""


def _calibrated(models: Sequence[Evaluated]) -> str:
    known = [m.calibration for m in models if m.calibration]
    return " · ".join(dict.fromkeys(f"{c.samples:,} samples, {c.method}" for c in known))


def _node_counts(models: Sequence[Evaluated]) -> str:
    known = [m.changes for m in models if m.changes]
    if not known:
        return ""
    after = _range([changes.nodes_after for changes in known], numbers.integer)
    return f"{known[0].nodes_before:,} nodes became {after}"


def _found(result: Result) -> str:
    """Say what a search chose, of how many."""
    if result.tuning is None:
        return ""
    chosen = shorten(result.tuning.chosen, _SHORT) or "nothing"
    return f"{chosen} of {len(result.tuning.trials)} files"


def _range(values: Sequence[_Value], shown: Callable[[_Value], str]) -> str:
    ends = list(dict.fromkeys(shown(end) for end in (min(values), max(values)))) if values else []
    return " to ".join(ends)


def _furthest(models: Sequence[Evaluated]) -> str:
    measured = [m for m in models if m.worst_output is not None]
    if not measured:
        return ""
    worst = max(measured, key=_distance)
    whom = f"furthest from float: {shorten(worst.name, _SHORT)}, " if len(measured) > 1 else ""
    decision = worst.decision
    flips = f", {numbers.percent(decision.flip_rate, 2)} flips" if decision else ""
    return f"{whom}{numbers.sqnr(worst.worst_output)}{flips}"


def _worst_layer(models: Sequence[Evaluated]) -> str:
    found = [(m.ranking[0], m) for m in models if m.ranking]
    if not found:
        return ""
    layer, model = min(
        found, key=lambda pair: inf if pair[0].alone_db is None else pair[0].alone_db
    )
    whose = f" of {shorten(model.name, _SHORT)}" if len(found) > 1 else ""
    return f"{shorten(layer.node, _LONG)}: {numbers.percent(layer.share)} of the noise{whose}"


def _portable(models: Sequence[Evaluated]) -> str:
    checked = [m for m in models if m.fidelity]
    if not checked:
        return ""
    names = [m.name for m in checked if m.fidelity and not m.fidelity.portable]
    return f"not on every CPU: {_names_text(names)}" if names else "layers the same on every CPU"
