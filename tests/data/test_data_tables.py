import json
import os
import pickle
import shutil
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from data.makers import IMAGE, TEXT, TEXTS, VECTOR, picture, spec, tokenizer

from quantkit.data import batches, collate, open_data, tables
from quantkit.errors import DataError, UsageError
from quantkit.settings import DataSettings, TextSettings


def table(folder: Path, **columns: Any) -> Path:
    """Write a jsonl file."""
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    (folder / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    return folder


def text(*, label: str | None = None, **settings: Any) -> DataSettings:
    return DataSettings(label=label, text=TextSettings(**settings))


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "json", "parquet", "arrow", "ipc"])
def test_every_format(suffix: str, tmp_path: Path) -> None:
    from datasets import Dataset

    rows = Dataset.from_dict({"a": [1.5, 2.5], "b": [3, 4], "label": [0, 1]})
    file = tmp_path / f"rows.{suffix}"
    if suffix == "csv":
        rows.to_csv(str(file))
    elif suffix == "parquet":
        rows.to_parquet(str(file))
    elif suffix == "arrow":
        rows.save_to_disk(str(tmp_path / "saved"))
        (tmp_path / "saved" / "data-00000-of-00001.arrow").rename(file)
    elif suffix == "ipc":
        import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]

        file = tmp_path / "rows.arrow"
        with pa.ipc.new_file(str(file), rows.data.table.schema) as writer:
            writer.write_table(rows.data.table)
    else:
        rows.to_json(str(file), lines=suffix == "jsonl")
    found: Any = open_data(file, [spec("a", None, 1), spec("b", None, dtype="int32")])
    assert len(found) == 2
    assert found[1].feeds["a"].tolist() == [[2.5]]
    assert found[1].feeds["b"].tolist() == [4]
    assert found[1].label == 1
    assert found[1].name == f"{file.name} row 1"


def test_lists_in_columns_get_the_batch_axis(tmp_path: Path) -> None:
    folder = table(tmp_path, x=[[1, 2, 3, 4], [5, 6, 7, 8]])
    found: Any = open_data(folder, VECTOR)
    assert found[1].feeds["x"].tolist() == [[5, 6, 7, 8]]
    assert found[1].feeds["x"].dtype == np.float32


def test_number_columns_together_are_one_input(tmp_path: Path) -> None:
    (tmp_path / "iris.csv").write_text("a,b,name,c,d,target\n1,2,x,3,4,0\n5,6,y,7,8.5,2\n")
    found: Any = open_data(tmp_path, VECTOR)
    assert found[1].feeds["x"].tolist() == [[5, 6, 7, 8.5]]
    assert found[1].label == 2
    assert found.description.preprocessing == ("'x' from the columns 'a', 'b', 'c' and 'd'",)


def test_columns_that_fit_no_input_are_listed(tmp_path: Path) -> None:
    folder = table(tmp_path, xs=[[1.0]], other=["a"])
    with pytest.raises(DataError) as e:
        open_data(folder, [spec("x", None, 4), spec("z", None)])
    assert str(e.value).startswith("No column is named like the model's input 'x float32[?, 4]'")
    assert "'xs' and 'other'" in str(e.value)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ([[1.0] * 4, [1.0] * 3], "'rows.jsonl row 1' does not fit the input 'x'"),
        ([[1.0] * 4, None], "Cannot use 'rows.jsonl row 1': the input 'x' gets an empty value"),
    ],
    ids=["length", "empty"],
)
def test_a_bad_row_is_named(values: list[Any], says: str, tmp_path: Path) -> None:
    found: Any = open_data(table(tmp_path, x=values), VECTOR)
    with pytest.raises(DataError) as e:
        found[1]
    assert says in str(e.value)


def test_ragged_lists_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="column 'x' holds lists of different lengths"):
        open_data(table(tmp_path, x=[[[1.0], [1.0, 2.0]]]), [spec("x", None, 2, 2)])


def test_text_is_tokenized(tmp_path: Path) -> None:
    tokenizer(tmp_path)
    found: Any = open_data(table(tmp_path, text=TEXTS, label=["a", "b", "a", "b"]), TEXT)
    assert found[0].feeds["input_ids"].tolist() == [[2, 3, 4]]
    assert found[0].feeds["attention_mask"].tolist() == [[1, 1, 1]]
    assert found[0].label == "a"
    (feed,) = collate(next(batches(found, size=2)))
    assert feed["input_ids"].tolist() == [[2, 3, 4], [5, 6, 0]]
    assert feed["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert found.description.preprocessing == (
        "text from 'text'",
        "tokens by tokenizer.json, at most 512",
        "batches padded with 0, mask 0",
    )


