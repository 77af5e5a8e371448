"""`quantkit tune`: what it chooses, that it goes on where it was, and that what it writes makes the same bytes again."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from builders import graph, model, node, rng, run, save, weight
from hypothesis import given, settings
from hypothesis import strategies as st

import quantkit
from quantkit.cli.app import run as command
from quantkit.errors import DataError, QuantkitError, UsageError
from quantkit.evaluate.accuracy.scorer import Mean
from quantkit.pipeline.partial import only_run
from quantkit.pipeline.split import split
from quantkit.pipeline.tune.choice import (
    BASES,
    Budget,
    Choice,
    Figures,
    best_of,
    frontier_of,
    limits,
)
from quantkit.pipeline.tune.search import next_choices
from quantkit.pipeline.tune.trial import sample_losses
from quantkit.result import load_result
from quantkit.settings import (
    DataSettings,
    ImageSettings,
    NodeRule,
    QdqSettings,
    Recipe,
    RecoverSettings,
    StaticSettings,
    TensorRule,
    load_recipe,
    recipe_text,
)

_WIDTH, _SAMPLES = 48, 160
_MAIN = "from quantkit.cli import main; main()"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small classifier, and samples labelled by what it answers: every flip is a loss."""
    folder = tmp_path_factory.mktemp("tune")
    layers = 4
    nodes = []
    weights = {}
    for number in range(layers):
        weights[f"w{number}"] = weight(_WIDTH, _WIDTH if number < layers - 1 else 10, seed=number)
        nodes.append(node("MatMul", [f"h{number}", f"w{number}"], [f"m{number}"], f"mm{number}"))
        if number < layers - 1:
            nodes.append(node("Relu", [f"m{number}"], [f"h{number + 1}"], f"relu{number}"))
    nodes[0].input[0] = "x"
    proto = model(graph(nodes, {"x": ("n", _WIDTH)}, {f"m{layers - 1}": ("n", 10)}, weights))
    save(proto, folder / "m.onnx")
    x = rng(7).standard_normal((_SAMPLES, _WIDTH)).astype(np.float32)
    label = run(proto, {"x": x})[0].argmax(axis=1)
    np.savez(folder / "d.npz", x=x, label=label)
    np.savez(folder / "bare.npz", x=x)
    return folder


