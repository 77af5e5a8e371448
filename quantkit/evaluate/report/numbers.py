"""Numbers as people read them: points for fractions, as many digits as mean something, a dash for nothing."""

from inspect import isfunction
from math import floor, isfinite, log10
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from quantkit.result import (
    SAME_DB,
    Interval,
    Latency,
    Metric,
    OutputDrift,
    Result,
    SampleSqnr,
    Tuning,
)
from quantkit.text import human

ABSENT = "—"
MINUS = "\N{MINUS SIGN}"
_NBSP = "\N{NO-BREAK SPACE}"
_TIMES = "\N{MULTIPLICATION SIGN}"
_SMALL_P = 0.001
_SHORT = 10  # digits of a percentage above it are noise
_HUGE = 1e7
_TINY = 1e-4
_MINUTE = 60


def metric_scale(metric: Metric | None) -> float:
    """Return what a metric is multiplied by to be shown."""
    return 100.0 if metric is not None and metric.is_fraction else 1.0


def decimals(value: float, digits: int) -> str:
    """Write with so many decimals, with a real minus, and never a negative nothing."""
    text = f"{value:.{digits}f}"
    if float(text) == 0:
        text = text.lstrip("-")
    return text.replace("-", MINUS)


def significant(value: float | None, digits: int = 3) -> str:
    """Write with so many significant digits; large and tiny ones with a power of ten."""
    if value is None or not isfinite(value):
        return ABSENT
    if value == 0:
        return "0"
    if not _TINY <= abs(value) < _HUGE:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        return f"{mantissa}e{int(exponent)}".replace("-", MINUS)
    return decimals(value, max(0, digits - 1 - floor(log10(abs(value)))))


def integer(value: float) -> str:
    """Write a count with commas between thousands, as all messages and pages do."""
    return f"{value:,.0f}".replace("-", MINUS)


def as_text(value: float | None, digits: int = 2) -> str:
    """Write with so many decimals; a dash for nothing."""
    return ABSENT if value is None or not isfinite(value) else decimals(value, digits)


def size(nbytes: float | None) -> str:
    """Write bytes: ``22.9 MB``."""
    return ABSENT if nbytes is None else _typeset(human(nbytes))


def _typeset(text: str) -> str:
    return text.replace("-", MINUS).replace(" ", _NBSP)


def percent(fraction: float | None, digits: int | None = None) -> str:
    """Write a fraction in per cent; without `digits`, one decimal below ten."""
    if fraction is None or not isfinite(fraction):
        return ABSENT
    shown = fraction * 100
    wanted = digits if digits is not None else int(abs(shown) < _SHORT and shown != 0)
    return f"{decimals(shown, wanted)}{_NBSP}%"


def ratio(value: float | None) -> str:
    """Write a ratio: ``0.65x``."""
    return ABSENT if value is None or not isfinite(value) else f"{decimals(value, 2)}{_TIMES}"


def time(latency: Latency) -> str:
    """Write a time as a multiple of float's, with its interval: ``0.65x (0.60 to 0.70)``."""
    ends = latency.ratio_interval
    return ratio(latency.ratio) + (f" ({interval(ends)})" if ends else "")


def decibel(value: float | None, absent: str = "identical") -> str:
    """Write decibels; most figures of a result are None where nothing changed, those of single samples `SAME_DB`."""
    return absent if value is None or value >= SAME_DB else f"{decimals(value, 1)}{_NBSP}dB"


def sqnr(output: OutputDrift | None) -> str:
    """Write an output's signal to noise."""
    if output is None:
        return ABSENT
    return "not finite" if output.not_finite else decibel(output.sqnr_db)


def per_sample(found: SampleSqnr | None) -> str:
    """Write the quantiles of the samples' signal to noise: ``median 31.6, 1 % below 24.1, worst 19.4 dB``."""
    if found is None:
        return ABSENT
    text = str(found).replace("-", MINUS)
    return text.replace("1 %", f"1{_NBSP}%").replace(" dB", f"{_NBSP}dB")


def p_value(value: float | None) -> str:
    """Write a probability."""
    if value is None:
        return ABSENT
    return (
        f"p{_NBSP}<{_NBSP}0.001" if value < _SMALL_P else f"p{_NBSP}={_NBSP}{significant(value, 2)}"
    )


def interval(found: Interval | None, scale: float = 1.0, digits: int = 2) -> str:
    """Write where a figure lies: ``-0.10 to 0.70``.

    Args:
        found: The interval; None: there is none.
        scale: What its ends are multiplied by to be shown.
        digits: Decimals.
    """
    if found is None:
        return ABSENT
    return f"{decimals(found.low * scale, digits)} to {decimals(found.high * scale, digits)}"


