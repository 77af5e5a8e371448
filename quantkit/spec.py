"""How one tensor is quantized: granularity, specification, parameters. Frozen values, no behaviour.

May import numerics only.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantkit.errors import UsageError
from quantkit.numerics.dtypes import INT8, UINT8, IntType, int_type

LEFT_OUT: Mapping[str, bool] = MappingProxyType({"left_out": True})
"""Metadata of a field that files do not hold where it has its default (`quantkit.quantize.plan.model`)."""


class QuantType(Enum):
    """The types that weights can be stored in; the names onnxruntime's users know."""

    QInt8 = "int8"
    QUInt8 = "uint8"


QInt8 = QuantType.QInt8
QUInt8 = QuantType.QUInt8


def weight_int_type(weight_type: Any) -> IntType:
    """Turn what users write into a type: `QUInt8`, ``"uint8"``, or onnxruntime's own enum member."""
    name = getattr(weight_type, "name", weight_type)
    known = {"QInt8": INT8, "QUInt8": UINT8, "int8": INT8, "uint8": UINT8}
    if not isinstance(name, str) or name not in known:
        raise UsageError(
            f"Unknown weight type {name!r}; dynamic quantization stores weights as "
            "QUInt8 (uint8) or QInt8 (int8); fewer bits are weight_bits=4, or quantkit.quantize_weights."
        )
    return known[name]


@dataclass(frozen=True, slots=True)
class PerTensor:
    """One scale for the whole tensor: (A, B) -> scale ()."""


@dataclass(frozen=True, slots=True)
class PerAxis:
    """One scale for each index of `axis`: (A, B), axis 1 -> scale (B,). `axis` may be negative."""

    axis: int


@dataclass(frozen=True, slots=True)
class PerBlock:
    """One scale for `size` neighbours along `axis`: (A, B), axis 0, size 32 -> scale (A / 32, B)."""

    axis: int
    size: int

    def __post_init__(self) -> None:
        if self.size < 1:
            raise UsageError(f"Block size {self.size} is not positive.")


Granularity = PerTensor | PerAxis | PerBlock


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantSpec:
    """How a weight is quantized.

    Attributes:
        dtype: The integer type.
        granularity: What shares a scale.
        symmetric: Zero point fixed in the middle of the type's range.
        reduced: Use one bit less than the type has (onnxruntime's ``reduce_range``).
        pair_axes: The axes that products sum over, the fastest last, if their pair sums must not saturate
            on x86 without VNNI (`quantkit.numerics.pairs`); several for a weight that is read both ways.
        sum_axis: The axis of channels that keep their sum when they are rounded
            (`quantkit.numerics.weights`); None to round to nearest.
        whole: A symmetric grid has all integers of the type (`quantkit.numerics.affine`); of int8 and int16, whose
            kernels want -127 to 127, all but the lowest, and where they are reduced -64 to 64.
        least: The narrowest range; a narrower one is widened, upwards.
        scales: One, or one per channel, that somebody gave: nothing is fitted.
        zero_points: As many.
        pinned: Somebody said how this tensor is to be quantized: it is rounded to nearest, and nothing is searched for.
    """

    dtype: IntType
    granularity: Granularity
    symmetric: bool
    reduced: bool = False
    pair_axes: tuple[tuple[int, ...], ...] = ()
    sum_axis: int | None = None
    whole: bool = field(default=False, metadata=LEFT_OUT)
    least: float = field(default=0.0, metadata=LEFT_OUT)
    scales: tuple[float, ...] = field(default=(), metadata=LEFT_OUT)
    zero_points: tuple[int, ...] = field(default=(), metadata=LEFT_OUT)
    pinned: bool = field(default=False, metadata=LEFT_OUT)

    def __post_init__(self) -> None:
        if len(self.scales) != len(self.zero_points):
            raise UsageError("There must be as many zero points as scales.")
        if not all(scale > 0 for scale in self.scales):
            raise UsageError("Scales must be positive.")
        outside = [z for z in self.zero_points if not self.dtype.qmin <= z <= self.dtype.qmax]
        if outside:
            raise UsageError(f"Zero point {outside[0]} is none of {self.dtype.name}.")

    @property
    def _mirrored(self) -> bool:
        """Whether the grid has as many integers below zero as above it: int8 and int16 have kernels that want it."""
        kernels = self.dtype.signed and self.dtype.bits >= 8
        return self.whole and kernels and (self.symmetric or self.reduced)

    @property
    def qmin(self) -> int:
        """The smallest integer used."""
        if self.reduced:
            return self.dtype.qmin // 2
        return -self.dtype.qmax if self._mirrored else self.dtype.qmin

    @property
    def qmax(self) -> int:
        """The largest integer used."""
        if self.reduced:
            return -self.qmin if self._mirrored else self.dtype.qmax // 2
        return self.dtype.qmax


def named_int_type(name: str) -> IntType:
    """Return the type called `name`; UsageError if there is none."""
    try:
        return int_type(name)
    except KeyError:
        raise UsageError(f"Unknown integer type {name!r}.") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class QParams:
    """The numbers for one tensor.

    Invariants: `scale` and `zero_point` have the shape that the granularity's docstring gives; every scale
    is > 0; `zero_point` has the storage type of ``spec.dtype``.
    """

    spec: QuantSpec
    scale: NDArray[np.float32]
    zero_point: NDArray[Any]