@pytest.fixture
def work(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the same files, where no clock decides."""
    for file in made.iterdir():
        shutil.copyfile(file, tmp_path / file.name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QUANTKIT_MEASURE", "0")
    return tmp_path


def tune(*arguments: str) -> int:
    return command(["tune", "m.onnx", "--data", "d.npz", *arguments])


def contents(folder: Path) -> dict[str, bytes]:
    """All that a search found: models, plans, what is known of each candidate but how long it took."""
    found = {}
    for file in sorted(folder.rglob("*")):
        name = str(file.relative_to(folder))
        if file.suffix == ".onnx" or file.name in {"plan.json", "quantkit.toml"}:
            found[name] = file.read_bytes()
        if file.name == "candidate.json":
            plain = json.loads(file.read_text(encoding="utf-8"))
            del plain["seconds"], plain["running"]
            found[name] = json.dumps(plain, sort_keys=True).encode()
    return found


def test_the_chosen_file_is_made_again_byte_by_byte_from_its_plan_and_recipe(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tune("--labels", "label", "--max-drop", "30%", "-o", "out") == 0
    monkeypatch.chdir(work / "out")
    again = ["quantize", "static", "../m.onnx", "again.onnx", "--plan", "plan.json"]
    assert command(again) == 0
    assert (work / "out/again.onnx").read_bytes() == (work / "out/model.onnx").read_bytes()


@pytest.mark.slow
def test_every_candidate_is_made_again_byte_by_byte(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Samples close to a tie flip in any int8 file, and the budget is just missed by the first one: all forms are tried.
    x = rng(8).standard_normal((10 * _SAMPLES, _WIDTH)).astype(np.float32)
    (scores,) = run(onnx.load("m.onnx"), {"x": x})
    second, first = np.sort(scores, axis=1)[:, -2:].T
    close = np.argsort(first - second)[:_SAMPLES]
    np.savez("close.npz", x=x[close], label=scores[close].argmax(axis=1))
    usual = quantkit.tune("m.onnx", "close.npz", "usual", max_drop=0.9, candidates=1)
    drop = usual.candidates[0].drop
    assert drop
    found = quantkit.tune("m.onnx", "close.npz", "out", max_drop=0.9 * drop)
    forms = {(c.choice.form, c.choice.recovery, c.choice.method) for c in found.candidates}
    assert len(forms) >= 4
    for candidate in found.candidates:
        place = work / "out/candidates" / candidate.name
        monkeypatch.chdir(place)
        again = ["quantize", "static", "../../../m.onnx", "again.onnx", "--plan", "plan.json"]
        assert command(again) == 0
        assert (place / "again.onnx").read_bytes() == (place / "model.onnx").read_bytes()


def test_a_candidate_is_reported_with_one_time(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QUANTKIT_MEASURE")
    found = quantkit.tune("m.onnx", "d.npz", work / "out", max_drop=0.3, candidates=2)
    assert found.result is not None
    assert found.result.title == "m.onnx, tuned"
    tuning = found.result.tuning
    assert tuning is not None
    trials = {trial.name: trial for trial in tuning.trials}
    made = {one.name: one for one in found.candidates}
    for judged in found.result.candidates:
        timed = judged.typical_latency
        assert timed is not None
        assert trials[judged.name].latency == made[judged.name].latency == timed.ratio
        assert trials[judged.name].latency_interval == timed.ratio_interval


def test_a_budget_that_the_fastest_plan_keeps_takes_one_static_file(work: Path) -> None:
    found = quantkit.tune("m.onnx", "d.npz", "out", max_drop="30%")
    assert found.met
    assert found.best is not None
    assert found.best.choice == Choice()
    assert [c.choice.form for c in found.candidates] == ["static", "stored"]
    result = load_result(work / "out")
    assert [m.name for m in result.candidates] == list(found.frontier)
    assert result.data.samples == len(found.split.judging)
    assert "No faster candidate was found" in found.sentence


def test_a_tight_budget_is_searched_for_along_the_family(work: Path) -> None:
    found = quantkit.tune("m.onnx", "d.npz", "out", max_drop=0.0)
    points = [c.choice.point for c in found.candidates if c.choice.form == "static"]
    assert max(points) > 0
    assert found.best is not None
    ways = json.loads((work / "out/tune.json").read_text(encoding="utf-8"))["family"]
    assert ways["whole"]
    assert ways["noises"] == sorted(ways["noises"], reverse=True)


def test_a_budget_that_cannot_be_met_exits_with_1_and_leaves_the_best_there_is(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune("--max-drop", "30%", "--max-size", "1%", "-o", "out") == 1
    assert "The budget cannot be met: the smallest has" in capsys.readouterr().out
    assert (work / "out/model.onnx").exists()
    assert command(["gate", "out"]) == 1


@pytest.mark.slow
def test_the_same_seed_gives_the_same_answer_and_another_seed_divides_otherwise(work: Path) -> None:
    splits = []
    for folder, seed in (("a", "0"), ("b", "0"), ("c", "1")):
        tune("--max-drop", "1%", "--seed", seed, "-o", folder)
        splits.append(quantkit.tune("m.onnx", "d.npz", folder, max_drop="1%", seed=int(seed)).split)
    assert contents(work / "a") == contents(work / "b")
    assert splits[0] == splits[1] != splits[2]


@pytest.mark.slow
def test_a_killed_search_goes_on_and_comes_to_the_same_answer(work: Path) -> None:
    tune("--max-drop", "0", "-o", "whole")
    line = [sys.executable, "-c", _MAIN, "tune", "m.onnx", "--data", "d.npz", "--max-drop", "0"]
    with subprocess.Popen([*line, "-o", "killed"], stdout=subprocess.DEVNULL) as process:
        until = time.monotonic() + 60
        while not (work / "killed/candidates/02/candidate.json").exists():
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
    before = (work / "killed/candidates/01/candidate.json").stat().st_mtime_ns
    assert (work / "killed/model.onnx").exists()
    tune("--max-drop", "0", "-o", "killed")
    assert (work / "killed/candidates/01/candidate.json").stat().st_mtime_ns == before
    assert contents(work / "killed") == contents(work / "whole")
    assert not list((work / "killed").glob(".quantkit-*"))


@pytest.mark.parametrize(("call", "name"), [("mkdir", "candidates"), ("unlink", "plan.json")])
@pytest.mark.slow
def test_a_search_killed_while_its_folder_is_made_or_cleared_can_be_begun_again(
    call: str, name: str, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class KilledError(BaseException):
        """Stands for SIGKILL: nothing is tidied up."""

    honest = getattr(Path, call)

    def killed(self: Path, *given: Any, **named: Any) -> Any:
        if self.name == name:
            raise KilledError
        return honest(self, *given, **named)

    line = ("m.onnx", "d.npz", "out")
    if call == "unlink":
        quantkit.tune(*line, max_drop="30%")
    with monkeypatch.context() as patched:
        patched.setattr(Path, call, killed)
        with pytest.raises(KilledError):
            quantkit.tune(*line, max_drop="30%", again=True)
    quantkit.tune(*line, max_drop="30%", again=True)
    assert (work / "out/model.onnx").exists()


def test_two_searches_do_not_share_a_folder(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with only_run(work / "out"):
        assert command(["tune", "m.onnx", "--data", "d.npz", "--max-drop", "30%", "-o", "out"]) == 2
    assert "Another run is writing 'out'" in capsys.readouterr().err
    assert not (work / "out").exists()


def test_a_foreign_index_is_not_removed_even_with_again(work: Path) -> None:
    (work / "out").mkdir()
    (work / "out/tune.json").write_text('{"piano": 440}')
    with pytest.raises(UsageError, match="not written by a search"):
        quantkit.tune("m.onnx", "d.npz", "out", max_drop="30%", again=True)
    assert (work / "out/tune.json").read_text() == '{"piano": 440}'


def test_a_search_that_is_over_makes_nothing_again(work: Path) -> None:
    first = quantkit.tune("m.onnx", "d.npz", "out", max_drop="30%")
    stamps = {f: f.stat().st_mtime_ns for f in (work / "out").rglob("*.json")}
    second = quantkit.tune("m.onnx", "d.npz", "out", max_drop="30%", minutes=5)
    assert second.chosen == first.chosen
    assert stamps == {f: f.stat().st_mtime_ns for f in (work / "out").rglob("*.json")}


def test_a_damaged_candidate_is_made_again(work: Path) -> None:
    tune("--max-drop", "30%", "-o", "out")
    file = work / "out/candidates/01/model.onnx"
    bytes_before = file.read_bytes()
    file.write_bytes(b"nothing")
    tune("--max-drop", "30%", "-o", "out")
    assert file.read_bytes() == bytes_before


def test_another_search_in_the_same_folder_is_refused_unless_asked_for(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tune("--max-drop", "30%", "-o", "out")
    assert tune("--max-drop", "20%", "-o", "out") == 2
    assert "holds a search with another budget or setting" in capsys.readouterr().err
    assert tune("--max-drop", "20%", "-o", "out", "--again") == 0
    (work / "d.npz").unlink()
    shutil.copyfile("bare.npz", "d.npz")
    assert tune("--max-drop", "20%", "-o", "out") == 2
    assert "holds a search with another data" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["none.onnx", "--data", "d.npz", "--max-drop", "1%"], "none.onnx"),
        (["m.onnx", "--data", "nowhere", "--max-drop", "1%"], "nowhere"),
        (["m.onnx", "--max-drop", "1%"], "Which data?"),
        (["m.onnx", "--data", "d.npz"], "Which budget?"),
        (["m.onnx", "--data", "d.npz", "--max-drop", "much"], "--max-drop takes a number"),
        (["m.onnx", "--data", "d.npz", "--max-drop", "-1%"], "at least 0"),
        (["m.onnx", "--data", "d.npz", "--max-drop", "1%", "--limit", "2"], "3 are needed"),
        (["m.onnx", "--data", "d.npz", "--max-drop", "1%", "--metric", "best"], "unknown"),
        (["m.onnx", "--data", "d.npz", "--max-latency", "0.7"], "needs time to be measured"),
        (["m.onnx", "--data", "nan.npz", "--max-drop", "1%"], "NaN"),
        (["m.onnx", "--data", "empty.npz", "--max-drop", "1%"], "empty.npz"),
        (["m.onnx", "--data", "few.npz", "--max-drop", "1%"], "label"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    work: Path, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    x = np.load("d.npz")["x"]
    np.savez("nan.npz", x=np.full_like(x, np.nan))
    np.savez("empty.npz", x=x[:0])
    np.savez("few.npz", x=x, label=np.zeros(3, np.int64))
    assert command(["tune", *arguments, "-o", "out"]) == 2
    error = capsys.readouterr().err.strip()
    assert says in error
    assert error.splitlines()[-1].startswith("error: ")
    assert not (work / "out").exists()


def test_a_place_that_cannot_be_written_is_refused_before_anything_runs(work: Path) -> None:
    (work / "file").write_text("x", encoding="utf-8")
    assert tune("--max-drop", "1%", "-o", "file/out") == 2
    shutil.copyfile("m.onnx", "model.onnx")
    assert command(["tune", "model.onnx", "--data", "d.npz", "--max-drop", "1%", "-o", "."]) == 2
    assert (work / "model.onnx").read_bytes() == (work / "m.onnx").read_bytes()


@pytest.mark.usefixtures("work")
def test_without_labels_decisions_count() -> None:
    found = quantkit.tune("m.onnx", "bare.npz", "out", max_drop="30%")
    assert found.measure == "decisions that differ from float's"
    assert found.result is not None
    assert [rule.key for rule in found.result.rules] == ["max_flips"]
    assert any(note.startswith("No labels: what counts is decisions") for note in found.notes)


def test_without_labels_and_decisions_the_noise_counts(work: Path) -> None:
    w = weight(_WIDTH, _WIDTH, seed=3)
    proto = graph(
        [node("MatMul", ["x", "w"], ["embedding"], "mm")],
        {"x": ("n", _WIDTH)},
        {"embedding": ("n", _WIDTH)},
        {"w": w},
    )
    save(model(proto), work / "e.onnx")
    found = quantkit.tune("e.onnx", "bare.npz", "out", max_drop="1%")
    assert found.measure.startswith("noise")
    assert found.result is not None
    assert [(rule.key, rule.limit) for rule in found.result.rules] == [("min_sqnr_db", 20.0)]


def test_time_that_is_over_leaves_the_best_so_far(work: Path) -> None:
    found = quantkit.tune("m.onnx", "d.npz", "out", max_drop=0.0, minutes=1e-6)
    assert found.stopped
    assert len(found.candidates) == 1
    assert (work / "out/model.onnx").exists()
    more = quantkit.tune("m.onnx", "d.npz", "out", max_drop=0.0, minutes=10)
    assert len(more.candidates) > 1


def test_samples_that_can_be_read_once_are_refused(work: Path) -> None:
    stream = ({"x": row[None]} for row in np.load("d.npz")["x"])
    with pytest.raises(QuantkitError, match="only once"):
        quantkit.tune("m.onnx", stream, "out", max_drop="1%")
    assert not (work / "out").exists()


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_no_sample_and_no_copy_of_one_does_two_things(data: st.DataObject) -> None:
    count = data.draw(st.integers(3, 300))
    names = data.draw(st.lists(st.integers(0, count), min_size=count, max_size=count))
    mixed = rng(data.draw(st.integers(0, 9))).permutation(count).tolist()
    try:
        found = split(mixed, dict(enumerate(names)), count, 0)
    except DataError:
        assert len(set(names)) < count
        return
    parts = [found.calibration, found.choosing, found.judging]
    assert all(parts)
    places = [place for part in parts for place in part]
    assert len(places) + found.copies == len(set(places)) + found.copies == count
    contents = [{names[place] for place in part} for part in parts]
    assert not contents[0] & contents[1]
    assert not contents[0] & contents[2]
    assert not contents[1] & contents[2]
    assert found.calibration == tuple(mixed[: len(found.calibration)])


def test_samples_on_which_files_are_verified_while_they_are_made_do_not_judge() -> None:
    found = split(range(200), {}, 200, 0)
    behind = range(len(found.calibration), len(found.calibration) + 16)
    assert set(behind) <= set(found.choosing)


@given(border=st.integers(0, 40), count=st.integers(1, 40), together=st.integers(1, 4))
@settings(max_examples=200, deadline=None)
def test_the_border_is_found_wherever_it_is(border: int, count: int, together: int) -> None:
    noises = [1 - k / count for k in range(count)]
    budget = Budget(drop=0.01)
    known: dict[Choice, Figures] = {}
    while wanted := next_choices(known, noises, budget, together):
        for choice in wanted:
            within = choice.form != "static" or choice.point >= border
            drop = 0.0 if within else 0.01 + (border - choice.point) / 100
            cost = 0.3 + choice.point / 100 if choice.form == "static" else 1.0
            verdict = "in" if within else "out"
            known[choice] = Figures(drop=drop, verdict=verdict, cost=cost, size=0.3)  # type: ignore[arg-type]
    found = best_of(known, budget)
    assert found is not None
    if border < count:
        assert known[found].cost <= 0.3 + border / 100 + 0.02
    else:
        assert found.form != "static"
    assert len(known) <= len(BASES) + 2 + 4 * together * (count.bit_length() + 1)


def test_what_limits_it_is_the_best_exchange_of_accuracy_for_time() -> None:
    inside = Choice(point=3)
    known = {
        Choice(): Figures(drop=0.008, verdict="out", cost=0.44, size=0.3),
        inside: Figures(drop=0.004, verdict="in", cost=0.5, size=0.3),
        Choice(form="stored"): Figures(drop=0.0, verdict="in", cost=1.0, size=0.3),
    }
    more, share = limits(known, inside, Budget(drop=0.005)) or (0.0, 0.0)
    assert (round(more, 4), round(share, 2)) == (0.003, 0.12)
    assert frontier_of(known) == tuple(known)
    assert best_of(known, Budget(drop=0.005)) == inside


def test_quantkit_toml_reads_back_as_it_was_written(tmp_path: Path) -> None:
    given = Recipe(
        model=tmp_path / "m.onnx",
        data=DataSettings(
            path=tmp_path / 'a "b"\\c', image=ImageSettings(resize=(3, 4), mean=(0.1,)), label="y"
        ),
        calibrated=DataSettings(path=tmp_path / 'a "b"\\c', limit=7, seed=3, label="y"),
        static=StaticSettings(
            exclude=("a*", "b\x7f\n"),
            per_channel=False,
            method="percentile",
            recover=RecoverSettings(adaptive=True, bias=False),
            qdq=QdqSettings(channel_axes=(("MatMul", 0), ("Conv", 1)), min_range=1e-5),
            tensors=(
                TensorRule(tensor="t", range=(-1.0, 2.5)),
                TensorRule(tensor="u", keep_float=True),
            ),
            nodes=(NodeRule(node="n", mode="float"),),
        ),
    )
    file = tmp_path / "quantkit.toml"
    file.write_text(recipe_text(given, tmp_path), encoding="utf-8")
    read = load_recipe(file)
    assert read.static == given.static
    assert read.model == given.model
    assert (read.data.path, read.data.image, read.data.label) == (
        given.data.path,
        given.data.image,
        "y",
    )
    assert (read.calibrated.limit, read.calibrated.seed) == (7, 3)


@pytest.mark.slow
def test_workers_of_a_cluster_come_to_the_same_files(work: Path) -> None:
    from calibration.test_distributed import Dask

    here = quantkit.tune("m.onnx", "d.npz", "here", max_drop="30%")
    dask = Dask(work)
    try:
        dask.worker()
        there = quantkit.tune("m.onnx", "d.npz", "there", max_drop="30%", scheduler=dask.address)
    finally:
        dask.end()
    assert there.chosen == here.chosen
    assert contents(work / "there") == contents(work / "here")


def test_a_scheduler_that_does_not_answer_is_one_line(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune("--max-drop", "1%", "-o", "out", "--scheduler", "nonsense://x") == 2
    assert "No dask scheduler answers" in capsys.readouterr().err
    assert not (work / "out").exists()


@pytest.mark.parametrize(("name", "known"), [("top-1", True), ("mse", False), ("my score", False)])
def test_only_a_metric_that_is_a_share_by_its_nature_is_stopped_early(
    name: str, *, known: bool
) -> None:
    # That no sample so far lost more than 1 of a squared error says nothing of the next.
    figure = Mean(name=name, scores=np.array([[1.0, 0.0, 1.0], [1.0, 1.0, 0.0]]))
    measuring: Any = SimpleNamespace(scorer=SimpleNamespace(main=name, figures=lambda: [figure]))
    found = sample_losses(measuring)
    assert (found is not None) == known
    if found is not None:
        assert found.tolist() == [0.0, -1.0, 1.0]


def test_a_form_that_cannot_be_made_is_recorded_and_nothing_is_left_where_none_can(
    work: Path,
) -> None:
    everything = StaticSettings(exclude=("mm*",))
    with pytest.raises(QuantkitError, match=r"No candidate could be made of .*excluded"):
        quantkit.tune("m.onnx", "d.npz", "out", max_drop="1%", static=everything)
    assert not (work / "out").exists()


@pytest.mark.usefixtures("work")
def test_every_form_has_the_types_of_the_target() -> None:
    found = quantkit.tune(
        "m.onnx", "d.npz", "out", max_drop="30%", static=StaticSettings(target="tensorrt")
    )
    assert [c.verdict for c in found.candidates] == ["in", "in"]


@pytest.mark.usefixtures("work")
def test_samples_with_nan_are_named_or_left_out() -> None:
    x = np.load("d.npz")["x"].copy()
    x[77, 3] = np.nan
    with pytest.raises(DataError, match="row 77' holds NaN"):
        quantkit.tune("m.onnx", {"x": x}, "out", max_drop="30%")
    found = quantkit.tune("m.onnx", {"x": x}, "out", max_drop="30%", skip_bad=True)
    assert 77 not in {*found.split.calibration, *found.split.choosing, *found.split.judging}


@pytest.mark.parametrize("name", ["model.onnx", "quantkit.toml", "result.json", "candidates"])
def test_files_that_no_search_wrote_are_not_overwritten(
    work: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (work / "out").mkdir()
    (work / "out" / name).write_text("", encoding="utf-8")
    for more in ([], ["--again"]):
        assert tune("--max-drop", "1%", "-o", "out", *more) == 2
        assert "was not written by a search" in capsys.readouterr().err
    assert [file.name for file in (work / "out").iterdir()] == [name]


def test_a_per_cent_of_an_error_is_one_of_floats_own(work: Path) -> None:
    x = np.load("d.npz")["x"]
    rows = rng(3).standard_normal((_WIDTH, 1)).astype(np.float32)
    proto = graph(
        [node("MatMul", ["x", "w"], ["y"], "mm")],
        {"x": ("n", _WIDTH)},
        {"y": ("n", 1)},
        {"w": rows},
    )
    save(model(proto), work / "r.onnx")
    np.savez("r.npz", x=x, label=(x @ rows)[:, 0] + rng(4).standard_normal(len(x)))
    found = quantkit.tune("r.onnx", "r.npz", "out", max_drop="5%", metric="mse")
    assert found.measure == "mse in parts of float's"
    assert found.best is not None
    assert found.best.drop is not None
    assert abs(found.best.drop) < 0.5
    with pytest.raises(UsageError, match="allows everything"):
        quantkit.tune("m.onnx", "d.npz", "other", max_drop=1.0)
    assert not (work / "other").exists()


def test_what_is_far_from_the_budget_is_not_tried_with_other_roundings() -> None:
    budget = Budget(drop=0.005)
    for drop, wanted in ((0.01, BASES[1]), (0.25, Choice(point=2))):
        known = {Choice(): Figures(drop=drop, verdict="out", cost=0.4, size=0.3)}
        assert next_choices(known, [0.25, 0.1, 0.004, 0.001], budget) == (wanted,)
