"""Rules on live requests: the figures of a `Live`, judged once as any evaluation is, or after every request.

Once (`judge_live`): the 95 % bound, as for a result. After every request (`alarms`): the level is shared by
all rules and holds for all looks together, so that a candidate that keeps its rules is sent back with at most that chance,
however long it runs. For flips that is exact; for SQNR and latency in the limit of many requests.
"""

from collections.abc import Mapping, Sequence
from math import exp, isfinite, log, sqrt
from statistics import NormalDist

from quantkit.evaluate.gate.figures import Figure, Missing
from quantkit.evaluate.gate.judge import judge_rule, worst_of
from quantkit.numerics.rates import evidence, lower_bound, wilson
from quantkit.result import Interval, Rule, Verdict
from quantkit.result.live import Live, Pairs

__all__ = ["alarms", "judge_live"]

_ENOUGH = 100  # rows, for what holds in the limit of many
_DECIBEL = 10 / log(10)


def judge_live(live: Live, rules: Sequence[Rule]) -> Verdict:
    """Return what comes of the rules, by what was seen so far."""
    judged = tuple(judge_rule(rule, _figure(rule, live)) for rule in rules)
    return Verdict(
        candidate=live.candidate[:12],
        outcome=worst_of([one.outcome for one in judged]),
        rules=judged,
    )


def _figure(rule: Rule, live: Live) -> Figure | Missing:
    confidence = rule.confidence or 0.95
    if rule.key == "max_flips":
        return _flips(live, confidence)
    return _sqnr(live, confidence) if rule.key == "min_sqnr_db" else _latency(live, confidence)


def _flips(live: Live, confidence: float) -> Figure | Missing:
    if not live.decisions:
        return Missing("no decision was compared yet: no output decides, or no request came")
    low, high = wilson(live.flips, live.decisions, confidence)
    interval = Interval(low=low, high=high, confidence=confidence)
    rate = live.flips / live.decisions
    return Figure("share of decisions that flip", rate, "percent", interval, count=live.decisions)


def _sqnr(live: Live, confidence: float) -> Figure | Missing:
    worst = live.worst
    if worst is None or not worst.energies.n:
        return Missing("no output was compared yet")
    if not isfinite(worst.db):
        lost = f"{worst.not_finite} values of '{worst.output}' are not finite"
        what = f"SQNR ({lost if worst.not_finite else 'the outputs are those of the reference'})"
        return Figure(what, worst.db, "dB", exact=True)
    pairs = worst.energies
    # The variance of log(S / E) by its derivative: that of s_i / S - e_i / E.
    half = _z(confidence) * sqrt(pairs.variance(1 / pairs.a, -1 / pairs.b) * pairs.n) * _DECIBEL
    interval = Interval(low=worst.db - half, high=worst.db + half, confidence=confidence)
    known = interval if pairs.n > 1 else None
    return Figure(f"SQNR of '{worst.output}'", worst.db, "dB", known, count=pairs.n)


def _latency(live: Live, confidence: float) -> Figure | Missing:
    pairs = live.ratios
    if not pairs.n:
        return Missing("no run was timed yet")
    middle = pairs.mean(1, 0)
    half = _z(confidence) * sqrt(pairs.variance(1, 0) / pairs.n)
    interval = Interval(low=exp(middle - half), high=exp(middle + half), confidence=confidence)
    known = interval if pairs.n > 1 else None
    what = "latency ratio per row"
    return Figure(what, exp(middle), "times", known, count=pairs.n, counted="runs")


def _z(confidence: float) -> float:
    return NormalDist().inv_cdf((1 + confidence) / 2)


def alarms(live: Live, rules: Sequence[Rule], alpha: float = 0.05) -> Mapping[str, str]:
    """Return the rules that are broken for sure, by key, with the reason; to be asked after every request.

    Args:
        live: What was seen so far.
        rules: What the candidate must keep.
        alpha: The chance of an alarm that is none, over all looks and all rules.
    """
    found: dict[str, str] = {}
    share = alpha / max(1, len(rules))
    for rule in rules:
        if (
            rule.key == "max_flips"
            and evidence(live.flips, live.decisions, rule.limit) >= 1 / share
        ):
            found[rule.key] = (
                f"{live.flips} of {live.decisions} decisions differ (limit: {100 * rule.limit:g} %)"
            )
        elif rule.key == "min_sqnr_db" and (said := _noisy(live, rule.limit, share)):
            found[rule.key] = said
        elif rule.key == "max_latency_ratio" and _above(
            live.ratios, (1, 0), log(rule.limit), share
        ):
            ratio = exp(live.ratios.mean(1, 0))
            found[rule.key] = f"runs take {ratio:.2f} of the time before (limit: {rule.limit:g})"
    return found


def _noisy(live: Live, limit: float, alpha: float) -> str:
    worst = live.worst
    if worst is None:
        return ""
    if worst.not_finite:
        return f"{worst.not_finite} values of '{worst.output}' are not finite"
    # The rule is broken where the mean of (error * 10^(limit/10) - signal) is above 0.
    if not _above(worst.energies, (-1, 10 ** (limit / 10)), 0.0, alpha):
        return ""
    return f"SQNR of '{worst.output}' is {worst.db:.1f} dB (required: {limit:g} dB)"


def _above(pairs: Pairs, weights: tuple[float, float], limit: float, alpha: float) -> bool:
    """Say whether the mean of a weighted pair is above a limit for sure."""
    if pairs.n < _ENOUGH:
        return False
    return lower_bound(pairs.mean(*weights), pairs.variance(*weights), pairs.n, alpha) > limit
