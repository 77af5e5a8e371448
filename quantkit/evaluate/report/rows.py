"""One row per model: a dot with its interval on a scale, or a bar in parts.

The page sets rows as tables (`rows.jinja`), whose words break and wrap by themselves. What is drawn is the track of a row, an
SVG in per cent of its width, so that one drawing fits every screen.

`forest`: how much worse each candidate is, metric by metric, around no difference at all. `latency`: how long a run takes
beside float's, for each batch size and number of threads. `samples`: the signal to noise that single samples have.
`size_bars`: where the bytes are. `runs`: what part of the products runs in integers.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median_low

from markupsafe import Markup

from quantkit.evaluate.report import numbers
from quantkit.evaluate.report.palette import Look, look
from quantkit.evaluate.report.svg import Scale, arrow, line, mark, nice_step, rect, shape, tag
from quantkit.result import SAME_DB, Interval, Result, Runtime

_TENTH_DB = 20.0  # an error of a tenth
_PAD = 0.06
_FAR = 3.0  # times the usual distance from the reference from which on a value is cut off
_HEIGHT = 28.0  # of a track, in pixels
_COLOURS = 7  # the largest causes of size; the rest is one part
_KINDS = {
    "integer": ("r0", "in integers"),
    "dynamic": ("r1", "in integers, ranges taken at run time"),
    "gone": ("r2", "fused or folded away"),
    "float": ("r3", "in float"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """One model's value with its interval, and both as people write them."""

    name: str
    look: Look
    value: float
    low: float
    high: float
    words: str

    @property
    def values(self) -> tuple[float, float, float]:
        """Its ends, and itself."""
        return self.low, self.value, self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class RowAxis:
    """What the rows of a group share.

    Attributes:
        title: What the values are.
        words: What the scale counts, and which end is bad.
        reference: Where nothing differs from float.
        limit: The gate's bound.
        floor: The scale starts here; None: where the values do.
        low_is_bad: Values left of the limit break it.
    """

    title: str
    words: str
    reference: float
    limit: float | None = None
    floor: float | None = None
    low_is_bad: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table: a model, what is drawn of it, and its value in words."""

    name: str
    look: Look
    track: Markup
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    """Rows on one scale, what stands below them, and the CSS class of each kind of part with its name."""

    title: str
    rows: tuple[Row, ...]
    ticks: str = ""
    words: str = ""
    keys: tuple[tuple[str, str], ...] = ()


def scale_of(axis: RowAxis, found: Sequence[Dot]) -> Scale:
    """Return the scale in per cent: all values and the fixed ends, without rows far beyond most others."""

    def far(value: float) -> float:
        return abs(value - axis.reference)

    fixed = [v for v in (axis.reference, axis.limit, axis.floor) if v is not None]
    # By row: the near end of a lone lopsided interval must not push its own dot off the axis.
    usual = max(median_low([max(map(far, dot.values)) for dot in found]), *map(far, fixed))
    near = [v for dot in found for v in dot.values if not usual or far(v) <= _FAR * usual]
    low, high = min(*fixed, *near), max(*fixed, *near)
    span = high - low or 1.0
    pad = max(span * _PAD, nice_step(span, 20) / 2)
    return Scale(low if low == axis.floor else low - pad, high + pad, 0, 100)


def dots(axis: RowAxis, figures: Sequence[Dot]) -> RowGroup:
    """Return the rows of values with intervals; one far beyond the scale has an arrow at its edge."""
    scale = scale_of(axis, figures)
    ticks = scale.ticks(5)
    ground = "".join(_upright(scale(value), "grid") for value, _ in ticks)
    if axis.limit is not None:
        at = scale(axis.limit)
        start, end = (0.0, at) if axis.low_is_bad else (at, 100.0)
        beyond = rect(_percent(start), 0, _percent(end - start), _HEIGHT, "beyond")
        ground = f"{beyond}{ground}{_upright(at, 'limit')}"
    ground += _upright(scale(axis.reference), "zero")
    return RowGroup(
        title=axis.title,
        rows=tuple(
            Row(f.name, f.look, _track(ground + _whisker(scale, f) + _sign(scale, f)), f.words)
            for f in figures
        ),
        ticks=_track("".join(_at(scale(value), _tick(words)) for value, words in ticks)),
        words=axis.words + ("; dashed: the gate" if axis.limit is not None else ""),
    )


def _percent(value: float) -> str:
    return f"{value:.2f}%"


def _track(content: str) -> Markup:
    found = tag("svg", content, class_="plot track", width="100%", height=_HEIGHT)
    return Markup(found)  # noqa: S704 - elements are escaped where they are made


def _at(place: float, content: str) -> str:
    """Move what is drawn around (0, 0) to a place in per cent."""
    return tag("svg", content, x=_percent(place), class_="at")


def _upright(place: float, css: str) -> str:
    return line(_percent(place), 0, _percent(place), _HEIGHT, css)


def _tick(words: str) -> str:
    return tag("text", words, x=0, y=14, class_="tick", text_anchor="middle")


def _whisker(scale: Scale, figure: Dot) -> str:
    css, middle = f"whisker {figure.look.css}", _HEIGHT / 2
    low, high = scale.clamped(figure.low), scale.clamped(figure.high)
    parts = [line(_percent(low), middle, _percent(high), middle, css)]
    for end, place, out in ((figure.low, low, -1), (figure.high, high, 1)):
        bar = line(0, middle - 5, 0, middle + 5, css)
        parts.append(_at(place, bar if scale.holds(end) else arrow(0, middle, out, 0, css)))
    return "".join(parts)


def _sign(scale: Scale, figure: Dot) -> str:
    sign = shape(figure.look.shape, 0, _HEIGHT / 2, 5.5, f"sign {figure.look.css}")
    return _at(scale.clamped(figure.value), sign)


def _dots(
    result: Result, place: int, value: float, ends: Interval | None, words: str
) -> Iterator[Dot]:
    """Yield the row of a model; without an interval it has no whisker."""
    low, high = (ends.low, ends.high) if ends else (value, value)
    name = result.models[place].name
    yield Dot(name=name, look=look(place), value=value, low=low, high=high, words=words)


def forest(result: Result) -> list[RowGroup]:
    """Return the drops of all metrics."""
    groups = []
    for metric in result.float_model.metrics:
        scale, found = numbers.metric_scale(metric), list[Dot]()
        for place, model in enumerate(result.models):
            for own in model.metrics:
                if own.name == metric.name and own.drop is not None:
                    ends = own.drop_interval
                    if ends is not None:
                        ends = replace(ends, low=ends.low * scale, high=ends.high * scale)
                    found += _dots(result, place, own.drop * scale, ends, numbers.drop(own))
        limit = result.limit("max_drop") if metric.main else None
        axis = RowAxis(
            title=f"{metric.name}, float {numbers.metric_value(metric)}",
            words=f"drop in {numbers.drop_unit(metric)}; right of the line is worse than float",
            reference=0.0,
            limit=None if limit is None else limit * scale,
        )
        groups += [dots(axis, found)] if found else []
    return groups


def latency(result: Result) -> list[RowGroup]:
    """Return the ratios to float's time, for each batch size and number of threads."""
    groups = []
    for setting in result.float_model.latency:
        found: list[Dot] = []
        for place, model in enumerate(result.candidates, 1):
            for own in model.latency:
                if (own.batch, own.threads) == (setting.batch, setting.threads):
                    ends, words = own.ratio_interval, numbers.time(own)
                    found += _dots(result, place, own.ratio, ends, words)
        axis = RowAxis(
            title=f"batch {setting.batch}, {numbers.threads(setting.threads)}, "
            f"float {numbers.significant(setting.median_ms)} ms",
            words="time per run, float = 1; left of the line is faster",
            reference=1.0,
            limit=result.limit("max_latency_ratio"),
            floor=0.0,
        )
        groups += [dots(axis, found)] if found else []
    return groups


