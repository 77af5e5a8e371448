"""Whether candidates keep the rules, those of the settings and those that stand elsewhere.

Objections stand against the evidence itself: figures that would mean nothing, however good they are.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from math import isfinite

from quantkit.errors import UsageError
from quantkit.evaluate.gate.figures import KEYS, Figure, Missing, bad_end, figure_of, is_ceiling
from quantkit.evaluate.gate.wording import sentence
from quantkit.result import (
    SCHEMA,
    Evaluated,
    Judged,
    Metric,
    Objection,
    Outcome,
    Result,
    Rule,
    Verdict,
)
from quantkit.settings import GateSettings, Percent, closest

__all__ = ["KEYS", "judge", "judge_rule", "overall", "rules_for", "rules_of", "with_verdicts"]
__all__ += ["worst_of"]

_MOST = 0.5  # of the decisions, or of the samples
_NOISE_DB = 5.0  # below it an output is more noise than signal, whatever the model is for


def _objections_of(model: Evaluated, result: Result, *, fails: bool) -> tuple[Objection, ...]:
    """Return the objections to a candidate's figures, the gravest first; `fails`: a rule already says no.

    Args:
        model: The candidate.
        result: The evaluation.
        fails: A rule is broken: then nothing contradicts that all are kept.
    """
    found = [
        *_outdated(result),
        *_wrong_files(model, result),
        *_preprocessing(model),
        *_guessing(result),
        *_calibrated(model, result),
        *_copies(result),
        *_incomparable(model),
    ]
    # An output of noise does not contradict a verdict that says so.
    return tuple(found if fails else [*found, *_contradictions(model)])


def _outdated(result: Result) -> Iterator[Objection]:
    if result.schema != SCHEMA:
        yield Objection(
            kind="outdated",
            title="Made by an older quantkit",
            sentence=f"this result ({result.schema}) does not hold what tells whether float is guessing and how samples "
            "were prepared: evaluate again",
        )


def _wrong_files(model: Evaluated, result: Result) -> Iterator[Objection]:
    reference = result.float_model
    if model.file.sha256 == reference.file.sha256:
        yield Objection(
            kind="identical",
            title="The float model itself",
            sentence=f"'{model.name}' is the file of the float model: evaluate the model that is to go out",
        )
        return
    quantized = reference.runtime is not None and reference.runtime.integer > 0
    if quantized or reference.file.provenance.get("kind") in {
        "dynamic",
        "static",
        "weights",
        "float16",
    }:
        yield Objection(
            kind="swapped",
            title="The reference is quantized",
            sentence=f"'{reference.name}', the first model, is quantized, and drops are measured from it: give the float "
            "model first",
        )


def _preprocessing(model: Evaluated) -> Iterator[Objection]:
    differs = model.calibration.differs if model.calibration else ()
    if differs:
        yield Objection(
            kind="preprocessing",
            title="Other preprocessing than in calibration",
            sentence=f"{'; '.join(differs)}: evaluate with the settings of the calibration, or calibrate again with these",
        )


def _guessing(result: Result) -> Iterator[Objection]:
    metric = result.float_model.metric
    if metric is None or not metric.is_guess:
        return
    better = metric.value > (metric.chance or 0.0)
    if not metric.higher_is_better:
        better = metric.value < (metric.chance or 0.0)
    told = "cannot be told from" if better else "is no better than"
    advice = "check that labels match the model's class indices and that preprocessing is right"
    if metric.chance == 1.0 and metric.is_fraction:
        told, advice = "is that of", "all labels are one class; evaluate on samples of several"
    elif better:
        advice = "evaluate more samples, of all classes; if that does not help, " + advice
    yield Objection(
        kind="guessing",
        title="Float itself is guessing",
        sentence=f"float's own {metric.name}, {_shown(metric.value, metric)}{_interval(metric)}, {told} answers that do not "
        f"look at the sample ({_shown(metric.chance or 0.0, metric)}): {advice}",
    )


def _shown(value: float, metric: Metric) -> str:
    return f"{100 * value:.3g} %" if metric.is_fraction else f"{value:.3g}"


def _interval(metric: Metric) -> str:
    bounds = metric.interval
    if bounds is None:
        return ""
    return f" ({_shown(bounds.low, metric)} to {_shown(bounds.high, metric)})"


def _calibrated(model: Evaluated, result: Result) -> Iterator[Objection]:
    seen = model.calibration.seen if model.calibration else 0
    held = ", or with --hold-out" if model.calibration and model.calibration.shared else ""
    if seen and seen >= _MOST * result.data.samples:
        yield Objection(
            kind="calibrated",
            title="Evaluated on calibration samples",
            sentence=f"{seen:,} of {result.data.samples:,} samples were also used to calibrate '{model.name}', so the results are "
            f"optimistic: evaluate on other data{held}",
        )


def _copies(result: Result) -> Iterator[Objection]:
    data = result.data
    if data.distinct is not None and data.distinct <= _MOST * data.samples and data.samples > 1:
        yield Objection(
            kind="copies",
            title="Samples are copies of each other",
            sentence=f"only {data.distinct:,} of the {data.samples:,} samples are different: evaluate each sample once",
        )


def _incomparable(model: Evaluated) -> Iterator[Objection]:
    if model.metric is not None and model.metric.of_lists:
        return
    outputs = model.drift.outputs if model.drift is not None else ()
    lost = [o.output for o in outputs if o.compared == 0 and not o.not_finite]
    if lost:
        named = ", ".join(f"'{name}'" for name in lost)
        yield Objection(
            kind="incomparable",
            title="Nothing could be compared",
            sentence=f"no value of {named} could be compared with float's, for its shape is another or float's own values "
            "are not finite: look at the notes, and evaluate on samples that the float model answers",
        )


def _contradictions(model: Evaluated) -> Iterator[Objection]:
    """Say what does not go together with rules that are kept."""
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
    if found:
        yield Objection(
            kind="contradiction",
            title="The figures contradict each other",
            sentence=f"no rule is broken, yet {' and '.join(found)}: do not release it before you know why; if labels, "
            "preprocessing and the judged output are right, the candidate is broken",
        )


def rules_of(settings: GateSettings) -> tuple[Rule, ...]:
    """Return the rules that the settings name, judged at the bad end unless they ask for the estimate."""
    limits = {key: getattr(settings, key) for key in KEYS}
    return tuple(
        Rule(
            key=key,
            limit=float(limit),
            confidence=settings.judged_at,
            relative=key == "max_drop" and isinstance(limit, Percent),
        )
        for key, limit in limits.items()
        if limit is not None
    )


def rules_for(
    stored: Sequence[Rule], recipe: GateSettings, flags: GateSettings, without: Collection[str] = ()
) -> tuple[Rule, ...]:
    """Return the rules that hold: flags over the recipe, the recipe over rules that a result holds.

    Args:
        stored: Of the result.
        recipe: The table [gate].
        flags: What the command line says.
        without: Keys of rules that are left out.

    Raises:
        UsageError: A rule is to be left out that there is not.
    """
    # A recipe with any rule replaces the stored rules as a whole, since a rule that was deleted from it must not live
    # on in an old result; flags are added one by one. How surely rules are judged is one choice for all of them:
    # flags, then recipe, then what the stored rules were judged at, so that a flag that adds a rule to a result does
    # not silently judge the new rule more mildly than the others. Unknown keys sort last, and are refused when they
    # are judged.
    base = {r.key: r for r in rules_of(recipe) or stored}
    said = next((s for s in (flags, recipe) if s.estimate or s.confidence is not None), None)
    usual = next((r.confidence for r in base.values()), flags.judged_at)
    usual = usual if said is None else said.judged_at
    found = base | {r.key: replace(r, confidence=usual) for r in rules_of(flags)}
    for key in without:
        if key not in found:
            known = f"there are {', '.join(found)}" if found else "there is none"
            raise UsageError(
                f"There is no rule '{key}' to leave out{closest(key, found)}: {known}."
            )
        del found[key]
    order = sorted(found, key=lambda key: KEYS.index(key) if key in KEYS else len(KEYS))
    return tuple(found[k] if said is None else replace(found[k], confidence=usual) for k in order)


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


def judge_rule(rule: Rule, figure: Figure | Missing) -> Judged:
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
    left = rule.limit - value if is_ceiling(rule) else value - rule.limit
    return 0.0 if abs(left) <= _RELATIVE * abs(rule.limit) + _ABSOLUTE else left
