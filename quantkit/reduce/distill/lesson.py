"""Set up a training: the outputs to compare by their kinds, the inner tensors that both models have, and the weights to train."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray

from quantkit.errors import NothingToQuantizeError, UnknownNodeError, UsageError
from quantkit.model.graph.load import LoadedModel
from quantkit.model.ops.float_ops import PRODUCTS
from quantkit.reduce.distill.batches import Batches, Feeds
from quantkit.reduce.distill.losses import Objective, OutputKind, mask_in, output_kind
from quantkit.reduce.distill.network import Network
from quantkit.reduce.distill.training import Answers, Training
from quantkit.reduce.distill.weights import Weight, weights_of
from quantkit.runtime.taps import TappedSession

_MOST_INNER = 6
_SEVERAL = 2  # consumers of a tensor that much depends on
_FEATURES = 3  # axes, at least


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """A teacher, a student, and how one learns from the other.

    Attributes:
        teacher: The large model.
        student: The small one, with the same inputs and outputs.
        batches: The samples.
        rate: A factor of the learning rate.
        embeddings: Outputs that are embeddings.
        freeze: The node up to which weights are not trained; "": all are trained.
        half: Compute layers in bfloat16 while training; None: where the CPU does so faster, and nothing is quantized.
        folder: Holds the state of a killed run.
        tell: Called after each step with its number, the number of steps, and the last held-out loss.
        threads: Of torch and of the teacher; None: as torch chooses.
    """

    teacher: LoadedModel
    student: LoadedModel
    batches: Batches
    rate: float
    embeddings: Collection[str]
    freeze: str
    half: bool | None
    folder: Path
    tell: Callable[[int, int, float], None]
    threads: int | None

    def training(self) -> Training:
        """Return the training.

        Raises:
            QuantkitError: The models do not fit, or training does not support an operator of the student.
        """
        require_same_ports(self.teacher, self.student)
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        torch.use_deterministic_algorithms(mode=True)
        model = self.student.model
        cut = _cut(self.student, self.freeze) if self.freeze else ""
        prefix = Network(model, [cut]) if cut else None
        weights = self._weights(cut)
        held_out = self.batches.test()
        objective = self._objective(weights, held_out[0])
        given = {w.value for w in weights} | ({cut} if cut else set())
        is_float = all(w.grid is None for w in weights)
        return Training(
            network=Network(model, objective.wanted, given),
            weights=weights,
            objective=objective,
            teacher=self._teacher(objective.wanted),
            frozen=None if prefix is None else _answers_of(prefix),
            batches=self.batches,
            held_out=held_out,
            rate=self.rate,
            half=is_float and has_fast_bfloat16() if self.half is None else self.half,
            folder=self.folder,
            tell=self.tell,
            threads=torch.get_num_threads(),
        )

    def _weights(self, cut: str) -> tuple[Weight, ...]:
        """Return the weights that are trained: those that the outputs depend on, and the frozen layers do not."""
        model, name = self.student.model, self.student.name
        found = weights_of(model, name, self.batches.seed)
        values = {w.value for w in found}
        used = Network(model, (), values | ({cut} if cut else set())).reads
        frozen = Network(model, [cut], values).reads if cut else frozenset[str]()
        weights = tuple(w for w in found if w.value in used - frozen)
        if not weights:
            raise NothingToQuantizeError(f"{name} has no weights behind '{self.freeze}' to train")
        return weights

    def _objective(self, weights: Sequence[Weight], feeds: Feeds) -> Objective:
        """Run both models on one batch, and find the outputs to compare.

        Inner tensors of a student in integers are not compared: their names belong to other places.
        """
        outputs = [value.name or "" for value in self.teacher.model.graph.outputs]
        shared = (
            []
            if any(w.grid is not None for w in weights)
            else _shared(self.teacher.model, self.student.model)
        )
        inputs = {n: torch.from_numpy(np.ascontiguousarray(a)) for n, a in feeds.items()}
        answers = self._teacher((*outputs, *shared))(feeds)
        taught = {n: torch.from_numpy(a) for n, a in answers.items()}
        with torch.no_grad():
            learnt = Network(self.student.model, (*outputs, *shared))(inputs)
        mask = mask_in(inputs)
        kinds: dict[str, OutputKind] = {}
        for name in outputs:
            if learnt[name].shape != taught[name].shape:
                raise UsageError(
                    f"Output '{name}' has shape {list(taught[name].shape)} in the teacher and {list(learnt[name].shape)} in the student: they must be equal."
                )
            if kind := output_kind(taught[name], mask, embeds=name in self.embeddings):
                kinds[name] = kind
        if not kinds:
            raise NothingToQuantizeError(
                f"{self.teacher.name} has no output of floats for a student to learn from"
            )
        fitting = [
            n for n in shared if learnt[n].shape == taught[n].shape and learnt[n].ndim >= _FEATURES
        ]
        return Objective(kinds, _spread(fitting))

    def _teacher(self, tensors: Sequence[str]) -> Answers:
        session = TappedSession(self.teacher, tensors, threads=torch.get_num_threads())

        def answer(feeds: Feeds) -> Mapping[str, NDArray[Any]]:
            # The arrays of a session are valid until its next run.
            return {name: np.array(array) for name, array in session.run(feeds)}

        return answer


def has_fast_bfloat16() -> bool:
    """Return whether the CPU multiplies bfloat16 by instructions of its own."""
    found: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(found.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def require_same_ports(teacher: LoadedModel, student: LoadedModel) -> None:
    """Refuse a student with other inputs or outputs.

    Raises:
        UsageError: Their names differ.
    """
    for what in ("inputs", "outputs"):
        own = {v.name for v in getattr(teacher.model.graph, what) if not v.is_initializer()}
        other = {v.name for v in getattr(student.model.graph, what) if not v.is_initializer()}
        if own != other:
            listed = (", ".join(sorted(str(n) for n in names)) for names in (own, other))
            raise UsageError(
                "Teacher and student have different {}: {} and {}.".format(what, *listed)
            )


def _cut(student: LoadedModel, name: str) -> str:
    """Return the tensor behind which weights are trained: the output of a node, in integers where it is quantized."""
    node = next((n for n in student.model.graph if n.name == name), None)
    if node is None:
        raise UnknownNodeError(f"freeze: {student.name} has no node '{name}'.")
    value = node.outputs[0]
    consumers = [use.node for use in value.uses()]
    if len(consumers) == 1 and consumers[0].op_type == "QuantizeLinear":
        value = consumers[0].outputs[0]
    return value.name or ""


def _answers_of(network: Network) -> Answers:
    """Return a function that runs a network without gradients; quantized values are bytes."""

    def answer(feeds: Feeds) -> Mapping[str, NDArray[Any]]:
        with torch.no_grad():
            found = network(
                {n: torch.from_numpy(np.ascontiguousarray(a)) for n, a in feeds.items()}
            )
        return {n: _narrow(x.numpy()) for n, x in found.items()}

    return answer


def _narrow(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array as bytes if it holds only such integers."""
    fits = array.min() >= 0 and array.max() <= 255 and np.array_equal(np.rint(array), array)
    return array.astype(np.uint8) if fits else array


def _shared(teacher: ir.Model, student: ir.Model) -> list[str]:
    """Return the float tensors that both models compute, and that several nodes of the teacher, a linear operator among them, read."""
    own = {v.name for node in student.graph for v in node.outputs}
    outputs = {value.name for value in teacher.graph.outputs}
    found: list[str] = []
    for node in teacher.graph:
        for value in node.outputs:
            uses = [use.node.op_type for use in value.uses() if use.node.op_type != "Shape"]
            is_inner = value.name in own and value.name not in outputs
            is_float = value.dtype in {None, ir.DataType.FLOAT}
            if is_inner and is_float and len(uses) >= _SEVERAL and not PRODUCTS.isdisjoint(uses):
                found.append(value.name or "")
    return found


def _spread(names: Sequence[str]) -> tuple[str, ...]:
    """Return at most `_MOST_INNER` names, from first to last at equal distances."""
    if len(names) <= _MOST_INNER:
        return tuple(names)
    places = np.linspace(0, len(names) - 1, _MOST_INNER).round().astype(int)
    return tuple(names[i] for i in places)
