"""Weights of all linear operators that give, behind channels that are gone, what the float model computes.

The float model and itself without the channels advance together, operator by operator (`quantkit.quantize.solve.stream`). Each operator is fitted
to its own float output on what the operators before it really deliver, so that it makes up for their error too. If its output is added to a
shortcut, it makes up for the error of the shortcut as well. Channels that are gone are ignored by their consumers, as if they were not there.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators import Window
from quantkit.model.graph.products import Product
from quantkit.quantize.solve.stream import Stream, stretches_of
from quantkit.reduce.prune.blocks import ResidualBlock
from quantkit.reduce.prune.cross_moments import CrossMoments
from quantkit.reduce.prune.importance import made_up, shrunk_moments
from quantkit.runtime.pieces import Structure

Array = NDArray[Any]
Feeds = Mapping[str, Array]
POSITIONS = 64  # of a sample, at most


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedOperator:
    """A linear operator to fit.

    Attributes:
        product: The operator.
        bias: The constant that is added to its output, of one number for each channel; "" if there is none.
        kept: Which inputs it consumes, (K,).
        shortcut: The activation that its output is added to; "" if there is none.
    """

    product: Product
    bias: str
    kept: NDArray[np.bool_]
    shortcut: str = ""


@dataclass(slots=True)
class _Fit:
    """Fits operators and maps one after the other, and knows the tensors that were fitted."""

    tensors: Mapping[str, Array]
    found: dict[str, Array] = field(default_factory=dict)

    def tensor(self, name: str, run: str) -> Array:
        """Return a weight, a bias or a flag as the float model has it ("exact"), or as it is now."""
        return self.tensors[name] if run == "exact" else self.found.get(name, self.tensors[name])

    def solve(self, part: FittedOperator, pairs: CrossMoments) -> None:
        """Fit an operator, given the moments of what it reads in float and of what it reads now."""
        layout, name = part.product.layout, part.product.weight
        array = self.tensors[name]
        weight = layout.rows(array).astype(np.float64)
        prior = weight
        if not part.kept.all():
            moments = shrunk_moments(pairs.moments(centred=bool(part.bias)), pairs.count)
            prior = made_up(weight[0], moments, part.kept)[np.newaxis]
        fitted, shift = pairs.fitted(weight, prior, part.kept, centred=bool(part.bias))
        self.found[name] = np.ascontiguousarray(layout.shaped(fitted).astype(array.dtype))
        if part.bias:
            bias = self.tensors[part.bias]
            self.found[part.bias] = (bias + shift.reshape(bias.shape)).astype(bias.dtype)


@dataclass(slots=True)
class _Stop:
    """All that is done with one tensor while it is streamed.

    Attributes:
        parts: The operators that consume it.
        ends: The block that computes it, if that becomes a map.
        keeps: Its rows, or its errors, are used at a later stop.
    """

    parts: list[FittedOperator] = field(default_factory=list)
    ends: ResidualBlock | None = None
    keeps: dict[str, list[Array]] = field(default_factory=dict)


def refitted(  # noqa: PLR0913 - one parameter per question
    model: Structure,
    parts: Sequence[FittedOperator],
    tensors: Mapping[str, Array],
    feeds: Iterable[Feeds],
    folder: Path,
    progress: Callable[[int, int], None],
    maps: Sequence[ResidualBlock] = (),
) -> dict[str, Array]:
    """Return the weights and biases that were fitted, by name, in the shapes that they have in the float model.

    Args:
        model: The float model in its file, with a switched map beside each block that becomes one.
        parts: Its linear operators; no two share a weight or a bias.
        tensors: Their weights and biases; those of the maps, and their flags.
        feeds: Samples.
        folder: For tensors in between.
        progress: Told how many steps of how many are done.
        maps: The blocks that become maps.
    """
    fit = _Fit(tensors)
    stops = _stops_of(parts, maps)
    names = [name for p in parts for name in (p.product.weight, p.bias) if name]
    names += [name for block in maps for name in block.map]
    stretches = stretches_of(model, stops, names)
    stream = Stream(model, stretches, feeds, fit.tensor, folder)
    differs = False
    for done, stretch in enumerate(stretches):
        stop = stops[stretch.reads]
        fits = [part for part in stop.parts if differs or not part.kept.all()]
        moments = {(part.product.window, part.shortcut): CrossMoments() for part in fits}
        errors = {name: stops[name].keeps.pop("errors", []) for _, name in moments if name}
        starts = [] if stop.ends is None else stops[stop.ends.before].keeps["rows"]
        mapped = CrossMoments()
        for number, (exact, rough) in enumerate(stream.advance()):
            for (window, name), pairs in moments.items():
                x, z = (window.patches(array, POSITIONS) for array in (exact, rough))
                error = errors[name][number] if errors.get(name) else None
                pairs.observe(x, z, error)
            if starts:
                mapped.observe(positions_of(exact), starts[number])
            if "errors" in stop.keeps and differs:
                stop.keeps["errors"].append(positions_of(exact) - positions_of(rough))
            if "rows" in stop.keeps:
                stop.keeps["rows"].append(positions_of(rough))
        for part in fits:
            fit.solve(part, moments[part.product.window, part.shortcut])
        if stop.ends is not None:
            weight, bias = mapped.mapped()
            fit.found |= dict(zip(stop.ends.map, (weight, bias, np.array(True)), strict=True))
        differs |= bool(stop.ends) or any(not part.kept.all() for part in fits)
        progress(done + 1, len(stretches))
    return fit.found


def _stops_of(parts: Sequence[FittedOperator], maps: Sequence[ResidualBlock]) -> dict[str, _Stop]:
    """Return the tensors at which the stream stops, with what is done there."""
    stops: dict[str, _Stop] = {}
    for part in parts:
        stops.setdefault(part.product.reads, _Stop()).parts.append(part)
        if part.shortcut:
            stops.setdefault(part.shortcut, _Stop()).keeps["errors"] = []
    for block in maps:
        stops.setdefault(block.before, _Stop()).keeps["rows"] = []
        stops.setdefault(block.after, _Stop()).ends = block
    return stops


def positions_of(array: Array) -> Array:
    """Return some positions of a batch of images or of sequences, (1, rows, channels), those that a linear operator would compute there."""
    axes = array.ndim - 2
    if array.ndim < _IMAGE:
        return Window().patches(array, POSITIONS)
    ones = (1,) * axes
    return Window(kernel=ones, strides=ones, pads=(0, 0) * axes, dilations=ones).patches(
        array, POSITIONS
    )


_IMAGE = 4  # axes
