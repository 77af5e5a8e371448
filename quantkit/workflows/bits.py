"""How many bits each weight of a model gets under a target: measured on samples, or by the weights themselves where nothing can be run."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.numerics.blocks import BlockGrid
from quantkit.observe.monitor import Monitor
from quantkit.plan import Plan, WeightPlan
from quantkit.plan.blocks import packed_bytes
from quantkit.plan.budget import Choices, bits_within
from quantkit.runtime.check_result import LARGE
from quantkit.solve.sensitivity import PROBED, errors_by_bits, weight_noise
from quantkit.spec import PerAxis

__all__ = ["bits_for_size", "choices_of"]

Feeds = Mapping[str, NDArray[Any]]
_BITS = range(2, 9)
_FITS = 4  # times that a plan is made smaller until its file is small enough


def choices_of(
    plan: Plan,
    grids: Callable[[WeightPlan, int], BlockGrid],
    tensors: Mapping[str, ir.TensorProtocol],
    path: Path | None,
    feeds: Sequence[Feeds],
    monitor: Monitor,
) -> dict[str, Choices]:
    """Return what each weight in blocks may be: bytes and noise by number of bits.

    Args:
        plan: With any number of bits.
        grids: Returns how a weight is stored in so many bits.
        tensors: The contents of its weights.
        path: The float model; None: it is not run, and a weight counts by its own error and its share of all weights.
        feeds: Samples.
        monitor: Told of each weight that is tried.
    """
    weights = [w for w in plan.weights if w.blocks is not None]
    total = sum(tensors[w.tensor].size for w in weights)
    large = total * 4 > LARGE
    noise: dict[str, float] = {}
    if path is not None and feeds and not large:
        monitor.name("Trying weights one at a time")
        monitor.start(len(weights), "weights")
        probes = {w.tensor: (_axis(w), grids(w, PROBED)) for w in weights}
        noise = weight_noise(path, probes, tensors, feeds, monitor.tick)
    found = {}
    for weight in weights:
        tensor = tensors[weight.tensor]
        own = {bits: grids(weight, bits) for bits in _BITS}
        errors = errors_by_bits(tensor.numpy(), _axis(weight), own)
        probed = errors[PROBED] or 1.0
        measured = noise.get(weight.tensor, probed * tensor.size / total)
        rows = int(tensor.shape.numpy()[_axis(weight)])
        found[weight.tensor] = Choices(
            nbytes={b: packed_bytes(grid, rows, tensor.size // rows) for b, grid in own.items()},
            noise={b: measured * errors[b] / probed for b in _BITS},
        )
    return found


def _axis(weight: WeightPlan) -> int:
    granularity = weight.spec.granularity
    assert isinstance(granularity, PerAxis)  # noqa: S101 - what is in blocks has rows
    return granularity.axis


def bits_for_size(
    choices: Mapping[str, Choices], wanted: int, size_of: Callable[[Mapping[str, int]], int]
) -> dict[str, int]:
    """Return how many bits weights get so that a file has at most so many bytes, as nearly as that can be had.

    What else is in the file is known once it is planned: the nodes of packed weights depend on their bits.

    Args:
        choices: What each weight may be.
        wanted: Bytes of the file.
        size_of: Returns the bytes of a file with so many bits.
    """
    budget = wanted
    for _ in range(_FITS):
        found = bits_within(choices, budget)
        over = size_of(found) - wanted
        if over <= 0:
            break
        budget = sum(choices[name].nbytes[bits] for name, bits in found.items()) - over
    return found
