"""result.json is strict: what is wrong in it is said with its place, and what was written is read back."""

import codecs
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from result_cases import example_result

from quantkit.errors import UsageError
from quantkit.result import (
    SCHEMA,
    json_schema,
    load_result,
    result_from_json,
    result_text,
    save_result,
)


def _changed(change: Any) -> bytes:
    plain = json.loads(result_text(example_result()))
    change(plain)
    return json.dumps(plain).encode()


def test_a_result_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    result = example_result()
    save_result(result, tmp_path / "result.json")
    assert load_result(tmp_path / "result.json") == result
    assert [p.name for p in tmp_path.iterdir()] == ["result.json"]


def test_a_figure_that_is_not_finite_is_null() -> None:
    result = example_result()
    first = result.models[1]
    assert first.drift is not None
    output = replace(first.drift.outputs[0], sqnr_db=math.inf)
    drift = replace(first.drift, outputs=(output,))
    text = result_text(replace(result, models=(result.models[0], replace(first, drift=drift))))
    assert "Infinity" not in text
    again = result_from_json(text.encode(), "x").models[1].drift
    assert again is not None
    assert again.outputs[0].sqnr_db is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not JSON"),
        (b"[]", "names no schema"),
        (b'{"schema": "quantkit.result/99"}', "quantkit.result/99"),
        (_changed(lambda p: p["models"][1]["size"].update(disk="big")), r"models\[1\]\.size\.disk"),
        (_changed(lambda p: p.pop("data")), "`data`"),
        (_changed(lambda p: p.update(models=[])), "first model is not the float one"),
        (_changed(lambda p: p["models"].pop(0)), "first model is not the float one"),
    ],
    ids=["truncated", "other json", "newer", "type", "missing", "no models", "no float"],
)
def test_what_is_no_result_is_refused_in_one_line(content: bytes, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        result_from_json(content, "result.json")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda p: p["models"][1]["metrics"][0].update(drop=0.0),
        lambda p: p["data"].update(samples=100_000),
        lambda p: p.update(extra=1),
        lambda p: p.pop("seal"),
    ],
    ids=["a figure", "samples", "something more", "no seal"],
)
def test_a_result_that_was_edited_is_refused(change: Any) -> None:
    with pytest.raises(UsageError, match=r"not as quantkit wrote it: .* evaluate again"):
        result_from_json(_changed(change), "result.json")


def test_a_result_may_be_written_with_other_spaces() -> None:
    assert result_from_json(_changed(lambda _: None), "result.json") == example_result()


def test_a_result_of_the_first_version_is_read() -> None:
    def older(plain: dict[str, Any]) -> None:
        del plain["seal"], plain["allowed"]
        plain["schema"] = "quantkit.result/1"

    found = result_from_json(_changed(older), "result.json")
    assert found == replace(example_result(), schema="quantkit.result/1")


def test_a_result_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        load_result(tmp_path / "absent.json")


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        save_result(example_result(), tmp_path / "absent" / "result.json")


def test_the_schema_describes_every_part() -> None:
    schema = json_schema()
    assert schema["$ref"].endswith("/Result")
    properties = schema["$defs"]["Result"]["properties"]
    assert properties["schema"]["default"] == SCHEMA
    assert set(schema["$defs"]["Evaluated"]["required"]) == {"name", "role", "file", "size"}


def test_parts_of_the_example_add_up() -> None:
    for model in example_result().models:
        assert sum(part.nbytes for part in model.size.parts) == model.size.disk


def test_a_result_nested_without_end_or_no_text_at_all_is_one_error() -> None:
    for content in (b"[" * 99999, b'{"a": "\xff"}', b"\xff\xfe"):
        with pytest.raises(UsageError, match="'r' is no result"):
            result_from_json(content, "r")


def test_a_result_that_an_editor_marked_as_utf8_is_read() -> None:
    marked = codecs.BOM_UTF8 + result_text(example_result()).encode()
    assert result_from_json(marked, "r") == result_from_json(marked[3:], "r")
