"""The table [gate]."""

from pathlib import Path

import pytest

from quantkit.errors import UsageError
from quantkit.settings import GateSettings, load_recipe


def _load(folder: Path, text: str) -> GateSettings:
    (folder / "quantkit.toml").write_text(text, encoding="utf-8")
    return load_recipe(folder / "quantkit.toml").gate


def test_all_keys(tmp_path: Path) -> None:
    text = """
    [gate]
    max_drop = 0.01
    min_size_reduction = 0.7
    max_latency_ratio = 1
    min_int8_share = 1.0
    max_flips = 0
    confidence = 0.95
    allow_undecided = true
    """
    assert _load(tmp_path, text) == GateSettings(
        max_drop=0.01,
        min_size_reduction=0.7,
        max_latency_ratio=1.0,
        min_int8_share=1.0,
        max_flips=0.0,
        confidence=0.95,
        allow_undecided=True,
    )


def test_without_the_table_there_is_no_rule(tmp_path: Path) -> None:
    assert _load(tmp_path, "") == GateSettings()


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("max_dorp = 0.1", r"\[gate\] unknown key 'max_dorp' \(did you mean 'max_drop'\?\)"),
        ('max_drop = "1 %%"', "max_drop takes a number, or a text such as"),
        ("allow_undecided = 1", "allow_undecided takes true or false"),
        (
            "max_drop = -0.1",
            r"\[gate\] max_drop = -0.1: max_drop takes a number, or a text such as \"1%\", at least 0",
        ),
        ("max_drop = inf", "max_drop must be finite"),
        ("min_size_reduction = 70", r"at least 0 and below 1 \(0.7 is 70 %\)"),
        ("max_latency_ratio = 0", "max_latency_ratio takes .*, above 0"),
        ("min_int8_share = 1.01", "min_int8_share takes "),
        ("max_flips = 1", "max_flips takes "),
        ("confidence = 95", r"above 0.5 and below 1 \(0.95 is 95 %\)"),
        ("confidence = 0.5", "confidence takes "),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, line: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint) as caught:
        _load(tmp_path, f"[gate]\n{line}\n")
    assert "quantkit.toml" in str(caught.value)


def test_gate_must_be_a_table(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'gate' must be a table"):
        _load(tmp_path, "gate = 0.01\n")
