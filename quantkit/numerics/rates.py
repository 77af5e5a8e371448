"""What can be said of a rate or a mean from counts and sums alone: once, or after every sample.

An interval holds for one look. Who looks after every sample and acts on the first alarm would act on chance sooner or
later: `evidence` and `lower_bound` hold for all looks together (Ville's inequality).

Standard library alone.
"""

from math import ceil, exp, inf, log, log1p, sqrt
from statistics import NormalDist

_GRID = 2**0.5  # from one alternative to the next
_TYPICAL = 500.0  # samples at which the bound is tightest


def wilson(count: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return Wilson's score interval of a rate of which ``count / n`` was seen.

    The rates p with ``|count/n - p| <= z sqrt(p (1 - p) / n)``. Never of zero width: with a count of 0 it ends at
    ``z^2 / (n + z^2)``, about 3.8 / n at 95 %.

    Args:
        count: How often it was seen.
        n: Of how many, at least 1.
        confidence: 0.95 for example.
    """
    z2, rate = NormalDist().inv_cdf((1 + confidence) / 2) ** 2, count / n
    middle = (rate + z2 / (2 * n)) / (1 + z2 / n)
    half = sqrt(z2 * (rate * (1 - rate) / n + z2 / (4 * n * n))) / (1 + z2 / n)
    # An end that is 0 or 1 by the formula must not miss it by rounding.
    return min(max(middle - half, 0.0), rate), max(min(middle + half, 1.0), rate)


def fewest_for_quantile(share: float, confidence: float = 0.95) -> int:
    """Return how many samples it takes until the smallest one is a lower confidence bound of a quantile.

    The least n with ``(1 - share)^n <= 1 - confidence``: 299 for 1 % at 95 %.
    """
    return ceil(log(1 - confidence) / log1p(-share))


def evidence(count: int, n: int, limit: float) -> float:
    """Return how much speaks for a rate above a limit, after every sample anew: with 1/a or more, the rate is above it.

    ``sum_j w (q_j / p)^count ((1 - q_j) / (1 - p))^(n - count)`` for alternatives ``q_j = p 2^(j/2) < 1`` of equal weight.
    Each factor has a mean of at most 1 while the rate is at most p, so that the sum is a supermartingale: the chance that
    it *ever* reaches 1/a is at most a, however often one looks (Ville). Exact for independent samples.

    Args:
        count: How often it was seen.
        n: Of how many.
        limit: p, from 0 on and below 1.
    """
    if limit == 0:
        return inf if count else 1.0
    alternatives = []
    q = limit * _GRID
    while q < 1:
        alternatives.append(q)
        q *= _GRID
    alternatives = alternatives or [(1 + limit) / 2]
    logs = [count * log(q / limit) + (n - count) * log((1 - q) / (1 - limit)) for q in alternatives]
    top = max(logs)
    if top > 700:  # what a float holds
        return inf
    return sum(exp(one) for one in logs) / len(logs)


def lower_bound(mean: float, variance: float, n: int, alpha: float) -> float:
    """Return what a mean lies above, after every sample anew, but for a chance of `alpha` over all looks together.

    Robbins' mixture with the estimated variance: ``mean - s sqrt(2 (n r + 1) / (n^2 r) log(1 + sqrt(n r + 1) / (2 a)))``.
    Holds in the limit of many samples, whatever their distribution.

    Args:
        mean: Of the samples.
        variance: Of the samples.
        n: How many.
        alpha: 0.05 for example.
    """
    # r makes the bound tightest near a typical number of samples (Waudby-Smith and others, time-uniform central limit theory).
    r = (-2 * log(2 * alpha) + log(-2 * log(2 * alpha) + 1)) / _TYPICAL
    spread = n * r + 1
    half = sqrt(2 * spread / (n * n * r) * log(1 + sqrt(spread) / (2 * alpha)))
    return mean - sqrt(max(variance, 0.0)) * half
