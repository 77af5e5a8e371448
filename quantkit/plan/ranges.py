"""Which range a tensor has, and which scale and zero point follow from it.

In this order: what the user says, what the operator's formula says (a Softmax lies in [0, 1]) unless far less was
observed, what was observed, and for data movement the range of what is moved.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, isfinite, log10

import numpy as np

from quantkit.numerics.affine import affine_from_range
from quantkit.ops.activations import FIXED_RANGES, MOVES
from quantkit.ops.view import Constant, Node, View
from quantkit.plan.model import ActivationPlan
from quantkit.plan.options import StaticOptions, TensorOverride
from quantkit.plan.selection import resolve_tensors

__all__ = ["KnownRange", "OpenRanges", "Ranges", "clip_bounds", "clips_alike", "fills_in"]

_PAD_VALUE = 2  # input slot
_ROUNDING = 1e-3  # of a step, by which float32 may miss the end of a range
# Of what a formula bounds, observed values that stay below this share have a range of their own: each half of it
# would cost a bit. A Softmax over many values is far below 1.
_FAR_BELOW = 0.5


@dataclass(frozen=True, slots=True)
class KnownRange:
    """Lower and upper end, and where they come from."""

    low: float
    high: float
    why: str

    @property
    def extent(self) -> float:
        """The largest magnitude."""
        return max(-self.low, self.high)


@dataclass(slots=True)
class Ranges:
    """Answers for one graph; a tensor is looked up once.

    `powers`: the mean square of single tensors, as far as it is known.
    """

    view: View
    observed: Mapping[str, tuple[float, float]]
    options: StaticOptions
    powers: Mapping[str, float] = field(default_factory=dict)
    _said: dict[str, TensorOverride] = field(init=False)
    _known: dict[str, KnownRange | None] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        names = frozenset(self.view.producer) | frozenset(self.view.readers)
        self._said = {}
        for override in self.options.overrides:
            for name in resolve_tensors(override.tensor, names):
                self._said[name] = override

    def is_float(self, tensor: str) -> bool:
        """Say whether the user wants a tensor left alone."""
        said = self._said.get(tensor)
        return said is not None and said.is_float

    def of(self, tensor: str) -> KnownRange | None:
        """Return a tensor's range; None if nothing is known."""
        chain: list[str] = []
        while tensor not in self._known:
            found, source = self._lookup(tensor)
            if found is not None or source is None:
                self._known[tensor] = found
                break
            chain.append(tensor)
            tensor = source
        for moved in chain:
            self._known[moved] = self._known[tensor]
        return self._known[tensor]

    def _lookup(self, tensor: str) -> tuple[KnownRange | None, str | None]:
        """Return the range, or else the tensor that has the same one."""
        said = self._said.get(tensor)
        if said is not None and said.range is not None:
            return KnownRange(*said.range, "given"), None
        maker = self.view.maker(tensor)
        fixed = None if maker is None else self._fixed(maker, tensor)
        if fixed is not None:
            return fixed, None
        if tensor in self.observed:
            return self._seen(maker, *self.observed[tensor]), None
        constant = self.view.constants.get(tensor)
        if constant is not None and constant.low is not None and constant.high is not None:
            finite = isfinite(constant.low) and isfinite(constant.high)
            low, high = min(constant.low, 0.0), max(constant.high, 0.0)
            return (KnownRange(low, high, "constant") if finite else None), None
        return None, _moved_from(maker, self.view.constants)

    def source(self, tensor: str) -> str | None:
        """Return the tensor that must be observed for the range of this one; None if constants tell it."""
        read = tensor
        while tensor not in self.view.constants:
            before = _moved_from(self.view.maker(tensor), self.view.constants)
            if before is None:
                return tensor
            tensor = before
        # A large constant is not looked into: of an embedding the rows that are read tell the range.
        unknown = self.view.constants[tensor].low is None and read != tensor
        return read if unknown else None

    def _fixed(self, maker: Node, tensor: str) -> KnownRange | None:
        """Return what a formula bounds, unless all that was observed lies far below it."""
        bounds = FIXED_RANGES.get(maker.op_type)
        if bounds is None:
            return None
        seen = self.observed.get(tensor, bounds)
        free = maker.op_type not in self.options.target.fixed_outputs
        if free and 0 < seen[1] < _FAR_BELOW * bounds[1]:
            return KnownRange(bounds[0], seen[1], "observed")
        return KnownRange(*bounds, f"{maker.op_type} cannot leave it")

    def _seen(self, maker: Node | None, low: float, high: float) -> KnownRange | None:
        """Return what was observed, within the bounds of a Clip; None if NaN or infinity was."""
        if not (isfinite(low) and isfinite(high)):
            return None
        bounds = None if maker is None else clip_bounds(maker, self.view.constants)
        if bounds is not None:
            low, high = max(low, bounds[0]), min(high, bounds[1])
        return KnownRange(low, high, "observed")

    def sqnr(self, tensor: str) -> float | None:
        """Return how many dB the steps of a tensor lie below its values; None if their power is not known."""
        power, decided = self.powers.get(tensor), self.plan(tensor)
        if power is None or not power > 0 or decided is None:
            return None
        return 10 * log10(12 * power / decided.scale**2)

    def plan(self, tensor: str) -> ActivationPlan | None:
        """Return scale and zero point of a tensor; None if its range is not known."""
        found = self.of(tensor)
        if found is None:
            return None
        said = self._said.get(tensor)
        dtype = (said.dtype if said else None) or self.options.activation_type
        affine = affine_from_range(
            np.asarray([found.low]),
            np.asarray([found.high]),
            qmin=dtype.qmin,
            qmax=dtype.qmax,
            symmetric=self.options.symmetric,
        )
        return ActivationPlan(
            tensor=tensor,
            dtype=dtype,
            scale=float(affine.scale[0]),
            zero_point=int(affine.zero_point[0]),
            why=f"{found.why}: {found.low:.5g} to {found.high:.5g}",
        )


