"""Which channels of which tensors a quantized model holds divided, noted in the model itself.

Equalizing and smoothing divide the channels of an activation by numbers that the next weights take over:

    candidate[..., j, ...] = float[..., j, ...] / divisor[j]

Whoever compares the two models tensor by tensor needs the divisors. They are few significant bits by construction
(`rounded`), so that what is noted is exactly what was done: float16, compressed, base85, once for all tensors that
share them.
"""

import base64
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

KEY = "quantkit.evened"
_MOST_BYTES = 1 << 26  # of one tensor's factors, unpacked; a file that says more is not ours
_MANTISSA = 4  # bits behind the leading one: steps of 3 to 6 %, about a byte a channel in the file


@dataclass(frozen=True, slots=True)
class Divisor:
    """One number for each channel along an axis."""

    axis: int
    values: NDArray[np.float32]

    def shaped(self, rank: int) -> NDArray[np.float32]:
        """Return the numbers so that they broadcast against a tensor of `rank` axes."""
        shape = [1] * rank
        shape[self.axis] = -1
        return self.values.reshape(shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Divisors:
    """Tensors that are divided alike."""

    tensors: tuple[str, ...]
    divisor: Divisor


def rounded(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return positive numbers of `_MANTISSA` + 1 significant bits, nearest to the given ones."""
    mantissa, exponent = np.frexp(values)
    steps = float(1 << (_MANTISSA + 1))
    return np.asarray(np.ldexp(np.rint(mantissa * steps) / steps, exponent), np.float64)


def write_divisors(properties: dict[str, str], groups: Iterable[Divisors]) -> None:
    """Note all groups in a model's metadata; an empty note says that nothing was divided."""
    noted = [
        {"tensors": list(g.tensors), "axis": g.divisor.axis, "by": _packed(g.divisor.values)}
        for g in groups
    ]
    properties[KEY] = json.dumps(noted, separators=(",", ":"))


def read_divisors(properties: Mapping[str, str]) -> dict[str, Divisor] | None:
    """Return the divisor of each tensor; None if the model says nothing, or nothing that can be read."""
    if KEY not in properties:
        return None
    try:
        noted: list[dict[str, Any]] = json.loads(properties[KEY])
        return {
            tensor: divisor
            for group in noted
            for divisor in (Divisor(int(group["axis"]), _unpacked(group["by"])),)
            for tensor in group["tensors"]
        }
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError, zlib.error):
        return None


def _packed(values: NDArray[Any]) -> str:
    # First all high bytes, then all low ones: each half repeats itself.
    halves = values.astype("<f2").view(np.uint8).reshape(-1, 2).T
    return base64.b85encode(zlib.compress(halves.tobytes(), 9)).decode()


def _unpacked(text: str) -> NDArray[np.float32]:
    packed = zlib.decompressobj()
    unpacked = packed.decompress(base64.b85decode(text), _MOST_BYTES)
    if not packed.eof:
        raise ValueError("It was cut off, or is too large.")
    halves = np.frombuffer(unpacked, np.uint8).reshape(2, -1)
    return np.ascontiguousarray(halves.T).view("<f2").reshape(-1).astype(np.float32)
