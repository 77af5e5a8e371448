"""Inputs made up from a model's signature, to run models whose data nobody gave us."""

import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Feeds = Mapping[str, NDArray[Any]]


class Signature(Protocol):
    """One input as onnxruntime describes it; a dynamic dimension is a name or None."""

    name: str
    type: str
    shape: Sequence[int | str | None]


_DTYPES = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(bfloat16)": np.float32,  # numpy has none; sessions take it so
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(int8)": np.int8,
    "tensor(uint8)": np.uint8,
    "tensor(bool)": np.bool_,
}
_IMAGE_RANK = 4
_LARGEST = 1 << 28  # values of one input
# A few numbers in a row are no signal but settings (speed, scales, temperature), which are around 1: text is spoken for minutes at a speed
# of 0.1.
_CONTROLS = 4
_FEW = 4
# Sizes tried for dynamic dimensions, and upper ends tried for integer inputs, until the float
# model runs.
_TRIALS_IMAGE = ((64, 2), (224, 2), (320, 2), (640, 2), (32, 2))
# At last nothing but zeros: an index of the only row there is.
_TRIALS_OTHER = ((16, 100), (16, 2), (128, 2), (512, 2), (1, 2), (2, 2), (1600, 2), (16, 1))


def strange_input(inputs: Sequence[Signature]) -> Signature | None:
    """Return an input of a type, or a size, that no value can be made up for; None if there is none."""
    return next((i for i in inputs if i.type not in _DTYPES or _is_absurd(i)), None)


def _is_absurd(signature: Signature) -> bool:
    return math.prod(n for n in signature.shape if isinstance(n, int)) > _LARGEST


def made_up_feeds(
    inputs: Sequence[Signature],
    ranges: Mapping[str, tuple[float, float]] = MappingProxyType({}),
) -> Iterator[Feeds]:
    """Yield inputs that fit the signature, with different guesses for dynamic dimensions.

    Inputs that have a range lie within it.
    """
    if strange_input(inputs) is not None:
        return
    images = any(len(i.shape) == _IMAGE_RANK for i in inputs)
    # First axes of different names count different things (nodes and edges), of which there are some; else it is the batch.
    first = {i.shape[0] for i in inputs if len(i.shape) and not isinstance(i.shape[0], int)}
    rows = 1 if len(first) <= 1 else _FEW
    for extent, high in _TRIALS_IMAGE if images else _TRIALS_OTHER:
        made = {i.name: _made_up(i, extent, high, rows) for i in inputs}
        yield {n: np.clip(x, *ranges[n]) if n in ranges else x for n, x in made.items()}


def _made_up(signature: Signature, extent: int, high: int, rows: int) -> NDArray[Any]:
    generator = np.random.default_rng(0)
    shape = [n if isinstance(n, int) else extent for n in signature.shape]
    dynamic = [axis for axis, n in enumerate(signature.shape) if not isinstance(n, int)]
    if dynamic and dynamic[0] < max(1, len(shape) - 1):
        shape[dynamic[0]] = rows  # the batch, unless it is the last of several axes
    dtype = np.dtype(_DTYPES[signature.type])
    if dtype.kind == "f" and not dynamic and len(shape) <= 1 and math.prod(shape) <= _CONTROLS:
        return np.ones(shape, dtype)
    if dtype.kind == "f":
        return generator.standard_normal(shape).astype(dtype)
    if dtype.kind == "b" or "mask" in signature.name.lower():
        return np.ones(shape, dtype)
    if "len" in signature.name.lower():
        return np.full(shape, extent, dtype)
    top = 2 if "type" in signature.name.lower() else high
    return generator.integers(0, top, shape).astype(dtype)
