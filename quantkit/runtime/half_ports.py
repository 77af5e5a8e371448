"""Sessions with inputs or outputs of 16 bits, fed and read as float32.

Numpy has no bfloat16. Inputs of float16 take float32 too, so that a model and its float16 form run on the same samples.
"""

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.numerics.half import halved

_BFLOAT16 = "tensor(bfloat16)"
_ONNX_TYPE = ir.DataType.BFLOAT16.value
_KINDS = {"tensor(float16)": np.dtype(np.float16), _BFLOAT16: ir.DataType.BFLOAT16.numpy()}
_BITS = 16  # a bfloat16 is the first half of a float32


class HalfPorts:
    """A session that takes or gives halves: it may be fed with floats, and what is bfloat16 comes out as float32."""

    def __init__(self, session: Any, value: Any) -> None:
        """Wrap a session of onnxruntime; `value` is its class of values."""
        inputs, outputs = session.get_inputs(), session.get_outputs()
        self._session = session
        self._value = value
        self._halves = {i.name: _KINDS[i.type] for i in inputs if i.type in _KINDS}
        self._plain = all(port.type != _BFLOAT16 for port in (*inputs, *outputs))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def run(
        self, names: Sequence[str] | None, feeds: Mapping[str, NDArray[Any]], options: Any = None
    ) -> list[Any]:
        """Run it as `InferenceSession.run` does."""
        given = {n: _fitted(x, self._halves.get(n)) for n, x in feeds.items()}
        if self._plain:
            found: list[Any] = self._session.run(names, given, options)
            return found
        # Values point into arrays, which must outlive the run.
        bits = {n: x.view(np.uint16) for n, x in given.items() if x.dtype == _KINDS[_BFLOAT16]}
        values = {n: self._value.ortvalue_from_numpy(x) for n, x in given.items() if n not in bits}
        for name, array in bits.items():
            values[name] = self._value.ortvalue_from_numpy_with_onnx_type(array, _ONNX_TYPE)
        return [
            _array(found) for found in self._session.run_with_ort_values(names, values, options)
        ]


def has_half_ports(session: Any) -> bool:
    """Say whether a session takes float16, or takes or gives bfloat16."""
    taken = (port.type in _KINDS for port in session.get_inputs())
    return any(taken) or any(port.type == _BFLOAT16 for port in session.get_outputs())


def widened_feeds(feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return inputs that any form of a model takes: halves as float32, of which sessions of halves make halves again."""
    halves = _KINDS.values()
    return {n: x.astype(np.float32) if x.dtype in halves else x for n, x in feeds.items()}


def _fitted(array: NDArray[Any], kind: np.dtype[Any] | None) -> NDArray[Any]:
    """Return floats in the type that an input has; what is no float is left to onnxruntime to complain of."""
    if kind is None or array.dtype == kind:
        return array
    floats = array.dtype == np.float32 or array.dtype in _KINDS.values()
    return np.ascontiguousarray(halved(array, kind)) if floats else array


def _array(value: Any) -> Any:
    """Return a result of onnxruntime as an array of a type that numpy has."""
    if value.data_type() != _BFLOAT16:
        return value.numpy()
    shape = tuple(value.shape())
    bits = (ctypes.c_uint16 * int(np.prod(shape))).from_address(value.data_ptr())
    wide = np.ctypeslib.as_array(bits).astype(np.uint32) << _BITS
    return wide.view(np.float32).reshape(shape)