def figure(value: float | None, metric: Metric | None) -> str:
    """Write a figure in the unit of a metric: ``91.20 %`` or ``0.853``."""
    if value is None:
        return ABSENT
    if metric is not None and metric.is_fraction:
        return f"{decimals(value * 100, 2)}{_NBSP}%"
    return significant(value, 4)


def metric_value(metric: Metric | None) -> str:
    """Write a metric's value."""
    return ABSENT if metric is None else figure(metric.value, metric)


def difference(value: float | None, metric: Metric | None, within: Interval | None = None) -> str:
    """Write a difference of a metric without its unit, points of a fraction: ``0.30``.

    `within` is the interval that it stands beside: both get as many decimals as three digits of its width need.

    Args:
        value: In the metric's own units; None: not known.
        metric: Whose difference it is; None: a plain number.
        within: The interval that it stands beside; None: none does.
    """
    if value is None:
        return ABSENT
    if metric is not None and metric.is_fraction:
        return decimals(value * 100, 2)
    wide = within.high - within.low if within is not None else 0.0
    if not _TINY <= wide < _HUGE:
        return significant(value)
    return decimals(value, max(0, 2 - floor(log10(wide))))


def fall(value: float | None, metric: Metric | None, within: Interval | None = None) -> str:
    """Write a drop; one below zero is a gain, and is called so.

    Args:
        value: The drop, in the metric's own units; None: not known.
        metric: Whose drop it is.
        within: The interval that it stands beside; None: none does.
    """
    text = difference(value, metric, within)
    return f"gain{_NBSP}{text.removeprefix(MINUS)}" if text.startswith(MINUS) else text


def spread(found: Interval | None, metric: Metric | None) -> str:
    """Write where a drop lies: ``0.10 to 0.70``, ``gain 0.10 to drop 0.70``, ``gain 0.50 to 0.10``."""
    if found is None:
        return ABSENT
    low, high = (fall(end, metric, found) for end in (found.low, found.high))
    if not low.startswith("gain"):
        return f"{low} to {high}"
    if high.startswith("gain") or set(high) <= set("0."):
        return f"{low} to {high.removeprefix(f'gain{_NBSP}')}"
    return f"{low} to drop{_NBSP}{high}"


def value_interval(metric: Metric) -> str:
    """Write where a metric's value lies, without the unit."""
    found = metric.interval
    if found is None or metric.is_fraction:
        return interval(found, metric_scale(metric))
    return f"{significant(found.low, 4)} to {significant(found.high, 4)}"


def drop_unit(metric: Metric) -> str:
    """Return what drops of a metric are counted in."""
    return "points" if metric.is_fraction else metric.name


def drop(metric: Metric | None) -> str:
    """Write a metric's drop with its interval, without the unit: ``0.30 (gain 0.10 to drop 0.70)``."""
    if metric is None or metric.drop is None:
        return ABSENT
    found = metric.drop_interval
    text = fall(metric.drop, metric, found)
    return f"{text} ({spread(found, metric)})" if found else text


def lost_unit(result: Result) -> str:
    """Return the unit of what a search loses: points of a share, per cent of anything else; "": told as it is."""
    if result.tuning is None or not result.tuning.is_fraction:
        return ""
    metric = result.float_model.metric
    return "points" if metric is not None and metric.is_fraction else "%"


def trial_loss(value: float | None, tuning: Tuning) -> str:
    """Write what a file of a search loses: points of what is a share, else the figure."""
    if value is None:
        return ABSENT
    return decimals(100 * value, 2) if tuning.is_fraction else significant(value)


def threads(count: int) -> str:
    """Write a number of threads; 0 is onnxruntime's choice."""
    if not count:
        return "default threads"
    return f"{count} thread{'s' * (count > 1)}"


def seconds(value: float) -> str:
    """Write how long something took."""
    minutes, rest = divmod(round(value), _MINUTE)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def environment_with(filters: dict[str, Any], names: dict[str, Any], *, html: bool) -> Environment:
    """Return the environment of a view.

    Args:
        filters: Those of the view alone.
        names: What its templates know besides.
        html: Texts are escaped.
    """
    environment = Environment(
        loader=PackageLoader("quantkit.evaluate.report", "templates"),
        autoescape=html,  # noqa: S701 - the Markdown escapes by filters of its own
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    written = {k: v for k, v in globals().items() if isfunction(v) and not k.startswith("_")}
    environment.filters |= written | filters
    environment.globals |= {"ABSENT": ABSENT} | names
    return environment
