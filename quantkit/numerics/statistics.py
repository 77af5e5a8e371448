"""What can be said of a figure that was measured on some samples: intervals, tests, ranks.

Every interval is two-sided at the given confidence. ``None`` stands for "so few samples that no interval can be given".
No function needs memory for more than a few samples' worth of draws, and those that redraw values sort them
first: the same samples in another order, with the same seed, give the same interval. (`redrawn_counts` knows no values:
who calls it sorts.)
"""

from collections.abc import Callable, Iterator, Sequence
from math import sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quantkit.numerics.rates import wilson

Bounds = tuple[float, float]
"""The low and the high end of an interval."""

_BLOCK = 1 << 16  # samples that are redrawn at once
_FEW = 16  # one binomial draw costs about as much as this many drawn indices


def flips_interval(gained: int, lost: int, n: int, confidence: float = 0.95) -> Bounds:
    """Return the interval of the drop ``(lost - gained) / n`` between two models on the same n samples.

    Tango's score interval: the drops d with ``|lost - gained - n d| <= z sqrt(n (2 q + d (1 - d)))``, where q is the
    likeliest rate of gains if the drop is d. Covers also where flips are rare; redrawing the samples does not (no flip
    seen: no draw has one), and covers 20 to 60 % instead of 95 % with one flip to be expected. Never of zero
    width: without flips it is ``+-z^2 / (n + z^2)``.

    Args:
        gained: Samples that float gets wrong and the candidate right.
        lost: Samples that float gets right and the candidate wrong.
        n: All samples.
        confidence: 0.95 for example.
    """
    # Solved by bisection: the score statistic has no closed form for its ends, but falls as d grows, so each end is
    # where it crosses z. Rounding in the bisection may leave the estimate itself outside by an ulp, which a reader
    # would take for an error: hence min and max.
    z, seen = _z(confidence), (lost - gained) / n
    # d lies inside as long as its score is within +-z; the score falls as d grows.
    inside = (
        _last_inside(lambda d: _score(gained, lost, n, d) <= z, seen, -1.0),
        _last_inside(lambda d: _score(gained, lost, n, d) >= -z, seen, 1.0),
    )
    return min(inside[0], seen), max(inside[1], seen)


def redrawn_means(values: ArrayLike, *, draws: int = 1000, seed: int = 0) -> NDArray[np.float64]:
    """Return the means of all columns over as many rows drawn with replacement: (draws, columns).

    A draw takes the same rows for all columns, so that ratios and differences of the means are redrawn in
    pairs. Rows that occur often are drawn as counts: hits and flips of 100,000 samples cost what three samples cost.

    Args:
        values: (n,) or (n, k).
        draws: How many times.
        seed: Of the draws.
    """
    # Drawing n rows with replacement is drawing how often each distinct row occurs, by a multinomial. Hits and flips
    # have three distinct rows, so their cost does not grow with n; values that are all different are drawn as
    # indices, block by block, since a table of (draws, n) counts of 100,000 samples would be 800 MB.
    table = np.asarray(values, np.float64)
    table = table[:, None] if table.ndim == 1 else table
    rows, counts = np.unique(table, axis=0, return_counts=True)
    n = len(table)
    if len(rows) * _FEW < n:
        drawn = np.random.default_rng(seed).multinomial(n, counts / n, draws)
        return np.asarray(drawn @ rows / n)
    rows = np.repeat(rows, counts, axis=0)
    return np.concatenate([w @ rows / n for w in redrawn_counts(n, draws=draws, seed=seed)])


