"""Which range a tensor has, and which scale and zero point follow from it.

In this order: what the user says, what the operator's formula says (a Softmax lies in [0, 1]) unless far less was
observed, what was observed, and for data movement the range of what is moved. Where several tensors are moved into one,
as by a Concat, all have one scale, for the hull of their ranges (`quantkit.quantize.plan.sharing`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import isfinite, sqrt
from typing import ClassVar

import numpy as np

from quantkit.errors import UsageError
from quantkit.model.ops.float_ops import FIXED_RANGES, MOVES
from quantkit.model.ops.view import Constant, Node, View, clip_bounds, fills_in
from quantkit.numerics.affine import affine_from_range
from quantkit.numerics.decibels import decibels
from quantkit.numerics.dtypes import UINT8, IntType
from quantkit.quantize.plan.model import ActivationPlan, Conversion
from quantkit.quantize.plan.selection import resolve_tensors
from quantkit.reasons import Reason, Why, because
from quantkit.settings import StaticSettings, TensorRule
from quantkit.targets import Target

_ROUNDING = 1e-3  # of a step, by which float32 may miss the end of a range
# Of what a formula bounds, observed values that stay below this share have a range of their own: each half of it
# would cost a bit. A Softmax over many values is far below 1.
_FAR_BELOW = 0.5
_NO_WRAP = 2.0  # 255 / 148 and some room: what was observed is a sample
# Steps of a shared scale that a tensor must at least extend over, beside others that extend over more: five bits.
FEWEST_STEPS = 32


@dataclass(frozen=True, slots=True)
class KnownRange:
    """Lower and upper end, and where they come from."""

    low: float
    high: float
    source: Reason


@dataclass(slots=True)
class Ranges:
    """Answers for one graph; a tensor is looked up once.

    `powers`: the mean square of single tensors, as far as it is known.
    """

    view: View
    observed: Mapping[str, tuple[float, float]]
    options: StaticSettings
    powers: Mapping[str, float] = field(default_factory=dict)
    _said: dict[str, TensorRule] = field(init=False)
    _converted: dict[str, TensorRule] = field(init=False)
    _target: Target = field(init=False)
    _dtype: IntType = field(init=False)
    _symmetric: bool = field(init=False)
    _known: dict[str, KnownRange | None] = field(init=False, default_factory=dict)

    whole_grids: ClassVar[bool] = False
    """Symmetric ranges of any type are spread over all integers (`quantkit.numerics.affine`)."""

    def __post_init__(self) -> None:
        names = frozenset(self.view.producer) | frozenset(self.view.readers)
        # Once: a plug-in is looked for each time that its name is resolved.
        self._target, self._dtype = self.options.runs_on, self.options.activation
        self._symmetric = self.options.symmetric
        self._said, self._converted = {}, {}
        for rules, found in (
            (self.options.overrides, self._said),
            (self.options.conversions, self._converted),
        ):
            for rule in rules:
                found.update(dict.fromkeys(resolve_tensors(rule.tensor, names), rule))

    def is_float(self, tensor: str) -> bool:
        """Say whether the user wants a tensor left alone."""
        said = self._said.get(tensor)
        return said is not None and said.keep_float

    def is_ruled(self, tensor: str) -> bool:
        """Say whether the user gives a tensor a range, a type or numbers of its own."""
        said = self._said.get(tensor)
        if said is None or said.keep_float:
            return False
        numbers = said.range is not None or said.symmetric is not None or bool(said.scales)
        return numbers or (said.int_type or self._dtype) != self._dtype

    def rule(self, tensor: str) -> TensorRule | None:
        """Return what the user says about a tensor; None: nothing."""
        return self._said.get(tensor)

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
            return KnownRange(*said.range, because(Why.GIVEN)), None
        maker = self.view.maker(tensor)
        fixed = None if maker is None else self._fixed(maker, tensor)
        if fixed is not None:
            return fixed, None
        if tensor in self.observed:
            return self._seen(tensor, maker, *self.observed[tensor]), None
        ends = self._ends(tensor)
        if ends is not None:
            finite = isfinite(ends[0]) and isfinite(ends[1])
            low, high = min(ends[0], 0.0), max(ends[1], 0.0)
            return (KnownRange(low, high, because(Why.CONSTANT)) if finite else None), None
        return None, _moved_from(maker, self.view.constants)

    def _ends(self, tensor: str) -> tuple[float, float] | None:
        """Return the ends of a constant that was looked into."""
        constant = self.view.constants.get(tensor)
        if constant is not None and constant.low is not None and constant.high is not None:
            return constant.low, constant.high
        return None

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
        free = maker.op_type not in self._target.fixed_outputs
        wraps = maker.op_type == "Softmax" and self._target.has_qlinear
        least = self._least_end(tensor, seen) if wraps else 0.0
        if free and 0 < seen[1] < _FAR_BELOW * bounds[1] and least < bounds[1]:
            why = Why.OBSERVED if least <= seen[1] else Why.OVERFLOWS_BELOW
            return KnownRange(bounds[0], max(seen[1], least), because(why))
        return KnownRange(*bounds, because(Why.BOUNDED, op_type=maker.op_type))

    def _least_end(self, tensor: str, seen: tuple[float, float]) -> float:
        """Return the upper end that the range of a Softmax must have at least, for onnxruntime's integer kernel.

        Over n values it multiplies 2^32 / (n e^5) by 1 / scale in 32 bits, and if the product wraps, 0 comes out. So 255 / end
        must be below 148 n. The values add up to 1: n is at least 1 / rms, and at least 1 / max.
        """
        return _NO_WRAP * (sqrt(self.powers[tensor]) if tensor in self.powers else seen[1])

    def _seen(
        self,
        tensor: str,  # noqa: ARG002 - who reads it counts where all is quantized
        maker: Node | None,
        low: float,
        high: float,
    ) -> KnownRange | None:
        """Return what was observed, within the bounds of a Clip; None if NaN or infinity was."""
        if not (isfinite(low) and isfinite(high)):
            return None
        bounds = None if maker is None else clip_bounds(maker, self.view.constants)
        if bounds is not None:
            low, high = max(low, bounds[0]), min(high, bounds[1])
        return KnownRange(low, high, because(Why.OBSERVED))

    def sqnr(self, tensor: str) -> float | None:
        """Return how many dB the steps of a tensor lie below its values; None if their power is not known."""
        power, decided = self.powers.get(tensor), self.plan(tensor)
        if power is None or not power > 0 or decided is None:
            return None
        return decibels(12 * power / decided.scale**2)

    def dtype(self, tensor: str) -> IntType:
        """Return the type of a tensor's integers."""
        said = self._said.get(tensor)
        return (said.int_type if said else None) or self._dtype

    def plan(self, tensor: str, within: KnownRange | None = None) -> ActivationPlan | None:
        """Return scale and zero point of a tensor for its range, or for the one given; None if it is not known."""
        found = within or self.of(tensor)
        if found is None:
            return None
        return self._numbers(tensor, found, self.dtype(tensor), symmetric=self._symmetric)

    def clips(self, tensor: str, low: float, high: float) -> bool:
        """Say whether the integers of a tensor end at `low`, and at `high` or below: they clip what is computed."""
        decided = self.plan(tensor)
        if decided is None:
            return False
        step = _ROUNDING * decided.scale
        return abs(decided.low - low) <= step and decided.high <= high + step

    def conversion(self, tensor: str) -> Conversion | None:
        """Return the other numbers in which some nodes are to read a tensor; None if there are none."""
        rule, found = self._converted.get(tensor), self.of(tensor)
        if rule is None or found is None:
            return None
        if rule.range is not None:
            found = KnownRange(*rule.range, because(Why.GIVEN))
        dtype = rule.int_type or self._dtype
        symmetric = self._symmetric if rule.symmetric is None else rule.symmetric
        made = self._affine(found, dtype, symmetric=symmetric)
        if rule.scales:
            made = _only(rule, dtype)
        readers = tuple(name for name in rule.readers if name != "*")
        return Conversion(dtype=dtype, scale=made[0], zero_point=made[1], readers=readers)

    def weight_plan(self, tensor: str) -> ActivationPlan | None:
        """Return the same of a constant that is quantized as weights are; None if its range is not known."""
        found = self.of(tensor)
        if found is None:
            return None
        said, given = self._said.get(tensor), self.options.qdq.symmetric_weights
        dtype = (said.int_type if said else None) or self.options.weight
        symmetric = dtype.signed if given is None else given
        return self._numbers(tensor, found, dtype, symmetric=symmetric)

    def _numbers(
        self, tensor: str, found: KnownRange, dtype: IntType, *, symmetric: bool
    ) -> ActivationPlan:
        rule = self._said.get(tensor)
        if rule is not None and rule.symmetric is not None:
            symmetric = rule.symmetric
        scale, zero = self._affine(found, dtype, symmetric=symmetric)
        low, high = float(found.low), float(found.high)
        why = because(Why.RANGE, source=found.source, low=low, high=high)
        if rule is not None and rule.scales:
            (scale, zero), why = _only(rule, dtype), because(Why.NUMBERS_GIVEN)
        return ActivationPlan(tensor=tensor, dtype=dtype, scale=scale, zero_point=zero, reason=why)

    def _affine(self, found: KnownRange, dtype: IntType, *, symmetric: bool) -> tuple[float, int]:
        """Return scale and zero point of a range, as settings about all tensors want them."""
        qdq, low, high = self.options.qdq, min(found.low, 0.0), max(found.high, 0.0)
        high = max(high, low + (qdq.min_range or 0.0))
        if qdq.restricted_zero_points and dtype is UINT8 and not symmetric and low < 0:
            # Zero in the middle, and either side must hold its end: there is one integer more below.
            middle = (dtype.qmax + 1) // 2
            scale = max(-low / middle, high / (dtype.qmax - middle))
            return float(np.float32(scale)), middle
        affine = affine_from_range(
            np.asarray([low]),
            np.asarray([high]),
            qmin=self._least_integer(dtype, symmetric=symmetric),
            qmax=dtype.qmax,
            symmetric=symmetric,
            whole=self.whole_grids,
        )
        return float(affine.scale[0]), int(affine.zero_point[0])

    def _least_integer(self, dtype: IntType, *, symmetric: bool) -> int:  # noqa: ARG002 - others do
        """Return the smallest integer that a tensor may have."""
        return dtype.qmin

    def finished(
        self,
        plan: ActivationPlan,
        root: ActivationPlan | None,  # noqa: ARG002 - others do
        first: str,  # noqa: ARG002 - others do
    ) -> ActivationPlan:
        """Return a plan with what depends on the tensor `first` that it shares its scale with, planned as `root`."""
        return plan