def test_padding_stored_in_the_tokenizer_is_overridden_and_its_id_kept(tmp_path: Path) -> None:
    tokenizer(tmp_path, length=20, pad_id=8, direction="left")
    found: Any = open_data(table(tmp_path, text=TEXTS), TEXT)
    assert found[1].feeds["input_ids"].tolist() == [[5, 6]]
    (feed,) = collate([found[0], found[1]])
    assert feed["input_ids"].tolist() == [[2, 3, 4], [8, 5, 6]]


@pytest.mark.parametrize(
    ("own", "fixed", "given", "length"),
    [
        (None, None, None, 512),
        (3, None, None, 3),
        (None, 4, None, 4),
        (3, 4, None, 3),
        (5, 4, None, 4),
        (3, None, 2, 2),
        (None, 4, 2, 2),
    ],
)
def test_the_length_of_a_text(
    own: int | None, fixed: int | None, given: int | None, length: int, tmp_path: Path
) -> None:
    from tokenizers import Tokenizer

    file = tokenizer(tmp_path)
    if own:
        made = Tokenizer.from_file(str(file))
        made.enable_truncation(own)
        made.save(str(file))
    inputs = [spec(i.name, None, fixed, dtype="int64") for i in TEXT]
    folder = table(tmp_path, text=["the cat sat on the mat the dog", "a", "a " * 1000])
    found: Any = open_data(folder, inputs, text(max_length=given))
    assert found[2].feeds["attention_mask"].sum() == length
    assert found[1].feeds["input_ids"].shape == (1, fixed or 1)
    assert found[1].feeds["attention_mask"].sum() == 1


def test_a_length_beyond_the_models_is_refused(tmp_path: Path) -> None:
    tokenizer(tmp_path)
    inputs = [spec(i.name, None, 4, dtype="int64") for i in TEXT]
    with pytest.raises(
        UsageError, match="max_length '5' is more than the model's fixed length of 4"
    ):
        open_data(table(tmp_path, text=TEXTS), inputs, text(max_length=5))


def test_pairs(tmp_path: Path) -> None:
    tokenizer(tmp_path)
    folder = table(tmp_path, a=TEXTS, b=TEXTS[::-1], score=[0.1, 0.2, 0.3, 0.4])
    inputs = [*TEXT, spec("token_type_ids", None, None, dtype="int64")]
    found: Any = open_data(folder, inputs, text(column=("a", "b")))
    assert found[0].feeds["input_ids"].tolist() == [[2, 3, 4, 3]]
    assert found[0].feeds["token_type_ids"].tolist() == [[0, 0, 0, 1]]
    assert found[3].label == 0.4
    with pytest.raises(DataError) as e:
        open_data(folder, inputs)
    assert str(e.value) == (
        "Cannot tell which column holds the text: the text columns are 'a' and 'b'; "
        "set --column NAME (twice for a pair)."
    )


@pytest.mark.parametrize(
    "names",
    [
        ("ids", "mask", "type_ids"),
        ("input_ids:0", "input_mask:0", "segment_ids:0"),
        ("input_word_ids", "attention-mask", "position_ids"),
    ],
)
def test_variants_of_input_names(names: tuple[str, ...], tmp_path: Path) -> None:
    tokenizer(tmp_path)
    inputs = [spec(n, None, None, dtype="int32") for n in names]
    found: Any = open_data(table(tmp_path, text=TEXTS), inputs)
    assert [found[0].feeds[n].shape for n in names] == [(1, 3)] * 3
    assert found[0].feeds[names[2]].tolist() in ([[0, 0, 0]], [[0, 1, 2]])


def test_an_input_that_text_cannot_feed(tmp_path: Path) -> None:
    tokenizer(tmp_path)
    inputs = [*TEXT, spec("past", None, 2, None, 8)]
    with pytest.raises(DataError, match="Text cannot feed the model's input 'past float32"):
        open_data(table(tmp_path, text=TEXTS), inputs)


