"""What a student learns from its teacher: outputs by their kind, and inner tensors that both have."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray

from quantkit.errors import NothingToQuantizeError, UsageError
from quantkit.model.graph.load import LoadedModel
from quantkit.reduce.distill.batches import Batches, Feeds
from quantkit.reduce.distill.losses import Objective, OutputKind, mask_in, output_kind
from quantkit.reduce.distill.network import Network
from quantkit.reduce.distill.training import Teacher, Training
from quantkit.reduce.distill.weights import Weight, weights_of
from quantkit.runtime.taps import TappedSession

_MOST_INNER = 6
_SEVERAL = 2  # readers of a tensor that much depends on
_FEATURES = 3  # axes, at least


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """A teacher, a student, and how one learns from the other.

    Attributes:
        teacher: The large model.
        student: The small one, of the same inputs and outputs.
        batches: What is trained on.
        held_out: Numbers of the samples that are judged on.
        rate: A factor of the rate.
        embeddings: Outputs that are known to be embeddings.
        folder: Where a killed run finds its state.
        tell: Told the step, how many there are, and the held-out figure.
        threads: Of torch and of the teacher.
    """

    teacher: LoadedModel
    student: LoadedModel
    batches: Batches
    held_out: Sequence[int]
    rate: float
    embeddings: Collection[str]
    folder: Path
    tell: Callable[[int, int, float], None]
    threads: int

    def training(self) -> Training:
        """Return the training.

        Raises:
            QuantkitError: The models do not fit, or the student has operators without gradients.
        """
        require_same_ports(self.teacher, self.student)
        torch.set_num_threads(self.threads)
        torch.use_deterministic_algorithms(mode=True)
        weights = weights_of(self.student.model, self.student.name, self.batches.seed)
        held_out = self.batches.fixed(self.held_out)
        objective = self._objective(weights, held_out[0])
        return Training(
            network=Network(self.student.model, objective.wanted, {w.value for w in weights}),
            weights=weights,
            objective=objective,
            teacher=self._teacher(objective.wanted),
            batches=self.batches,
            held_out=held_out,
            rate=self.rate,
            folder=self.folder,
            tell=self.tell,
        )

    def _objective(self, weights: Sequence[Weight], feeds: Feeds) -> Objective:
        """Look at the outputs of both for one batch; a student in integers has no inner tensors that are its teacher's."""
        outputs = [value.name or "" for value in self.teacher.model.graph.outputs]
        shared = (
            []
            if any(w.grid is not None for w in weights)
            else _shared(self.teacher.model, self.student.model)
        )
        inputs = {n: torch.from_numpy(np.ascontiguousarray(a)) for n, a in feeds.items()}
        taught = {
            n: torch.from_numpy(a) for n, a in self._teacher((*outputs, *shared))(feeds).items()
        }
        with torch.no_grad():
            learnt = Network(self.student.model, (*outputs, *shared))(inputs)
        mask = mask_in(inputs)
        kinds: dict[str, OutputKind] = {}
        for name in outputs:
            if learnt[name].shape != taught[name].shape:
                raise UsageError(
                    f"Output '{name}' is {list(taught[name].shape)} of the teacher and {list(learnt[name].shape)} of the student: they must be alike."
                )
            if kind := output_kind(taught[name], mask, embeds=name in self.embeddings):
                kinds[name] = kind
        if not kinds:
            raise NothingToQuantizeError(
                f"{self.teacher.name} outputs no floats, of which alone a student can learn."
            )
        fitting = [
            n for n in shared if learnt[n].shape == taught[n].shape and learnt[n].ndim >= _FEATURES
        ]
        return Objective(kinds, _spread(fitting))

    def _teacher(self, tensors: Sequence[str]) -> Teacher:
        session = TappedSession(self.teacher, tensors, threads=self.threads)

        def teach(feeds: Feeds) -> Mapping[str, NDArray[Any]]:
            return {
                name: np.array(array) for name, array in session.run(feeds)
            }  # valid until the next run

        return teach


def require_same_ports(teacher: LoadedModel, student: LoadedModel) -> None:
    """Refuse a student that takes or gives something else.

    Raises:
        UsageError: Names of inputs or outputs differ.
    """
    for what in ("inputs", "outputs"):
        own = {v.name for v in getattr(teacher.model.graph, what) if not v.is_initializer()}
        other = {v.name for v in getattr(student.model.graph, what) if not v.is_initializer()}
        if own != other:
            listed = (", ".join(sorted(str(n) for n in names)) for names in (own, other))
            raise UsageError(
                "Teacher and student have different {}: {} and {}.".format(what, *listed)
            )


def _shared(teacher: ir.Model, student: ir.Model) -> list[str]:
    """Return the float tensors that both compute, and that several nodes of the teacher read."""
    own = {v.name for node in student.graph for v in node.outputs}
    outputs = {value.name for value in teacher.graph.outputs}
    return [
        v.name or ""
        for node in teacher.graph
        for v in node.outputs
        if v.name in own
        and v.name not in outputs
        and v.dtype in {None, ir.DataType.FLOAT}
        and sum(use.node.op_type != "Shape" for use in v.uses()) >= _SEVERAL
    ]


def _spread(names: Sequence[str]) -> tuple[str, ...]:
    """Return at most so many, from first to last at equal distances."""
    if len(names) <= _MOST_INNER:
        return tuple(names)
    places = np.linspace(0, len(names) - 1, _MOST_INNER).round().astype(int)
    return tuple(names[i] for i in places)