class OpenRanges(Ranges):
    """The same range for every tensor, so that no decision depends on values: all that can be asked for is asked for."""

    __slots__ = ()

    def _lookup(self, tensor: str) -> tuple[KnownRange | None, str | None]:  # noqa: ARG002 - the same for all
        return KnownRange(-1.0, 1.0, "assumed"), None


def _moved_from(maker: Node | None, constants: Mapping[str, Constant]) -> str | None:
    """Return the tensor whose values a node hands on; None if it computes, or adds values of its own."""
    if maker is None or maker.op_type not in MOVES or not maker.inputs:
        return None
    return None if fills_in(maker, constants) else maker.inputs[0]


def clip_bounds(node: Node, constants: Mapping[str, Constant]) -> tuple[float, float] | None:
    """Return between which constants a node clips; None if it does not, or they are computed."""
    if node.op_type == "Relu":
        return 0.0, inf
    if node.op_type != "Clip":
        return None
    bounds = []
    for slot, name, default in ((1, "min", -inf), (2, "max", inf)):
        given = node.inputs[slot] if slot < len(node.inputs) else ""
        value = node.attributes.get(name, default)
        if given:
            constant = constants.get(given)
            if constant is None or constant.low is None:
                return None
            value = constant.low
        bounds.append(float(value))  # type: ignore[arg-type]  # a number in every valid model
    return bounds[0], bounds[1]


def fills_in(node: Node, constants: Mapping[str, Constant]) -> bool:
    """Say whether a node that moves data adds values of its own, other than 0, which every range holds."""
    if node.op_type != "Pad" or node.attributes.get("mode", "constant") != "constant":
        return False
    given = node.inputs[_PAD_VALUE] if len(node.inputs) > _PAD_VALUE else ""
    if not given:
        return node.attributes.get("value", 0.0) != 0  # before opset 11 an attribute
    constant = constants.get(given)
    return constant is None or constant.low != 0


def clips_alike(node: Node, view: View, result: ActivationPlan) -> bool:
    """Say whether no integer of `result` lies outside the bounds of a Relu or Clip.

    Those of a symmetric range do, and of one that the user gave.
    """
    bounds = clip_bounds(node, view.constants)
    if bounds is None:
        return False
    return result.low >= bounds[0] and result.high <= bounds[1] + _ROUNDING * result.scale
