"""Moments of patches, against the patches themselves; extremes of channels."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from builders import Array, graph, model, node, rng, run
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrators import ChannelExtremes, PatchMoments, Window
from calibrators.testing import check_statistic

ALL = 1 << 20  # positions: none is left out


def patches_of(x: Array, window: Window) -> Array:
    """Cut out every patch, one at a time: (groups, N * positions, K), channels fastest."""
    padded = np.pad(x, ((0, 0), (0, 0), *window.padding(x.shape[2:])))
    reaches = [(k - 1) * d + 1 for k, d in zip(window.kernel, window.dilations, strict=True)]
    starts = [
        range(0, n - reach + 1, s)
        for n, reach, s in zip(padded.shape[2:], reaches, window.strides, strict=True)
    ]
    found = []
    for sample in padded:
        for start in product(*starts):
            cut = tuple(
                slice(a, a + r, d) for a, r, d in zip(start, reaches, window.dilations, strict=True)
            )
            patch = sample[(slice(None), *cut)]
            grouped = patch.reshape(window.group, patch.shape[0] // window.group, -1)
            found.append(grouped.swapaxes(1, 2).reshape(window.group, -1))
    return np.stack(found, axis=1)


@st.composite
def windows(draw: st.DrawFn) -> tuple[Window, tuple[int, ...]]:
    """A window, and an input that it fits into."""
    rank = draw(st.integers(1, 3))

    def each(low: int, high: int, count: int = rank) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(count))

    auto_pad = draw(st.sampled_from(["NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"]))
    # onnxruntime has no dilations with SAME.
    kernel, dilations = each(1, 3), each(1, 1 if auto_pad.startswith("SAME") else 2)
    group = draw(st.sampled_from([1, 2, 4]))
    window = Window(
        kernel=kernel,
        strides=each(1, 3),
        pads=each(0, 2, 2 * rank) if auto_pad == "NOTSET" else (),
        dilations=dilations,
        group=group,
        auto_pad=auto_pad,
    )
    extents = tuple(
        (k - 1) * d + 1 + n for k, d, n in zip(kernel, dilations, each(0, 3), strict=True)
    )
    return window, (draw(st.integers(1, 2)), 4, *extents)


def test_windows_by_attributes_of_a_conv() -> None:
    plain = Window(kernel=(3, 5), strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1))
    assert Window.of_conv((3, 5), {}) == plain
    asked: dict[str, Any] = {"strides": (2, 1), "pads": [1, 0, 2, 0], "dilations": (1, 3)}
    asked |= {"group": 4, "auto_pad": "NOTSET", "kernel_shape": (3, 5)}
    assert Window.of_conv((3, 5), asked) == Window(
        kernel=(3, 5), strides=(2, 1), pads=(1, 0, 2, 0), dilations=(1, 3), group=4
    )
    assert Window.of_conv((3,), {"auto_pad": "SAME_UPPER"}).padding((7,)) == ((1, 1),)


@settings(max_examples=60, deadline=None)
@given(windows())
def test_sums_are_those_of_every_patch(case: tuple[Window, tuple[int, ...]]) -> None:
    window, shape = case
    x = rng().standard_normal(shape).astype(np.float32)
    seen = PatchMoments(window, ALL)
    seen.observe(x)
    patches = patches_of(x, window).astype(np.float64)
    assert seen.count == patches.shape[1]
    np.testing.assert_allclose(seen.total, patches.sum(axis=1), rtol=1e-9, atol=1e-9)
    expected = patches.swapaxes(1, 2) @ patches
    np.testing.assert_allclose(seen.matrix, expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(seen.mean, patches.mean(axis=1), atol=1e-9)
    spread = np.stack([np.cov(p, rowvar=False, bias=True).reshape(p.shape[1], -1) for p in patches])
    np.testing.assert_allclose(seen.covariance, spread, atol=1e-7)


@settings(max_examples=25, deadline=None)
@given(windows())
def test_the_patches_are_those_that_onnxruntime_multiplies(
    case: tuple[Window, tuple[int, ...]],
) -> None:
    window, shape = case
    x = rng(1).standard_normal(shape).astype(np.float32)
    channels = shape[1] // window.group
    w = rng(2).standard_normal((2 * window.group, channels, *window.kernel)).astype(np.float32)
    attributes: dict[str, Any] = {
        "strides": window.strides,
        "dilations": window.dilations,
        "group": window.group,
        "auto_pad": window.auto_pad,
    }
    if window.pads:
        attributes["pads"] = window.pads
    conv = node("Conv", ["x", "w"], ["y"], "conv", **attributes)
    (y,) = run(model(graph([conv], {"x": shape}, {"y": None}, {"w": w})), {"x": x})
    seen = PatchMoments(window, ALL)
    seen.observe(x)
    rows = np.moveaxis(w, 1, -1).reshape(window.group, 2, -1)
    mean = np.einsum("gnk,gk->gn", rows, seen.mean).reshape(-1)
    others = (0, *range(2, y.ndim))
    np.testing.assert_allclose(mean, y.mean(axis=others, dtype=np.float64), atol=1e-4)
    power = np.einsum("gnk,gkl,gnl->gn", rows, seen.second, rows).reshape(-1)
    np.testing.assert_allclose(power, (y.astype(np.float64) ** 2).mean(axis=others), rtol=1e-3)


CONV = Window(kernel=(2, 3), strides=(1, 2), pads=(1, 0, 0, 1), dilations=(1, 1), group=2)
IMAGES = [rng(i).standard_normal((3, 4, 6, 7)).astype(np.float32) * 10.0**i for i in range(5)]


@pytest.mark.parametrize("rows", [1, 5, 64])
def test_the_laws_hold_for_patches(rows: int) -> None:
    check_statistic(lambda: PatchMoments(CONV, rows), arrays=IMAGES)


@pytest.mark.parametrize("rows", [1, 3, 1000])
def test_the_laws_hold_for_rows_of_a_matrix_product(rows: int) -> None:
    check_statistic(lambda: PatchMoments(Window(), rows))


def test_the_laws_hold_where_sums_are_made_many_times() -> None:
    check_statistic(
        lambda: PatchMoments(Window(), ALL), arrays=[rng(i).random((90, 7, 5)) for i in range(4)]
    )


def test_a_large_image_costs_no_more_than_its_share() -> None:
    window = Window(kernel=(3, 3), strides=(1, 1), pads=(1,) * 4, dilations=(1, 1))
    seen = PatchMoments(window, 10)
    seen.observe(np.ones((2, 1, 40, 40), np.float32))
    assert seen.count == 20


def test_positions_are_spread_over_the_whole_image() -> None:
    x = np.arange(1000, dtype=np.float32).reshape(1, 1, 1000)
    seen = PatchMoments(Window(kernel=(1,), strides=(1,), pads=(0, 0), dilations=(1,)), 10)
    seen.observe(x)
    assert seen.total.item() == np.arange(0, 1000, 100).sum()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_patches_with_what_is_not_finite_are_left_out(bad: float) -> None:
    x = rng().standard_normal((1, 4, 6, 7)).astype(np.float32)
    x[0, 1, 2, 3] = bad
    x[0, 1, 5, 6] = -np.inf
    seen = PatchMoments(CONV, ALL)
    seen.observe(x)
    patches = patches_of(x, CONV)
    clean = patches[:, np.isfinite(patches).all(axis=(0, 2))]
    assert seen.count == clean.shape[1] < patches.shape[1]
    np.testing.assert_allclose(seen.total, clean.sum(axis=1, dtype=np.float64), atol=1e-5)


def test_values_that_are_large_together_are_finite() -> None:
    seen = PatchMoments(Window(), ALL)
    seen.observe(np.full((8, 4), 3e38, np.float32))
    assert seen.count == 8
    assert np.isfinite(seen.matrix).all()


def test_all_that_is_not_finite_says_nothing() -> None:
    seen = PatchMoments(Window(), ALL)
    seen.observe(np.full((3, 4), np.nan, np.float32))
    assert seen.count == 0
    assert not seen.mean.any()
    seen.observe(np.ones((3, 4), np.float32))
    assert (seen.mean == 1).all()


def test_another_number_of_inputs_is_refused() -> None:
    seen = PatchMoments(Window())
    seen.observe(np.ones((3, 4), np.float32))
    with pytest.raises(ValueError, match="4 inputs met 5"):
        seen.observe(np.ones((3, 5), np.float32))
    other = PatchMoments(Window())
    other.observe(np.ones((3, 5), np.float32))
    with pytest.raises(ValueError, match="changing length"):
        seen.merge(other)
    with pytest.raises(ValueError, match="different windows"):
        seen.merge(PatchMoments(CONV))


def test_moments_from_sums_are_those_sums() -> None:
    seen = PatchMoments(Window())
    seen.observe(rng().standard_normal((20, 3)).astype(np.float32))
    made = PatchMoments.of(Window(), count=seen.count, total=seen.total, matrix=seen.matrix)
    assert np.array_equal(made.second, seen.second)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_the_laws_hold_for_extremes(axis: int) -> None:
    check_statistic(lambda: ChannelExtremes(axis))
    signed = [np.full((4, 6, 5), zero, np.float32) for zero in (0.0, -0.0, 0.0)]
    check_statistic(lambda: ChannelExtremes(axis), arrays=signed)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2), st.lists(st.integers(0, 100), min_size=1, max_size=4))
def test_extremes_are_those_of_all_values_and_zero(axis: int, seeds: list[int]) -> None:
    arrays = [(rng(s).standard_normal((2, 3, 4)) + 1).astype(np.float32) for s in seeds]
    seen = ChannelExtremes(axis)
    for array in arrays:
        array[0, 0, 0] = np.nan
        array[1, 1, 1] = np.inf
        array[1, 2, 2] = -np.inf
        seen.observe(array)
    clean = np.stack([np.where(np.isfinite(a), a, 0) for a in arrays])
    others = tuple(i for i in range(4) if i != axis + 1)
    assert np.array_equal(seen.low, np.minimum(clean.min(axis=others), 0))
    assert np.array_equal(seen.high, np.maximum(clean.max(axis=others), 0))
    assert np.array_equal(seen.largest, np.abs(clean).max(axis=others))


def test_extremes_of_unlike_channels_are_refused() -> None:
    seen = ChannelExtremes(1)
    seen.observe(np.ones((2, 3)))
    with pytest.raises(ValueError, match="3 channels met 4"):
        seen.observe(np.ones((2, 4)))
    with pytest.raises(ValueError, match="axis 0 into those along axis 1"):
        seen.merge(ChannelExtremes(0))
