"""Many small arrays as a few long ones: a file of 20,000 tensors stays a file of a dozen arrays."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["pack", "unpack"]

_SHAPES = 2  # axes: which array, which axis
_LARGEST = (
    1 << 24
)  # no extent is larger; one of nothing could be, and make a statistic take all memory

Arrays = Mapping[str, NDArray[Any]]


def pack(states: Sequence[Arrays]) -> dict[str, NDArray[Any]]:
    """Join arrays of the same name: their values, one after the other, and their shapes.

    All states have the same names, and under a name the same type and number of axes.
    """
    packed: dict[str, NDArray[Any]] = {}
    for name in states[0] if states else ():
        arrays = [np.asarray(state[name]) for state in states]
        packed[f"{name}.values"] = np.concatenate([a.reshape(-1) for a in arrays])
        packed[f"{name}.shapes"] = np.array([a.shape for a in arrays], np.int64)
    return packed


def unpack(packed: Arrays) -> list[dict[str, NDArray[Any]]]:
    """Take apart what `pack` joined."""
    states: list[dict[str, NDArray[Any]]] = []
    for key, shapes in packed.items():
        if not key.endswith(".shapes"):
            continue
        name = key.removesuffix(".shapes")
        if shapes.ndim != _SHAPES or (
            shapes.size and not 0 <= shapes.min() <= shapes.max() < _LARGEST
        ):
            raise ValueError(f"the shapes of '{name}' make no sense")
        sizes = np.prod(shapes, axis=1, dtype=np.int64)
        if sizes.sum() != packed[f"{name}.values"].size:
            raise ValueError(f"the values of '{name}' do not fit their shapes")
        parts = np.split(packed[f"{name}.values"], np.cumsum(sizes)[:-1])
        states = states or [{} for _ in shapes]
        for state, part, shape in zip(states, parts, shapes, strict=True):
            state[name] = part.reshape(shape)
    return states
