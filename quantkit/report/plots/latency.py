"""How long a run takes beside float's, for each batch size and number of threads."""

from quantkit.report import numbers
from quantkit.report.palette import look
from quantkit.report.plots.intervals import Group, Row, interval_plot
from quantkit.result import Evaluated, Latency, Result

__all__ = ["latency"]


def latency(result: Result, *, width: int) -> str:
    """Draw the ratios; "" if nothing was timed."""
    limits = {rule.key: rule.limit for rule in result.rules}
    groups = []
    for setting in result.float_model.latency:
        rows = tuple(
            _row(model, found, place)
            for place, model in enumerate(result.models)
            for found in model.latency
            if place and (found.batch, found.threads) == (setting.batch, setting.threads)
        )
        if rows:
            groups.append(
                Group(
                    title=f"batch {setting.batch}, {numbers.threads(setting.threads)}, "
                    f"float {numbers.significant(setting.median_ms)} ms",
                    axis="time per run, float = 1; left of the line is faster",
                    reference=1.0,
                    rows=rows,
                    limit=limits.get("max_latency_ratio"),
                    floor=0.0,
                )
            )
    return interval_plot(tuple(groups), width=width, label="latency ratios") if groups else ""


def _row(model: Evaluated, found: Latency, place: int) -> Row:
    ends = found.ratio_interval
    spread = f" ({numbers.interval(ends)})" if ends else ""
    return Row(
        name=model.name,
        look=look(place),
        value=found.ratio,
        low=ends.low if ends else found.ratio,
        high=ends.high if ends else found.ratio,
        words=f"{numbers.ratio(found.ratio)}{spread}",
        tip=f"{model.name}\n{numbers.significant(found.median_ms)} ms per run, 9 of 10 under "
        f"{numbers.significant(found.p90_ms)} ms\n{numbers.ratio(found.ratio)} of float{spread}\n"
        f"{found.runs} runs",
    )
