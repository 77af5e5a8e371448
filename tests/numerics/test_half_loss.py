"""What arrays lose in 16 bits: bounds of rounding, and which values do not survive."""

from math import inf, log10

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from quantkit.numerics import half as module
from quantkit.numerics.half import LARGEST, LEAST, LEAST_NORMAL, half_loss, halved

KINDS = pytest.mark.parametrize(
    "kind", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"]
)
FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)


def normal_floats(least: float, largest: float) -> st.SearchStrategy[float]:
    magnitudes = st.floats(least, largest, width=32)
    return st.one_of(magnitudes, magnitudes.map(lambda x: -x))


def test_the_limits_are_those_of_the_type() -> None:
    found = np.finfo(np.float16)
    assert float(found.max) == LARGEST
    assert float(found.tiny) == LEAST_NORMAL
    assert float(found.smallest_subnormal) == LEAST


@settings(deadline=None)
@given(arrays(np.float32, st.integers(1, 40), elements=normal_floats(LEAST_NORMAL, LARGEST)))
def test_normal_values_keep_eleven_digits(array: np.ndarray) -> None:
    """Half a step of 2^-10 is the largest relative error, which is 66 dB at least."""
    rounded = halved(array, np.float16).astype(np.float64)
    assert (np.abs(rounded - array) <= np.abs(array) * 2.0**-11).all()
    found = half_loss(array, np.float16)
    assert found.finite
    assert not found.overflows
    assert not found.vanishes
    assert found.sqnr_db >= 66.2


@settings(deadline=None)
@given(arrays(np.float32, st.integers(1, 40), elements=normal_floats(2.0**-100, 2.0**100)))
def test_bfloat16_keeps_eight_digits_of_any_size(array: np.ndarray) -> None:
    found = half_loss(array, ml_dtypes.bfloat16)
    assert not found.overflows
    assert not found.vanishes
    assert found.sqnr_db >= 48.1


@KINDS
@settings(deadline=None)
@given(arrays(np.float32, st.integers(1, 40), elements=FINITE))
def test_what_is_measured_is_what_rounding_does(kind: type, array: np.ndarray) -> None:
    found = half_loss(array, kind)
    rounded = halved(array, kind).astype(np.float64)
    exact = array.astype(np.float64)
    assert found.largest == np.abs(array).max()
    assert found.overflows == (not np.isfinite(rounded).all())
    assert found.vanishes == bool(((rounded == 0) & (array != 0)).any())
    if found.overflows:
        assert found.sqnr_db == -inf
    elif (rounded == exact).all():
        assert found.sqnr_db == inf
    else:
        noise = ((rounded - exact) ** 2).sum()
        assert found.sqnr_db == pytest.approx(10 * log10((exact**2).sum() / noise), abs=1e-6)


@KINDS
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_said_so(kind: type, value: float) -> None:
    assert not half_loss(np.array([1.0, value], np.float32), kind).finite


@pytest.mark.parametrize(
    ("value", "overflows", "vanishes"),
    [
        (65504, False, False),
        (65519, False, False),
        (65520, True, False),
        (6e-8, False, False),
        (2.9e-8, False, True),
        (0.0, False, False),
    ],
)
def test_where_values_stop_fitting(value: float, *, overflows: bool, vanishes: bool) -> None:
    found = half_loss(np.array([value], np.float32), np.float16)
    assert (found.overflows, found.vanishes) == (overflows, vanishes)


def test_nothing_is_lost_of_nothing() -> None:
    for array in (np.zeros((0, 3), np.float32), np.zeros((2, 3), np.float32)):
        assert half_loss(array, np.float16).sqnr_db == inf


def test_parts_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.random.default_rng(0).standard_normal((7, 9)).astype(np.float32)
    whole = half_loss(array, np.float16)
    monkeypatch.setattr(module, "_CHUNK", 4)
    parts = half_loss(array, np.float16)
    assert parts.sqnr_db == pytest.approx(whole.sqnr_db)
    assert parts.largest == whole.largest
