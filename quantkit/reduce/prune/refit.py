"""Weights of all linear operators that give, behind channels that are gone, what the float model computes.

The float model and itself without the channels advance together, operator by operator (`quantkit.quantize.solve.stream`). Each operator is fitted
to its own float output on what the operators before it really deliver, so that it makes up for their error too. Channels that are gone are
ignored by those who would read them, which is the same as if they were not there.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantkit.model.graph.products import Product
from quantkit.model.ops.view import View
from quantkit.quantize.solve.stream import Stream, stretches_of
from quantkit.reduce.prune.cross_moments import CrossMoments
from quantkit.reduce.prune.importance import made_up, shrunk
from quantkit.runtime.pieces import Structure

Array = NDArray[Any]
Feeds = Mapping[str, Array]
_POSITIONS = 64  # of a sample, at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A linear operator to fit.

    Attributes:
        product: The operator.
        bias: The constant that is added to its output, of one number for each channel; "" if there is none.
        kept: Which inputs it reads, (K,).
    """

    product: Product
    bias: str
    kept: NDArray[np.bool_]


@dataclass(slots=True)
class _Fit:
    """Fits operators one after the other, and knows the tensors that were fitted."""

    tensors: Mapping[str, Array]
    found: dict[str, Array] = field(default_factory=dict)

    def tensor(self, name: str, run: str) -> Array:
        """Return a weight or a bias as the float model has it ("exact"), or as it is now."""
        return self.tensors[name] if run == "exact" else self.found.get(name, self.tensors[name])

    def solve(self, part: Part, floats: CrossMoments, pairs: CrossMoments) -> None:
        """Fit an operator, given the moments of what it reads in float and of both that and what it reads now."""
        layout, name = part.product.layout, part.product.weight
        array = self.tensors[name]
        weight = layout.rows(array).astype(np.float64)
        prior = weight
        if not part.kept.all():
            moments = shrunk(floats.moments(centred=bool(part.bias)), floats.count)
            prior = made_up(weight[0], moments, part.kept)[np.newaxis]
        fitted, shift = pairs.fitted(weight, prior, part.kept, centred=bool(part.bias))
        self.found[name] = np.ascontiguousarray(layout.shaped(fitted).astype(array.dtype))
        if part.bias:
            bias = self.tensors[part.bias]
            self.found[part.bias] = (bias + shift.reshape(bias.shape)).astype(bias.dtype)


def refitted(
    model: Structure,
    parts: Sequence[Part],
    tensors: Mapping[str, Array],
    feeds: Iterable[Feeds],
    folder: Path,
    progress: Callable[[int, int], None],
) -> dict[str, Array]:
    """Return the weights and biases that were fitted, by name, in the shapes that they have in the float model.

    Args:
        model: The float model, in its file.
        parts: Its linear operators; no two share a weight or a bias.
        tensors: Their weights and biases.
        feeds: Samples.
        folder: For tensors in between.
        progress: Told how many steps of how many are done.
    """
    fit = _Fit(tensors)
    by_input: dict[str, list[Part]] = {}
    for part in parts:
        by_input.setdefault(part.product.reads, []).append(part)
    names = [name for p in parts for name in (p.product.weight, p.bias) if name]
    stretches = stretches_of(model, by_input, names)
    stream = Stream(model, stretches, feeds, fit.tensor, folder)
    differs = False
    for done, stretch in enumerate(stretches):
        own = by_input[stretch.reads]
        moments = {part.product.window: (CrossMoments(), CrossMoments()) for part in own}
        for exact, rough in stream.advance():
            for window, (floats, pairs) in moments.items():
                x, z = (window.patches(array, _POSITIONS) for array in (exact, rough))
                floats.observe(x, x)
                pairs.observe(x, z)
        for part in own:
            if differs or not part.kept.all():
                fit.solve(part, *moments[part.product.window])
        differs |= any(not part.kept.all() for part in own)
        progress(done + 1, len(stretches))
    return fit.found


def bias_of(view: View, product: Product) -> str:
    """Return the constant that is added to what a linear operator computes, if nobody else reads it; "" if there is none."""
    found = product.bias if product.biased else ""
    if not found and product.window.group == 1:
        node = next(n for n in view.nodes if n.name == product.node)
        reader = view.only_reader(node.outputs[0])
        adds = reader is not None and view.nodes[reader].op_type == "Add"
        inputs = view.nodes[reader].inputs if adds and reader is not None else ()
        found = next((name for name in inputs if name in view.constants), "")
    constant = view.constants.get(found)
    channels = product.layout.shape[product.layout.channel]
    alone = len(view.readers.get(found, ())) == 1 and found in view.initializers
    vector = constant is not None and constant.shape[-1:] == (channels,)
    return (
        found
        if alone and vector and constant is not None and max(constant.shape) == channels
        else ""
    )


def is_alone(view: View, product: Product) -> bool:
    """Say whether the weight of a linear operator is its own, and its output a plain sum of products."""
    weight = view.weights[product.weight]
    return len(weight.uses) == 1 and not weight.exposed and product.alpha == product.beta == 1
