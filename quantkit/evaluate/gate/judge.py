"""Verdicts: what comes of each rule for a candidate, in words too, and the objections to its figures.

Objections stand against the evidence itself: figures that would mean nothing, however good they are.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from math import ceil, floor, isfinite, isinf, log10

from quantkit.evaluate.gate.figures import (
    Missing,
    RuleFigure,
    Unit,
    bad_end,
    figure_of,
    live_figure_of,
)
from quantkit.result import (
    SCHEMA,
    Evaluated,
    Judged,
    Metric,
    Objection,
    ObjectionKind,
    Outcome,
    Result,
    Rule,
    Verdict,
)
from quantkit.result.live import Live
from quantkit.text import compact

_HOPELESS = 1000  # half-widths to the room: a million times the samples
_NAMED: tuple[Unit, ...] = ("percent", "dB")
_PARTS: tuple[Unit, ...] = ("points", "percent")


def sentence(
    figure: RuleFigure, rule: Rule, bad: float | None, outcome: Outcome, margin: float
) -> str:
    """Return what was found, what is allowed, and the margin or what would settle it; without a full stop.

    "drop of top-1 is 0.3 points (at most 0.7 points with 95 % confidence; limit: 1 point): margin 0.3 points"

    Args:
        figure: What was found.
        rule: What is allowed.
        bad: The end of the interval that is judged; None: there is no interval.
        outcome: Of the rule.
        margin: From the judged figure to the limit, of a rule that fails from the estimate; below zero: missing.
    """
    if outcome == "undecided":
        return _undecided(figure, rule, bad)
    sure = rule.confidence is not None and not figure.exact and bad is not None
    end = "at most" if rule.is_ceiling else "at least"
    bound = (
        f"{end} {figure_text(bad or 0.0, figure.unit)} with {_confidence(rule)}; " if sure else ""
    )
    found = f"{figure.what} is {figure_text(figure.estimate, figure.unit)} ({bound}{_limit(figure, rule)})"
    return f"{found}: {_room(figure, rule, margin, sure=sure)}"


def _limit(figure: RuleFigure, rule: Rule) -> str:
    word = "limit" if rule.is_ceiling else "required"
    return f"{word}: {figure_text(rule.limit, figure.unit)}"


def _room(figure: RuleFigure, rule: Rule, margin: float, *, sure: bool) -> str:
    """Return the margin, or by how much the estimate misses the limit; `sure`: there is a bound besides the estimate."""
    if margin >= 0:
        return "met" if isinf(margin) else f"margin {room_text(margin, figure.unit)}"
    gap = "" if isinf(margin) else room_text(-margin, figure.unit)
    if rule.is_ceiling:
        missed = f"exceeds the limit{f' by {gap}' if gap else ''}"
    else:
        missed = f"is {gap} short" if gap else "is too low"
    if sure:
        return f"the estimate alone {missed}"
    return missed.removeprefix("is ")


def _undecided(figure: RuleFigure, rule: Rule, bad: float | None) -> str:
    """Return how bad the figure could be, and about how many samples would settle it.

    Half-widths shrink with the number of samples where rare failures make them, else with its root: from
    ``n (half-width / room)`` to ``n (half-width / room)^2``, rounded up to two digits.
    """
    measured = f"Measured {figure.what}: {figure_text(figure.estimate, figure.unit)}"
    if bad is None and figure.fewest:
        needed = f"{figure.fewest:,} {figure.counted} without a worse one would settle it with {_confidence(rule)}"
        return f"{measured} ({_limit(figure, rule)}). {needed}"
    if bad is None:
        few = f"Too few {figure.counted} for an interval with {_confidence(rule)}: evaluate more"
        return f"{measured} ({_limit(figure, rule)}). {few}"
    worst = "high" if rule.is_ceiling else "low"
    known = f"With {figure.count:,} {figure.counted} it could be as {worst} as {figure_text(bad, figure.unit)}"
    half, space = abs(bad - figure.estimate), abs(rule.limit - figure.estimate)
    if half >= _HOPELESS * space:
        settled = f"The estimate is nearly at the limit: more {figure.counted} would not settle it"
    else:
        few, many = (_rounded_up(figure.count * (half / space) ** power) for power in (1, 2))
        needed = many if figure.counted == "runs" else f"{few} to {many}"
        settled = f"About {needed} {figure.counted} would settle it"
    return f"{measured}. {known} ({_limit(figure, rule)}). {settled}"


def _rounded_up(count: float) -> str:
    step = 10 ** max(floor(log10(max(count, 1))) - 1, 0)
    return f"{ceil(count / step) * step:,}"


def figure_text(value: float, unit: Unit, *, short: bool = False) -> str:
    """Write a figure or a limit: ``0.3 points`` (short: ``0.3 pt``), ``73 %``, ``0.65``.

    Args:
        value: As it is computed: a fraction for percent and points.
        unit: What it is shown in.
        short: For a badge.
    """
    number = compact(value * 100 if unit in _PARTS else value)
    if unit == "points":
        return f"{number} {'pt' if short else 'point' if number == '1' else 'points'}"
    return f"{number} {'%' if unit == 'percent' else unit}" if unit in _NAMED else number


def room_text(margin: float, unit: Unit, *, short: bool = False) -> str:
    """Write a margin: what lies between two percentages are points.

    Args:
        margin: As it is computed.
        unit: Of the figure.
        short: For a badge.
    """
    return figure_text(margin, "points" if unit == "percent" else unit, short=short)


def bound_text(rule: Rule, unit: Unit, *, short: bool = False) -> str:
    """Write a limit with its direction: ``<= 1 point``.

    Args:
        rule: The limit, and whether it is a ceiling.
        unit: Of the figure.
        short: For a badge.
    """
    return f"{'<=' if rule.is_ceiling else '>='} {figure_text(rule.limit, unit, short=short)}"


def _confidence(rule: Rule) -> str:
    return f"{100 * (rule.confidence or 0.0):g} % confidence"


_MOST = 0.5  # of the decisions, or of the samples
_NOISE_DB = 5.0  # below it an output is more noise than signal, whatever the model is for
_QUANTIZED = frozenset(("dynamic", "static", "weights", "float16"))


def _objections_of(model: Evaluated, result: Result, *, fails: bool) -> tuple[Objection, ...]:
    """Return the objections to a candidate's figures, the gravest first.

    Args:
        model: The candidate.
        result: The evaluation.
        fails: A rule is broken: then nothing contradicts that all are kept.
    """
    return tuple(
        Objection(kind=kind, title=title, sentence=found)
        for kind, (title, check) in _OBJECTIONS.items()
        # An output of noise does not contradict a verdict that says so.
        if not (fails and kind == "contradiction") and (found := check(model, result))
    )


def _outdated(_: Evaluated, result: Result) -> str:
    if result.schema == SCHEMA:
        return ""
    return (
        f"this result ({result.schema}) does not hold what tells whether float is guessing and how samples were prepared: "
        "evaluate again"
    )


def _identical(model: Evaluated, result: Result) -> str:
    if model.file.sha256 != result.float_model.file.sha256:
        return ""
    return f"'{model.name}' is the file of the float model: evaluate the model that is to go out"


def _swapped(model: Evaluated, result: Result) -> str:
    reference = result.float_model
    quantized = reference.runtime is not None and reference.runtime.integer > 0
    quantized = quantized or reference.file.provenance.get("kind") in _QUANTIZED
    if not quantized or _identical(model, result):
        return ""
    return f"'{reference.name}', the first model, is quantized, and drops are measured from it: give the float model first"


def _preprocessing(model: Evaluated, _: Result) -> str:
    differs = model.calibration.differs if model.calibration else ()
    if not differs:
        return ""
    return f"{'; '.join(differs)}: evaluate with the settings of the calibration, or calibrate again with these"


def _guessing(_: Evaluated, result: Result) -> str:
    metric = result.float_model.metric
    if metric is None or not metric.is_guess:
        return ""
    chance = metric.chance or 0.0
    better = metric.value > chance if metric.higher_is_better else metric.value < chance
    told = "cannot be told from" if better else "is no better than"
    advice = "check that labels match the model's class indices and that preprocessing is right"
    if metric.chance == 1.0 and metric.is_fraction:
        told, advice = "is that of", "all labels are one class; evaluate on samples of several"
    elif better:
        advice = "evaluate more samples, of all classes; if that does not help, " + advice
    return (
        f"float's own {metric.name}, {_shown(metric.value, metric)}{_interval(metric)}, {told} answers that do not "
        f"look at the sample ({_shown(chance, metric)}): {advice}"
    )


def _shown(value: float, metric: Metric) -> str:
    return f"{100 * value:.3g} %" if metric.is_fraction else f"{value:.3g}"


def _interval(metric: Metric) -> str:
    bounds = metric.interval
    if bounds is None:
        return ""
    return f" ({_shown(bounds.low, metric)} to {_shown(bounds.high, metric)})"


def _calibrated(model: Evaluated, result: Result) -> str:
    found, samples = model.calibration, result.data.samples
    if found is None or not found.seen or found.seen < _MOST * samples:
        return ""
    held = ", or with --hold-out" if found.shared else ""
    return (
        f"{found.seen:,} of {samples:,} samples were also used to calibrate '{model.name}', so the results are optimistic: "
        f"evaluate on other data{held}"
    )


def _copies(_: Evaluated, result: Result) -> str:
    data = result.data
    if data.distinct is None or data.distinct > _MOST * data.samples or data.samples <= 1:
        return ""
    return f"only {data.distinct:,} of the {data.samples:,} samples are different: evaluate each sample once"


def _incomparable(model: Evaluated, _: Result) -> str:
    if model.metric is not None and model.metric.of_lists:
        return ""
    lost = [f"'{o.output}'" for o in model.outputs if o.compared == 0 and not o.not_finite]
    if not lost:
        return ""
    return (
        f"no value of {', '.join(lost)} could be compared with float's, for its shape is another or float's own values are "
        "not finite: look at the notes, and evaluate on samples that the float model answers"
    )


def _contradiction(model: Evaluated, _: Result) -> str:
    """Return what does not go together with rules that are kept."""
    decision = model.decision
    found = []
    if decision is not None and decision.flip_rate > _MOST:
        found.append(
            f"{100 * decision.flip_rate:.3g} % of the decisions are not float's ({decision.flips} of {decision.samples})"
        )
    worst = model.worst_output
    lists = model.metric is not None and model.metric.of_lists
    if worst is not None and worst.not_finite:
        found.append(
            f"{worst.not_finite} values of '{worst.output}' are NaN or infinite where float's are not"
        )
    elif not lists and worst is not None and isfinite(worst.db) and worst.db < _NOISE_DB:
        found.append(f"'{worst.output}' is more noise than signal ({worst.db:.1f} dB SQNR)")
    if not found:
        return ""
    return (
        f"no rule is broken, yet {' and '.join(found)}: do not release it before you know why; if labels, preprocessing "
        "and the judged output are right, the candidate is broken"
    )


_OBJECTIONS: Mapping[ObjectionKind, tuple[str, Callable[[Evaluated, Result], str]]] = {
    "outdated": ("Made by an older quantkit", _outdated),
    "identical": ("The float model itself", _identical),
    "swapped": ("The reference is quantized", _swapped),
    "preprocessing": ("Other preprocessing than in calibration", _preprocessing),
    "guessing": ("Float itself is guessing", _guessing),
    "calibrated": ("Evaluated on calibration samples", _calibrated),
    "copies": ("Samples are copies of each other", _copies),
    "incomparable": ("Nothing could be compared", _incomparable),
    "contradiction": ("The figures contradict each other", _contradiction),
}
"""The title of each objection, and its check: a sentence, or "" where there is nothing against the figures."""

_RELATIVE, _ABSOLUTE = 1e-9, 1e-12
"""By how much a limit may be missed: 0.912 - 0.902 is more than 0.01 in binary, and must not be."""


def judge(
    result: Result, rules: Sequence[Rule], allow: Collection[str] = ()
) -> tuple[Verdict, ...]:
    """Return one verdict for each candidate, in the result's order; `allow` are objections that do not count.

    Args:
        result: What was measured.
        rules: What candidates must keep.
        allow: Kinds of objections that do not count.

    Raises:
        UsageError: There is no such rule.
    """
    return tuple(_verdict(model, rules, result, allow) for model in result.candidates)


def with_verdicts(result: Result, rules: Sequence[Rule], allow: Collection[str] = ()) -> Result:
    """Return the result with the rules and what came of them; without rules, with neither. Of a search the chosen one is judged.

    Args:
        result: What was measured.
        rules: What candidates must keep; none: nothing is judged.
        allow: Kinds of objections that do not count.
    """
    verdicts = judge(result, rules, allow) if rules else ()
    if result.tuning is not None:  # the others are there to be compared, not to be released
        verdicts = tuple(v for v in verdicts if v.candidate == result.tuning.chosen)
    return replace(result, rules=tuple(rules), verdicts=verdicts, allowed=tuple(allow))


def overall(verdicts: Sequence[Verdict], *, allow_undecided: bool = False) -> Outcome:
    """Return what came of all: the worst of them, a failed one first; an undecided one passes if that is allowed.

    Without any verdict nothing is decided.
    """
    outcomes = [v.outcome for v in verdicts]
    # Where one candidate fails for sure, that is the news.
    found = "fail" if "fail" in outcomes else worst_of(outcomes) if outcomes else "undecided"
    return "pass" if outcomes and found == "undecided" and allow_undecided else found


def judge_live(live: Live, rules: Sequence[Rule]) -> Verdict:
    """Return what comes of the rules by what live requests showed so far: the 95 % bound, as for a result."""
    judged = tuple(judge_rule(rule, live_figure_of(rule, live)) for rule in rules)
    return Verdict(
        candidate=live.candidate[:12],
        outcome=worst_of([one.outcome for one in judged]),
        rules=judged,
    )


def _verdict(
    model: Evaluated, rules: Sequence[Rule], result: Result, allow: Collection[str]
) -> Verdict:
    found = tuple(judge_rule(rule, figure_of(rule, model, result)) for rule in rules)
    outcome = worst_of([j.outcome for j in found])
    objections = tuple(
        replace(o, allowed=o.kind in allow)
        for o in _objections_of(model, result, fails=outcome == "fail")
    )
    if not all(o.allowed for o in objections):
        outcome = "invalid"
    return Verdict(candidate=model.name, outcome=outcome, rules=found, objections=objections)


def worst_of(outcomes: Sequence[Outcome]) -> Outcome:
    """Return the worst of what came of several rules."""
    order: tuple[Outcome, ...] = ("invalid", "fail", "undecided")
    return next((o for o in order if o in outcomes), "pass")


def judge_rule(rule: Rule, figure: RuleFigure | Missing) -> Judged:
    """Return what comes of a rule for the figure that it is about."""
    if isinstance(figure, Missing):
        return Judged(
            rule=rule,
            outcome="undecided",
            figure=None,
            estimate=None,
            margin=None,
            sentence=figure.advice,
        )
    bad = bad_end(figure, rule)
    of_estimate = _margin(rule, figure.estimate)
    margin = None if bad is None else _margin(rule, bad)
    outcome = _outcome(of_estimate, margin)
    room = of_estimate if outcome == "fail" or margin is None else margin
    return Judged(
        rule=rule,
        outcome=outcome,
        figure=bad,
        estimate=figure.estimate,
        margin=margin,
        sentence=sentence(figure, rule, bad, outcome, room),
    )


def _outcome(estimate_margin: float, margin: float | None) -> Outcome:
    """Judge by the margins of the estimate and of the bad end, which are the same without a confidence."""
    if not estimate_margin >= 0:  # also what is not a number
        return "fail"
    return "pass" if margin is not None and margin >= 0 else "undecided"


def _margin(rule: Rule, value: float) -> float:
    """Return the room between a value and the limit; 0 for what misses it by rounding alone."""
    left = rule.limit - value if rule.is_ceiling else value - rule.limit
    return 0.0 if abs(left) <= _RELATIVE * abs(rule.limit) + _ABSOLUTE else left
