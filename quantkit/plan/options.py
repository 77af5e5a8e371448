"""What a user may choose about static quantization; the defaults are what an expert would."""

from dataclasses import dataclass

from quantkit.numerics.dtypes import IntType
from quantkit.targets import DEFAULT, Target

__all__ = ["Kept", "StaticOptions", "TensorOverride"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorOverride:
    """What a user says about tensors.

    Attributes:
        tensor: A name or a pattern.
        range: Lower and upper end, instead of the observed ones.
        dtype: Another integer type.
        is_float: Leave it float, and what would need it in integers.
    """

    tensor: str
    range: tuple[float, float] | None = None
    dtype: IntType | None = None
    is_float: bool = False


@dataclass(frozen=True, slots=True)
class Kept:
    """A node that computes in float because integers were tried and lose too much.

    `stored`: its weight is stored in 8 bits all the same.
    """

    why: str
    stored: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticOptions:
    """How to quantize with calibrated ranges.

    Attributes:
        target: What the result will run on.
        activation: Type of activations; None is the target's.
        weight: Type of weights; None is the target's.
        per_channel: One scale an output channel, where the target runs that.
        symmetric_activations: Zero point in the middle; None is the target's.
        op_types: Only these operators; None for all.
        include: Only these nodes (names or patterns).
        exclude: Never these nodes (names or patterns).
        force: These nodes in integers, whatever their neighbours are (names or patterns).
        overrides: What is said about single tensors; a later one wins.
    """

    target: Target = DEFAULT
    activation: IntType | None = None
    weight: IntType | None = None
    per_channel: bool = True
    symmetric_activations: bool | None = None
    op_types: tuple[str, ...] | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    force: tuple[str, ...] = ()
    overrides: tuple[TensorOverride, ...] = ()

    @property
    def activation_type(self) -> IntType:
        """The type of activations."""
        return self.activation or self.target.activation

    @property
    def weight_type(self) -> IntType:
        """The type of weights."""
        return self.weight or self.target.weight

    @property
    def symmetric(self) -> bool:
        """Whether activations have their zero point in the middle."""
        if self.symmetric_activations is not None:
            return self.symmetric_activations
        return self.target.symmetric_activations
