"""Whether candidates keep the rules.

Rules, from settings and from rules that stand elsewhere.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from quantkit.errors import UsageError
from quantkit.gate.figures import Figure, Missing, bad_end, figure_of, is_ceiling
from quantkit.gate.objections import objections_of
from quantkit.gate.wording import more_samples, room, sentence
from quantkit.result import Evaluated, Judged, Outcome, Result, Rule, Verdict
from quantkit.settings import GateSettings, Percent, closest

__all__ = ["KEYS", "judge", "overall", "rules_for", "rules_of", "with_verdicts"]

KEYS = (
    "max_drop",
    "min_size_reduction",
    "max_latency_ratio",
    "min_int8_share",
    "max_flips",
    "min_sqnr_db",
)
"""All rules there are, in the order in which they are shown."""


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
    """Return the result with the rules and what came of them; without rules, with neither.

    Args:
        result: What was measured.
        rules: What candidates must keep; none: nothing is judged.
        allow: Kinds of objections that do not count.
    """
    verdicts = judge(result, rules, allow) if rules else ()
    return replace(result, rules=tuple(rules), verdicts=verdicts, allowed=tuple(allow))


def overall(verdicts: Sequence[Verdict], *, allow_undecided: bool = False) -> Outcome:
    """Return what came of all: the worst of them, a failed one first; an undecided one passes if that is allowed.

    Without any verdict nothing is decided.
    """
    outcomes = [v.outcome for v in verdicts]
    # Where one candidate fails for sure, that is the news.
    found = "fail" if "fail" in outcomes else _worst(outcomes) if outcomes else "undecided"
    return "pass" if outcomes and found == "undecided" and allow_undecided else found


def _verdict(
    model: Evaluated, rules: Sequence[Rule], result: Result, allow: Collection[str]
) -> Verdict:
    found = tuple(_judged(rule, figure_of(rule, model, result)) for rule in rules)
    outcome = _worst([j.outcome for j in found])
    objections = tuple(
        replace(o, allowed=o.kind in allow)
        for o in objections_of(model, result, fails=outcome == "fail")
    )
    if not all(o.allowed for o in objections):
        outcome = "invalid"
    return Verdict(candidate=model.name, outcome=outcome, rules=found, objections=objections)


def _worst(outcomes: Sequence[Outcome]) -> Outcome:
    order: tuple[Outcome, ...] = ("invalid", "fail", "undecided")
    return next((o for o in order if o in outcomes), "pass")


def _judged(rule: Rule, figure: Figure | Missing) -> Judged:
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
    margin = None if bad is None else _margin(rule, bad)
    outcome = _outcome(_margin(rule, figure.estimate), margin)
    return Judged(
        rule=rule,
        outcome=outcome,
        figure=bad,
        estimate=figure.estimate,
        margin=margin,
        sentence=f"{sentence(figure, rule, bad)}: {_why(figure, rule, outcome, bad)}",
    )


def _why(figure: Figure, rule: Rule, outcome: Outcome, bad: float | None) -> str:
    if outcome == "fail":
        even = "" if bad == figure.estimate else "even the estimate is "
        return even + room(figure, rule, _margin(rule, figure.estimate))
    gap = "" if bad is None else room(figure, rule, _margin(rule, bad))
    if outcome == "pass":
        return gap
    return "; ".join(t for t in (gap, more_samples(figure, rule, bad)) if t)


def _outcome(estimate_margin: float, margin: float | None) -> Outcome:
    """Judge by the margins of the estimate and of the bad end, which are the same without a confidence."""
    if not estimate_margin >= 0:  # also what is not a number
        return "fail"
    return "pass" if margin is not None and margin >= 0 else "undecided"


def _margin(rule: Rule, value: float) -> float:
    """Return the room between a value and the limit; 0 for what misses it by rounding alone."""
    left = rule.limit - value if is_ceiling(rule) else value - rule.limit
    return 0.0 if abs(left) <= _RELATIVE * abs(rule.limit) + _ABSOLUTE else left
