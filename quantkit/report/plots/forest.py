"""How much worse each candidate is, metric by metric, around no difference at all."""

from quantkit.report import numbers
from quantkit.report.palette import look
from quantkit.report.plots.intervals import Group, Row, interval_plot
from quantkit.result import Evaluated, Metric, Result

__all__ = ["forest"]


def forest(result: Result, *, width: int) -> str:
    """Draw the drops of all metrics; "" if none was measured."""
    limits = {rule.key: rule.limit for rule in result.rules}
    groups = []
    for metric in result.float_model.metrics:
        rows = tuple(
            _row(model, found, place)
            for place, model in enumerate(result.models)
            for found in model.metrics
            if found.name == metric.name and found.drop is not None
        )
        if rows:
            scale = numbers.metric_scale(metric)
            limit = limits.get("max_drop") if metric.main else None
            groups.append(
                Group(
                    title=f"{metric.name}, float {numbers.metric_value(metric)}",
                    axis=f"drop in {numbers.drop_unit(metric)}; right of the line is worse than float",
                    reference=0.0,
                    rows=rows,
                    limit=None if limit is None else limit * scale,
                )
            )
    return interval_plot(tuple(groups), width=width, label="drops with intervals") if groups else ""


def _row(model: Evaluated, metric: Metric, place: int) -> Row:
    scale, drop = numbers.metric_scale(metric), metric.drop or 0.0
    found = metric.drop_interval
    low, high = (found.low, found.high) if found else (drop, drop)
    tip = [model.name, f"{metric.name}: {numbers.metric_value(metric)}"]
    tip += [f"drop: {numbers.drop(metric)} {numbers.drop_unit(metric)}"]
    if metric.detectable is not None:
        hidden = numbers.difference(metric.detectable, metric)
        tip += [f"a drop under {hidden} cannot be ruled out"]
    return Row(
        name=model.name,
        look=look(place),
        value=drop * scale,
        low=low * scale,
        high=high * scale,
        words=numbers.drop(metric),
        tip="\n".join(tip),
    )
