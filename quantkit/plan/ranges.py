"""Which range a tensor has, and which scale and zero point follow from it.

In this order: what the user says, what the operator's formula says (a Softmax lies in [0, 1]), what was
observed, and for data movement the range of what is moved.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, isfinite

import numpy as np

from quantkit.analyze.network import Network, Step
from quantkit.numerics.affine import affine_from_range
from quantkit.ops.activations import FIXED_RANGES, MOVES
from quantkit.plan.model import ActivationPlan
from quantkit.plan.options import StaticOptions, TensorOverride
from quantkit.plan.selection import resolve_tensors

__all__ = ["KnownRange", "Ranges", "clip_bounds", "clips_alike"]

_ROUNDING = 1e-3  # of a step, by which float32 may miss the end of a range


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
    """Answers for one network; a tensor is looked up once."""

    network: Network
    observed: Mapping[str, tuple[float, float]]
    options: StaticOptions
    _said: dict[str, TensorOverride] = field(init=False)
    _known: dict[str, KnownRange | None] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        names = frozenset(self.network.producer) | frozenset(self.network.readers)
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
        maker = self.network.maker(tensor)
        fixed = None if maker is None else FIXED_RANGES.get(maker.op_type)
        if fixed is not None:
            assert maker is not None  # noqa: S101 - it has a fixed range
            return KnownRange(*fixed, f"{maker.op_type} cannot leave it"), None
        if tensor in self.observed:
            return self._seen(maker, *self.observed[tensor]), None
        constant = self.network.constants.get(tensor)
        if constant is not None and constant.low is not None and constant.high is not None:
            finite = isfinite(constant.low) and isfinite(constant.high)
            low, high = min(constant.low, 0.0), max(constant.high, 0.0)
            return (KnownRange(low, high, "constant") if finite else None), None
        if maker is not None and maker.op_type in MOVES and maker.inputs:
            return None, maker.inputs[0]
        return None, None

    def _seen(self, maker: Step | None, low: float, high: float) -> KnownRange | None:
        """Return what was observed, within the bounds of a Clip; None if NaN or infinity was."""
        if not (isfinite(low) and isfinite(high)):
            return None
        bounds = None if maker is None else clip_bounds(maker, self.network)
        if bounds is not None:
            low, high = max(low, bounds[0]), min(high, bounds[1])
        return KnownRange(low, high, "observed")

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


def clip_bounds(step: Step, network: Network) -> tuple[float, float] | None:
    """Return between which constants a step clips; None if it does not, or they are computed."""
    if step.op_type == "Relu":
        return 0.0, inf
    if step.op_type != "Clip":
        return None
    bounds = []
    for slot, name, default in ((1, "min", -inf), (2, "max", inf)):
        given = step.inputs[slot] if slot < len(step.inputs) else ""
        value = step.attributes.get(name, default)
        if given:
            constant = network.constants.get(given)
            if constant is None or constant.low is None:
                return None
            value = constant.low
        bounds.append(float(value))  # type: ignore[arg-type]  # a number in every valid model
    return bounds[0], bounds[1]


def clips_alike(step: Step, network: Network, result: ActivationPlan) -> bool:
    """Say whether no integer of `result` lies outside the bounds of a Relu or Clip.

    Those of a symmetric range do, and of one that the user gave.
    """
    bounds = clip_bounds(step, network)
    if bounds is None:
        return False
    return result.low >= bounds[0] and result.high <= bounds[1] + _ROUNDING * result.scale
