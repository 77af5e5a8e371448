"""What part of the products runs in integers."""

from collections import Counter

from quantkit.report import numbers
from quantkit.report.palette import look
from quantkit.report.plots.bars import Bar, Segment, stacked_bars
from quantkit.result import Result, Runtime

__all__ = ["runs"]

_KINDS = {
    "integer": ("r0", "in integers"),
    "dynamic": ("r1", "in integers, ranges taken at run time"),
    "gone": ("r2", "fused or folded away"),
    "float": ("r3", "in float"),
}


def runs(result: Result, *, width: int) -> str:
    """Draw the shares; "" if no model's runtime was looked at."""
    bars = tuple(
        Bar(
            model.name,
            look(place),
            f"{model.runtime.integer} of {model.runtime.products} in int8",
            _segments(model.name, model.runtime),
        )
        for place, model in enumerate(result.models)
        if place and model.runtime is not None and model.runtime.products
    )
    used = {segment.css for bar in bars for segment in bar.segments}
    legend = tuple(kind for kind in _KINDS.values() if kind[0] in used)
    return stacked_bars(bars, legend, width=width, label="layers by how they run") if bars else ""


def _counts(runtime: Runtime) -> dict[str, int]:
    """Count from the nodes if all are listed, else from the sums."""
    if len(runtime.nodes) == runtime.products:
        return dict(Counter(node.runs for node in runtime.nodes))
    return {"integer": runtime.integer, "float": runtime.products - runtime.integer}


def _segments(name: str, runtime: Runtime) -> tuple[Segment, ...]:
    counts = _counts(runtime)
    return tuple(
        Segment(
            counts[kind] / runtime.products,
            css,
            str(counts[kind]),
            f"{name}\n{counts[kind]} of {runtime.products} layers {words} "
            f"({numbers.percent(counts[kind] / runtime.products)})",
        )
        for kind, (css, words) in _KINDS.items()
        if counts.get(kind)
    )