def redrawn_counts(n: int, *, draws: int = 1000, seed: int = 0) -> Iterator[NDArray[np.float64]]:
    """Yield how often each of n samples is drawn with replacement, n times in all: (some draws, n).

    Args:
        n: Samples.
        draws: How many times all are drawn.
        seed: The same gives the same draws.
    """
    rng, size = np.random.default_rng(seed), max(_BLOCK // n, 1)
    for start in range(0, draws, size):
        block = min(size, draws - start)
        drawn = rng.integers(n, size=(block, n)) + np.arange(block)[:, None] * n
        counts = np.bincount(drawn.ravel(), minlength=block * n)
        yield counts.reshape(block, n).astype(np.float64)


def unseen_weights(
    counts: ArrayLike, *, draws: int = 1000, seed: int = 0
) -> Iterator[NDArray[np.float64]]:
    """Yield random weights of groups of samples and, last, of one sample that was not seen: (some draws, groups + 1).

    Dirichlet weights, which add up to 1: each of n + 1 samples has a share, and the shares of a group are added. With the
    worst value for the unseen sample, a quantile of the weighted mean is Gaffke's bound of the mean of bounded
    values. For hits that is Clopper-Pearson's bound, for many values of little spread the normal one; in between
    it counts a failure that no sample showed at a rate of up to 3.7 / n (at 97.5 %), the rule of three.

    Args:
        counts: Samples in each group.
        draws: How many times weights are drawn.
        seed: The same gives the same weights.
    """
    shapes = np.append(np.asarray(counts, np.float64), 1.0)
    rng, size = np.random.default_rng(seed), max(_BLOCK // shapes.size, 1)
    for start in range(0, draws, size):
        shape = min(size, draws - start), shapes.size
        single = shapes.max() == 1  # drawing an exponential costs half of drawing a gamma
        drawn = rng.standard_exponential(shape) if single else rng.standard_gamma(shapes, shape)
        yield drawn / drawn.sum(axis=1, keepdims=True)


def unseen_bounds(
    seen: ArrayLike, unseen: ArrayLike, reach: float, confidence: float = 0.95
) -> Bounds:
    """Return the interval of a figure of which an unseen sample may be `reach` worse or better than 0.

    Args:
        seen: Of each draw of `unseen_weights`, what the seen samples add to the figure.
        unseen: Of each draw, the weight of the unseen sample.
        reach: The value of the unseen sample, on either side.
        confidence: Of the interval.
    """
    middle, rest = np.asarray(seen, np.float64), reach * np.asarray(unseen, np.float64)
    low, high = _tails(confidence)
    return float(np.quantile(middle - rest, low)), float(np.quantile(middle + rest, high))


def percentiles(drawn: ArrayLike, confidence: float = 0.95) -> Bounds:
    """Return the ends of the middle ``confidence`` of the draws of a figure."""
    low, high = np.quantile(np.asarray(drawn, np.float64), _tails(confidence))
    return float(low), float(high)


def bootstrap_mean(
    values: ArrayLike, *, draws: int = 1000, seed: int = 0, confidence: float = 0.95
) -> Bounds | None:
    """Return the interval of the mean of values of any distribution; None for fewer than 2.

    The studentized bootstrap: ``mean - t* s / sqrt(n)`` for the quantiles t* of ``(mean* - mean) / (s* / sqrt(n))``
    over the draws, which follows skewed values, hulled with Student's interval, which holds where draws of rare
    values see too little. The spread s* of a draw counts as at least ``s / sqrt(n)``: a draw of one
    value only would have none. (Plain percentiles of the mean cover 88 to 90 % instead of 95 % for skewed values and n = 50.)

    Args:
        values: One per sample.
        draws: How many times samples are redrawn.
        seed: The same gives the same interval.
        confidence: 0.95 for example.
    """
    from scipy.special import stdtrit

    column = np.asarray(values, np.float64)
    n = len(column)
    if n < 2:
        return None
    mean, variance = float(column.mean()), float(column.var())
    error = sqrt(variance / (n - 1))
    centred = column - mean  # squares of values far from zero would lose what differs
    first, second = redrawn_means(np.stack([centred, centred**2], 1), draws=draws, seed=seed).T
    spread = np.sqrt(np.maximum(second - first**2, variance / n) / (n - 1))
    t = np.divide(first, spread, out=np.zeros_like(first), where=spread > 0)
    low, high = percentiles(t, confidence)
    half = float(stdtrit(n - 1, _tails(confidence)[1])) * error
    return hull((mean - high * error, mean - low * error), (mean - half, mean + half))


def mean_interval(
    values: ArrayLike, *, draws: int = 1000, seed: int = 0, confidence: float = 0.95
) -> Bounds | None:
    """Return the interval of a mean: Wilson's for hits (0 and 1), else the bootstrap's.

    None for fewer than 2 values that are no hits.

    Args:
        values: One per sample; only 0 and 1 are hits.
        draws: How many times samples are redrawn.
        seed: The same gives the same interval.
        confidence: 0.95 for example.
    """
    column = np.asarray(values, np.float64)
    if np.isin(column, (0.0, 1.0)).all():
        return wilson(int(column.sum()), len(column), confidence)
    return bootstrap_mean(column, draws=draws, seed=seed, confidence=confidence)


def drop_interval(
    drops: ArrayLike,
    *,
    reach: float = 1.0,
    draws: int = 1000,
    seed: int = 0,
    confidence: float = 0.95,
) -> Bounds | None:
    """Return the interval of the mean of the samples' own drops; None for one sample that changed and is not a hit.

    For hits (-1, 0, 1) it is `flips_interval`. For other values the studentized bootstrap's, which follows skewed values,
    hulled with Gaffke's bounds (`unseen_weights`), which leave room for a failure that no sample showed.

    Args:
        drops: How much worse each sample fares than with float; positive is worse.
        reach: What a failed sample costs; at least the largest change that was seen is assumed.
        draws: How often samples are redrawn.
        seed: Of the draws.
        confidence: Of the interval.
    """
    column = np.asarray(drops, np.float64)
    gained, lost = int((column < 0).sum()), int((column > 0).sum())
    if np.isin(column, (-1.0, 0.0, 1.0)).all():
        low, high = flips_interval(gained, lost, len(column), confidence)
        # If not one sample differs, the scale of the metric is unknown: a change is taken to be worth `reach`.
        return (low, high) if gained + lost else (low * reach, high * reach)
    drawn = bootstrap_mean(column, draws=draws, seed=seed, confidence=confidence)
    if drawn is None:
        return None
    values, counts = np.unique(column, return_counts=True)
    weights = unseen_weights(counts, draws=draws, seed=seed)
    seen, unseen = np.concatenate([(w[:, :-1] @ values, w[:, -1]) for w in weights], axis=1)
    most = max(reach, float(np.abs(column).max()))
    return hull(drawn, unseen_bounds(seen, unseen, most, confidence))


def hull(one: Bounds, other: Bounds) -> Bounds:
    """Return the interval that holds both."""
    return min(one[0], other[0]), max(one[1], other[1])


def detectable_drop(low: float, high: float) -> float | None:
    """Return the drop that a sample could not tell from none, given the interval of its drop.

    The interval holds the drops that are compatible with what was seen. If it holds 0, a drop up to its high end and
    no drop are both compatible: "a drop of up to ``high`` is still possible". 0: every drop is ruled out (the
    interval ends below 0). None: a drop was told (the interval begins above 0).
    """
    return None if low > 0 else max(high, 0.0)


def mcnemar_exact(gained: int, lost: int) -> float:
    """Return the probability of a split of the flips as uneven as this one, if gains and losses are equally likely.

    Two-sided and exact: ``min(1, 2 P(X <= min(gained, lost)))`` for X binomial of ``gained + lost`` tosses. 1 without flips.
    """
    from scipy.special import bdtr

    flips = gained + lost
    return min(1.0, 2 * float(bdtr(min(gained, lost), flips, 0.5))) if flips else 1.0


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Return the p-values corrected for how many they are (Holm), in the order given.

    The k-th smallest of m becomes ``max_{j <= k} min(1, (m - j + 1) p_j)``: with all below alpha declared real, the
    chance that any of them is not stays below alpha, however they depend on each other.
    """
    p = np.asarray(p_values, np.float64)
    order = np.argsort(p, kind="stable")
    grown = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)), 1.0)
    corrected = np.empty_like(grown)
    corrected[order] = grown
    return tuple(corrected.tolist())


def median_interval(values: ArrayLike, confidence: float = 0.95) -> Bounds | None:
    """Return the interval of a median, from order statistics; None if there are too few values (under 6 at 95 %).

    ``[x_(k), x_(n+1-k)]`` with the largest k for which ``P(Binomial(n, 1/2) < k) <= (1 - confidence) / 2``: it covers
    with at least the confidence, whatever the distribution.
    """
    from scipy.special import bdtr

    ordered = np.sort(np.asarray(values, np.float64))
    n, tail = len(ordered), _tails(confidence)[0]
    k = int(np.searchsorted(bdtr(np.arange(n // 2 + 1), n, 0.5), tail, side="right"))
    return (float(ordered[k - 1]), float(ordered[n - k])) if k else None


def quantile_bound(values: ArrayLike, share: float, confidence: float = 0.95) -> float | None:
    """Return a lower confidence bound (one-sided) of a quantile of at most 1/2; None if there are too few values for one.

    ``x_(k)`` with the largest k for which ``P(Binomial(n, share) < k) <= 1 - confidence``: the quantile is at least that
    with the confidence, whatever the distribution. See `quantkit.numerics.rates.fewest_for_quantile` for the least n.
    """
    from scipy.special import bdtr

    ordered = np.sort(np.asarray(values, np.float64))
    n = len(ordered)
    below = bdtr(np.arange(int(n * share) + 1), n, share)
    k = int(np.searchsorted(below, 1 - confidence, side="right"))
    return float(ordered[k - 1]) if k else None


def spearman(a: ArrayLike, b: ArrayLike) -> float:
    """Return the rank correlation, ties ranked in their middle; 0 where one of the two is constant: it ranks nothing."""
    one, other = (_ranks(np.asarray(x, np.float64)) for x in (a, b))
    scale = sqrt(float(one @ one) * float(other @ other))
    return min(max(float(one @ other) / scale, -1.0), 1.0) if scale else 0.0


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the ranks less their mean."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - (counts - 1) / 2 - (len(values) + 1) / 2
    return np.asarray(middle[inverse])


def _tails(confidence: float) -> tuple[float, float]:
    tail = (1 - confidence) / 2
    return tail, 1 - tail


def _z(confidence: float) -> float:
    return NormalDist().inv_cdf(_tails(confidence)[1])


def _score(gained: int, lost: int, n: int, d: float) -> float:
    """How many standard deviations what was seen lies above a drop of d."""
    b = (2 * n - lost + gained) * d - gained - lost
    rate = (sqrt(max(b * b + 8 * n * gained * d * (1 - d), 0.0)) - b) / (4 * n)
    deviation = sqrt(max(n * (2 * rate + d * (1 - d)), 0.0))
    beyond = lost - gained - n * d
    return beyond / deviation if deviation else float(np.sign(beyond)) * float("inf")


def _last_inside(inside: Callable[[float], bool], start: float, end: float) -> float:
    """Return how far from `start` (inside) towards `end` the condition holds, by bisection."""
    for _ in range(60):
        middle = (start + end) / 2
        start, end = (middle, end) if inside(middle) else (start, middle)
    return end
