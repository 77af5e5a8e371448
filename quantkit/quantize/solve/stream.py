"""A float model run a stretch at a time, on all samples, beside itself with the weights that are quantized already.

Weights are solved in the order in which the graph computes. What the products of a group read is wanted twice: as the float model computes it, and as it comes out of the
quantized weights before it. Running the model from its start for every group would take a time that grows with the square of the layers. So the graph is cut at every
group into stretches, and what later ones need is kept, a file per tensor and sample:

    stretch g:   tensors of the stretches before, inputs  ->  what group g reads, tensors that later stretches need

Each node runs twice per sample in all. Memory is one stretch's weights and one sample's tensors. Weights that are solved for are fed, not part of the session, so that
one session serves both runs.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.runtime.pieces import Kind, Part, Structure, part_of

Array = NDArray[Any]
Feeds = Mapping[str, Array]
_Run = Literal["exact", "rough"]  # with the model's own weights, or with quantized ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Some nodes that are run together, up to what one group of products reads.

    Attributes:
        reads: What the group reads.
        takes: Tensors of earlier stretches, and inputs of the model, that it needs.
        leaves: Tensors that it computes and later ones need.
        drops: Tensors that no later one needs.
        weights: Weights that are solved for and that its nodes read.
    """

    reads: str
    takes: tuple[str, ...]
    leaves: tuple[str, ...]
    drops: tuple[str, ...]
    weights: tuple[str, ...]


def stretches_of(
    model: Structure, stops: Iterable[str], weights: Iterable[str]
) -> tuple[Stretch, ...]:
    """Cut the main graph at what groups of products read; linear in the number of nodes.

    A node belongs to the first stop that needs it. Stops come in the order in which the graph computes them, so that whatever a stretch reads of solved weights is
    solved before it runs.

    Args:
        model: The float model.
        stops: What groups of products read, each once.
        weights: Names of the weights that are solved for.
    """
    order = sorted(dict.fromkeys(stops), key=lambda name: model.maker.get(name, -1))
    assigned: set[int] = set()
    nodes = [sorted(_unassigned(model, stop, assigned)) for stop in order]
    solved, fed = set(weights), set(model.inputs)
    takes, made, last = list[list[str]](), list[list[str]](), dict[str, int]()
    for number, (stop, own) in enumerate(zip(order, nodes, strict=True)):
        made.append([name for i in own for name in model.nodes[i].output if name])
        inside = set(made[-1])
        read = dict.fromkeys((*(name for i in own for name in model.reads[i]), stop))
        takes.append([n for n in read if n not in inside and (n in model.maker or n in fed)])
        last |= dict.fromkeys(takes[-1], number)
    return tuple(
        Stretch(
            reads=stop,
            takes=tuple(takes[number]),
            leaves=tuple(n for n in made[number] if last.get(n, -1) > number),
            drops=tuple(n for n in takes[number] if last[n] == number),
            weights=tuple(
                dict.fromkeys(n for i in nodes[number] for n in model.reads[i] if n in solved)
            ),
        )
        for number, stop in enumerate(order)
    )


def _unassigned(model: Structure, stop: str, assigned: set[int]) -> set[int]:
    """Return the nodes that a tensor needs and that no earlier stretch has; they are assigned now."""
    found: set[int] = set()
    waiting = [model.maker[stop]] if stop in model.maker else []
    while waiting:
        index = waiting.pop()
        if index in assigned:
            continue
        assigned.add(index)
        found.add(index)
        waiting += [model.maker[name] for name in model.reads[index] if name in model.maker]
    return found


class Stream:
    """Runs stretches one after the other."""

    def __init__(
        self,
        model: Structure,
        stretches: Sequence[Stretch],
        feeds: Iterable[Feeds],
        weight: Callable[[str, _Run], Array],
        folder: Path,
    ) -> None:
        """Put the inputs of all samples on the shelf.

        Args:
            model: The float model, in its file.
            stretches: In order.
            feeds: The samples.
            weight: Returns a weight as floats: its own, or as it is quantized.
            folder: Where tensors are kept meanwhile.
        """
        self.stretches = stretches
        self._model = model
        self._weight = weight
        self._shelf = _Shelf(folder)
        self._at = 0
        self._diverged = False
        self.samples = 0
        needed = {name for s in stretches for name in s.takes} & set(model.inputs)
        for feed in feeds:
            for name in needed:
                self._shelf.put(name, self.samples, "exact", feed[name])
            self.samples += 1

    def advance(self) -> Iterator[tuple[Array, Array]]:
        """Run the next stretch on every sample; yield what its group reads: in float, and behind quantized weights.

        Raises:
            An exception in `quantkit.runtime.session.RUNTIME_ERRORS`: onnxruntime does not load or run it.
        """
        stretch = self.stretches[self._at]
        self._diverged |= bool(stretch.weights)
        runs: tuple[_Run, ...] = ("exact", "rough") if self._diverged else ("exact",)
        weights = {run: {name: self._weight(name, run) for name in stretch.weights} for run in runs}
        part = None
        for number in range(self.samples):
            read = []
            for run in runs:
                known = {name: self._shelf.get(name, number, run) for name in stretch.takes}
                part = part or self._part(stretch, {**known, **weights[run]})
                made = part.run(known, weights[run])
                for name in stretch.leaves:
                    self._shelf.put(name, number, run, made[name])
                read.append(made[stretch.reads] if stretch.reads in made else known[stretch.reads])
            yield read[0], read[-1]
        for name in stretch.drops:
            self._shelf.drop(name)
        self._at += 1

    def _part(self, stretch: Stretch, fed: Feeds) -> Part:
        kinds = {
            name: Kind(ir.DataType.from_numpy(array.dtype), array.ndim)
            for name, array in fed.items()
        }
        outputs = list(stretch.leaves)
        if stretch.reads not in fed and stretch.reads not in outputs:
            outputs.append(stretch.reads)
        return part_of(self._model, outputs, kinds, level=99)


@dataclass(slots=True)
class _Shelf:
    """Tensors of all samples, a file each. What was computed before any weight was quantized is there once for both runs."""

    folder: Path
    _numbers: dict[str, int] = field(default_factory=dict)

    def _path(self, tensor: str, sample: int, run: _Run) -> Path:
        number = self._numbers.setdefault(tensor, len(self._numbers))
        return self.folder / f"{number}-{sample}-{run}.npy"

    def put(self, tensor: str, sample: int, run: _Run, array: Array) -> None:
        np.save(self._path(tensor, sample, run), array, allow_pickle=False)

    def get(self, tensor: str, sample: int, run: _Run) -> Array:
        path = self._path(tensor, sample, run)
        if run == "rough" and not path.exists():
            path = self._path(tensor, sample, "exact")
        found: Array = np.load(path, allow_pickle=False)
        return found

    def drop(self, tensor: str) -> None:
        number = self._numbers[tensor]
        for path in self.folder.glob(f"{number}-*.npy"):
            path.unlink()