class CoveredRanges(Ranges):
    """Ranges where every tensor is quantized, and observed values count as they are."""

    __slots__ = ()

    whole_grids = True

    def _ends(self, tensor: str) -> tuple[float, float] | None:
        """Return the ends of a constant, also of a large one."""
        weight = self.view.weights.get(tensor)
        ends = super()._ends(tensor)
        if ends or tensor not in self.view.constants or weight is None:
            return ends
        return None if weight.low is None or weight.high is None else (weight.low, weight.high)

    def _fixed(self, maker: Node, tensor: str) -> KnownRange | None:
        free = maker.op_type not in self._target.fixed_outputs
        if free and maker.op_type != "Softmax" and tensor in self.observed:
            return None  # what was observed, as it is asked for
        return super()._fixed(maker, tensor)

    def _seen(self, tensor: str, maker: Node | None, low: float, high: float) -> KnownRange | None:
        bounds = None if maker is None else clip_bounds(maker, self.view.constants)
        if bounds is not None and low == high == 0 and isfinite(sum(bounds)):
            only_zero = because(Why.ONLY_ZERO)
            seen = KnownRange(min(bounds[0], 0.0), max(bounds[1], 0.0), only_zero)
            return self._cut(tensor, seen)
        return self._cut(tensor, super()._seen(tensor, maker, low, high))

    def _cut(self, tensor: str, seen: KnownRange | None) -> KnownRange | None:
        """Return the range within the bounds of the one Relu or Clip that reads a tensor.

        What lies beyond is clipped in any case, and would cost steps. Elsewhere such a tensor is not quantized.
        """
        index = self.view.only_reader(tensor)
        bounds = None if index is None else clip_bounds(self.view.nodes[index], self.view.constants)
        if seen is None or bounds is None:
            return seen
        low, high = max(seen.low, min(bounds[0], 0.0)), min(seen.high, max(bounds[1], 0.0))
        return KnownRange(low, high, seen.source) if low < high else seen

    def _least_integer(self, dtype: IntType, *, symmetric: bool) -> int:
        # Symmetric ranges have as many integers on either side.
        return -dtype.qmax if symmetric and dtype.signed and dtype.bits >= 8 else dtype.qmin

    def finished(
        self, plan: ActivationPlan, root: ActivationPlan | None, first: str
    ) -> ActivationPlan:
        """Return a plan that knows whose numbers it shares in the file, and in which others some nodes read it."""
        # What was converted before it was moved has the numbers of the conversion.
        apart = root is not None and (root.dtype, root.scale) != (plan.dtype, plan.scale)
        converted = self.conversion(plan.tensor)
        return replace(plan, shares="" if apart else first, converted=converted)