def samples(result: Result) -> list[RowGroup]:
    """Return quantiles of the signal to noise of single samples; none if none are known, or nothing changed."""
    found: list[Dot] = []
    for place, model in enumerate(result.models):
        if model.worst_percentile is None or model.worst_percentile[1].worst >= SAME_DB:
            continue
        quantiles = model.worst_percentile[1]
        ends = Interval(low=quantiles.worst, high=quantiles.median)
        words = f"{numbers.decibel(quantiles.p1)} ({numbers.interval(ends, digits=1)})"
        found += _dots(result, place, quantiles.p1, ends, words)
    axis = RowAxis(
        title="SQNR per sample",
        words=f"dB; left is worse, the line is {_TENTH_DB:.0f} dB (10 % error)",
        reference=_TENTH_DB,
        limit=result.limit("min_sqnr_p1_db"),
        low_is_bad=True,
    )
    return [dots(axis, found)] if found else []


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a bar: its length as a share of the longest bar, its CSS class, and what it says when pointed at."""

    share: float
    css: str
    tip: str


def _bar(segments: Sequence[Segment]) -> Markup:
    start, parts = 0.0, []
    for one in segments:
        part = rect(_percent(100 * start), 2, _percent(100 * one.share), _HEIGHT - 4, one.css)
        parts.append(mark(part, one.tip))
        start += one.share
    return _track("".join(parts))


def causes(result: Result) -> list[str]:
    """Return all causes of size, the one that costs most in any model first."""
    most: Counter[str] = Counter()
    for model in result.models:
        for part in model.size.parts:
            most[part.cause] = max(most[part.cause], part.nbytes)
    return sorted(most, key=lambda cause: (-most[cause], cause))


def size_bars(result: Result) -> list[RowGroup]:
    """Return the parts of each model's size."""
    listed = causes(result)
    few = listed if len(listed) == _COLOURS + 1 else listed[:_COLOURS]
    css = {cause: f"p{min(i, _COLOURS)}" for i, cause in enumerate(listed)}
    more = [(f"p{_COLOURS}", f"{len(listed) - len(few)} more")] if len(listed) > len(few) else []
    longest = max(model.size.disk for model in result.models) or 1
    rows = []
    for place, model in enumerate(result.models):
        parts = sorted(model.size.parts, key=lambda part: listed.index(part.cause))
        segments = [
            Segment(
                part.nbytes / longest,
                css[part.cause],
                f"{model.name}\n{part.cause}: {numbers.size(part.nbytes)}, "
                f"{numbers.percent(part.nbytes / max(1, model.size.disk))} of the file",
            )
            for part in parts
            if part.nbytes
        ]
        words = f"{numbers.size(model.size.disk)} · {numbers.percent(model.size.ratio)}"
        rows.append(Row(model.name, look(place), _bar(segments), words))
    keys = (*((css[cause], cause) for cause in few), *more)
    return [RowGroup(title="Bytes by what they hold", rows=tuple(rows), keys=keys)]


