"""Weights that lie on a grid keep it: nothing is lost where nothing need be."""

from typing import Any

import numpy as np
import pytest
from builders import rng, weight
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from calibrators import PatchMoments, Window
from quantkit.model.graph.products import Layout
from quantkit.numerics.dtypes import INT4, INT8, INT16, UINT8, IntType
from quantkit.numerics.grids import exact_steps, lossless_rows
from quantkit.numerics.pairs import is_pair_safe
from quantkit.numerics.weights import dequantize_weight, fit, quantize_weight
from quantkit.quantize.solve.weights import Rounding, solve_weight
from quantkit.spec import Granularity, PerAxis, PerBlock, PerTensor, QuantSpec

Array = NDArray[Any]
PROPERTY = settings(max_examples=15, deadline=None)
STEPS = st.floats(2.0**-60, 2.0**60, width=32)
WHOLE = hnp.arrays(np.int32, (7, 5), elements=st.integers(-63, 63))
GRANULARITIES = [PerTensor(), PerAxis(0), PerAxis(1)]


def spec(dtype: IntType = INT8, granularity: Granularity | None = None, **rest: Any) -> QuantSpec:
    how: dict[str, Any] = {"symmetric": dtype.signed} | rest
    return QuantSpec(dtype=dtype, granularity=granularity or PerAxis(1), **how)


def on_grid(whole: Array, step: float) -> NDArray[np.float32]:
    return whole.astype(np.float32) * np.float32(step)


def back(array: Array, how: QuantSpec) -> NDArray[np.float32]:
    qparams = fit(array, how)
    return dequantize_weight(quantize_weight(array, qparams), qparams)


@pytest.mark.parametrize("granularity", [*GRANULARITIES, PerBlock(0, 4)], ids=str)
@pytest.mark.parametrize(
    "how",
    [
        {"dtype": INT8},
        {"dtype": UINT8},
        {"dtype": UINT8, "symmetric": True},
        {"dtype": INT16},
        {"dtype": INT8, "reduced": True},
        {"dtype": INT8, "sum_axis": 1},
        {"dtype": INT8, "pair_axes": ((0,),)},
        {"dtype": INT8, "pair_axes": ((0,), (1,))},
    ],
    ids=["int8", "uint8", "uint8-symmetric", "int16", "7-bits", "sums", "pairs", "both-pairs"],
)
@PROPERTY
@given(whole=WHOLE, step=STEPS)
@pytest.mark.slow
def test_multiples_of_a_step_come_back_exactly(
    how: dict[str, Any], granularity: Granularity, whole: Array, step: float
) -> None:
    if isinstance(granularity, PerBlock) and ("pair_axes" in how or "sum_axis" in how):
        return  # blocks are not multiplied in integers
    array = on_grid(whole, step)
    made = spec(granularity=granularity, **how)
    np.testing.assert_array_equal(back(array, made), array)
    for axes in made.pair_axes:
        assert is_pair_safe(np.moveaxis(quantize_weight(array, fit(array, made)), axes[0], -2))


@PROPERTY
@given(whole=hnp.arrays(np.int32, (6, 4), elements=st.integers(-8, 7)), step=STEPS)
def test_what_was_int4_is_exact_in_int4(whole: Array, step: float) -> None:
    array = on_grid(whole, step)
    np.testing.assert_array_equal(back(array, spec(INT4)), array)


@pytest.mark.parametrize(("dtype", "low", "high"), [(UINT8, -100, 155), (INT8, -127, 127)])
@PROPERTY
@given(data=st.data(), step=STEPS)
def test_all_values_of_the_type_may_be_used_where_no_pair_saturates(
    dtype: IntType, low: int, high: int, data: st.DataObject, step: float
) -> None:
    whole = data.draw(hnp.arrays(np.int32, (6, 4), elements=st.integers(low, high)))
    array = on_grid(whole, step)
    np.testing.assert_array_equal(back(array, spec(dtype)), array)


def test_ternary_weights_have_the_finest_scale_that_pairs_allow() -> None:
    array = on_grid(rng().integers(-1, 2, (64, 8)), 0.37)
    qparams = fit(array, spec(pair_axes=((0,),)))
    np.testing.assert_array_equal(qparams.scale, np.float32(0.37) / 64)


