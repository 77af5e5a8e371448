"""Pictures of a result, as SVG that the page holds inline. One picture a file."""

from quantkit.evaluate.report.plots.accuracy_size import accuracy_size, accuracy_size_svg
from quantkit.evaluate.report.plots.bars import layers, runs, size_bars
from quantkit.evaluate.report.plots.frontier import (
    frontier,
    frontier_svg,
    judged_drop,
    lost_text,
    lost_unit,
)
from quantkit.evaluate.report.plots.intervals import forest, latency, operators, samples
from quantkit.evaluate.report.plots.svg import key

__all__ = [
    "accuracy_size",
    "accuracy_size_svg",
    "forest",
    "frontier",
    "frontier_svg",
    "judged_drop",
    "key",
    "latency",
    "layers",
    "lost_text",
    "lost_unit",
    "operators",
    "runs",
    "samples",
    "size_bars",
]
