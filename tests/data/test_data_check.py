from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from data.makers import Array, ramp, spec

from quantkit.data import InputSpec, Sample, open_data
from quantkit.data.rows import conform, quoted
from quantkit.errors import DataError


def fitted(array: Any, want: InputSpec) -> Array:
    return conform(Sample(feeds={want.name: array}, name="here"), (want,)).feeds[want.name]


@pytest.mark.parametrize(
    ("have", "want"),
    [
        ("float64", "float32"),
        ("float32", "float16"),
        ("float16", "float32"),
        ("int8", "int64"),
        ("int64", "int32"),
        ("uint8", "int32"),
        ("bool", "int64"),
    ],
)
def test_casts_that_lose_nothing(have: str, want: str) -> None:
    found = fitted(np.ones((1, 2), have), spec("x", None, 2, dtype=want))
    assert found.dtype == want
    assert found.tolist() == [[1, 1]]


def test_bfloat16_is_a_float() -> None:
    found = fitted(np.ones((1, 2), np.float32), spec("x", None, 2, dtype="bfloat16"))
    assert found.dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize(
    ("have", "want", "says"),
    [
        ("float32", "int64", "x.astype(np.int64)"),
        ("int64", "float32", "x.astype(np.float32)"),
        ("uint8", "float32", "raw pixels of 0..255: scale them as in training"),
        ("complex64", "float32", "wants float32[?, 2] and the data has complex64[1, 2]"),
    ],
)
def test_casts_that_are_refused(have: str, want: str, says: str) -> None:
    with pytest.raises(DataError) as e:
        fitted(np.ones((1, 2), have), spec("x", None, 2, dtype=want))
    assert says in str(e.value)
    assert "'here' does not fit the input 'x'" in str(e.value)


def test_values_that_do_not_fit_are_refused() -> None:
    with pytest.raises(DataError, match=r"int64 values from 0 to 3000000000 for the input 'x'"):
        fitted(np.asarray([[0, 3_000_000_000]]), spec("x", None, 2, dtype="int32"))
    with pytest.raises(DataError, match=r"values up to 1e\+06 .* they overflow"):
        fitted(np.asarray([[0, 1e6]], np.float32), spec("x", None, 2, dtype="float16"))


def test_nan_is_left_for_the_observer() -> None:
    found = fitted(np.full((1, 2), np.nan), spec("x", None, 2))
    assert np.isnan(found).all()


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        ((1, 5), "the model wants float32[?, 4] and the data has float32[1, 5]; axis 1 must be 4"),
        ((1, 1, 4), "float32[1, 1, 4]; give it 2 axes"),
    ],
)
def test_shapes_that_do_not_fit(shape: tuple[int, ...], says: str) -> None:
    with pytest.raises(DataError) as e:
        fitted(ramp(*shape), spec("x", None, 4))
    assert says in str(e.value)


def test_axes_in_another_order_are_named() -> None:
    with pytest.raises(DataError, match="another order: transpose"):
        fitted(ramp(1, 8, 8, 3), spec("x", None, 3, 8, 8))


def test_another_batch_is_not_taken_for_another_order() -> None:
    with pytest.raises(DataError, match="axis 0 must be 2"):
        fitted(ramp(4, 3, 8), spec("x", 2, 3, 8))


def test_a_missing_batch_axis_is_added() -> None:
    assert fitted(ramp(4), spec("x", None, 4)).shape == (1, 4)


def test_names_are_matched_and_near_ones_are_said() -> None:
    inputs = (spec("input_ids", None, 4), spec("mask", None, 4))
    feeds = {"input_id": ramp(1, 4), "mask": ramp(1, 4)}
    with pytest.raises(DataError) as e:
        conform(Sample(feeds=feeds, name="here"), inputs)
    assert "no array for the model's input 'input_ids float32[?, 4]'" in str(e.value)
    assert "it has 'input_id' (did you mean 'input_id'?)" in str(e.value)
    with pytest.raises(DataError, match=r"has an array 'maks' .*did you mean 'mask'"):
        conform(Sample(feeds={"mask": ramp(1, 4), "maks": ramp(1, 4)}, name="here"), inputs[1:])


def test_a_later_sample_is_named(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", ramp(1, 4))
    np.save(tmp_path / "b.npy", ramp(2, 5))
    samples: Any = open_data(tmp_path, [spec("x", None, 4)])
    assert samples[0].feeds["x"].shape == (1, 4)
    with pytest.raises(DataError, match=r"'b\.npy row 1' does not fit the input 'x'"):
        samples[2]


def test_strings_pass_to_string_inputs() -> None:
    want = InputSpec(name="s", dtype=np.dtype(object), shape=(None, 1))
    assert fitted(np.asarray([["a"]]), want).dtype == object


def test_long_lists_of_names_are_cut() -> None:
    assert quoted(["a"]) == "'a'"
    assert quoted(["a", "b", "c"]) == "'a', 'b' and 'c'"
    assert quoted([str(i) for i in range(10)]).endswith("'7' and 2 more")
    assert quoted([]) == ""
