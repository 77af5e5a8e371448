"""Reasons: every entry of the catalogue can be said, and files keep code, facts and sentence."""

from string import Formatter
from typing import Any

import pytest

from quantkit.reasons import Reason, Why, because


class _AnyFact(dict[str, Any]):
    """Facts of whatever name: a number where the sentence formats one, else a text."""

    def __init__(self, why: Why) -> None:
        parsed = Formatter().parse(why.text + why.detail)
        super().__init__({name: 1.5 if spec else "x" for _, name, spec, _ in parsed if name})


@pytest.mark.parametrize("why", Why)
def test_every_reason_is_a_sentence_and_comes_back_from_its_file(why: Why) -> None:
    reason = Reason(why, _AnyFact(why))
    said = reason.to_json()
    assert said["why"] == str(reason) != ""
    assert str(reason).startswith(reason.head)
    assert Reason.from_json(**said) == reason


def test_reasons_within_reasons_come_back_too() -> None:
    source = because(Why.OTHER, text="seen")
    reason = because(Why.RANGE, source=source, low=-1.0, high=2.0)
    assert str(reason) == "seen: -1 to 2"
    assert reason.head == "seen"
    assert Reason.from_json(**reason.to_json()) == reason


def test_a_fact_that_is_none_is_left_out_of_the_sentence() -> None:
    reason = because(Why.BLOCKS_FAST, bits=4, block=32, rounded=None)
    assert str(reason).endswith("fast path")


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"code": "of-a-later-version", "facts": {"tensor": "x"}},
        {"code": "range-not-known"},
        {"code": "range-not-known", "facts": {"tensor": {"strange": 1}}},
        {"code": "coarse-softmax", "facts": {"db": "loud"}},
        {"code": "coarse-softmax", "facts": {"db": None}},
    ],
)
def test_what_this_version_cannot_say_keeps_its_sentence(more: dict[str, Any]) -> None:
    reason = Reason.from_json(why="as it was said", **more)
    assert str(reason) == "as it was said"
    assert reason.why is Why.OTHER
    assert reason.to_json() == {"why": "as it was said"}  # as versions without codes wrote it


def test_a_value_that_json_has_not_leaves_a_file_that_can_be_read() -> None:
    said = because(Why.HALF_VALUES_SMALL, tensor="x", most=float("inf")).to_json()
    assert said["facts"] == {"tensor": "x", "most": None}
    assert str(Reason.from_json(**said)).endswith("'x' up to inf")
