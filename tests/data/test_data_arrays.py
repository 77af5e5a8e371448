"""npz and npy files, and test sets."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from data.makers import VECTOR, ramp, spec, test_set

from quantkit.data import InputSpec, open_data
from quantkit.errors import DataError
from quantkit.settings import DataSettings

TWO = (spec("a", None, 2), spec("b", None, 3))


def save(kind: str, folder: Path, **arrays: Any) -> Any:
    if kind == "npz":
        np.savez(folder / "f.npz", **arrays)
    elif kind == "compressed":
        np.savez_compressed(folder / "f.npz", **arrays)
    else:
        for name, array in arrays.items():
            np.save(folder / f"{name}.npy", array)
    return folder


EACH = pytest.mark.parametrize("kind", ["npz", "compressed", "npy"])


@EACH
@pytest.mark.parametrize(
    ("leading", "shape", "samples"),
    [
        (None, (6, 4), 6),
        (1, (6, 4), 6),
        (2, (6, 4), 3),
        (None, (4,), 1),
        (None, (1, 4), 1),
    ],
    ids=["free", "one", "slices", "no batch axis", "one row"],
)
def test_rows(
    kind: str, leading: int | None, shape: tuple[int, ...], samples: int, tmp_path: Path
) -> None:
    data = ramp(*shape)
    found: Any = open_data(save(kind, tmp_path, x=data), [spec("x", leading, 4)])
    assert len(found) == samples
    rows = [found[i].feeds["x"] for i in range(samples)]
    assert all(row.shape == (leading or 1, 4) for row in rows)
    np.testing.assert_array_equal(np.concatenate(rows), data.reshape(-1, 4))
    single = "x.npy" if kind == "npy" else "f.npz"
    assert found[samples - 1].name == (single if samples == 1 else f"{single} row {samples - 1}")


@EACH
def test_several_inputs(kind: str, tmp_path: Path) -> None:
    folder = save(kind, tmp_path, a=ramp(3, 2), b=ramp(3, 3), label=np.asarray([5, 6, 7]))
    found: Any = open_data(folder, TWO)
    assert found[2].feeds["b"].tolist() == [[6, 7, 8]]
    assert [found[i].label for i in range(3)] == [5, 6, 7]
    assert found.description.inputs == ("a float32[1, 2]", "b float32[1, 3]")


@EACH
def test_rows_must_agree(kind: str, tmp_path: Path) -> None:
    folder = save(kind, tmp_path, a=ramp(3, 2), b=ramp(2, 3))
    with pytest.raises(DataError, match="2 samples for the input 'b' and 3 for 'a': give all"):
        open_data(folder, [replace(one, axis="batch") for one in TWO])


@EACH
def test_a_whole_input_goes_to_every_sample(kind: str, tmp_path: Path) -> None:
    inputs = [spec("x", None, 4), spec("anchors", 5, 2), spec("rate", dtype="int64")]
    folder = save(kind, tmp_path, x=ramp(3, 4), anchors=ramp(5, 2), rate=np.asarray(8000))
    found: Any = open_data(folder, inputs)
    assert len(found) == 3
    assert found[1].feeds["anchors"].shape == (5, 2)
    assert found[1].feeds["rate"].shape == ()


@EACH
def test_one_state_for_many_steps_of_time_is_one_sample(kind: str, tmp_path: Path) -> None:
    inputs = [spec("steps", None, 4), spec("state", 1, 1, 3)]
    found: Any = open_data(save(kind, tmp_path, steps=ramp(5, 4), state=ramp(1, 1, 3)), inputs)
    assert len(found) == 1
    assert {k: v.shape for k, v in found[0].feeds.items()} == {"steps": (5, 4), "state": (1, 1, 3)}


@EACH
@pytest.mark.parametrize(
    ("want", "shape", "says"),
    [
        (spec("x", None, 4), (2, 2, 2, 4), "wants float32[?, 4] and the data has float32[2, 2, 2"),
        (spec("x", 4, 4), (6, 4), "has 6 rows for the input 'x', which takes 4 at a time"),
        (spec("x", None, 4), (6, 5), "axis 1 must be 4"),
        (spec("x", None, 4), (0, 4), "holds no rows"),
    ],
    ids=["rank", "divides", "extent", "empty"],
)
def test_arrays_that_do_not_fit(
    kind: str, want: InputSpec, shape: tuple[int, ...], says: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError) as e:
        open_data(save(kind, tmp_path, x=ramp(*shape)), [want])
    assert says in str(e.value)


@EACH
def test_raw_pixels_are_refused(kind: str, tmp_path: Path) -> None:
    folder = save(kind, tmp_path, x=np.zeros((2, 3, 8, 8), np.uint8))
    with pytest.raises(DataError, match=r"wants float32.* has uint8.* raw pixels of 0..255"):
        open_data(folder, [spec("x", None, 3, 8, 8)])


def test_fortran_order_is_read_right(tmp_path: Path) -> None:
    array = np.asfortranarray(ramp(3, 4))
    np.savez(tmp_path / "f.npz", x=array)
    found: Any = open_data(tmp_path, VECTOR)
    assert found[1].feeds["x"].tolist() == [[4, 5, 6, 7]]
    assert found[1].feeds["x"].flags.c_contiguous


def test_the_only_array_is_the_only_input_and_that_is_said(tmp_path: Path) -> None:
    np.savez(tmp_path / "f.npz", images=ramp(3, 4), y=np.arange(3))
    found: Any = open_data(tmp_path, VECTOR)
    assert found.description.warnings == ("'images' is taken for the model's only input 'x'.",)
    assert found[2].label == 2


def test_arrays_that_are_not_needed_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "f.npz", x=ramp(3, 4), ids=np.arange(3))
    found = open_data(tmp_path, VECTOR)
    assert found.description.warnings == ("'ids' of f.npz is no input of the model: not used.",)


def test_a_missing_input_is_an_error_with_the_nearest_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "f.npz", a=ramp(3, 2), bb=ramp(3, 3))
    with pytest.raises(DataError, match=r"'f.npz' has no array for the model's input 'b float32"):
        open_data(tmp_path, TWO)


def test_npy_files_of_several_inputs_are_named_like_them(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", ramp(3, 2))
    np.save(tmp_path / "c.npy", ramp(3, 3))
    with pytest.raises(DataError, match="has no array for the model's input 'b"):
        open_data(tmp_path, TWO)


def test_labels_of_npy_files_run_over_all_files(tmp_path: Path) -> None:
    np.save(tmp_path / "p1.npy", ramp(2, 4))
    np.save(tmp_path / "p2.npy", ramp(1, 4))
    np.save(tmp_path / "labels.npy", np.asarray(["a", "b", "a"]))
    found: Any = open_data(tmp_path, VECTOR)
    assert [found[i].label for i in range(3)] == ["a", "b", "a"]
    assert found.description.labels == "2 classes from labels.npy"


@EACH
def test_labels_that_are_no_labels_are_said_and_not_used(kind: str, tmp_path: Path) -> None:
    folder = save(kind, tmp_path, x=ramp(3, 4), label=np.zeros((3, 8, 8)))
    found: Any = open_data(folder, VECTOR)
    assert found[0].label is None
    assert found.description.labels == "none"
    assert "not used" in found.description.warnings[0]


@EACH
def test_the_labels_name_can_be_set(kind: str, tmp_path: Path) -> None:
    folder = save(kind, tmp_path, x=ramp(2, 4), truth=np.asarray([[3.5], [4.5]]))
    found: Any = open_data(folder, VECTOR, DataSettings(label="truth"))
    assert [found[i].label for i in range(2)] == [3.5, 4.5]
    assert found.description.labels.startswith("numbers from")
    with pytest.raises(DataError, match="has no labels 'nope"):
        open_data(folder, VECTOR, DataSettings(label="nope"))


@pytest.mark.parametrize("name", ["f.npz", "f.npy", "input_0.pb"])
@pytest.mark.parametrize("content", [b"", b"\x01 broken", b"PK\x03\x04broken"])
def test_broken_files_are_named(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=f"{name}|{tmp_path.name}"):
        open_data(tmp_path, VECTOR)


@EACH
def test_python_objects_are_refused(kind: str, tmp_path: Path) -> None:
    folder = save(kind, tmp_path, x=np.asarray([{"a": 1}], object))
    with pytest.raises(DataError, match="it holds Python objects; save plain arrays"):
        open_data(folder, VECTOR)


def test_a_file_larger_than_needed_is_mapped_not_read(tmp_path: Path) -> None:
    array = np.lib.format.open_memmap(
        tmp_path / "big.npy", mode="w+", dtype=np.float32, shape=(500_000_000, 4)
    )
    array[-1] = 7
    del array  # 8 GB that take no room on disk
    found: Any = open_data(tmp_path / "big.npy", VECTOR)
    assert len(found) == 500_000_000
    assert found[499_999_999].feeds["x"].tolist() == [[7, 7, 7, 7]]


def test_test_sets_go_by_order_unless_the_tensor_names_an_input(tmp_path: Path) -> None:
    test_set(tmp_path / "test_data_set_0", {"foo": ramp(1, 2), "bar": ramp(1, 3)})
    test_set(tmp_path / "test_data_set_1", {"b": ramp(1, 3), "other": ramp(1, 2)})
    found: Any = open_data(tmp_path, TWO)
    assert len(found) == 2
    for i in range(2):
        assert found[i].feeds["a"].shape == (1, 2)
        assert found[i].feeds["b"].shape == (1, 3)
    assert found[1].name == "test_data_set_1"
    inner: Any = open_data(tmp_path / "test_data_set_1", TWO)
    assert (len(inner), inner[0].name) == (1, "test_data_set_1")


def test_a_test_set_with_too_few_or_too_many_tensors(tmp_path: Path) -> None:
    test_set(tmp_path / "test_data_set_0", {"a": ramp(1, 2)})
    with pytest.raises(DataError, match="'test_data_set_0' has no array for the model's input 'b"):
        open_data(tmp_path, TWO)
    with pytest.raises(DataError, match="has no array for the model's input 'z"):
        open_data(tmp_path, [spec("a", None, 2), spec("z", None, 2)])
    test_set(tmp_path / "more" / "test_data_set_0", {"a": ramp(1, 2), "c": ramp(1, 2)})
    with pytest.raises(DataError, match="has an array 'c' that is no input"):
        open_data(tmp_path / "more", [spec("a", None, 2)])


def test_one_tensor_file(tmp_path: Path) -> None:
    test_set(tmp_path / "t", {"x": ramp(2, 4)})
    found: Any = open_data(tmp_path / "t" / "input_0.pb", VECTOR)
    assert found[0].feeds["x"].shape == (2, 4)


def test_a_tensor_whose_values_are_in_another_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_bytes(bytes(8))
    tensor = onnx.TensorProto(name="x", data_type=1, dims=[2], data_location="EXTERNAL")
    tensor.external_data.add(key="location", value="secret")
    (tmp_path / "test_data_set_0").mkdir()
    (tmp_path / "test_data_set_0" / "input_0.pb").write_bytes(tensor.SerializeToString())
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"input_0.pb' has its values in another file; refused"):
        open_data(tmp_path / "test_data_set_0", VECTOR)
