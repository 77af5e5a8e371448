"""What can and cannot be said with so many samples, in a sentence."""

from quantkit.result import Decision, Interval, Metric, OutputDrift

__all__ = ["sentence_of", "unlabelled_sentence"]


def sentence_of(metric: Metric, samples: int) -> str:
    """Return what was found of the main metric, and what the sample is too small to tell."""
    name, n, drop = metric.name, samples, metric.drop or 0.0
    bounds = metric.drop_interval
    found = f"{_amount(abs(drop), metric)} of {name}"
    if bounds is None:
        return f"A {_word(drop)} of {found} was measured; with {_samples(n)} no more can be said."
    sure = f"{_span(bounds, metric)} with {bounds.confidence:.0%} confidence, {_samples(n)}"
    if bounds.low > 0:
        return f"{name} drops by {_amount(drop, metric)} ({sure})."
    if bounds.high < 0:
        back = Interval(low=-bounds.high, high=-bounds.low, confidence=bounds.confidence)
        sure = f"{_span(back, metric)} with {bounds.confidence:.0%} confidence, {_samples(n)}"
        return f"{name} is better by {_amount(-drop, metric)} ({sure})."
    measured = (
        f"A {_word(drop)} of {found} was measured" if drop else f"No drop of {name} was measured"
    )
    return f"{measured}; with {_samples(n)} a drop under {_amount(bounds.high, metric)} cannot be ruled out."


def unlabelled_sentence(
    decision: Decision | None, outputs: tuple[OutputDrift, ...], samples: int, *, apart: int = 0
) -> str:
    """Return what is known without labels; on `apart` samples an output's shape is not float's."""
    changed = [o for o in outputs if o.sqnr_db is not None or o.not_finite]
    if apart:
        return (
            f"Without labels: on {apart} of {_samples(samples)} an output has another shape than float's; "
            "whether the answers are as good is not known."
        )
    if not changed and (decision is None or not decision.flips):
        return f"Without labels: on {_samples(samples)} every answer is exactly float's."
    if decision is not None:
        low, high = _hundredths(decision.interval.low), _hundredths(decision.interval.high)
        return (
            f"Without a metric: {_hundredths(decision.flip_rate)} % of the answers differ from float's "
            f"({low} to {high} % with {decision.interval.confidence:.0%} confidence, "
            f"{_samples(samples)}); whether they are wrong is not known."
        )
    worst = min(changed, key=lambda o: o.sqnr_db if o.sqnr_db is not None else 0.0)
    noise = "" if worst.sqnr_db is None else f"'{worst.output}' has {worst.sqnr_db:.1f} dB SQNR"
    return (
        f"Without a metric: {noise or 'values are not finite'} on {_samples(samples)}; what that means for "
        "the task is not known."
    )


def _word(drop: float) -> str:
    return "drop" if drop >= 0 else "gain"


def _samples(n: int) -> str:
    return f"{n} sample{'' if n == 1 else 's'}"


def _amount(value: float, metric: Metric) -> str:
    return f"{_number(value, metric)} points" if metric.is_fraction else _number(value, metric)


def _number(value: float, metric: Metric) -> str:
    return _hundredths(value) if metric.is_fraction else f"{value:.3g}"


def _hundredths(share: float) -> str:
    """Return a share in hundredths, to one decimal; to two digits where that would say 0.0."""
    found = 100 * share
    return f"{found:.1f}" if abs(found) >= 0.1 or found == 0 else f"{found:.2g}"  # noqa: PLR2004


def _span(bounds: Interval, metric: Metric) -> str:
    return f"{_number(bounds.low, metric)} to {_number(bounds.high, metric)}"
