"""How many bits each weight of a model gets under a target: measured on samples, or by the weights themselves where nothing can be run.

`bits_within` gives bits so that the model loses least and the file keeps to a size. What a weight of b bits does to the outputs falls by about four for each bit more, so that of bits given to one weight the next is worth less than the last. Bits are therefore
given one at a time, each to the weight that gains most per byte, until the budget is spent: the best that can be done, up to what the last one leaves over. Weights of 4 and of
8 bits beside each other are much worse than all of 6, which this finds by itself.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.calibration.monitor import Monitor
from quantkit.errors import UsageError
from quantkit.model.graph.save import copy_of, skeleton
from quantkit.model.ops.view import View
from quantkit.model.provenance import Provenance, text_of
from quantkit.numerics.blocks import BlockCodes, BlockGrid
from quantkit.pipeline.prepared import FloatModel
from quantkit.quantize.plan import Plan, SolvedIntegers, WeightPlan
from quantkit.quantize.plan.blocks import PACKED_NODES, int8_grid, packed_bytes, with_bits
from quantkit.quantize.plan.model import kernel_bits
from quantkit.quantize.solve.sensitivity import PROBED, errors_by_bits, weight_noise
from quantkit.runtime.check_result import LARGE
from quantkit.spec import PerAxis
from quantkit.text import human

Feeds = Mapping[str, NDArray[Any]]
_BITS = range(2, 9)
_LOADING = 27  # bytes of memory per value while onnxruntime puts it together: it keeps the result of every step until all are done
_MUCH = 1 << 28  # bytes that are worth telling
SMALL = 1024  # values of a weight below which scales and conversions take as much as 8 bits save
_SEALS = 400  # bytes of a record that are not known before the file is written: digests, keys

RECORD = 2500
"""Bytes that the record of its origin takes in a file that no data decided about, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What one weight may be.

    Attributes:
        nbytes: What it takes, by number of bits.
        noise: What it then does to the outputs, noise over signal, by number of bits.
    """

    nbytes: Mapping[int, int]
    noise: Mapping[int, float]

    @property
    def bits(self) -> tuple[int, ...]:
        """The numbers of bits that are worth having: more bytes must mean less noise."""
        found: list[int] = []
        for bits in sorted(self.nbytes):
            while found and self.nbytes[found[-1]] >= self.nbytes[bits]:
                found.pop()
            if not found or self.noise[bits] < self.noise[found[-1]]:
                found.append(bits)
        return tuple(found)


def bits_within(weights: Mapping[str, Choices], budget: int) -> dict[str, int]:
    """Return how many bits each weight gets.

    Args:
        weights: What each may be.
        budget: Bytes that all of them together may take. Where the fewest bits take more already, they are returned.
    """
    steps = {name: one.bits for name, one in weights.items()}
    at = dict.fromkeys(weights, 0)
    left = budget - sum(one.nbytes[steps[name][0]] for name, one in weights.items())

    def worth(name: str) -> tuple[float, int, str] | None:
        """Return what the best next number of bits of a weight is worth: perhaps not the very next one."""
        one, own = weights[name], steps[name]
        now = own[at[name]]
        further = [
            ((one.noise[now] - one.noise[b]) / (one.nbytes[b] - one.nbytes[now]), i)
            for i, b in enumerate(own)
            if i > at[name]
        ]
        if not further:
            return None
        gain, index = max(further)
        return -gain, index, name

    heap = [found for name in weights if (found := worth(name)) is not None]
    heapify(heap)
    while heap:
        _, index, name = heappop(heap)
        own, one = steps[name], weights[name]
        cost = one.nbytes[own[index]] - one.nbytes[own[at[name]]]
        if cost > left:
            if index > at[name] + 1:  # a smaller step may still fit
                steps[name] = own[:index]
                if (again := worth(name)) is not None:
                    heappush(heap, again)
            continue
        left -= cost
        at[name] = index
        if (again := worth(name)) is not None:
            heappush(heap, again)
    return {name: steps[name][at[name]] for name in weights}


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
    # What kernels do not read is put together when the file is loaded: of a large model that would take more memory than float does.
    allowed = [b for b in _BITS if not large or kernel_bits(b) == b]
    noise: dict[str, float] = {}
    if path is not None and feeds and not large:
        monitor.name("Trying weights one at a time")
        monitor.start(len(weights), "weights")
        probes = {w.tensor: (_axis(w), grids(w, PROBED)) for w in weights}
        noise = weight_noise(path, probes, tensors, feeds, monitor.tick)
    found = {}
    for weight in weights:
        tensor = tensors[weight.tensor]
        own = {bits: grids(weight, bits) for bits in allowed}
        errors = errors_by_bits(tensor.numpy(), _axis(weight), own)
        probed = errors[PROBED] or 1.0
        measured = noise.get(weight.tensor, probed * tensor.size / total)
        rows = int(tensor.shape.numpy()[_axis(weight)])
        found[weight.tensor] = Choices(
            nbytes={
                b: packed_bytes(grid, rows, tensor.size // rows) + (b < 8) * PACKED_NODES
                for b, grid in own.items()
            },
            noise={b: measured * errors[b] / probed for b in allowed},
        )
    return found


def _axis(weight: WeightPlan) -> int:
    granularity = weight.spec.granularity
    assert isinstance(granularity, PerAxis)  # noqa: S101 - what is in blocks has rows
    return granularity.axis


def bits_for_mean(choices: Mapping[str, Choices], mean: float, values: int) -> dict[str, int]:
    """Return how many bits weights get so that they take so many on average, scales and nodes counted.

    Args:
        choices: What each weight may be.
        mean: Bits of a value.
        values: How many there are.

    Raises:
        UsageError: The fewest bits take more.
    """
    least = sum(one.nbytes[one.bits[0]] for one in choices.values())
    if least > (budget := int(mean * values / 8)):
        raise UsageError(
            f"target_bits '{mean:g}' is out of reach: the fewest bits for every weight are {8 * least / values:.2f} on average, scales counted. "
            "Ask for more; nothing was written."
        )
    return bits_within(choices, budget)


def bits_for_size(
    choices: Mapping[str, Choices], wanted: int, size_of: Callable[[Mapping[str, int]], int]
) -> dict[str, int]:
    """Return how many bits weights get so that a file has at most so many bytes.

    What else is in the file is known once it is planned: the nodes of packed weights depend on their bits.

    Args:
        choices: What each weight may be.
        wanted: Bytes of the file.
        size_of: Returns the bytes of a file with so many bits.

    Raises:
        UsageError: With the fewest bits it has more.
    """
    fewest = {name: one.bits[0] for name, one in choices.items()}
    budget = wanted
    while (over := size_of(found := bits_within(choices, budget)) - wanted) > 0:
        if found == fewest:
            raise UsageError(
                f"A file of {human(wanted)} is out of reach: with the fewest bits for every weight it has {human(wanted + over)}. "
                "Ask for a larger target_size; nothing was written."
            )
        budget = sum(choices[name].nbytes[bits] for name, bits in found.items()) - over
    return found


def record_bytes(origin: Provenance, decided: Mapping[str, Any]) -> int:
    """Return what the record of its origin takes in a file, at most.

    Args:
        origin: What came in and what is asked for.
        decided: What is added to that.
    """
    filled = replace(origin, options={**origin.options, **decided})
    return len(text_of(filled).encode()) + _SEALS


def wanted_bytes(target: float, float_bytes: int) -> int:
    """Return the bytes that a target asks for: up to 1 it is a share of float's size."""
    return int(target * float_bytes) if target <= 1 else int(target)


