"""What quantkit writes is what it wrote: digests of models, recorded by `python tests/golden/record.py`."""

import os

import pytest
from golden.golden_cases import COMBINATIONS, FAMILIES, SHARED, Case, here
from golden.golden_digests import ANYWHERE
from golden.golden_messages import recorded_messages, surface
from golden.record import read_golden

EVERYTHING = os.environ.get("QUANTKIT_GOLDEN") == "all"
PARTS = 6  # of the family of random graphs, so that several processes share it


def chosen(family: str) -> list[Case]:
    return [case for case in FAMILIES[family]() if case.often or EVERYTHING]


def differences(family: str, cases: list[Case]) -> list[str]:
    """Every case that is not as recorded, and in which parts."""
    golden = read_golden(family)
    same_machine = golden["recorded with"] == here()
    found = []
    for case in cases:
        wanted, now = golden.get(case.name, {}), case.digests()
        if not same_machine:
            wanted, now = ({k: d[k] for k in (*ANYWHERE, "error") if k in d} for d in (wanted, now))
        parts = [k for k in sorted({*wanted, *now}) if wanted.get(k) != now.get(k)]
        said = "".join(f"\n      {d['error']}" for d in (wanted, now) if "error" in d)
        if parts:
            found.append(f"{case.name}: {', '.join(parts)}{said}")
    return found


def check(family: str, cases: list[Case]) -> None:
    wrong = differences(family, cases)
    listed = "\n  ".join(wrong)
    assert not wrong, (
        f"{len(wrong)} of {len(cases)} differ from tests/golden/{family}.json:\n  {listed}\n"
        "python tests/golden/record.py --show NAME, here and at the commit before, says how."
    )


@pytest.mark.slow
def test_the_sample_is_written_as_before() -> None:
    check("sample", chosen("sample"))


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.slow
def test_random_graphs_are_written_as_before(part: int) -> None:
    check("generated", chosen("generated")[part::PARTS])


@pytest.mark.slow
def test_halves_are_written_as_before() -> None:
    check("float16", chosen("float16"))


def test_few_bits_are_written_as_before() -> None:
    check("weights", chosen("weights"))


def test_real_models_are_written_as_before() -> None:
    if not SHARED.exists():
        pytest.skip("the folder of real models (../shared) is absent")
    if not EVERYTHING:
        pytest.skip("takes minutes: set QUANTKIT_GOLDEN=all")
    check("shared", chosen("shared"))


@pytest.mark.parametrize("family", FAMILIES)
def test_values_are_compared_on_this_machine(family: str) -> None:
    recorded = read_golden(family)["recorded with"]
    assert recorded.keys() == here().keys()
    if recorded != here():
        pytest.skip(
            f"values were recorded with {recorded}, this is {here()}: only structure is compared"
        )


@pytest.mark.parametrize("family", FAMILIES)
def test_every_case_is_recorded_and_no_other(family: str) -> None:
    assert {c.name for c in FAMILIES[family]()} == {*read_golden(family)} - {"recorded with"}


def test_every_target_and_format_is_met_by_default() -> None:
    names = [c.name for c in FAMILIES["generated"]() if c.often]
    for target, quant_format in COMBINATIONS:
        assert sum(name.endswith(f" static {target} {quant_format}") for name in names) >= 5


@pytest.mark.parametrize("family", ["messages", "surface"])
@pytest.mark.slow
def test_words_and_names_are_as_before(family: str) -> None:
    golden = read_golden(family)
    now = recorded_messages() if family == "messages" else surface()
    changed = [k for k in sorted({*golden, *now}) if golden.get(k) != now.get(k)]
    listed = "\n  ".join(f"{k}\n    was: {golden.get(k)}\n    now: {now.get(k)}" for k in changed)
    assert not changed, f"{len(changed)} differ from tests/golden/{family}.json:\n  {listed}"
