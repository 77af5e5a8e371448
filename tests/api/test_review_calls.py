"""What a release reviewer calls: `gate_result`, `write_report`, `diff_models`, `diff_results`, `verify_file`."""

import inspect
import json
import shutil
import textwrap
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import graph, model, node, rng, save, weight
from data.makers import picture
from result_cases import candidate, example_result

import quantkit
from quantkit import GateSettings, QuantkitError
from quantkit.cli.app import run
from quantkit.errors import DataError, OutputError, UsageError
from quantkit.result import Result, save_result

CALLS = ("gate_result", "write_report", "diff_models", "diff_results", "verify_file")


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the examples expect it: a model, its int8 file, images, a report, and the last one."""
    folder = tmp_path_factory.mktemp("release")
    nodes = [node("Conv", ["x", "w"], ["c"], "conv"), node("Relu", ["c"], ["y"], "relu")]
    proto = model(
        graph(nodes, {"x": ["N", 3, 8, 8]}, {"y": ["N", 4, 6, 6]}, {"w": weight(4, 3, 3, 3)})
    )
    save(proto, folder / "model.onnx")
    for i in range(12):
        picture(folder / "images" / f"{i}.png", seed=i)
    images = folder / "images"
    quantkit.quantize_static(folder / "model.onnx", folder / "model.int8.onnx", images)
    for name, result in (("last", example_result()), ("report", _worse())):
        (folder / name).mkdir()
        save_result(result, folder / name / "result.json")
    return folder


def _worse() -> Result:
    result = example_result()
    return replace(result, models=(result.float_model, candidate(drop=0.05)))


@pytest.fixture
def here(release: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(release)
    return release


def example_of(call: Callable[..., Any]) -> str:
    """Return the example in a docstring: its indented lines before ``Args:``."""
    text = inspect.getdoc(call) or ""
    lines = [ln for ln in text.partition("Args:")[0].splitlines() if ln.startswith("    ")]
    return textwrap.dedent("\n".join(lines))


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", CALLS)
def test_the_example_of_each_docstring_runs(name: str) -> None:
    example = example_of(getattr(quantkit, name))
    assert f"{name}(" in example
    program = f"import sys\nfrom quantkit import GateSettings, {name}\n{example}"
    try:
        exec(compile(program, name, "exec"), {})  # noqa: S102 - our own docstring
    except SystemExit as verdict:
        assert name == "gate_result"
        assert "quantkit gate: failed" in str(verdict)  # noqa: PT017


@pytest.mark.parametrize("name", CALLS)
def test_every_parameter_is_explained_and_typed(name: str) -> None:
    call = getattr(quantkit, name)
    explained = (inspect.getdoc(call) or "").partition("Args:")[2].partition("Returns:")[0]
    for parameter in inspect.signature(call).parameters.values():
        assert f"{parameter.name}: " in explained
        assert parameter.annotation is not inspect.Parameter.empty


@pytest.mark.usefixtures("here")
def test_nothing_is_printed(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    quantkit.gate_result("report", GateSettings(max_drop=0.01))
    quantkit.write_report("report", tmp_path)
    quantkit.diff_results("last", "report")
    quantkit.diff_models("model.onnx", "model.int8.onnx", "images")
    quantkit.verify_file("model.int8.onnx", "model.onnx", "images", again=True)
    assert capfd.readouterr() == ("", "")


# --- gate_result ---


@pytest.mark.usefixtures("here")
def test_the_gate_says_what_the_command_says(capsys: pytest.CaptureFixture[str]) -> None:
    found = quantkit.gate_result("last", GateSettings(max_drop=0.01, min_size_reduction=0.7))
    run(["gate", "last", "--max-drop", "0.01", "--min-size-reduction", "70%", "--json"])
    assert {"result": "last", **found.to_json()} == json.loads(capsys.readouterr().out)
    run(["gate", "last", "--max-drop", "0.01", "--min-size-reduction", "70%"])
    assert capsys.readouterr().out.splitlines()[-1] == str(found)
    assert not found.passed
    assert [v.candidate for v in found.verdicts] == ["static", "ort default"]


def test_a_result_in_memory_is_judged_without_a_file(tmp_path: Path) -> None:
    found = quantkit.gate_result(
        example_result(),
        GateSettings(max_drop=0.01, estimate=True),
        candidates=["static"],
        junit=tmp_path / "gate.xml",
        badge=str(tmp_path / "badge.txt"),
    )
    assert found.outcome == "pass"
    assert [m.name for m in found.result.candidates] == ["static"]
    assert (tmp_path / "badge.txt").read_text() == f"{found}\n"
    assert "<testsuite" in (tmp_path / "gate.xml").read_text()
    with pytest.raises(FrozenInstanceError):
        found.outcome = "fail"  # type: ignore[misc]


def test_settings_go_over_the_recipe_and_the_recipe_over_the_result(tmp_path: Path) -> None:
    recipe = tmp_path / "quantkit.toml"
    recipe.write_text("[gate]\nmax_drop = 0.02\nmax_flips = 0.5\nallow_undecided = true\n")
    found = quantkit.gate_result(example_result(), GateSettings(max_drop=0.5), recipe=recipe)
    limits = {j.rule.key: j.rule.limit for j in found.verdicts[0].rules}
    assert limits == {"max_drop": 0.5, "max_flips": 0.5}
    assert found.allow_undecided


def test_a_recipe_that_merely_lies_about_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("quantkit.toml").write_text("[gate]\nmax_drop = 0.02\n")
    with pytest.raises(UsageError, match="There is no rule to judge by"):
        quantkit.gate_result(example_result())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"candidates": ["statik"]},
            r"The result holds no candidate 'statik' \(did you mean 'static'",
        ),
        ({"candidates": "static"}, "candidates is a list of names"),
        ({"drop_rules": ["max_flips"]}, "no rule 'max_flips' to leave out"),
        ({"recipe": "none.toml"}, "There is no recipe 'none.toml'"),
    ],
)
def test_a_gate_that_makes_no_sense_is_one_sentence(given: dict[str, Any], message: str) -> None:
    with pytest.raises(QuantkitError, match=message):
        quantkit.gate_result(example_result(), GateSettings(max_drop=0.01), **given)


# --- write_report ---


@pytest.mark.parametrize(
    ("form", "names"),
    [("html", ["report.html"]), ("md", ["report.md"]), ("both", ["report.html", "report.md"])],
)
def test_the_files_written_are_those_returned(tmp_path: Path, form: str, names: list[str]) -> None:
    files = quantkit.write_report(example_result(), tmp_path / "new" / "folder", form=form)
    assert [path.name for path in files.written] == names
    assert sorted(p.name for p in (tmp_path / "new" / "folder").iterdir()) == names
    assert (files.html is None) == (form == "md")


def test_a_report_stands_beside_its_result(tmp_path: Path) -> None:
    save_result(example_result(), tmp_path / "result.json")
    files = quantkit.write_report(str(tmp_path), picture=tmp_path / "p.svg")
    assert files.written == tuple(tmp_path / n for n in ("report.html", "report.md", "p.svg"))


def test_a_notebook_shows_the_page_or_else_the_picture(tmp_path: Path) -> None:
    drawing = tmp_path / "p.svg"
    drawn = quantkit.write_report(example_result(), tmp_path, form="md", picture=drawing)
    assert drawn._repr_html_() is None
    assert drawn._repr_svg_() == drawing.read_text(encoding="utf-8")
    page = quantkit.write_report(example_result(), tmp_path, form="html")
    assert page._repr_svg_() is None
    shown = page._repr_html_() or ""
    assert shown.count("<") == 2  # the frame alone: the page in it is escaped
    whole = unescape(shown.partition('srcdoc="')[2].removesuffix('"></iframe>'))
    assert whole == (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_report_of_nothing_or_to_nowhere_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Which folder"):
        quantkit.write_report(example_result())
    with pytest.raises(UsageError, match="Unknown format 'pdf'"):
        quantkit.write_report(example_result(), tmp_path, form="pdf")
    with pytest.raises(UsageError, match="writes an SVG"):
        quantkit.write_report(example_result(), tmp_path, picture=tmp_path / "p.png")
    with pytest.raises(UsageError, match="Cannot read the result"):
        quantkit.write_report(tmp_path / "none.json")
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="is a file"):
        quantkit.write_report(example_result(), tmp_path / "file")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


# --- diff_models, diff_results ---


@pytest.mark.usefixtures("here")
def test_models_are_compared_on_the_data_given(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[Any] = []
    found = quantkit.diff_models(
        "model.onnx", "model.int8.onnx", "images", limit=3, described=seen.append
    )
    run(["diff", "model.onnx", "model.int8.onnx", "--data", "images", "--limit", "3", "--json"])
    assert found.to_json() == json.loads(capsys.readouterr().out)
    assert not found.same
    assert [d.samples for d in seen] == [12]


@pytest.mark.usefixtures("here")
def test_models_are_compared_on_arrays_as_well() -> None:
    x = rng().standard_normal((2, 3, 8, 8)).astype(np.float32)
    found = quantkit.diff_models("model.onnx", "model.int8.onnx", {"x": x})
    assert found.errors.tensors
    assert quantkit.diff_models("model.onnx", Path("model.onnx")).same


def test_samples_that_cannot_be_read_are_left_out_on_request(here: Path, tmp_path: Path) -> None:
    shutil.copytree(here / "images", tmp_path / "images")
    (tmp_path / "images" / "bad.png").write_bytes(b"no image")
    pair, data = ("model.onnx", "model.int8.onnx"), tmp_path / "images"
    with pytest.raises(DataError, match="Cannot read the image"):
        quantkit.diff_models(*pair, data, limit=13)
    found = quantkit.diff_models(*pair, data, limit=13, skip_bad=True)
    assert found.errors.tensors
    quantkit.quantize_static(pair[0], tmp_path / "q.onnx", data, skip_bad=True)
    assert quantkit.plan_static(pair[0], data, skip_bad=True).nodes
    result = quantkit.evaluate_models(*pair, data, skip=["latency", "memory"], skip_bad=True)
    assert result.data.samples == 12
    assert run(["diff", *pair, "--data", str(data), "--limit", "13"]) == 2
    assert run(["diff", *pair, "--data", str(data), "--limit", "13", "--skip-bad"]) == 0


@pytest.mark.usefixtures("here")
def test_settings_without_data_are_no_silent_nothing() -> None:
    with pytest.raises(UsageError, match="give the data as well"):
        quantkit.diff_models("model.onnx", "model.int8.onnx", limit=3)
    with pytest.raises(UsageError, match="a is a path, not ModelProto"):
        quantkit.diff_models(onnx.ModelProto(), "model.int8.onnx")


@pytest.mark.usefixtures("here")
def test_results_are_compared_from_files_and_from_memory() -> None:
    found = quantkit.diff_results("last/result.json", quantkit.load_result("report"))
    assert "top-1" in {figure.figure for _, figure in found.worse}
    assert quantkit.diff_results(example_result(), "last").same
    with pytest.raises(UsageError, match="result is a path, not int"):
        quantkit.diff_results(3, "last")  # type: ignore[arg-type]


# --- verify_file ---


@pytest.mark.usefixtures("here")
def test_a_file_is_what_it_says_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    steps: list[str] = []
    found = quantkit.verify_file(
        "model.int8.onnx", "model.onnx", "images", again=True, memory="1GB", progress=steps.append
    )
    assert found.ok
    assert {c.outcome for c in found.checks} == {"ok"}
    assert steps[0] == "Reading model.int8.onnx"
    flags = ["--float", "model.onnx", "--data", "images", "--memory", "1GB", "--again", "--json"]
    run(["verify", "model.int8.onnx", *flags])
    assert {"model": "model.int8.onnx", **found.to_json()} == json.loads(capsys.readouterr().out)


@pytest.mark.usefixtures("here")
def test_a_file_that_cannot_be_verified_is_one_sentence() -> None:
    with pytest.raises(UsageError, match="needs the float model: give float_model"):
        quantkit.verify_file("model.int8.onnx", again=True)
    with pytest.raises(QuantkitError, match="carries no provenance"):
        quantkit.verify_file("model.onnx")
    with pytest.raises(UsageError, match="data is a path"):
        quantkit.verify_file("model.int8.onnx", data=[1])  # type: ignore[arg-type]
