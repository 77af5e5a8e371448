"""The frontier of a search: what is lost against time and against size, the budget's lines, the file that was chosen."""

from math import inf
from typing import Literal

from quantkit.evaluate.report import numbers
from quantkit.evaluate.report.palette import Theme, look
from quantkit.evaluate.report.plots.accuracy_size import WHISKER
from quantkit.evaluate.report.plots.scatter import Axis, Chart, Mark, chart_svg, labels_for
from quantkit.evaluate.report.plots.svg import line, shape, tag
from quantkit.result import Result, Trial, Tuning

__all__ = ["frontier", "frontier_svg", "judged_drop", "lost_text", "lost_unit"]


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


def frontier(result: Result, *, width: int) -> str:
    """Draw it for the page; "" where there was no search, or no trial has a figure."""
    chart = _chart(result)
    return chart_svg(chart, width=width) if chart else ""


def frontier_svg(
    result: Result, *, width: int = 860, theme: Theme | Literal["auto"] = "auto"
) -> str:
    """Draw it as a file of its own; "" as `frontier`."""
    chart = _chart(result)
    return chart_svg(chart, width=width, theme=theme) if chart else ""


def _chart(result: Result) -> Chart | None:
    tuning = result.tuning
    shown = [t for t in tuning.trials if t.drop is not None] if tuning else []
    if tuning is None or not shown:
        return None
    timed = any(t.latency is not None for t in shown)
    most = None if tuning.max_size is None else 100 * tuning.max_size
    across = [Axis("time, multiple of float's", tuning.max_latency)] * timed
    across.append(Axis("size, % of float's", most))
    places = {m.name: place for place, m in enumerate(result.models)}
    named = [t.name for t in shown if t.name in places]
    labels = dict(zip(named, labels_for(named), strict=True))
    scale = 100.0 if tuning.is_fraction else 1.0
    unit = f", {lost_unit(result)}" if tuning.is_fraction else ""
    return Chart(
        title=result.title,
        label=f"lost against float: {tuning.measure}{unit}",
        described=f"what {len(tuning.trials)} trials lose against their time and size",
        reference=Mark(
            name=result.float_model.name,
            look=look(0),
            x=(1.0, 100.0) if timed else (100.0,),
            y=0.0,
            words="the float model",
            tip=f"{result.float_model.name}: the float model",
        ),
        marks=tuple(
            _mark(t, result, tuning, places.get(t.name), labels.get(t.name, ""), timed=timed)
            for t in shown
        ),
        across=tuple(across),
        upwards=False,
        limit=None if tuning.max_drop is None else scale * tuning.max_drop,
        limits=_budget(result, tuning),
        stairs=True,
        keys=_keys(result, tuning, faint=len(named) < len(shown)),
    )


def _mark(
    trial: Trial, result: Result, tuning: Tuning, place: int | None, label: str, *, timed: bool
) -> Mark:
    scale = 100.0 if tuning.is_fraction else 1.0
    judged = judged_drop(result, trial.name) if trial.name == tuning.chosen else None
    middle, low, high = (scale * v for v in judged) if judged else (None, None, None)
    size = None if trial.size is None else 100 * trial.size
    return Mark(
        name=trial.name,
        look=look(place or 0),
        x=(trial.latency, size) if timed else (size,),
        y=scale * (trial.drop or 0.0),
        low=low,
        high=high,
        middle=middle,
        words="" if place is None else f"{trial.made}{', chosen' * (trial.name == tuning.chosen)}",
        tip=_tip(result, tuning, trial),
        label=label,
        faint=place is None,
        chosen=trial.name == tuning.chosen,
    )


def _tip(result: Result, tuning: Tuning, trial: Trial) -> str:
    lines = [f"{trial.name}: {trial.made}"]
    lines.append(f"lost: {lost_text(trial.drop, tuning)} {lost_unit(result)}".rstrip())
    lines += [f"time: {numbers.ratio(trial.latency)}"] if trial.latency is not None else []
    lines += [f"size: {numbers.percent(trial.size)} of float"] if trial.size is not None else []
    cut = f" of {tuning.choosing:,}, clear by then" if trial.samples < tuning.choosing else ""
    lines.append(f"run on {trial.samples:,}{cut} selection samples")
    judged = judged_drop(result, trial.name) if trial.name == tuning.chosen else None
    if judged is not None:
        lost, low, high = (lost_text(v, tuning) for v in judged)
        lines.append(
            f"lost on the {tuning.judging:,} samples of the final check: {lost} ({low} to {high})"
        )
    return "\n".join(lines)


def _budget(result: Result, tuning: Tuning) -> str:
    words = []
    if tuning.max_drop is not None:
        words.append(f"{lost_text(tuning.max_drop, tuning)} {lost_unit(result)}".rstrip())
    if tuning.max_latency is not None:
        words.append(f"{numbers.ratio(tuning.max_latency)} time")
    if tuning.max_size is not None:
        words.append(f"{numbers.percent(tuning.max_size)} size")
    return f"budget: {', '.join(words)}" if words else ""


def _keys(result: Result, tuning: Tuning, *, faint: bool) -> tuple[tuple[str, str], ...]:
    keys = []
    if tuning.chosen:
        keys.append((tag("circle", cx=10, cy=0, r=8, class_="chosen"), "chosen"))
    if faint:
        keys.append((shape("circle", 10, 0, 3.5, "faint"), "another is as good in everything"))
    keys.append((line(2, 0, 18, 0, "stairs"), "the best that was found"))
    if judged_drop(result, tuning.chosen) is not None:
        keys.append((WHISKER, f"whisker: on the {tuning.judging:,} samples of the final check"))
    return tuple(keys)
