"""Tables that ask for more than there is: nested without end, packed a thousandfold, damaged, pointing elsewhere."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from data.makers import TEXT, VECTOR, tokenizer
from pyarrow import parquet

from quantkit.data import open_data
from quantkit.data.detect import _depth
from quantkit.errors import DataError
from quantkit.settings import DataSettings

SMALL = DataSettings(memory=1_000_000)


def refusal(path: Path, how: DataSettings | None = None) -> str:
    with pytest.raises(DataError) as e:
        open_data(path, VECTOR, how)
    assert "\n" not in str(e.value)
    return str(e.value)


@pytest.mark.parametrize("suffix", ["json", "jsonl"])
@pytest.mark.parametrize("bracket", ['{"x":', "["])
def test_values_nested_without_end_are_refused_before_they_end_the_process(
    suffix: str, bracket: str, tmp_path: Path
) -> None:
    close = "}" if bracket.startswith("{") else "]"
    text = '{"x":' + bracket * 100_000 + "1" + close * 100_000 + "}\n"
    (tmp_path / f"a.{suffix}").write_text(text)
    assert "values are nested more than 64 deep; save plain rows" in refusal(tmp_path)


def test_brackets_in_texts_are_no_nesting(tmp_path: Path) -> None:
    tokenizer(tmp_path)
    rows = [{"text": "the cat [" * 200 + '\\"{' * 90}] * 3
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert len(open_data(tmp_path, TEXT)) == 3  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("content", "depth"),
    [
        (b"[" * 70 + b"]" * 70, 65),
        (b"[]" * 70, 1),
        (b'["' + b"[" * 70 + b'"]', 1),
        (b'{"a\\"[": [' + b"1, {}" * 70, 3),
    ],
)
def test_depth_is_that_of_the_values(content: bytes, depth: int) -> None:
    assert _depth(content) == depth


def test_a_document_and_a_line_must_fit_into_memory(tmp_path: Path) -> None:
    rows = json.dumps([{"x": [1.0] * 4}] * 20_000)
    (tmp_path / "a.json").write_text(rows)
    assert "save it as .jsonl, one row per line, or allow more with --memory" in refusal(
        tmp_path, SMALL
    )
    (tmp_path / "a.json").rename(tmp_path / "a.jsonl")
    assert "save it as .jsonl" in refusal(tmp_path, SMALL)
    (tmp_path / "a.jsonl").write_text(json.dumps({"x": [1.0] * 100_000}) + "\n")
    assert "its lines are too long" in refusal(tmp_path, SMALL)


def test_rows_packed_a_thousandfold_are_refused_by_what_they_declare(tmp_path: Path) -> None:
    table = pa.table({"x": pa.array(np.zeros(2_000_000, np.float32))})
    parquet.write_table(table, tmp_path / "a.parquet", compression="zstd")
    says = refusal(tmp_path, SMALL)
    assert "takes 8 MB or more to read and quantkit may hold 1 MB: give a part of it" in says


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_tables_that_were_cut_off_are_one_clear_line(
    suffix: str, share: float, tmp_path: Path
) -> None:
    table = pa.table({c: np.arange(500, dtype=np.float32) for c in "abcd"})
    file = tmp_path / f"a.{suffix}"
    if suffix == "parquet":
        parquet.write_table(table, file)
    else:
        with pa.OSFile(str(file), "wb") as out, pa.ipc.new_stream(out, table.schema) as stream:
            stream.write_table(table)
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * share)])
    assert f"Cannot read '{file}' as {suffix}" in refusal(tmp_path)


def test_offsets_that_lead_out_of_an_arrow_file_do_not_end_the_process(tmp_path: Path) -> None:
    table = pa.table({"x": pa.array([[1.0, 2.0, 3.0, 4.0]] * 3, pa.list_(pa.float32()))})
    file = tmp_path / "a.arrow"
    with pa.OSFile(str(file), "wb") as out, pa.ipc.new_stream(out, table.schema) as stream:
        stream.write_table(table)
    offsets = np.array([0, 4, 8, 12], np.int32)
    content = file.read_bytes()
    assert content.count(offsets.tobytes()) == 1
    offsets[1:3] = 2_000_000_000
    file.write_bytes(
        content.replace(np.array([0, 4, 8, 12], np.int32).tobytes(), offsets.tobytes())
    )
    code = (
        "import sys; from pathlib import Path; from data.makers import VECTOR;"
        "from quantkit.data import open_data; from quantkit.errors import DataError\n"
        "try: print(open_data(Path(sys.argv[1]), VECTOR)[0])\n"
        "except DataError as e: print('refused', e)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert (ran.returncode, ran.stdout[:7]) == (0, "refused"), ran.stderr


@pytest.mark.parametrize("name", ["../secret.arrow", "/etc/passwd", "pipe.arrow", "no.arrow", 3])
def test_a_saved_dataset_reads_its_own_files_alone(name: Any, tmp_path: Path) -> None:
    from datasets import Dataset

    Dataset.from_dict({"x": [[1.0, 2.0, 3.0, 4.0]]}).save_to_disk(str(tmp_path / "d"))
    os.mkfifo(tmp_path / "d" / "pipe.arrow")
    state = tmp_path / "d" / "state.json"
    plain = json.loads(state.read_text())
    state.write_text(json.dumps({**plain, "_data_files": [{"filename": name}]}))
    assert f"names '{name}', which is no file beside it" in refusal(tmp_path / "d")
    state.write_text("[" * 100_000)
    assert "it is no saved dataset's" in refusal(tmp_path / "d")


def test_a_parquet_file_with_a_damaged_list_of_columns_is_one_clear_line(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"x": [1.0, 2.0]}), file)
    content = bytearray(file.read_bytes())
    content[-60:-20] = bytes([0xFE]) * 40
    file.write_bytes(content)
    assert f"Cannot read '{file}' as parquet: " in refusal(tmp_path)