class OpenRanges(Ranges):
    """The same range for every tensor, so that no decision depends on values: all that can be asked for is asked for."""

    __slots__ = ()

    def _lookup(self, tensor: str) -> tuple[KnownRange | None, str | None]:  # noqa: ARG002 - the same for all
        return KnownRange(-1.0, 1.0, because(Why.ASSUMED)), None

    def clips(self, tensor: str, low: float, high: float) -> bool:  # noqa: ARG002 - they might
        """Say that they do."""
        return True


class OpenCoveredRanges(OpenRanges, CoveredRanges):
    """The same, where every tensor is quantized."""

    __slots__ = ()


def _only(rule: TensorRule, dtype: IntType) -> tuple[float, int]:
    """Return the scale and zero point that a rule gives a tensor that has one."""
    (scale, *more), (zero, *_) = rule.scales, rule.zero_points
    if more or not dtype.qmin <= zero <= dtype.qmax:
        raise UsageError(
            f"The rule for '{rule.tensor}' gives {len(rule.scales)} scales, and zero point {zero}: it takes one scale, and a "
            f"zero point of {dtype.name}."
        )
    return scale, zero


def _moved_from(maker: Node | None, constants: Mapping[str, Constant]) -> str | None:
    """Return the tensor whose values a node hands on; None if it computes, or adds values of its own."""
    if maker is None or maker.op_type not in MOVES or not maker.inputs:
        return None
    return None if fills_in(maker, constants) else maker.inputs[0]


def clips_alike(
    node: Node, view: View, result: ActivationPlan, *, half_a_step: bool = False
) -> bool:
    """Say whether no integer of `result` lies outside the bounds of a Relu or Clip.

    Those of a symmetric range do, and of one that the user gave.

    Args:
        node: A Relu or Clip.
        view: The graph.
        result: How its result is quantized.
        half_a_step: One may lie outside by as much as rounding is off anyway: zero is an integer, so of bounds that are
            not whole steps apart from it one is missed.
    """
    bounds = clip_bounds(node, view.constants)
    if bounds is None:
        return False
    below = (0.5 + _ROUNDING) * result.scale if half_a_step else 0.0
    above = below or _ROUNDING * result.scale
    return result.low >= bounds[0] - below and result.high <= bounds[1] + above
