"""Moments over channels, against numpy."""

import numpy as np
import pytest

from calibrators import ChannelMoments, SecondMoment

RNG = np.random.default_rng(0)
ARRAY = RNG.normal(3, 2, (4, 6, 5)).astype(np.float32)


class TestChannelMoments:
    def test_are_those_of_the_values(self) -> None:
        found = ChannelMoments(1)
        found.observe(ARRAY)
        found.observe(ARRAY[:1])
        x = np.concatenate([ARRAY, ARRAY[:1]]).astype(np.float64)
        np.testing.assert_allclose(found.mean, x.mean(axis=(0, 2)), rtol=1e-12)
        np.testing.assert_allclose(found.variance, x.var(axis=(0, 2)), rtol=1e-10)
        np.testing.assert_array_equal(found.low, x.min(axis=(0, 2)))
        np.testing.assert_array_equal(found.high, x.max(axis=(0, 2)))
        np.testing.assert_array_equal(found.absmax, np.abs(x).max(axis=(0, 2)))
        assert found.count.tolist() == [25] * 6

    def test_bad_values_of_one_channel_do_not_touch_the_others(self) -> None:
        broken = ARRAY.copy()
        broken[0, 2, :3] = [np.nan, np.inf, -np.inf]
        found, clean = ChannelMoments(1), ChannelMoments(1)
        found.observe(broken)
        clean.observe(ARRAY)
        others = [0, 1, 3, 4, 5]
        assert found.mean[others].tobytes() == clean.mean[others].tobytes()
        assert found.count.tolist() == [20, 20, 17, 20, 20, 20]
        rest = np.delete(ARRAY[:, 2].ravel(), [0, 1, 2]).astype(np.float64)
        assert found.mean[2] == pytest.approx(rest.mean())

    def test_channels_and_axes_must_agree(self) -> None:
        found = ChannelMoments(0)
        found.observe(ARRAY)
        with pytest.raises(ValueError, match="4 channels met 2"):
            found.observe(ARRAY[:2])
        with pytest.raises(ValueError, match="axis 1"):
            found.merge(ChannelMoments(1))


class TestSecondMoment:
    @pytest.mark.parametrize("axis", [0, 1, -1])
    def test_is_the_product_of_the_rows(self, axis: int) -> None:
        found = SecondMoment(axis)
        found.observe(ARRAY)
        found.observe(ARRAY * 2)
        x = np.moveaxis(ARRAY, axis, -1).reshape(-1, ARRAY.shape[axis]).astype(np.float64)
        np.testing.assert_allclose(found.matrix, 5 * x.T @ x, rtol=1e-12)
        np.testing.assert_allclose(found.mean, 2.5 * x.T @ x / len(x), rtol=1e-12)
        assert found.count == 2 * len(x)
        assert found.channels == ARRAY.shape[axis]

    def test_rows_with_bad_values_are_left_out(self) -> None:
        broken = ARRAY[0].copy()
        broken[1, 3] = np.nan
        found, expected = SecondMoment(1), SecondMoment(1)
        found.observe(broken)
        expected.observe(np.delete(ARRAY[0], 1, axis=0))
        np.testing.assert_allclose(found.matrix, expected.matrix)
        assert found.count == 5

    def test_channels_and_axes_must_agree(self) -> None:
        found = SecondMoment(0)
        found.observe(ARRAY)
        with pytest.raises(ValueError, match="4 channels met 2"):
            found.observe(ARRAY[:2])
        with pytest.raises(ValueError, match="axis 1"):
            found.merge(SecondMoment(1))