def test_where_the_tokenizer_is_looked_for(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "model").mkdir()
    folder = table(tmp_path / "data", text=TEXTS)
    with pytest.raises(DataError, match=r"A text column needs a tokenizer\.json: --tokenizer FILE"):
        open_data(folder, TEXT)
    file = tokenizer(tmp_path / "model")
    for settings in (text(search=(tmp_path / "model",)), text(tokenizer=file)):
        assert open_data(folder, TEXT, settings).description.samples == 4
    assert open_data(folder, TEXT, text(tokenizer=tmp_path / "model")).description.samples == 4
    with pytest.raises(DataError, match=r"There is no tokenizer '.*nope\.json'"):
        open_data(folder, TEXT, text(tokenizer=tmp_path / "nope.json"))
    (tmp_path / "data" / "tokenizer.json").write_text("{")
    with pytest.raises(DataError, match="Cannot read the tokenizer"):
        open_data(folder, TEXT)


def test_the_fingerprint_is_of_the_tokenizers_content_not_its_path(tmp_path: Path) -> None:
    prints = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        file = tokenizer(tmp_path / name)
        (tmp_path / "data").mkdir(exist_ok=True)
        folder = table(tmp_path / "data", text=TEXTS)
        samples: Any = open_data(folder, TEXT, text(tokenizer=file))
        prints.append(samples.fingerprint())
    assert prints[0] == prints[1]


def test_without_the_tokenizers_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer(tmp_path)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(DataError, match=r"pip install .*\[text\]"):
        open_data(table(tmp_path, text=TEXTS), TEXT)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (text(column=("txt",)), "There is no column 'txt' (did you mean 'text'?)"),
        (text(label="lable"), "There is no column 'lable' for the labels (did you mean 'label'?)"),
    ],
)
def test_columns_that_are_not_there(settings: DataSettings, says: str, tmp_path: Path) -> None:
    tokenizer(tmp_path)
    folder = table(tmp_path, text=TEXTS, label=[1, 2, 3, 4])
    with pytest.raises(UsageError) as e:
        open_data(folder, TEXT, settings)
    assert says in str(e.value)


def test_a_row_without_text_is_named(tmp_path: Path) -> None:
    tokenizer(tmp_path)
    found: Any = open_data(table(tmp_path, text=["a", None, ""]), TEXT)
    with pytest.raises(DataError, match=r"Cannot use 'rows.jsonl row 1': column 'text' holds None"):
        found[1]
    with pytest.raises(DataError, match=r"Cannot use 'rows.jsonl row 2': the text has no tokens"):
        found[2]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", ""),
        ("a.csv", "a,b\n1,2\n1,2,3\n"),
        ("a.jsonl", '{"a": 1}\n{"a":\n'),
        ("a.parquet", "x"),
        ("a.arrow", "x"),
    ],
)
def test_broken_tables_are_named_in_one_line(
    name: str, content: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=f"Cannot read '.*{name}' as {name[2:]}: ") as e:
        open_data(tmp_path, VECTOR)
    assert "\n" not in str(e.value)
    assert capfd.readouterr() == ("", "")


