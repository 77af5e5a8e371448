"""What was found of a candidate's answers, in one sentence, and what the samples are too few to exclude."""

from quantkit.result import Decision, Metric, OutputDrift
from quantkit.text import counted


def sentence_of(metric: Metric, samples: int) -> str:
    """Return what was found of the main metric, and what the sample is too small to exclude."""
    name, drop, bounds = metric.name, metric.drop or 0.0, metric.drop_interval
    worse, better, loss = "fell", "rose", "drop"
    if not metric.higher_is_better:
        worse, better, loss = "rose", "fell", "rise"
    change = f"{name} {worse if drop > 0 else better} {_amount(abs(drop), metric)}"
    if bounds is None:
        return f"{change}; {counted(samples, 'sample')}: too few for an interval."
    sure = f"{100 * bounds.confidence:g} % confidence"
    if bounds.low > 0 or bounds.high < 0:
        ends = sorted(map(abs, (bounds.low, bounds.high)))
        span = f"{_number(ends[0], metric)} to {_number(ends[1], metric)}"
        return f"{change} ({span} with {sure}, {counted(samples, 'sample')})."
    found = change if drop else f"{name} did not change"
    return (
        f"{found}; with {counted(samples, 'sample')}, a {loss} of up to {_amount(bounds.high, metric)} is still "
        f"possible ({sure})."
    )


def unlabelled_sentence(
    decision: Decision | None, outputs: tuple[OutputDrift, ...], samples: int, *, apart: int = 0
) -> str:
    """Return what is known without labels; on `apart` samples an output's shape is not float's.

    Args:
        decision: How decisions differ; None where no output decides.
        outputs: How far outputs are from float's.
        samples: How many were compared.
        apart: On how many an output's shape is not float's.
    """
    changed = [o for o in outputs if o.sqnr_db is not None or o.not_finite]
    if apart:
        return (
            f"Without labels: on {apart} of {counted(samples, 'sample')} an output has another shape than float's; "
            "whether the answers are as good is not known."
        )
    if not changed and (decision is None or not decision.flips):
        return f"Without labels: on {counted(samples, 'sample')} every answer is exactly float's."
    if decision is not None:
        low, high = _hundredths(decision.interval.low), _hundredths(decision.interval.high)
        return (
            f"Without a metric: {_hundredths(decision.flip_rate)} % of the answers differ from float's "
            f"({low} to {high} % with {decision.interval.confidence:.0%} confidence, "
            f"{counted(samples, 'sample')}); whether they are wrong is not known."
        )
    worst = min(changed, key=lambda o: o.sqnr_db if o.sqnr_db is not None else 0.0)
    noise = "" if worst.sqnr_db is None else f"'{worst.output}' has {worst.sqnr_db:.1f} dB SQNR"
    return (
        f"Without a metric: {noise or 'values are not finite'} on {counted(samples, 'sample')}; what that means for "
        "the task is not known."
    )


def _amount(value: float, metric: Metric) -> str:
    return f"{_number(value, metric)} points" if metric.is_fraction else _number(value, metric)


def _number(value: float, metric: Metric) -> str:
    return _hundredths(value) if metric.is_fraction else f"{value:.3g}"


def _hundredths(share: float) -> str:
    """Return a share in hundredths, to one decimal; to two digits where that would say 0.0."""
    found = 100 * share
    return f"{found:.1f}" if abs(found) >= 0.1 or found == 0 else f"{found:.2g}"
