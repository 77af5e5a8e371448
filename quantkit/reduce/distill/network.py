"""An ONNX model as a torch function: runs the nodes of the main graph in order, over named constants of which some are trained."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from quantkit.errors import RuntimeSupportError
from quantkit.model.graph.edit import constant
from quantkit.model.graph.opset import opset_of
from quantkit.reduce.distill.operators import OPERATORS, Op, UnknownError, fake_quantize

_SHOWN = 5  # operators, in a message


@dataclass(frozen=True, slots=True)
class _Step:
    """A node to run."""

    op: Op
    run: Callable[..., Any]
    reads: tuple[str, ...]
    writes: tuple[str, ...]


class Network:
    """A model whose outputs have gradients with respect to its named constants.

    Attributes:
        constants: Values known before a run, by name: initializers, and what nodes compute from them alone.
        wanted: Names of the values that a run returns.
        reads: Names of the values that a run needs and does not compute: inputs and given values.
    """

    def __init__(
        self, model: ir.Model, wanted: Iterable[str] = (), given: Collection[str] = ()
    ) -> None:
        """Take over a model.

        Args:
            model: The model; it must not change while this lives.
            wanted: The values to return; empty: the model's outputs.
            given: Values that the caller passes to each run instead of what the model computes: trained weights.

        Raises:
            RuntimeSupportError: An operator is missing here.
        """
        self.wanted = tuple(wanted) or tuple(value.name or "" for value in model.graph.outputs)
        self.constants: dict[str, Tensor] = {
            name: as_tensor(value.const_value.numpy())
            for name, value in model.graph.initializers.items()
            if constant(value) is not None and value.const_value is not None and name not in given
        }
        needed = _needed(model, self.wanted, given)
        _require_known(needed)
        opset = opset_of(model)
        self._steps: list[_Step] = []
        for node in needed:
            step = _step(node, opset, given)
            if any(n and n not in self.constants for n in step.reads):
                self._steps.append(step)
            else:
                self._run(step, self.constants)
        self._last = {name: i for i, step in enumerate(self._steps) for name in step.reads}
        computed = {name for step in self._steps for name in step.writes}
        self.reads = frozenset((self._last.keys() | {*self.wanted}) - computed - {""}).difference(
            self.constants
        )

    def __call__(self, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the wanted values.

        Args:
            given: The inputs and given values, by name.

        Raises:
            RuntimeSupportError: A node has a variant that is missing here, or does not fit its inputs.
        """
        values = {**self.constants, **given}
        for i, step in enumerate(self._steps):
            self._run(step, values)
            for name in step.reads:
                if self._last[name] == i and name not in self.wanted:
                    values.pop(name, None)
        return {name: values[name] for name in self.wanted}

    def _run(self, step: _Step, values: dict[str, Tensor]) -> None:
        inputs = [values[name] if name else None for name in step.reads]
        try:
            found = step.run(step.op, *inputs)
        except UnknownError as e:
            raise RuntimeSupportError(
                f"'{step.op.name}' ({e}) is not supported in training; distill into a model without it."
            ) from e
        except (RuntimeError, TypeError, ValueError, IndexError) as e:
            reason = str(e).partition("\n")[0]
            raise RuntimeSupportError(f"'{step.op.name}' cannot run in training: {reason}") from e
        several = found if isinstance(found, tuple) else (found,)
        values.update((n, v) for n, v in zip(step.writes, several, strict=False) if n)


def as_tensor(array: np.ndarray[Any, Any]) -> Tensor:
    """Return a copy of an array as a tensor; types of fewer than 8 bits become bytes."""
    if (
        array.dtype.kind == "V"
    ):  # bfloat16 and 4-bit integers: types that numpy itself does not have
        array = array.astype(np.float32 if "float" in array.dtype.name else np.int8)
    return torch.from_numpy(np.array(array, array.dtype.newbyteorder("="), order="C"))


def _needed(model: ir.Model, wanted: Collection[str], given: Collection[str]) -> list[ir.Node]:
    """Return the nodes that wanted values depend on, in order. A QuantizeLinear in front of its DequantizeLinear is left out: the two run as one."""
    names = set(wanted) - set(given)
    found = []
    for node in reversed(model.graph):
        if any(value.name in names for value in node.outputs):
            found.append(node)
            source = _rounded(node, given) or node
            names.update(value.name or "" for value in source.inputs if value is not None)
            names.difference_update(given)
    return found[::-1]


def _require_known(nodes: Iterable[ir.Node]) -> None:
    missing: dict[str, str] = {}
    for node in nodes:
        if node.domain or node.op_type not in OPERATORS.keys() | {"Constant"}:
            missing.setdefault(node.op_type, node.name or "")
    if missing:
        shown = ", ".join(f"{op} ('{name}')" for op, name in sorted(missing.items())[:_SHOWN])
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        raise RuntimeSupportError(
            f"Operators that training does not support: {shown}{more}; distill a model without them."
        )


def _rounded(node: ir.Node, given: Collection[str]) -> ir.Node | None:
    """Return the QuantizeLinear in front of a DequantizeLinear with the same scale and zero point."""
    if node.op_type != "DequantizeLinear" or node.inputs[0] is None:
        return None
    maker = node.inputs[0].producer()
    if maker is None or maker.op_type != "QuantizeLinear" or maker.domain:
        return None
    if node.inputs[0].name in given:
        return None
    return maker if list(maker.inputs[1:]) == list(node.inputs[1:]) else None


def _step(node: ir.Node, opset: int, given: Collection[str]) -> _Step:
    before = _rounded(node, given)
    run, source = OPERATORS.get(node.op_type, _constant), node
    if before is not None:
        run, source = fake_quantize, before
    attributes = {a.name: _plain(a.value) for a in source.attributes.values()}
    op = Op(f"{node.op_type} {node.name}", attributes, len(node.outputs), opset)
    reads = tuple("" if v is None else v.name or "" for v in source.inputs)
    return _Step(op, run, reads, tuple(value.name or "" for value in node.outputs))


def _plain(value: Any) -> Any:
    if hasattr(value, "numpy"):
        return as_tensor(value.numpy())
    return list(value) if isinstance(value, tuple) else value


def _constant(op: Op) -> Tensor:
    found = next(iter(op.attributes.values()))
    return found if isinstance(found, Tensor) else torch.tensor(found)