def test_a_folded_factor_that_was_rounded_once_more_does_not_hide_a_grid() -> None:
    factor = np.abs(weight(1, 8)) + np.float32(0.1)
    array = on_grid(rng().integers(-7, 8, (64, 8)), 0.1) * factor
    error = np.abs(back(array, spec(pair_axes=((0,),))) - array)
    assert (error <= 2.0**-22 * np.abs(array).max(axis=0)).all()


@PROPERTY
@given(seed=st.integers(0, 9999), granularity=st.sampled_from(GRANULARITIES))
def test_ordinary_weights_are_on_no_grid(seed: int, granularity: Granularity) -> None:
    array = weight(32, 16, seed=seed)
    assert not exact_steps(array, np.abs(array).max(axis=1)).high.any()
    axis = 1 - granularity.axis if isinstance(granularity, PerAxis) else None
    peaks = np.abs(array).max(axis=axis)
    np.testing.assert_array_equal(
        fit(array, spec(granularity=granularity)).scale,
        (peaks.astype(np.float64) / 127).astype(np.float32),
    )


@pytest.mark.parametrize("clipped", [0.0, 0.9], ids=["sparse", "clipped"])
def test_zeros_and_equal_values_alone_make_no_grid(clipped: float) -> None:
    array = weight(4, 4096)
    array[np.abs(array) < np.quantile(np.abs(array), 0.99)] = clipped
    assert not exact_steps(array, np.abs(array).max(axis=1)).high.any()
    assert not lossless_rows(array).any()


def test_a_long_row_is_read_to_its_end() -> None:
    array = on_grid(rng().integers(-1, 2, (1, 600_000)), 0.5)
    np.testing.assert_allclose(exact_steps(array, np.array([0.5])).middle, 0.5, rtol=1e-7)
    array[0, -1] = 0.123
    assert exact_steps(array, np.array([0.5])).high == [0]


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (1, 1)])
def test_empty_and_single_weights_are_fitted(shape: tuple[int, int]) -> None:
    array = np.full(shape, 0.3, np.float32)
    np.testing.assert_array_equal(back(array, spec()), array)


def test_scales_that_must_be_wider_stay_on_the_grid() -> None:
    array = on_grid(rng().integers(-1, 2, (16, 3)), 0.37)
    least = np.array([0, 0.01, 0.2], np.float32)
    scale = fit(array, spec(pair_axes=((0,),)), at_least=least).scale
    np.testing.assert_array_equal(np.float32(0.37) / scale, [64, 37, 1])
    ordinary = weight(16, 3)
    wide = fit(ordinary, spec(), at_least=least).scale
    np.testing.assert_array_equal(wide, np.maximum(fit(ordinary, spec()).scale, least))


@pytest.mark.parametrize("granularity", [PerTensor(), PerAxis(1)], ids=str)
@pytest.mark.parametrize("pairs", [(), ((0,),)], ids=["free", "pairs"])
@pytest.mark.parametrize("adaptive", [False, True])
@PROPERTY
@given(whole=WHOLE, step=STEPS, seed=st.integers(0, 99))
def test_solving_keeps_what_is_exact(
    granularity: Granularity,
    pairs: tuple[tuple[int, ...], ...],
    whole: Array,
    step: float,
    seed: int,
    *,
    adaptive: bool,
) -> None:
    array = on_grid(whole, step)
    layout = Layout(shape=array.shape, channel=1, summed=(0,))
    moments = PatchMoments(Window())
    moments.observe((rng(seed).standard_normal((64, 7)) * [1, 9, 1, 0.1, 2, 1, 1] + 1).astype("f4"))
    found, shift = solve_weight(
        array,
        spec(granularity=granularity, pair_axes=pairs),
        layout,
        moments,
        Rounding(ranges=adaptive, adaptive=adaptive),
        centred=True,
    )
    np.testing.assert_array_equal(dequantize_weight(found.integers, found.qparams), array)
    assert np.abs(shift).max() <= 1e-5 * np.abs(array).max()
