"""Integers of weights that were solved for, in place of rounding to nearest."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantkit.numerics.blocks import BlockCodes
from quantkit.spec import QParams


@dataclass(frozen=True, slots=True)
class SolvedWeight:
    """Integers in the layout of the float tensor, with their numbers."""

    integers: NDArray[Any]
    qparams: QParams


@dataclass(frozen=True, slots=True, kw_only=True)
class SolvedIntegers:
    """What recovery found.

    Attributes:
        weights: By tensor.
        biases: New float bias by node, in the place of the model's own.
        blocks: Weights of few bits, by tensor.
    """

    weights: Mapping[str, SolvedWeight] = field(default_factory=lambda: MappingProxyType({}))
    biases: Mapping[str, NDArray[np.float32]] = field(default_factory=lambda: MappingProxyType({}))
    blocks: Mapping[str, BlockCodes] = field(default_factory=lambda: MappingProxyType({}))

    def with_more(self, other: "SolvedIntegers") -> "SolvedIntegers":
        """Return what both found."""
        return SolvedIntegers(
            weights={**self.weights, **other.weights},
            biases={**self.biases, **other.biases},
            blocks={**self.blocks, **other.blocks},
        )
