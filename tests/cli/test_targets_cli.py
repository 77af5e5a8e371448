"""`quantkit targets`."""

import json

import pytest

from quantkit.cli.app import run
from quantkit.targets import TARGETS, this_machine


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def test_the_table_lists_every_target_and_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["targets"]) == 0
    out = capsys.readouterr().out
    for name, target in TARGETS.items():
        assert f" {name} " in out
        assert target.runtime in out
    assert f"this machine: {this_machine()}" in out
    assert f"For this machine alone: {this_machine().target}" in out


@pytest.mark.parametrize("name", TARGETS)
def test_one_target_in_full(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["targets", name]) == 0
    out = " ".join(capsys.readouterr().out.split())
    target = TARGETS[name]
    assert out.startswith(f"{name}: {target.title}")
    for operator in target.operators:
        assert operator in out
    for note in target.notes:
        assert note in out


def test_json_is_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["targets", "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert [t["name"] for t in plain["targets"]] == list(TARGETS)
    assert plain["machine"]["target"] == this_machine().target
    assert run(["targets", "qnn", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == TARGETS["qnn"].to_json()


def test_an_unknown_target_is_one_clear_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["targets", "tensorr"]) == 2
    assert "target 'tensorr' is unknown (did you mean 'tensorrt'?)" in capsys.readouterr().err
