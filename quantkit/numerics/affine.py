"""Affine quantization.

    q = clip(rint(x / s) + z, qmin, qmax)        x' = (q - z) * s

`s` and `z` are arrays that broadcast against `x` ("keepdims" form): shape ``(1, N)`` for one scale a
column of ``(K, N)``. Rounding is half to even, as in ONNX QuantizeLinear. Zero is always exact:
the range is widened to hold it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantkit.numerics.decibels import sqnr_db
from quantkit.numerics.dtypes import IntType

Floats = NDArray[np.float32]
Integers = NDArray[Any]

# Elements worked on at a time: 256 KB of float32 stays in a core's L2 cache, and no temporary
# grows with the model.
_CHUNK = 1 << 16
_EXACT_BITS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Affine:
    """Scale and zero point, broadcastable against the tensor.

    Invariants: same shape; every scale is finite and > 0; every zero point is an integer in
    [qmin, qmax] (held as float32, which is exact for up to 24 bits).
    """

    scale: Floats
    zero_point: Floats


def affine_from_range(
    low: NDArray[Any],
    high: NDArray[Any],
    *,
    qmin: int,
    qmax: int,
    symmetric: bool = False,
    whole: bool = False,
) -> Affine:
    """Return scale and zero point that map [low, high] onto [qmin, qmax].

    Asymmetric: ``s = (high - low) / (qmax - qmin)``, ``z = rint(qmin - low / s)``.
    Symmetric: ``s = max(|low|, |high|) / h`` with ``h = (qmax - qmin) // 2`` and z in the middle, so
    that +x and -x get opposite values (int8 uses -127..127, uint8 1..255 around 128).
    Symmetric and whole: the range is spread over all integers, ``s = 2 max(|low|, |high|) / (qmax - qmin)``. Where
    they are an even number, one end lies half a step outside: nothing is further off than by rounding, and steps are
    finer, which of four bits is a fifteenth.
    An empty range (all zeros) gets scale 1: zero stays zero.

    Args:
        low: Lower ends, one per scale; above zero counts as zero.
        high: Upper ends, of the same shape; below zero counts as zero.
        qmin: The least integer.
        qmax: The greatest integer.
        symmetric: Zero is in the middle of the integers.
        whole: A symmetric range has all integers, not as many on either side. Zero is where exact arithmetic puts it.
    """
    low64 = np.minimum(np.asarray(low, np.float64), 0)
    high64 = np.maximum(np.asarray(high, np.float64), 0)
    if symmetric and whole:
        scale = storable_scale(2 * np.maximum(-low64, high64) / (qmax - qmin))
        zero = np.full(scale.shape, np.rint((qmin + qmax) / 2), np.float64)
    elif symmetric:
        half = (qmax - qmin) // 2
        scale = storable_scale(np.maximum(-low64, high64) / half)
        zero = np.full(scale.shape, qmax - half, np.float64)
    else:
        exact = (high64 - low64) / (qmax - qmin)
        scale = storable_scale(exact)
        # Of a range that happens to be symmetric zero lies between two integers: which one, float32 must not decide.
        by = np.where(scale == exact.astype(np.float32), exact, scale) if whole else scale
        zero = np.clip(np.rint(qmin - low64 / by), qmin, qmax)
    return Affine(scale=scale, zero_point=zero.astype(np.float32))


def storable_scale(scale: NDArray[Any]) -> Floats:
    """Round to float32; what would be zero or subnormal there becomes 1 (the tensor is all zeros)."""
    rounded = np.asarray(scale, np.float32)
    return np.where(rounded < np.finfo(np.float32).tiny, np.float32(1), rounded)


def quantize(
    array: NDArray[Any], affine: Affine, dtype: IntType, *, qmin: int, qmax: int
) -> Integers:
    """Quantize in blocks; the only temporary is `_CHUNK` elements.

    Args:
        array: Floats.
        affine: Scale and zero point, which broadcast against `array`.
        dtype: Of the integers.
        qmin: The least integer, which may be above the type's own.
        qmax: The greatest integer, which may be below the type's own.
    """
    if array.ndim == 0:
        return quantize(array[None], affine, dtype, qmin=qmin, qmax=qmax).reshape(())
    out = np.empty(array.shape, dtype.storage)
    # float32 holds every integer of up to 24 bits.
    work = np.float64 if dtype.bits > _EXACT_BITS else np.float32
    for index in _slices(array.shape):
        part = array[index]
        x = np.divide(part, _part(affine.scale, index), dtype=work)
        np.rint(x, out=x)
        np.add(x, _part(affine.zero_point, index), out=x)
        np.clip(x, qmin, qmax, out=x)
        out[index] = x.astype(dtype.storage)
    return out


def dequantize(q: Integers, affine: Affine) -> Floats:
    """Return ``(q - z) * s`` as float32, in blocks."""
    if q.ndim == 0:
        return dequantize(q[None], affine).reshape(())
    out = np.empty(q.shape, np.float32)
    for index in _slices(q.shape):
        x = np.subtract(q[index], _part(affine.zero_point, index), dtype=np.float32)
        np.multiply(x, _part(affine.scale, index), out=out[index])
    return out


def sqnr(array: NDArray[Any], approximation: NDArray[Any]) -> float:
    """Signal to quantization noise ratio in dB: ``10 log10(sum x^2 / sum (x - x')^2)``."""
    signal = noise = 0.0
    for index in _slices(array.shape):
        x = np.asarray(array[index], np.float64)
        signal += float(np.vdot(x, x))
        error = x - approximation[index]
        noise += float(np.vdot(error, error))
    return sqnr_db(signal, noise)


def bias_scale(input_scale: float, weight_scale: Floats) -> Floats:
    """Return the scale of an int32 bias, ``s_x * s_w``: the scale of the accumulator it is added to."""
    return np.asarray(input_scale * np.asarray(weight_scale, np.float64), np.float32)


def blocks(array: NDArray[Any], axis: int, size: int) -> NDArray[Any]:
    """View `array` with `axis` cut into blocks: ``(..., n, ...) -> (..., ceil(n / size), size, ...)``.

    A last block that is not full is padded with zeros, which never widen a range.

    Args:
        array: Any.
        axis: That is cut.
        size: Of a block.
    """
    axis %= array.ndim
    n = array.shape[axis]
    count = -(-n // size)
    if count * size != n:
        width = [(0, 0)] * array.ndim
        width[axis] = (0, count * size - n)
        array = np.pad(array, width)
    return array.reshape(*array.shape[:axis], count, size, *array.shape[axis + 1 :])


def unblocks(array: NDArray[Any], axis: int, n: int) -> NDArray[Any]:
    """Undo `blocks`: join `axis` and the one after it, and cut to `n`.

    Args:
        array: As `blocks` returned it.
        axis: That was cut.
        n: Its extent before.
    """
    axis %= array.ndim - 1
    joined = array.reshape(*array.shape[:axis], -1, *array.shape[axis + 2 :])
    return joined[(slice(None),) * axis + (slice(n),)]


def _slices(shape: tuple[int, ...]) -> Iterator[tuple[slice | int, ...]]:
    """Cut `shape` along its leading axes into pieces of about `_CHUNK` elements."""
    if not shape:
        yield ()
        return
    inner = int(np.prod(shape[1:], dtype=np.int64))
    if inner > _CHUNK and len(shape) > 1:
        for i in range(shape[0]):
            for rest in _slices(shape[1:]):
                yield (i, *rest)
        return
    step = max(1, _CHUNK // max(1, inner))
    for start in range(0, shape[0], step):
        yield (slice(start, start + step),)


def _part(parameter: Floats, index: tuple[slice | int, ...]) -> Floats:
    """Cut a broadcastable parameter as the tensor is cut: axes of length 1 stay whole."""
    cut: list[slice | int] = []
    for axis, i in enumerate(index):
        if parameter.ndim == 0:
            break
        if parameter.shape[axis] != 1:
            cut.append(i)
        else:
            cut.append(slice(None) if isinstance(i, slice) else 0)
    return np.asarray(parameter[tuple(cut)], np.float32)
