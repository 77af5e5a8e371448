"""Rules on live requests, asked after every request.

The level is shared by all rules and holds for all looks together, so that a candidate that keeps its rules is sent back with
at most that chance, however long it runs. For flips that is exact; for SQNR and latency in the limit of many requests.
"""

from collections.abc import Mapping, Sequence
from math import exp, log

from quantkit.numerics.rates import evidence, lower_bound
from quantkit.result import Rule
from quantkit.result.live import Live, Pairs

_ENOUGH = 100  # rows, for what holds in the limit of many


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