def test_files_of_different_columns(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a\n1\n")
    (tmp_path / "b.csv").write_text("b,c\n1,2\n")
    with pytest.raises(DataError, match=r"The 2 files in .* have different columns: point --data"):
        open_data(tmp_path, VECTOR)


def test_files_of_the_same_columns_are_one_table(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n")
    (tmp_path / "b.csv").write_text("x\n2\n3\n")
    found: Any = open_data(tmp_path, [spec("x", None)])
    assert [found[i].feeds["x"].tolist() for i in range(3)] == [[1], [2], [3]]
    assert found[2].name == f"{tmp_path.name} row 2"


def test_an_empty_table() -> None:
    from datasets import Dataset, Features, Value

    empty = Dataset.from_dict({"x": []}, features=Features({"x": Value("float32")}))
    with pytest.raises(DataError, match="holds no rows"):
        open_data(empty, [spec("x", None)])


def test_a_dataset_object(tmp_path: Path) -> None:
    from datasets import ClassLabel, Dataset, Features, Value

    tokenizer(tmp_path)
    features = Features({"text": Value("string"), "label": ClassLabel(names=["no", "yes"])})
    rows = Dataset.from_dict({"text": list(TEXTS), "label": [0, 1, 1, 0]}, features=features)
    found: Any = open_data(rows, TEXT, text(search=(tmp_path,)))
    assert found.description.kind == "Dataset object"
    assert [found[i].label for i in range(4)] == [0, 1, 1, 0]
    copy = pickle.loads(pickle.dumps(found))  # noqa: S301 our own bytes
    assert copy[2].feeds["input_ids"].tolist() == found[2].feeds["input_ids"].tolist()
    assert copy.fingerprint() == found.fingerprint()
    again: Any = open_data(rows.select([0]), TEXT, text(search=(tmp_path,)))
    assert again.fingerprint() != found.fingerprint()


def test_image_columns(tmp_path: Path) -> None:
    from datasets import Dataset, Features, Image, Value

    pixels = picture(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"broken")
    features = Features({"image": Image(), "label": Value("int64")})
    files = [str(tmp_path / "a.png"), str(tmp_path / "b.png")]
    rows = Dataset.from_dict({"image": files, "label": [3, 4]}, features=features)
    found: Any = open_data(rows, IMAGE)
    assert found[0].label == 3
    np.testing.assert_allclose(found[0].feeds["input"][0], pixels.transpose(2, 0, 1) / 255, 1e-6)
    assert "gets pixels of 0-1" in found.description.warnings[0]
    with pytest.raises(DataError, match="Cannot use 'dataset row 1'"):
        found[1]


@pytest.mark.linux
def test_no_temporary_file_outlives_the_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "tmp"
    cache.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(cache))
    (tmp_path / "a.csv").write_text("x\n1\n")
    found: Any = open_data(tmp_path / "a.csv", [spec("x", None)])
    assert not list(cache.iterdir())
    assert found[0].feeds["x"].tolist() == [1]


def test_temporary_files_go_after_the_dataset_that_maps_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows, which removes no mapped file: it goes with the samples, when nothing maps it any more."""
    cache = tmp_path / "tmp"
    cache.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(cache))
    monkeypatch.setattr(tables, "os", SimpleNamespace(name="nt", getpid=os.getpid))
    mapped: list[str] = []

    def remove(folder: str, *, ignore_errors: bool) -> None:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8")
        mapped.extend(line for line in maps.splitlines() if folder in line)
        shutil.rmtree(folder, ignore_errors=ignore_errors)

    monkeypatch.setattr(tables, "shutil", SimpleNamespace(rmtree=remove))
    (tmp_path / "a.csv").write_text("x\n1\n")
    found: Any = open_data(tmp_path / "a.csv", [spec("x", None)])
    assert found[0].feeds["x"].tolist() == [1]
    assert list(cache.iterdir())
    del found
    assert not list(cache.iterdir())
    assert not mapped


def test_progress_bars_are_as_before(tmp_path: Path) -> None:
    import datasets

    before = datasets.are_progress_bars_disabled()
    (tmp_path / "a.csv").write_text("x\n1\n")
    open_data(tmp_path, [spec("x", None)])
    assert datasets.are_progress_bars_disabled() == before


@pytest.mark.parametrize("path", ["https://example.org/a.png", "/no/such.png", "hf://x/a.png"])
def test_an_image_that_is_elsewhere_is_not_fetched(path: str) -> None:
    from datasets import Dataset, Features, Image

    rows = Dataset.from_dict({"image": [path]}, features=Features({"image": Image()}))
    with pytest.raises(DataError, match=f"the image '{path}' is not there"):
        open_data(rows, IMAGE)


def test_an_image_column_takes_images_alone(tmp_path: Path) -> None:
    import pyarrow as pa
    from datasets import Dataset, Features, Image

    features = Features({"image": Image()})
    content = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n"
    rows = pa.array([{"bytes": content, "path": None}], features.arrow_schema.field("image").type)
    Dataset(pa.table({"image": rows}, schema=features.arrow_schema)).to_parquet(
        str(tmp_path / "a.parquet")
    )
    with pytest.raises(DataError, match="it is no image that quantkit reads"):
        open_data(tmp_path / "a.parquet", IMAGE)


@pytest.mark.parametrize("place", [".", "model", "model/onnx", "here"])
def test_a_tokenizer_is_found_near_data_and_model_and_in_the_working_directory(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / "data", tmp_path / "model" / "onnx", tmp_path / "here"]
    for folder in folders:
        folder.mkdir(parents=True)
    (tmp_path / "data" / "a.csv").write_text("text\nthe cat\n")
    monkeypatch.chdir(tmp_path / "here")
    settings = DataSettings(text=TextSettings(search=(tmp_path / "model" / "onnx",)))
    tokenizer(tmp_path / place)
    if place == ".":
        with pytest.raises(DataError, match="A text column needs a tokenizer"):
            open_data(tmp_path / "data", TEXT, settings)
    else:
        assert len(open_data(tmp_path / "data", TEXT, settings)) == 1  # type: ignore[arg-type]
