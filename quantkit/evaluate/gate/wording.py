"""What came of a rule, in words, and figures as tables write them."""

from math import ceil, floor, isinf, log10

from quantkit.evaluate.gate.figures import RuleFigure, Unit
from quantkit.result import Outcome, Rule
from quantkit.text import compact

_HOPELESS = 1000  # half-widths to the room: a million times the samples
_NAMED: tuple[Unit, ...] = ("percent", "dB")
_PARTS: tuple[Unit, ...] = ("points", "percent")


def sentence(
    figure: RuleFigure, rule: Rule, bad: float | None, outcome: Outcome, margin: float
) -> str:
    """Return what was found, what is allowed, and the margin or what would settle it; without a full stop.

    "drop of top-1 is 0.3 points (at most 0.7 points with 95 % confidence; limit: 1 point): margin 0.3 points"

    Args:
        figure: What was found.
        rule: What is allowed.
        bad: The end of the interval that is judged; None: there is no interval.
        outcome: Of the rule.
        margin: From the judged figure to the limit, of a rule that fails from the estimate; below zero: missing.
    """
    if outcome == "undecided":
        return _undecided(figure, rule, bad)
    sure = rule.confidence is not None and not figure.exact and bad is not None
    end = "at most" if rule.is_ceiling else "at least"
    bound = (
        f"{end} {figure_text(bad or 0.0, figure.unit)} with {_confidence(rule)}; " if sure else ""
    )
    found = f"{figure.what} is {figure_text(figure.estimate, figure.unit)} ({bound}{_limit(figure, rule)})"
    return f"{found}: {_room(figure, rule, margin, sure=sure)}"


def _limit(figure: RuleFigure, rule: Rule) -> str:
    word = "limit" if rule.is_ceiling else "required"
    return f"{word}: {figure_text(rule.limit, figure.unit)}"


def _room(figure: RuleFigure, rule: Rule, margin: float, *, sure: bool) -> str:
    """Return the margin, or by how much the estimate misses the limit; `sure`: there is a bound besides the estimate."""
    if margin >= 0:
        return "met" if isinf(margin) else f"margin {room_text(margin, figure.unit)}"
    gap = "" if isinf(margin) else room_text(-margin, figure.unit)
    if rule.is_ceiling:
        missed = f"exceeds the limit{f' by {gap}' if gap else ''}"
    else:
        missed = f"is {gap} short" if gap else "is too low"
    if sure:
        return f"the estimate alone {missed}"
    return missed.removeprefix("is ")


def _undecided(figure: RuleFigure, rule: Rule, bad: float | None) -> str:
    """Return how bad the figure could be, and about how many samples would settle it.

    Half-widths shrink with the number of samples where rare failures make them, else with its root: from
    ``n (half-width / room)`` to ``n (half-width / room)^2``, rounded up to two digits.
    """
    measured = f"Measured {figure.what}: {figure_text(figure.estimate, figure.unit)}"
    if bad is None and figure.fewest:
        needed = f"{figure.fewest:,} {figure.counted} without a worse one would settle it with {_confidence(rule)}"
        return f"{measured} ({_limit(figure, rule)}). {needed}"
    if bad is None:
        few = f"Too few {figure.counted} for an interval with {_confidence(rule)}: evaluate more"
        return f"{measured} ({_limit(figure, rule)}). {few}"
    worst = "high" if rule.is_ceiling else "low"
    known = f"With {figure.count:,} {figure.counted} it could be as {worst} as {figure_text(bad, figure.unit)}"
    half, space = abs(bad - figure.estimate), abs(rule.limit - figure.estimate)
    if half >= _HOPELESS * space:
        settled = f"The estimate is nearly at the limit: more {figure.counted} would not settle it"
    else:
        few, many = (_rounded_up(figure.count * (half / space) ** power) for power in (1, 2))
        needed = many if figure.counted == "runs" else f"{few} to {many}"
        settled = f"About {needed} {figure.counted} would settle it"
    return f"{measured}. {known} ({_limit(figure, rule)}). {settled}"


def _rounded_up(count: float) -> str:
    step = 10 ** max(floor(log10(max(count, 1))) - 1, 0)
    return f"{ceil(count / step) * step:,}"


def figure_text(value: float, unit: Unit, *, short: bool = False) -> str:
    """Write a figure or a limit: ``0.3 points`` (short: ``0.3 pt``), ``73 %``, ``0.65``.

    Args:
        value: As it is computed: a fraction for percent and points.
        unit: What it is shown in.
        short: For a badge.
    """
    number = compact(value * 100 if unit in _PARTS else value)
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
    return f"{'<=' if rule.is_ceiling else '>='} {figure_text(rule.limit, unit, short=short)}"


def _confidence(rule: Rule) -> str:
    return f"{100 * (rule.confidence or 0.0):g} % confidence"
