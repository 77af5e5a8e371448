"""Verdicts: what comes of each rule for a candidate, and the objections to its figures.

Objections stand against the evidence itself: figures that would mean nothing, however good they are.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from math import isfinite

from quantkit.evaluate.gate.figures import Missing, RuleFigure, bad_end, figure_of, live_figure_of
from quantkit.evaluate.gate.wording import sentence
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
    outputs = model.drift.outputs if model.drift is not None else ()
    lost = [f"'{o.output}'" for o in outputs if o.compared == 0 and not o.not_finite]
    if not lost:
        return ""
    return (
        f"no value of {', '.join(lost)} could be compared with float's, for its shape is another or float's own values are "
        "not finite: look at the notes, and evaluate on samples that the float model answers"
    )


def _contradiction(model: Evaluated, _: Result) -> str:
    """Return what does not go together with rules that are kept."""
    decision = model.drift.decision if model.drift is not None else None
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