@dataclass(frozen=True, slots=True)
class BlankCodes(Mapping[str, BlockCodes]):
    """Codes of zeros for every weight of a plan that has few bits: what a file weighs does not depend on their values."""

    plan: Plan
    view: View

    def __getitem__(self, tensor: str) -> BlockCodes:
        grid = self.plan.weight[tensor].blocks
        if grid is None:
            raise KeyError(tensor)
        weight = self.view.weights[tensor]
        rows = weight.shape[_axis(self.plan.weight[tensor])]
        inputs = weight.size // rows
        return BlockCodes(
            grid=grid,
            codes=np.zeros((rows, inputs), np.uint8),
            zero=np.full((rows, grid.count(inputs)), grid.middle, np.uint8),
            multiplier=np.ones((rows, grid.count(inputs)), np.uint8),
            scale=np.ones(rows, np.float32),
        )

    def __iter__(self) -> Iterator[str]:
        return (w.tensor for w in self.plan.weights if w.blocks is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def size_with(
    model: ir.Model, plan: Plan, view: View, emit: Callable[[ir.Model, SolvedIntegers], None]
) -> int:
    """Return how many bytes the file of a plan has, without the record of its origin.

    Args:
        model: The float model; a copy of it is rewritten.
        plan: What was decided.
        view: The graph.
        emit: Rewrites a model as the plan says.
    """
    made = copy_of(model)
    emit(made, SolvedIntegers(blocks=BlankCodes(plan, view)))
    structure, tensors = skeleton(made)
    return int(structure.ByteSize()) + sum(tensor.nbytes for tensor in tensors)


def packed_bits(  # noqa: PLR0913 - one parameter per question
    ready: FloatModel,
    plan: Plan,
    wanted: int,
    emit: Callable[[ir.Model, Plan, SolvedIntegers], None],
    run: tuple[Path | None, Sequence[Feeds]],
    record: Callable[[Mapping[str, int]], int],
    monitor: Monitor,
) -> dict[str, int]:
    """Return how many bits weights that kernels read as int8 get, so that the file has a size.

    Args:
        ready: The float model.
        plan: With weights of 8 bits.
        wanted: Bytes of the file.
        emit: Rewrites a model as a plan says.
        run: The float model in a file, and samples; None and none: nothing is run.
        record: Returns the bytes of the record of its origin, with so many bits.
        monitor: Told of each weight that is tried.

    Raises:
        UsageError: With the fewest bits the file is larger.
    """
    model, view = ready.model, ready.view
    packed = with_bits(plan, view, dict.fromkeys(view.weights, PROBED))

    def grid(weight: WeightPlan, bits: int) -> BlockGrid:
        found = view.weights[weight.tensor]
        return int8_grid(bits, found.size // found.shape[_axis(weight)])

    def size_of(bits: Mapping[str, int]) -> int:
        made = with_bits(plan, view, bits)
        return size_with(model, made, view, lambda m, solved: emit(m, made, solved)) + record(bits)

    choices = choices_of(packed, grid, ready.tensors, *run, monitor)
    return bits_for_size(choices, wanted, size_of)


def spread_of(plan: Plan, view: View) -> str:
    """Say how many weights have how many bits in the file."""
    counts, sizes = Counter[int](), Counter[int]()
    for weight in plan.weights:
        counts[weight.bits] += 1
        sizes[weight.bits] += view.weights[weight.tensor].size
    total = max(1, sum(sizes.values()))
    mean = sum(bits * size for bits, size in sizes.items()) / total
    listed = ", ".join(f"{counts[b]} of {b} bits" for b in sorted(counts))
    return (
        f"Weights in the file: {listed}; {mean:.2f} bits per value on average, scales not counted."
    )


def loading_noted(plan: Plan, view: View) -> tuple[str, ...]:
    """Say what memory loading the file takes, where that is much: weights that kernels do not read as they stand there are put together."""
    blocks = plan.block_format is not None
    values = sum(
        view.weights[w.tensor].size
        for w in plan.weights
        if w.blocks is not None and not (blocks and kernel_bits(w.bits) == w.bits)
    )
    if _LOADING * values <= _MUCH:
        return ()
    return (f"Loading the file takes about {human(_LOADING * values)} of memory for a moment.",)


def small_weights(view: View, least: int = SMALL) -> tuple[str, ...]:
    """Return the nodes whose weights have fewer values than this."""
    return tuple(
        node.name
        for node in view.weighted
        if node.weights and sum(view.weights[w].size for w in node.weights.values()) < least
    )
