"""quantkit.ort.quant_utils: functions for arrays give what onnxruntime's of the same name give."""

from typing import Any

import numpy as np
import onnx
import onnxruntime.quantization.quant_utils as peer
import pytest
from builders import rng
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, numpy_helper

from quantkit.errors import UsageError
from quantkit.ort import quant_utils as ours

INTEGERS = [
    *(TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16, TensorProto.UINT16),
    *(TensorProto.INT4, TensorProto.UINT4),
]
ends = st.floats(-1e6, 1e6, width=32)


@pytest.mark.parametrize("number", INTEGERS)
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("reduced", [False, True])
def test_integers_of_a_type_are_onnxruntimes(
    number: int, *, symmetric: bool, reduced: bool
) -> None:
    found = ours.get_qmin_qmax_for_qType(number, reduced, symmetric)
    expected = peer.get_qmin_qmax_for_qType(number, reduced, symmetric)
    assert [int(end) for end in found] == [int(end) for end in expected]
    assert [end.dtype for end in found] == [end.dtype for end in expected]
    assert ours.get_qrange_for_qType(number, reduced, symmetric) == int(found[1]) - int(found[0])


@given(
    low=ends,
    high=ends,
    number=st.sampled_from(INTEGERS),
    symmetric=st.booleans(),
    width=st.none() | st.floats(1e-4, 10),
)
def test_scale_and_zero_point_are_onnxruntimes(
    low: float, high: float, number: int, *, symmetric: bool, width: float | None
) -> None:
    span = ours.get_qmin_qmax_for_qType(number, symmetric=symmetric)
    given_ends = (np.array(low, np.float32), np.array(high, np.float32), *span)
    zero, scale = ours.compute_scale_zp(*given_ends, symmetric, width)
    expected_zero, expected_scale = peer.compute_scale_zp(*given_ends, symmetric, width)
    np.testing.assert_allclose(scale, expected_scale, rtol=1e-6)
    # The scale is rounded to float32 before the zero point is found, as whoever computes with both will find it.
    assert abs(int(zero) - int(expected_zero)) <= 1
    assert (zero.dtype, scale.dtype) == (expected_zero.dtype, expected_scale.dtype)


def test_a_scale_has_the_type_of_its_range() -> None:
    half = np.array(-1, np.float16), np.array(3, np.float16)
    _, scale = ours.compute_scale_zp(*half, np.array(0, np.uint8), np.array(255, np.uint8))
    assert scale.dtype == np.float16
    with pytest.raises(ValueError, match="do not hold 0"):
        ours.compute_scale_zp(*half, np.array(1, np.uint8), np.array(255, np.uint8))


@pytest.mark.parametrize("number", INTEGERS)
@pytest.mark.parametrize("symmetric", [False, True])
def test_values_are_quantized_as_onnxruntime_does(number: int, *, symmetric: bool) -> None:
    data = rng(1).standard_normal((7, 5)).astype(np.float32)
    zero, scale, found = ours.quantize_data(data, number, symmetric)
    expected = peer.quantize_data(data, number, symmetric)[2]
    np.testing.assert_array_equal(found.astype(np.int32), expected.astype(np.int32))
    assert found.dtype == expected.dtype
    again = (found.astype(np.float32) - zero.astype(np.float32)) * scale
    assert np.abs(again - data).max() <= scale * 0.5001 + 1e-6


def test_eight_bit_floats_saturate_and_have_no_zero_point() -> None:
    data = np.array([0, 1, -1e6, 1e6, 17.3], np.float32)
    found = ours.quantize_nparray(TensorProto.FLOAT8E4M3FN, data, np.float32(1), 0)
    np.testing.assert_array_equal(found.astype(np.float32), [0, 1, -448, 448, 18])
    with pytest.raises(UsageError, match="zero point 0"):
        ours.quantize_nparray(TensorProto.FLOAT8E4M3FN, data, np.float32(1), 1)
    zero, scale = ours.compute_scale_zp_float8(TensorProto.FLOAT8E4M3FN, np.float32(2))
    expected = peer.compute_scale_zp_float8(TensorProto.FLOAT8E4M3FN, np.float32(2))[1]
    np.testing.assert_allclose(scale, expected, rtol=1e-6)
    assert zero.dtype == peer.ONNX_TYPE_TO_NP_TYPE[TensorProto.FLOAT8E4M3FN]


