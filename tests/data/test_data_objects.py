import pickle
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from data.makers import VECTOR, ramp, spec

from quantkit.data import Samples, Stream, open_data
from quantkit.errors import DataError, UsageError
from quantkit.settings import DataSettings

FEEDS = [{"x": ramp(1, 4) + i, "label": i} for i in range(3)]


class Reader:
    """As onnxruntime's CalibrationDataReader."""

    def __init__(self) -> None:
        self.rest = iter([{"x": ramp(2, 4)}, {"x": ramp(1, 4)}])

    def get_next(self) -> Any:
        return next(self.rest, None)


class Loader:
    """As torch's DataLoader: a length, no index, can be read again."""

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[Any]:
        return iter(FEEDS)


def test_a_list_is_random_access() -> None:
    found = open_data(FEEDS, VECTOR)
    assert isinstance(found, Samples)
    assert [found[i].label for i in range(len(found))] == [0, 1, 2]
    assert found[2].feeds["x"].tolist() == [[2, 3, 4, 5]]
    assert found[2].name == "sample 2"
    assert found.description.kind == "Python sequence"
    assert found.description.samples == 3
    copy = pickle.loads(pickle.dumps(found))  # noqa: S301 our own bytes
    assert copy.fingerprint() == found.fingerprint()


def test_the_fingerprint_of_a_list_sees_its_ends() -> None:
    a: Any = open_data(FEEDS, VECTOR)
    b: Any = open_data(FEEDS[:2], VECTOR)
    assert a.fingerprint() != b.fingerprint()


def test_a_generator_is_read_once() -> None:
    found = open_data((feed for feed in FEEDS), VECTOR)
    assert isinstance(found, Stream)
    assert not isinstance(found, Samples)
    assert found.description.samples is None
    assert found.description.kind == "Python iterable"
    assert [s.label for s in found] == [0, 1, 2]
    with pytest.raises(DataError, match="'generator' was read before, and can be read only"):
        list(found)


def test_an_iterable_is_read_again() -> None:
    found: Any = open_data(Loader(), VECTOR)
    assert found.description.samples == 3
    assert [s.label for s in found] == [s.label for s in found] == [0, 1, 2]


def test_a_calibration_data_reader() -> None:
    found: Any = open_data(Reader(), VECTOR)
    assert found.description.kind == "data reader"
    assert [s.feeds["x"].shape for s in found] == [(2, 4), (1, 4)]


def test_elements_may_be_arrays_lists_and_without_batch() -> None:
    found: Any = open_data([ramp(4), ramp(2, 4)], VECTOR)
    assert [found[i].feeds["x"].shape for i in range(2)] == [(1, 4), (2, 4)]
    lists: Any = open_data([{"x": [1.0, 2.0, 3.0, 4.0]}], VECTOR)
    assert lists[0].feeds["x"].tolist() == [[1, 2, 3, 4]]


def test_arrays_in_memory_are_rows() -> None:
    found: Any = open_data({"x": ramp(5, 4), "y": np.arange(5)}, VECTOR)
    assert len(found) == 5
    assert found[3].label == 3
    assert found.description.labels == "5 classes from 'y'"
    single: Any = open_data(ramp(5, 4), VECTOR)
    assert single[3].feeds["x"].tolist() == found[3].feeds["x"].tolist()
    assert single.fingerprint() != found.fingerprint()


def test_the_labels_key_can_be_set() -> None:
    found: Any = open_data([{"x": ramp(1, 4), "t": "cat"}], VECTOR, DataSettings(label="t"))
    assert found[0].label == "cat"


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ([], "The data 'list' holds no samples"),
        (iter([]), "gave no samples"),
        ([5], "'sample 0' is of type 'int': give dicts of arrays"),
        ([{"z": ramp(1, 4)}], "'sample 0' has no array for the model's input 'x float32[?, 4]'"),
        ([{"x": ramp(1, 4), "idx": 1}], "has an array 'idx' that is no input of the model"),
        ([{"x": ramp(1, 5)}], "'sample 0' does not fit the input 'x'"),
    ],
)
def test_objects_that_do_not_fit(source: Any, says: str) -> None:
    with pytest.raises(DataError) as e:
        open_data(source, VECTOR)
    assert says in str(e.value)


def test_a_later_element_is_named() -> None:
    found = open_data(iter([{"x": ramp(1, 4)}, {"x": ramp(1, 3)}]), VECTOR)
    with pytest.raises(DataError, match="'sample 1' does not fit the input 'x'"):
        list(found)  # type: ignore[arg-type]


@pytest.mark.parametrize("source", [5, None, print])
def test_what_is_no_data_is_refused(source: Any) -> None:
    with pytest.raises(UsageError, match="is no kind of data: give a path"):
        open_data(source, VECTOR)


def test_a_dict_of_splits_is_refused() -> None:
    from datasets import Dataset, DatasetDict

    rows = Dataset.from_dict({"x": [[1.0] * 4]})
    with pytest.raises(UsageError, match="holds the splits 'train' and 'test': give one of them"):
        open_data(DatasetDict({"train": rows, "test": rows}), VECTOR)


def test_a_model_without_inputs() -> None:
    with pytest.raises(UsageError, match="The model has no inputs"):
        open_data(FEEDS, [])


def test_importing_is_light() -> None:
    """The readers import what they need when they need it."""
    code = (
        "import sys, quantkit.data, quantkit.settings\n"
        "heavy = {'PIL', 'datasets', 'tokenizers', 'onnx', 'pyarrow', 'pandas'}\n"
        "sys.exit(', '.join(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""


def test_scalar_inputs() -> None:
    found: Any = open_data(
        [{"x": ramp(1, 4), "rate": 8000}], [*VECTOR, spec("rate", dtype="int64")]
    )
    assert found[0].feeds["rate"].shape == ()