def runs(result: Result) -> list[RowGroup]:
    """Return how the layers of each candidate run; none if nobody looked at them."""
    rows, used = [], set[str]()
    for place, model in enumerate(result.candidates, 1):
        runtime = model.runtime
        if runtime is None or not runtime.products:
            continue
        counts = _counts(runtime)
        segments = [
            Segment(
                counts[kind] / runtime.products,
                css,
                f"{model.name}\n{counts[kind]} of {runtime.products} layers {words} "
                f"({numbers.percent(counts[kind] / runtime.products)})",
            )
            for kind, (css, words) in _KINDS.items()
            if counts.get(kind)
        ]
        used |= {one.css for one in segments}
        in_int8 = f"{runtime.integer} of {runtime.products} in int8"
        rows.append(Row(model.name, look(place), _bar(segments), in_int8))
    keys = tuple(kind for kind in _KINDS.values() if kind[0] in used)
    return [RowGroup(title="Layers by how they run", rows=tuple(rows), keys=keys)] if rows else []


def _counts(runtime: Runtime) -> dict[str, int]:
    """Count from the nodes if all are listed, else from the sums."""
    if len(runtime.nodes) == runtime.products:
        return dict(Counter(node.runs for node in runtime.nodes))
    return {"integer": runtime.integer, "float": runtime.products - runtime.integer}
