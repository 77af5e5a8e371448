"""The figures of a search, as tables and pictures show them: what a file loses, and what it lost in the final check."""

from math import inf

from quantkit.evaluate.report import numbers
from quantkit.result import Result, Tuning

__all__ = ["judged_drop", "lost_text", "lost_unit"]


def judged_drop(result: Result, name: str) -> tuple[float, float, float] | None:
    """Return what a candidate loses on the samples that judge, with the ends of its interval; None: not known.

    Of the metric that a search goes by; without labels of decisions that differ from float's; where no output decides,
    noise as a share of the outputs' power.
    """
    model = next((m for m in result.candidates if m.name == name), None)
    if model is None or result.tuning is None:
        return None
    metric, decision = model.metric, model.drift.decision if model.drift else None
    if metric is not None:
        scale = _part_of(result)
        if metric.drop is None or not scale or not result.tuning.measure.startswith(metric.name):
            return None
        ends = metric.drop_interval
        low, high = (ends.low, ends.high) if ends else (metric.drop, metric.drop)
        return metric.drop / scale, low / scale, high / scale
    if decision is not None:
        return decision.flip_rate, decision.interval.low, decision.interval.high
    output = model.worst_output
    if output is None or output.db == -inf:
        return None
    found = output.sqnr_interval
    return _noise(output.db), *(
        (_noise(found.high), _noise(found.low)) if found else (_noise(output.db),) * 2
    )


def _noise(db: float) -> float:
    return float(10 ** (-db / 10))


def lost_unit(result: Result) -> str:
    """Return the unit of what a search loses: points of a share, per cent of anything else; "": told as it is."""
    if result.tuning is None or not result.tuning.is_fraction:
        return ""
    metric = result.float_model.metric
    return "points" if metric is not None and metric.is_fraction else "%"


def _part_of(result: Result) -> float:
    """Return what a drop of the metric is divided by: float's own figure where a search goes by parts of that."""
    metric = result.float_model.metric
    relative = result.tuning is not None and result.tuning.is_fraction
    return abs(metric.value) if metric is not None and relative and not metric.is_fraction else 1.0


def lost_text(value: float | None, tuning: Tuning) -> str:
    """Return what is lost in words: points of what is a share, else the figure."""
    if value is None:
        return numbers.ABSENT
    return numbers.decimals(100 * value, 2) if tuning.is_fraction else numbers.significant(value)
