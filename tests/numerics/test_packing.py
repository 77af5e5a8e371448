from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from quantkit.numerics.dtypes import INT2, INT4, UINT2, UINT4, IntType
from quantkit.numerics.packing import Plane, pack, planes, unpack

SMALL = pytest.mark.parametrize("dtype", [INT2, UINT2, INT4, UINT4], ids=lambda t: t.name)


def values(dtype: IntType, shape: tuple[int, ...], seed: int = 0) -> NDArray[Any]:
    made = np.random.default_rng(seed).integers(dtype.qmin, dtype.qmax + 1, shape)
    return made.astype(dtype.storage)


@SMALL
@settings(max_examples=50, deadline=None)
@given(
    shape=hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=7), seed=st.integers(0, 99)
)
def test_unpack_undoes_pack(dtype: IntType, shape: tuple[int, ...], seed: int) -> None:
    q = values(dtype, shape, seed)
    packed = pack(q, dtype)
    back = unpack(packed, dtype, shape)
    assert packed.dtype == np.uint8
    assert packed.size == -(-q.size * dtype.bits // 8)
    assert back.dtype == dtype.storage
    np.testing.assert_array_equal(back, q)


@SMALL
def test_every_value_survives(dtype: IntType) -> None:
    q = np.arange(dtype.qmin, dtype.qmax + 1).astype(dtype.storage)
    np.testing.assert_array_equal(unpack(pack(q, dtype), dtype, q.shape), q)


@SMALL
@pytest.mark.parametrize("shape", [(1,), (5,), (3, 3), (2, 3, 4)], ids=str)
def test_bytes_are_those_of_an_onnx_tensor(dtype: IntType, shape: tuple[int, ...]) -> None:
    if not hasattr(TensorProto, dtype.name.upper()):
        pytest.skip(f"this onnx has no {dtype.name}")
    q = values(dtype, shape)
    tensor = numpy_helper.from_array(q.astype(getattr(ml_dtypes, dtype.name)))
    assert tensor.data_type == getattr(TensorProto, dtype.name.upper())
    assert pack(q, dtype).tobytes() == tensor.raw_data


@SMALL
def test_onnx_reads_packed_bytes_back(dtype: IntType) -> None:
    if not hasattr(TensorProto, dtype.name.upper()):
        pytest.skip(f"this onnx has no {dtype.name}")
    q = values(dtype, (3, 5))
    onnx_type = getattr(TensorProto, dtype.name.upper())
    tensor = helper.make_tensor("t", onnx_type, q.shape, pack(q, dtype).tobytes(), raw=True)
    np.testing.assert_array_equal(numpy_helper.to_array(tensor).astype(dtype.storage), q)


@pytest.mark.parametrize(
    ("dtype", "q", "expected"),
    [
        pytest.param(UINT4, [1, 2, 3], [0x21, 0x03], id="uint4-odd-count-padded-with-zero"),
        pytest.param(INT4, [-1, 7, -8], [0x7F, 0x08], id="int4-two's-complement"),
        pytest.param(UINT2, [0, 1, 2, 3, 3], [0b11100100, 0b11], id="uint2-lowest-bits-first"),
        pytest.param(INT2, [-2, -1, 0, 1], [0b01001110], id="int2-two's-complement"),
    ],
)
def test_layout_of_bits(dtype: IntType, q: list[int], expected: list[int]) -> None:
    assert pack(np.array(q, dtype.storage), dtype).tolist() == expected


def test_values_are_packed_in_row_major_order_whatever_the_memory_layout() -> None:
    q = values(UINT4, (4, 6))
    np.testing.assert_array_equal(pack(np.asfortranarray(q), UINT4), pack(q, UINT4))


def joined(parts: tuple[Plane, ...], count: int) -> NDArray[np.uint8]:
    codes = np.zeros(count, np.uint8)
    for part in parts:
        shifts = part.width * np.arange(part.per_byte, dtype=np.uint8)[:, np.newaxis]
        values = part.content >> shifts & (1 << part.width) - 1
        codes |= values.reshape(-1)[:count].astype(np.uint8) << part.shift
    return codes


@settings(max_examples=60, deadline=None)
@given(bits=st.integers(1, 8), count=st.integers(0, 70), seed=st.integers(0, 99))
def test_planes_of_any_number_of_bits_come_together_again(bits: int, count: int, seed: int) -> None:
    codes = np.random.default_rng(seed).integers(0, 1 << bits, count).astype(np.uint8)
    parts = planes(codes, bits)
    np.testing.assert_array_equal(joined(parts, count), codes)
    assert sum(part.width for part in parts) == bits
    assert sum(part.content.size for part in parts) <= count * bits / 8 + len(parts)


def test_a_plane_is_shifted_into_codes_in_order() -> None:
    codes = np.arange(16, dtype=np.uint8)
    (part,) = planes(codes, 4)
    shifted = part.content >> np.array([[0], [4]], np.uint8) & 15
    np.testing.assert_array_equal(shifted.reshape(-1), codes)
