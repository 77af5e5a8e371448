"""What came of a rule, in words, and figures as tables write them."""

from math import ceil, floor, isinf, log10

from quantkit.gate.figures import Figure, Unit, is_ceiling
from quantkit.result import Rule

__all__ = ["bound_text", "figure_text", "more_samples", "room", "room_text", "sentence"]

_SMALL = 0.1
_HUGE = 1e6
_HOPELESS = 1000  # half-widths to the room: a million times the samples
_NAMED: tuple[Unit, ...] = ("percent", "dB")
_PARTS: tuple[Unit, ...] = ("points", "percent")


def sentence(figure: Figure, rule: Rule, bad: float | None) -> str:
    """Say what was found and what is allowed.

    "drop of top-1 is 0.3 points (at most 0.7 points with 95 % confidence), allowed 0.6 points"

    Args:
        figure: What was found.
        rule: What is allowed.
        bad: The end of the interval that is judged; None: there is no interval.
    """
    found = f"{figure.what} is {figure_text(figure.estimate, figure.unit)}"
    if rule.confidence is not None and not figure.exact and bad is not None:
        end = "at most" if is_ceiling(rule) else "at least"
        found += f" ({end} {figure_text(bad, figure.unit)} with {_confidence(rule)})"
    bound = "allowed" if is_ceiling(rule) else "demanded"
    return f"{found}, {bound} {figure_text(rule.limit, figure.unit)}"


def room(figure: Figure, rule: Rule, margin: float) -> str:
    """Say how much room is left, or how much is missing: "0.1 points too much".

    Args:
        figure: What was found.
        rule: What is allowed.
        margin: From the figure to the limit; below zero: missing.
    """
    lacking = "too much" if is_ceiling(rule) else "too little"
    if isinf(margin):
        return lacking if margin < 0 else "kept"
    return f"{room_text(abs(margin), figure.unit)} {lacking if margin < 0 else 'to spare'}"


def more_samples(figure: Figure, rule: Rule, bad: float | None) -> str:
    """Say that the sample is too small, and about what size would bring the bad end to the limit.

    Half-widths shrink with the root of the number of samples: ``n (half-width / room)^2``, rounded up to two
    digits. (Of rare flips they shrink faster: fewer will do.)

    Args:
        figure: What was found.
        rule: What is allowed.
        bad: The end of the interval that is judged; None: there is no interval.
    """
    if bad is None and figure.fewest:
        needed = f"{figure.fewest:,} {figure.counted} without a worse one would"
        return f"not enough {figure.counted} to decide with {_confidence(rule)}: {needed}"
    if bad is None:
        return f"too few {figure.counted} for an interval with {_confidence(rule)}: evaluate more"
    half, space = abs(bad - figure.estimate), abs(rule.limit - figure.estimate)
    if half >= _HOPELESS * space:
        return f"the estimate is all but the limit: more {figure.counted} would not decide"
    needed = figure.count * (half / space) ** 2
    step = 10 ** max(floor(log10(max(needed, 1))) - 1, 0)
    return f"not enough {figure.counted} to decide: about {ceil(needed / step) * step:,} would"


def figure_text(value: float, unit: Unit, *, short: bool = False) -> str:
    """Write a figure or a limit: ``0.3 points`` (short: ``0.3 pt``), ``73 %``, ``0.65``.

    Args:
        value: As it is computed: a fraction for percent and points.
        unit: What it is shown in.
        short: For a badge.
    """
    number = _number(value * 100 if unit in _PARTS else value)
    if unit == "points":
        return f"{number} {'pt' if short else 'point' if number == '1' else 'points'}"
    return f"{number} {'%' if unit == 'percent' else unit}" if unit in _NAMED else number


def room_text(margin: float, unit: Unit, *, short: bool = False) -> str:
    """Write a margin: what lies between two percentages are points.

    Args:
        margin: As it is computed.
        unit: Of the figure.
        short: For a badge.
    """
    return figure_text(margin, "points" if unit == "percent" else unit, short=short)


def bound_text(rule: Rule, unit: Unit, *, short: bool = False) -> str:
    """Write a limit with its direction: ``<= 1 point``.

    Args:
        rule: The limit, and whether it is a ceiling.
        unit: Of the figure.
        short: For a badge.
    """
    return f"{'<=' if is_ceiling(rule) else '>='} {figure_text(rule.limit, unit, short=short)}"


def _confidence(rule: Rule) -> str:
    return f"{100 * (rule.confidence or 0.0):g} % confidence"


def _number(value: float) -> str:
    """Write two decimals, of small numbers two digits; no zeros at the end; huge ones with a power of ten."""
    if abs(value) >= _HUGE:
        return f"{value:.3g}"
    if abs(value) < _SMALL:
        return f"{value:.2g}" if value else "0"
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return text if float(text) else "0"
