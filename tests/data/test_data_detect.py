from pathlib import Path

import numpy as np
import pytest
from data.makers import IMAGE, KINDS, VECTOR, picture, ramp, test_set, tokenizer

from quantkit.data import open_data
from quantkit.data.detect import detect
from quantkit.errors import DataError

EXPECTED = {
    "npz": "npz",
    "npy": "npy",
    "images": "image folder",
    "test sets": "onnx test sets",
    "csv text": "csv",
    "jsonl arrays": "jsonl",
    "saved dataset": "saved dataset",
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_directory_of_each_kind(kind: str, tmp_path: Path) -> None:
    KINDS[kind][0](tmp_path)
    found = detect(tmp_path)
    assert found.kind == EXPECTED[kind]
    assert found.location == str(tmp_path) or len(found.files) == 1


@pytest.mark.parametrize(
    "name", ["README", "readme.txt", "LICENSE.json", "notes.md", ".hidden.npz", "model.onnx"]
)
def test_what_is_no_data_is_passed_over(name: str, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", ramp(2, 4))
    (tmp_path / name).write_text("x")
    assert detect(tmp_path).kind == "npy"


@pytest.mark.parametrize(
    "name",
    [
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "vocab.json",
        "config.json",
    ],
)
def test_a_tokenizers_files_are_no_data(name: str, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("text\na\n")
    (tmp_path / name).write_text("{}")
    assert detect(tmp_path).kind == "csv"


def test_labels_beside_images_are_no_table_and_alone_they_are(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("file,label\na.png,1\n")
    assert detect(tmp_path).kind == "csv"
    picture(tmp_path / "a.png")
    assert detect(tmp_path).kind == "image folder"


def test_two_kinds_are_an_error_that_counts_both(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=ramp(2, 4))
    for i in range(3):
        picture(tmp_path / f"{i}.jpg")
    with pytest.raises(DataError) as e:
        open_data(tmp_path, VECTOR)
    assert str(e.value) == (
        f"'{tmp_path}' mixes kinds of data: 1 .npz and 3 image files; "
        "keep one kind, or point --data at the files."
    )
    assert detect(tmp_path / "a.npz").kind == "npz"


def test_images_in_folders_count_too(tmp_path: Path) -> None:
    picture(tmp_path / "cat" / "1.png")
    (tmp_path / "rows.csv").write_text("a\n1\n")
    with pytest.raises(DataError, match=r"1 image and 1 \.csv files"):
        detect(tmp_path)


def test_test_sets_beside_npz_are_mixed(tmp_path: Path) -> None:
    test_set(tmp_path / "test_data_set_0", {"x": ramp(1, 4)})
    np.savez(tmp_path / "a.npz", x=ramp(2, 4))
    with pytest.raises(DataError, match=r"1 test set and 1 \.npz files"):
        detect(tmp_path)


def test_test_sets_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for i in (10, 2, 0):
        test_set(tmp_path / f"test_data_set_{i}", {"x": ramp(1, 4)})
    assert [f.parent.name for f in detect(tmp_path).files] == [
        "test_data_set_0",
        "test_data_set_2",
        "test_data_set_10",
    ]


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"There is no data at '.*/nope': give a directory or file"):
        open_data(tmp_path / "nope", IMAGE)


def test_an_empty_directory(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no data that quantkit reads: it is empty"):
        open_data(str(tmp_path), IMAGE)


def test_a_directory_of_other_things(tmp_path: Path) -> None:
    (tmp_path / "a.docx").write_text("x")
    with pytest.raises(DataError, match=r"it has only '\.docx'; \.npz, "):
        open_data(tmp_path, IMAGE)


def test_data_one_folder_deeper_is_pointed_out(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    np.save(tmp_path / "inner" / "a.npy", ramp(2, 4))
    with pytest.raises(DataError, match=r"'inner' in it does; point --data at .*/inner"):
        detect(tmp_path)


def test_a_file_of_no_known_kind(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(DataError, match=r"'.*a\.txt' is of no kind that quantkit reads"):
        detect(tmp_path / "a.txt")


def test_splits_of_images_are_not_taken_for_classes(tmp_path: Path) -> None:
    picture(tmp_path / "train" / "cat" / "1.png")
    picture(tmp_path / "val" / "cat" / "2.png")
    with pytest.raises(DataError, match=r"holds the splits 'train' and 'val': point --data at one"):
        detect(tmp_path)


def test_a_saved_dataset_dict_needs_one_split(tmp_path: Path) -> None:
    from datasets import Dataset, DatasetDict

    rows = Dataset.from_dict({"x": [[1.0] * 4]})
    DatasetDict({"train": rows}).save_to_disk(str(tmp_path / "one"))
    DatasetDict({"train": rows, "test": rows}).save_to_disk(str(tmp_path / "two"))
    assert detect(tmp_path / "one").root.name == "train"
    with pytest.raises(DataError, match=r"holds 2 splits \('test' and 'train'\): point --data"):
        detect(tmp_path / "two")


def test_only_a_tokenizer_is_no_data(tmp_path: Path) -> None:
    tokenizer(tmp_path)
    with pytest.raises(DataError, match="no data that quantkit reads"):
        detect(tmp_path)
