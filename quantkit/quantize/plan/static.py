"""The plan of static quantization: activations in fixed integer ranges that were calibrated.

Each coverage is one planner: `gain` quantizes what gains by it, `coverage` everything.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from quantkit.model.ops.view import View
from quantkit.quantize.plan.coverage import asked_by_all, plan_all
from quantkit.quantize.plan.gain import asked_by_gain, plan_gain
from quantkit.quantize.plan.model import Kept, Plan
from quantkit.quantize.plan.ranges import CoveredRanges, Ranges
from quantkit.settings import Coverage, StaticSettings

_Observed = Mapping[str, tuple[float, float]]
_Powers = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class _Planner:
    """One coverage.

    Attributes:
        ranges: What is known of a tensor there.
        plan: Decides, by what was observed, the settings, mean squares, and nodes that were measured to be worse.
        asked: Returns the tensors whose range `plan` asks for if nothing is left out.
    """

    ranges: type[Ranges]
    plan: Callable[[View, _Observed, StaticSettings, _Powers, Mapping[str, Kept]], Plan]
    asked: Callable[[View, StaticSettings], Iterable[str]]


_PLANNERS: Mapping[Coverage, _Planner] = MappingProxyType(
    {
        "gain": _Planner(Ranges, plan_gain, asked_by_gain),
        "all": _Planner(CoveredRanges, plan_all, asked_by_all),
    }
)


def _planner(options: StaticSettings) -> _Planner:
    return _PLANNERS["all" if options.covers_all else "gain"]


def plan_static(
    view: View,
    observed: _Observed,
    options: StaticSettings | None = None,
    powers: _Powers | None = None,
    *,
    kept: Mapping[str, Kept] | None = None,
) -> Plan:
    """Decide how each node runs and how each tensor is quantized.

    Args:
        view: The graph.
        observed: Lower and upper end of each tensor that was calibrated.
        options: What the user chose.
        powers: The mean square of tensors that a Softmax makes, where it is known.
        kept: Nodes that do not run in calibrated integers because that was measured to be worse, and how instead.
    """
    options = options or StaticSettings()
    return _planner(options).plan(view, observed, options, powers or {}, kept or {})


def ranges_needed(view: View, options: StaticSettings) -> tuple[str, ...]:
    """Return the tensors to observe, so that `plan_static` finds every range that it asks for; in graph order.

    It is the planner's own answer: it plans as if all ranges were known and nothing were left out, and what it asks
    for on the way is needed. Excluding nodes or leaving tensors in float only asks for less; forcing asks for more.

    Args:
        view: The graph.
        options: The target, and the nodes that are forced; with coverage "all" also which operators.
    """
    planner = _planner(options)
    ranges = planner.ranges(view, {}, StaticSettings(target=options.target))
    sources = (ranges.source(tensor) for tensor in planner.asked(view, options) if tensor)
    return tuple(dict.fromkeys(source for source in sources if source is not None))


def missing_ranges(view: View, observed: _Observed, options: StaticSettings) -> tuple[str, ...]:
    """Return the tensors whose ranges the target needs, and that nobody observed or gave; in graph order.

    Args:
        view: The graph.
        observed: Lower and upper end of each tensor that was calibrated.
        options: What the user chose.
    """
    ranges = _planner(options).ranges(view, observed, options)
    return tuple(
        tensor
        for tensor in ranges_needed(view, options)
        if tensor not in observed
        if ranges.of(tensor) is None and not ranges.is_float(tensor)
    )
