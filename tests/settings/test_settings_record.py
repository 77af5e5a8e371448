"""What a user decided, as it stands in models already written: read and written the same for ever.

The files in records/ are the whole records of models that version 0.1.0 wrote. They are never written anew: a model in
somebody's hands cannot be either.
"""

import json
from pathlib import Path

import pytest
from settings.record_cases import CASES, written

from quantkit.provenance import is_sealed, provenance_from_text, read_entry

RECORDS = Path(__file__).parent / "records"


def as_written(options: object) -> str:
    return json.dumps(options, sort_keys=True, separators=(",", ":"))


def record(case: str) -> str:
    return (RECORDS / f"{case}.json").read_text(encoding="utf-8").rstrip("\n")


@pytest.mark.parametrize("case", CASES)
def test_a_record_already_written_is_read(case: str) -> None:
    text = record(case)
    assert is_sealed(text)
    assert as_written(provenance_from_text(text, "it").to_json()) == text


@pytest.mark.parametrize("case", CASES)
def test_the_same_choices_are_recorded_in_the_same_words(case: str, tmp_path: Path) -> None:
    text = read_entry(written(case, tmp_path))
    assert text is not None
    found, before = json.loads(text), json.loads(record(case))
    if case == "static_plan":  # only the hash of a plan is told, and plans may change
        assert len(found["options"].pop("plan")) == len(before["options"].pop("plan"))
    assert as_written(found["options"]) == as_written(before["options"])
    assert found["kind"] == before["kind"]
    assert found["float"] == before["float"]
