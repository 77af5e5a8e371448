"""The table [tune]."""

from pathlib import Path

import pytest

from quantkit.errors import UsageError
from quantkit.settings import GateSettings, Percent, TuneSettings, load_recipe


def _load(folder: Path, text: str) -> TuneSettings:
    (folder / "quantkit.toml").write_text(text, encoding="utf-8")
    return load_recipe(folder / "quantkit.toml").tune


def test_all_keys(tmp_path: Path) -> None:
    text = """
    [tune]
    max_drop = "0.5%"
    max_latency = 0.7
    max_size = "30%"
    minutes = 2.5
    candidates = 12
    seed = 3
    confidence = "90%"
    output = "out"
    """
    found = _load(tmp_path, text)
    assert found == TuneSettings(
        max_drop=0.005,
        max_latency=0.7,
        max_size=0.3,
        minutes=2.5,
        candidates=12,
        seed=3,
        confidence=0.9,
        output=tmp_path / "out",
    )
    assert isinstance(found.max_drop, Percent)
    assert not isinstance(found.max_size, Percent)


def test_without_the_table_there_is_no_budget(tmp_path: Path) -> None:
    assert not _load(tmp_path, "").has_budget
    assert _load(tmp_path, "[tune]\nmax_size = 0.5\n").has_budget


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("max_dorp = 0.1", r"\[tune\] unknown key 'max_dorp' \(did you mean 'max_drop'\?\)"),
        ('max_drop = "half"', "max_drop takes a number, or a text such as"),
        ("max_drop = -0.1", "max_drop takes "),
        ("max_size = 30", r"above 0 and at most 1 \(0.3 is 30 %\)"),
        ('max_size = "300%"', "max_size takes "),
        ("max_latency = 0", "max_latency takes .*, above 0"),
        ("minutes = 0", "minutes takes "),
        ("minutes = nan", "minutes takes "),
        ("candidates = 0", "candidates takes "),
        ("seed = -1", "seed takes "),
        ("confidence = 0.4", "confidence takes "),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, line: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint) as caught:
        _load(tmp_path, f"[tune]\n{line}\n")
    assert "quantkit.toml" in str(caught.value)


def test_the_budget_is_a_gate_s_rules() -> None:
    gate = GateSettings(max_drop=0.02, min_sqnr_db=20.0, min_size_reduction=0.5)
    assert TuneSettings().rules(gate) == gate
    budget = TuneSettings(max_drop=Percent(0.005), max_latency=0.7, max_size=0.3)
    assert budget.rules(gate) == GateSettings(
        max_drop=0.005, max_latency_ratio=0.7, min_size_reduction=0.7, min_sqnr_db=20.0
    )
    assert isinstance(budget.rules(gate).max_drop, Percent)
