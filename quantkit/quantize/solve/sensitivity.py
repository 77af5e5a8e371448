"""What each weight alone does to the outputs of a model if it is stored in few bits, measured on samples.

One session of the float model takes its weights as inputs: running it once with one of them rounded tells what that one does, and no weight is in memory twice. How the noise changes
with the number of bits follows from the weight's own error, which is cheap to compute.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.numerics.blocks import BlockGrid, as_rows, fit_blocks, from_rows
from quantkit.runtime.check_result import Tally
from quantkit.runtime.pieces import Kind, part_of, read_structure

Array = NDArray[Any]
Feeds = Mapping[str, Array]

_SAMPLED = 1 << 18  # values of a weight whose error is computed
PROBED = 4  # bits


def errors_by_bits(array: Array, axis: int, grids: Mapping[int, BlockGrid]) -> dict[int, float]:
    """Return the squared error of a weight over its power, by number of bits; of some of its rows.

    Args:
        array: The weight.
        axis: That of its rows.
        grids: How it would be stored, by number of bits.
    """
    rows = as_rows(array, axis)
    step = max(1, rows.size // _SAMPLED)
    some = np.asarray(rows[::step], np.float64)
    power = float(np.vdot(some, some)) or 1.0
    found = {}
    for bits, grid in grids.items():
        error = some - fit_blocks(some, grid).dequantized()
        found[bits] = float(np.vdot(error, error)) / power
    return found


def weight_noise(
    path: Path,
    weights: Mapping[str, tuple[int, BlockGrid]],
    tensors: Mapping[str, ir.TensorProtocol],
    feeds: Sequence[Feeds],
    tick: Callable[[int], None] = lambda _: None,
) -> dict[str, float]:
    """Return noise over signal at the outputs with one weight rounded to the nearest codes and all others float, by weight.

    Of several outputs the noise is added up: each counts by its own signal. Weights inside of If, Loop and Scan cannot be fed, and are left out.

    Args:
        path: The float model.
        weights: The axis of the rows of each weight, and how it is stored.
        tensors: Their contents.
        feeds: Samples.
        tick: Told of each weight that is done.

    Raises:
        An exception in `quantkit.runtime.session.RUNTIME_ERRORS`: onnxruntime does not load or run it.
    """
    model = read_structure(path)
    inside = {name for name in weights if name not in model.initializers}
    if inside:
        tick(len(inside))
    weights = {name: how for name, how in weights.items() if name not in inside}
    exact = {name: tensors[name].numpy() for name in weights}
    kinds = {name: Kind(ir.DataType.FLOAT, array.ndim) for name, array in exact.items()}
    part = part_of(model, model.outputs, kinds, level=99)
    expected = [part.run(feed, exact) for feed in feeds]
    found = {}
    for name, (axis, grid) in weights.items():
        array = exact[name]
        rounded = fit_blocks(as_rows(array, axis), grid).dequantized()
        fed = {name: from_rows(rounded, array.shape, axis)}
        found[name] = noise_of(expected, (part.run(feed, exact, fed) for feed in feeds))
        tick(1)
    return found


def noise_of(
    expected: Sequence[Mapping[str, Array]], actual: Iterable[Mapping[str, Array]]
) -> float:
    """Return what is lost of all float outputs, or, where there are none, of the others."""
    tallies: dict[str, Tally] = {}
    for before, after in zip(expected, actual, strict=True):
        for name, array in before.items():
            tallies.setdefault(name, Tally()).add(array, after[name])
    floats = [tally.lost for tally in tallies.values() if tally.power > 0]
    return float(sum(floats) if floats else sum(tally.lost for tally in tallies.values()))