@pytest.mark.parametrize("number", INTEGERS)
@pytest.mark.parametrize(("axis", "block"), [(None, 0), (0, 0), (-1, 0), (0, 3), (1, 3)])
def test_a_tensor_is_quantized_as_onnxruntime_does(
    number: int, axis: int | None, block: int
) -> None:
    data = rng(2).standard_normal((4, 8)).astype(np.float32)
    if block:
        zero, scale = ours.compute_scale_zp_blocked(data, number, axis or 0, block, symmetric=False)
    else:
        extent = 1 if axis is None else data.shape[axis]
        scale = np.linspace(0.01, 0.3, extent, dtype=np.float32)
        zero = np.arange(extent).astype(ours.ONNX_TYPE_TO_NP_TYPE[number])
    tensor = numpy_helper.from_array(data, "w")
    found = ours.quantize_onnx_initializer(tensor, number, zero, scale, axis, "q", block)
    assert (found.name, found.data_type, list(found.dims)) == ("q", number, [4, 8])
    if axis == -1:
        axis = 1
    expected = peer.quantize_onnx_initializer(tensor, number, zero, scale, axis, "q", block)
    np.testing.assert_array_equal(values(found), values(expected))


def values(tensor: onnx.TensorProto) -> Any:
    return numpy_helper.to_array(tensor).astype(np.int32)


@pytest.mark.parametrize("symmetric", [False, True])
def test_blocks_of_zeros_have_scale_1(*, symmetric: bool) -> None:
    data = np.zeros((2, 6), np.float32)
    data[0, 4] = 3
    zero, scale = ours.compute_scale_zp_blocked(data, TensorProto.INT8, 1, 4, symmetric)
    expected = peer.compute_scale_zp_blocked(data, TensorProto.INT8, 1, 4, symmetric)
    np.testing.assert_allclose(scale, expected[1], rtol=1e-6)
    np.testing.assert_array_equal(zero[:, 0], expected[0][:, 0])
    with pytest.raises(NotImplementedError, match="matrices"):
        ours.compute_scale_zp_blocked(data[None], TensorProto.INT8, 1, 4, symmetric)


@given(low=ends, high=ends, width=st.none() | st.floats(1e-4, 10))
def test_a_restricted_zero_point_cuts_nothing_off(
    low: float, high: float, width: float | None
) -> None:
    zero, scale = ours.snap_zero_point_to_uint8(low, high, 0, 255, width)
    assert int(zero) == (0 if low >= 0 else 128)
    reach = (255 - int(zero)) * float(scale), -int(zero) * float(scale)
    assert reach[0] >= max(high, 0) * (1 - 1e-6)
    assert reach[1] <= min(low, 0) * (1 - 1e-6)
    if max(-low, high) > 1e-30 or low == high == 0:  # else their scale may be 0
        expected = peer.snap_zero_point_to_uint8(low, high, 0, 255, width)
        np.testing.assert_allclose(float(scale), float(expected[1]), rtol=1e-5)


@given(st.binary(max_size=9))
def test_four_bits_are_packed_as_onnxruntime_does(raw: bytes) -> None:
    assert ours.pack_bytes_to_4bit(raw) == peer.pack_bytes_to_4bit(raw)


@given(axis=st.integers(-5, 5), rank=st.integers(1, 4))
def test_axes_are_counted_from_both_ends(axis: int, rank: int) -> None:
    assert ours.normalize_axis(axis, rank) == peer.normalize_axis(axis, rank)


@pytest.mark.parametrize(
    "name", [n for n in dir(peer) if n.isupper() and n != "FLOAT8_DISTRIBUTIONS"]
)
def test_constants_are_onnxruntimes(name: str) -> None:
    assert str(getattr(ours, name)) == str(getattr(peer, name)) or dict(
        getattr(ours, name)
    ) == dict(getattr(peer, name))
