"""Pictures of a result, as SVG that the page holds inline. One picture a file."""

from quantkit.report.plots.accuracy_size import accuracy_size_svg
from quantkit.report.plots.forest import forest
from quantkit.report.plots.latency import latency
from quantkit.report.plots.layers import layers
from quantkit.report.plots.operators import operators
from quantkit.report.plots.runs import runs
from quantkit.report.plots.size_bars import size_bars
from quantkit.report.plots.svg import key

__all__ = [
    "accuracy_size_svg",
    "forest",
    "key",
    "latency",
    "layers",
    "operators",
    "runs",
    "size_bars",
]
