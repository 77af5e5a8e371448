"""`quantkit compress`: which recipes it tries, that it goes on where it was, and that each file is made again from its recipe."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline.test_tune import contents, made, work  # noqa: F401 - fixtures

import quantkit
from quantkit.cli.app import run as command
from quantkit.errors import UsageError
from quantkit.pipeline.tune import run
from quantkit.pipeline.tune.choice import Budget, Choice, Figures, best_of
from quantkit.pipeline.tune.moves import Step
from quantkit.pipeline.tune.search import next_choices
from quantkit.settings import DistillSettings, Float16Settings, PruneSettings, TrimSettings

_MAIN = "from quantkit.cli import main; main()"
_ANY = Float16Settings()
STEPS = (
    Step(name="trim", kind="trim", settings=_ANY, size=0.6, minutes=0.5),
    Step(name="prune-90", kind="prune", settings=_ANY, time=0.9, size=0.95),
    Step(name="prune-80", kind="prune", settings=_ANY, time=0.8, size=0.9),
    Step(name="prune-70", kind="prune", settings=_ANY, time=0.7, size=0.85),
    Step(name="distill", kind="distill", settings=_ANY, minutes=4),
)
_LEFT: Mapping[str, tuple[float, float]] = {s.name: (s.time, s.size) for s in STEPS}


def compress(*arguments: str) -> int:
    return command(["compress", "m.onnx", "--data", "d.npz", *arguments])


def searched(
    losses: Mapping[str, float], budget: Budget, gain: float = 1.0
) -> dict[Choice, Figures]:
    """What a search makes where each step loses so much, and saves `gain` times what the table expects."""
    known: dict[Choice, Figures] = {}
    while wanted := next_choices(known, [1.0], budget, steps=STEPS):
        assert len(wanted) == 1
        assert wanted[0] not in known
        known[wanted[0]] = figures_of(wanted[0], losses, budget, gain)
        assert len(known) < 60
    return known


def figures_of(
    choice: Choice, losses: Mapping[str, float], budget: Budget, gain: float = 1.0
) -> Figures:
    drop = sum(losses.get(name, 0.0) for name in choice.before)
    drop += losses.get(f"{choice.form} {choice.bits}", 0.0)
    drop *= 0.4 if "distill" in choice.before else 1.0
    cost = 0.5 if choice.form == "static" else 1.0
    size = {"float16": 0.5, "dynamic": 0.27}.get(choice.form, choice.bits / 30)
    for name in choice.before:
        cost *= 1 - gain * (1 - _LEFT[name][0])
        size *= 1 - gain * (1 - _LEFT[name][1])
    verdict: Any = "in" if drop <= (budget.drop or 0.0) else "out"
    return Figures(drop=drop, verdict=verdict, cost=cost, size=size)


def test_bits_become_fewer_until_the_budget_is_exceeded() -> None:
    budget = Budget(drop=0.01, goal="size")
    known = searched({"static 2": 0.02, "prune-90": 0.5, "trim": 0.5}, budget)
    assert {c.bits for c in known if c.form == "static" and not c.before} == {8, 4, 3, 2}
    best = best_of(known, budget)
    assert best is not None
    assert (best.form, best.bits) in {("static", 3), ("weights", 2)}


def test_where_four_bits_are_too_few_five_and_six_are_tried() -> None:
    budget = Budget(drop=0.01, goal="size")
    lost = {"static 4": 0.02, "static 5": 0.011, "weights 4": 1.0, "weights 5": 1.0, "trim": 1.0}
    known = searched({**lost, "weights 6": 1.0, "prune-90": 1.0}, budget)
    assert {c.bits for c in known if c.form == "static" and not c.before} == {8, 4, 5, 6}
    assert best_of(known, budget) == Choice(bits=6)


def test_the_fastest_recipe_goes_as_far_as_the_budget_allows() -> None:
    budget = Budget(drop=0.01)
    known = searched({"prune-90": 0.002, "prune-80": 0.008, "prune-70": 0.5}, budget)
    assert best_of(known, budget) == Choice(before=("prune-80",))


def test_what_loses_a_little_too_much_is_trained_and_what_loses_far_too_much_is_not() -> None:
    budget = Budget(drop=0.01)
    known = searched({"prune-90": 0.002, "prune-80": 0.02, "prune-70": 0.5}, budget)
    assert best_of(known, budget) == Choice(before=("prune-80", "distill"))
    known = searched({"prune-90": 0.002, "prune-80": 0.5}, budget)
    assert best_of(known, budget) == Choice(before=("prune-90",))
    assert Choice(before=("prune-80", "distill")) not in known


def test_a_step_that_brings_no_time_is_not_taken_further() -> None:
    budget = Budget(drop=0.01)
    known = searched({}, budget, gain=0.05)
    assert Choice(before=("prune-80",)) in known
    assert Choice(before=("prune-70",)) not in known


def test_a_recipe_that_could_not_be_made_is_not_tried_with_more_taken_away() -> None:
    budget = Budget(drop=0.01)
    known = searched({"prune-90": 0.002}, budget)
    known = {c: f for c, f in known.items() if not c.before}
    known[Choice(before=("prune-90",))] = Figures(drop=None, verdict="failed")
    left = next_choices(known, [1.0], budget, steps=STEPS)
    assert not any("prune" in name for c in left for name in c.before)


@given(
    losses=st.fixed_dictionaries(
        {name: st.floats(0, 0.03) for name in (*_LEFT, "static 4", "static 3", "static 2")}
    ),
    goal=st.sampled_from(["speed", "size"]),
)
@settings(max_examples=100, deadline=None)
def test_a_search_ends_and_its_best_keeps_the_budget(losses: dict[str, float], goal: Any) -> None:
    budget = Budget(drop=0.01, goal=goal)
    losses["distill"] = 0.0
    known = searched(losses, budget)
    best = best_of(known, budget)
    assert best is not None
    assert known[best].verdict == "in"
    assert budget.worth(known[best]) <= budget.worth(known[Choice()]) + budget.close


def test_the_smallest_file_has_fewer_bits_and_each_is_made_again_from_its_recipe(
    work: Path,  # noqa: F811
) -> None:
    found = quantkit.compress("m.onnx", "d.npz", "out", max_drop="30%", goal="size")
    assert found.met
    assert found.best is not None
    assert found.best.choice.bits < 8
    forms = {(c.choice.form, c.choice.bits) for c in found.candidates}
    assert {("static", 8), ("static", 4), ("weights", 4), ("float16", 8)} <= forms
    for one in [*found.candidates, found.best]:
        file = (
            work
            / "out"
            / ("model.onnx" if one is found.best else f"candidates/{one.name}/model.onnx")
        )
        checks = quantkit.verify_file(file, "m.onnx", "d.npz", again=True).checks
        assert [c.sentence for c in checks if c.outcome == "wrong"] == []
        assert next(c for c in checks if c.name == "again").sentence.endswith("the same bytes.")
    assert (work / "out/recipe.json").read_bytes() == (
        work / "out/candidates" / found.best.name / "recipe.json"
    ).read_bytes()


def test_a_damaged_recipe_is_named(work: Path) -> None:  # noqa: F811
    quantkit.compress("m.onnx", "d.npz", "out", max_drop="30%", candidates=1)
    (work / "out/recipe.json").write_text('{"format": "quantkit.recipe/1"}', encoding="utf-8")
    with pytest.raises(quantkit.QuantkitError, match=r"recipe\.json' is damaged"):
        quantkit.verify_file("out/model.onnx", "m.onnx", "d.npz", again=True)


def test_compress_goes_on_after_it_was_killed(work: Path) -> None:  # noqa: F811
    flags = ["--max-drop", "30%", "--goal", "size", "--candidates", "5"]
    compress(*flags, "-o", "whole")
    line = [sys.executable, "-c", _MAIN, "compress", "m.onnx", "--data", "d.npz", *flags]
    with subprocess.Popen([*line, "-o", "killed"], stdout=subprocess.DEVNULL) as process:
        until = time.monotonic() + 120
        while not (work / "killed/candidates/03/candidate.json").exists():
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
    assert (work / "killed/model.onnx").exists()
    compress(*flags, "-o", "killed")
    assert contents(work / "killed") == contents(work / "whole")


def test_a_budget_of_compress_that_cannot_be_met_exits_with_1_and_says_why(
    work: Path,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = ["--goal", "size", "--max-drop", "0", "--max-size", "2%", "--candidates", "3"]
    assert compress(*flags, "-o", "out") == 1
    assert "The budget cannot be met: " in capsys.readouterr().out
    assert (work / "out/model.onnx").exists()
    assert json.loads((work / "out/result.json").read_text())["tuning"]["met"] is False


@pytest.mark.usefixtures("work")
def test_compress_is_not_mixed_with_tune_in_one_folder() -> None:
    quantkit.tune("m.onnx", "d.npz", "out", max_drop="30%", candidates=1)
    with pytest.raises(UsageError, match="budget or setting"):
        quantkit.compress("m.onnx", "d.npz", "out", max_drop="30%")


def test_bad_input_of_compress_is_one_line(
    work: Path,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    np.savez("two.npz", x=np.load("d.npz")["x"][:2])
    assert command(["compress", "m.onnx", "--data", "two.npz", "--max-drop", "1%"]) == 2
    assert "3 are needed at least" in capsys.readouterr().err
    assert compress("--max-drop", "1%", "--goal", "beauty") == 2
    assert "beauty" in capsys.readouterr().err
    assert not (work / "compressed").exists()


@pytest.mark.usefixtures("work")
def test_without_torch_nothing_is_trained_and_a_note_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    found = quantkit.compress("m.onnx", "d.npz", "out", max_drop="30%", candidates=1)
    (note,) = [note for note in found.notes if "'distill'" in note]
    assert note.startswith("Recipes with 'distill' were left out: ")
    assert "pip install" in note


def test_few_bits_are_trained_and_made_again_with_the_same_bytes(
    work: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("torch")
    few = Step(name="distill", kind="distill", settings=DistillSettings(steps=3), minutes=0.1)
    order = [Choice(), Choice(bits=4), Choice(bits=4, after=("distill",))]
    monkeypatch.setattr(run, "steps_for", lambda *_: ((few,), ()))
    monkeypatch.setattr(run, "next_choices", lambda known, *_, **__: tuple(order[len(known) :][:1]))
    found = quantkit.compress("m.onnx", "d.npz", "out", max_drop=0.9, goal="size")
    trained = found.candidates[-1]
    assert str(trained.choice) == "static, 4 bits + distill"
    assert trained.path is not None
    checks = quantkit.verify_file(trained.path, "m.onnx", "d.npz", again=True).checks
    assert [c.sentence for c in checks if c.outcome == "wrong"] == []
    assert next(c for c in checks if c.name == "again").sentence.endswith("the same bytes.")
    recipe = json.loads((work / "out/candidates/03/recipe.json").read_text())
    assert [step["record"]["kind"] for step in recipe["steps"]] == ["static", "distill"]


def test_steps_before_quantizing_are_shared_and_made_again_with_the_same_bytes(
    work: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("torch")
    steps = (
        Step(name="prune-80", kind="prune", settings=PruneSettings(size=0.8, force=True)),
        Step(name="distill", kind="distill", settings=DistillSettings(steps=3), minutes=0.1),
    )
    order = [Choice(before=("prune-80",)), Choice(before=("prune-80", "distill"), bits=4)]
    monkeypatch.setattr(run, "steps_for", lambda *_: (steps, ()))
    monkeypatch.setattr(run, "next_choices", lambda known, *_, **__: tuple(order[len(known) :][:1]))
    found = quantkit.compress("m.onnx", "d.npz", "out", max_drop=0.9, goal="size")
    assert [one.note for one in found.candidates] == ["", ""]
    there = sorted(f.parent.name for f in (work / "out/steps").glob("*/model.onnx"))
    assert there == ["prune-80", "prune-80+distill"]
    for one in found.candidates:
        assert one.path is not None
        checks = quantkit.verify_file(one.path, "m.onnx", "d.npz", again=True).checks
        assert [c.sentence for c in checks if c.outcome == "wrong"] == []
        assert next(c for c in checks if c.name == "again").sentence.endswith("the same bytes.")


def test_a_step_that_cannot_be_done_is_recorded_with_the_reason(
    work: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = (Step(name="trim", kind="trim", settings=TrimSettings(keep_tokenizer=True)),)
    order = [Choice(), Choice(before=("trim",))]
    monkeypatch.setattr(run, "steps_for", lambda *_: (steps, ()))
    monkeypatch.setattr(run, "next_choices", lambda known, *_, **__: tuple(order[len(known) :][:1]))
    found = quantkit.compress("m.onnx", "d.npz", "out", max_drop=0.9)
    assert found.met
    assert found.candidates[1].verdict == "failed"
    assert any("Candidate 02 (trim + static) could not be made: " in n for n in found.notes)
    again = quantkit.compress("m.onnx", "d.npz", "out", max_drop=0.9)
    assert again.candidates[1] == found.candidates[1]
    assert not (work / "out/steps/trim/model.onnx").exists()
