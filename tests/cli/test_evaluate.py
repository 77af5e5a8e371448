"""`quantkit evaluate`: what it writes, what it says, how it exits; and the gate on what it wrote."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import Shape, graph, matmul_model, model, node, save, weight
from onnx import numpy_helper
from result_cases import example_result

from quantkit import GateSettings, QUInt8, evaluate_models, quantize_dynamic, quantize_static
from quantkit.cli.app import run
from quantkit.cli.evaluate import present
from quantkit.errors import UsageError
from quantkit.result import Interval, OutputDrift, Result, load_result
from quantkit.samples import fashion_mnist

_QUICK = ("--skip", "latency", "--skip", "memory", "--skip", "fidelity")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a float model, two candidates, and labelled data."""
    folder = tmp_path_factory.mktemp("fashion")
    sample = fashion_mnist()
    shutil.copyfile(sample.model, folder / "float.onnx")
    quantize_dynamic(folder / "float.onnx", folder / "dynamic.onnx", QUInt8)
    few = [{"image": image[None]} for image in sample.images[:64]]
    quantize_static(folder / "float.onnx", folder / "static.onnx", few)
    rest = slice(64, 464)
    np.savez(folder / "data.npz", image=sample.images[rest], label=sample.labels[rest])
    return folder


@pytest.fixture
def work(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory of the test's own with the same files."""
    for file in made.iterdir():
        shutil.copyfile(file, tmp_path / file.name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def evaluate(*arguments: str) -> int:
    return run(["evaluate", *arguments])


def result_of(folder: Path) -> Result:
    return load_result(folder / "result.json")


def test_everything_is_measured_and_written(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = evaluate("float.onnx", "dynamic.onnx", "s=static.onnx", "--data", "data.npz", "-o", "e")
    out = capsys.readouterr().out
    assert code == 0
    pages = {"report.html", "graph.html", "graph-2.html"}
    assert {f.name for f in (work / "e").iterdir()} == {"result.json", "report.md", *pages}
    report = (work / "e" / "report.html").read_text(encoding="utf-8")
    assert 'href="graph.html#node=' in report
    assert 'href="graph-2.html#node=' in report
    assert "e/report.html" in out.replace("\n", "")
    result = result_of(work / "e")
    assert [m.name for m in result.models] == ["float", "dynamic", "s"]
    assert result.origin.command == (
        "quantkit evaluate float.onnx dynamic.onnx s=static.onnx --data data.npz -o e"
    )
    assert result.data.samples == 400
    for found in result.candidates:
        assert found.metric is not None
        assert found.metric.name == "top-1"
        assert abs(found.metric.drop or 0) < 0.01
        assert sum(p.nbytes for p in found.size.parts) == (work / found.file.path).stat().st_size
        assert found.latency
        assert found.layers
        assert found.layers.layers
        assert found.fidelity
        assert found.fidelity.portable
        assert found.changes
        assert not found.warnings
        assert found.file.provenance["float"]["sha256"] == result.float_model.file.sha256
    static = result.candidates[1]
    assert static.runtime is not None
    assert static.runtime.share == 1
    assert static.calibration is not None
    assert 50 < static.calibration.samples <= 64  # some are kept for verification
    assert result.float_model.drift is None


def test_json_goes_to_the_terminal(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate("float.onnx", "static.onnx", "--data", "data.npz", *_QUICK, "--json") == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["schema"] == "quantkit.result/2"
    assert (work / "evaluation" / "result.json").exists()


def test_without_labels_there_is_drift_and_no_metric(work: Path) -> None:
    np.savez("bare.npz", image=fashion_mnist().images[:50])
    assert evaluate("float.onnx", "static.onnx", "--data", "bare.npz", "-o", "e", *_QUICK) == 0
    candidate = result_of(work / "e").candidates[0]
    assert candidate.metric is None
    assert candidate.drift is not None
    assert candidate.drift.decision is not None
    assert candidate.drift.decision.samples == 50


def _scale_up(folder: Path, layer: int) -> str:
    """Multiply the scale of one layer's weight by 4; return the name of its node."""
    proto = onnx.load(folder / "static.onnx")
    held = {t.name: t for t in proto.graph.initializer}
    makers = {name: n for n in proto.graph.node for name in n.output}
    products = [n for n in proto.graph.node if n.op_type in {"Conv", "Gemm"}]
    scale = held[makers[products[layer].input[1]].input[1]]
    scale.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(scale) * 4, scale.name))
    onnx.save(proto, folder / "worse.onnx")
    return str(products[layer].name)


@pytest.mark.parametrize("layer", [0, 1, -1])
def test_a_layer_made_worse_fails_the_gate_and_ranks_first(work: Path, layer: int) -> None:
    name = _scale_up(work, layer)
    arguments = ("float.onnx", "static.onnx", "worse.onnx", "--data", "data.npz", "-o", "e")
    assert evaluate(*arguments, *_QUICK) == 0
    good, worse = result_of(work / "e").candidates
    assert worse.layers is not None
    assert worse.layers.layers[0].node == name
    assert good.drift is not None
    assert worse.drift is not None
    assert good.drift.outputs[0].sqnr_db is not None
    assert worse.drift.outputs[0].sqnr_db is not None
    assert worse.drift.outputs[0].sqnr_db < good.drift.outputs[0].sqnr_db - 10
    # A last layer that is four times too loud decides as before: flips alone would not tell.
    gate = ["gate", "e/result.json", "--max-flips", "4%", "--min-sqnr-db", "20"]
    assert run([*gate, "--candidate", "static"]) == 0
    assert run([*gate, "--candidate", "worse"]) == 1
    assert run(gate) == 1


def test_the_recipe_judges(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (work / "quantkit.toml").write_text(
        '[data]\npath = "data.npz"\n[evaluate]\noutput = "e"\n[gate]\nmin_size_reduction = 0.99\n'
    )
    assert evaluate("float.onnx", "static.onnx", *_QUICK) == 0
    result = result_of(work / "e")
    assert [v.outcome for v in result.verdicts] == ["fail"]
    assert "min_size_reduction = 0.99" in result.origin.recipe
    assert "fail" in capsys.readouterr().out
    assert run(["gate", "e/result.json"]) == 1


# ---- bad input: one clear line, exit code 2 -------------------------------------------------


def _other_input(folder: Path) -> None:
    save(matmul_model(), folder / "other.onnx")


def _other_output(folder: Path) -> None:
    proto = onnx.load(folder / "float.onnx")
    proto.graph.node[-1].output[0] = proto.graph.output[0].name = "renamed"
    onnx.save(proto, folder / "other.onnx")


def _other_classes(folder: Path) -> None:
    nodes = [node("Flatten", ["image"], ["f"]), node("MatMul", ["f", "w"], ["logits"])]
    held = {"w": weight(784, 7)}
    made = graph(nodes, {"image": ["batch", 1, 28, 28]}, {"logits": ["batch", 7]}, held)
    save(model(made), folder / "other.onnx")


def _half_labels(folder: Path) -> None:
    images = fashion_mnist().images[:40]
    np.savez(folder / "data.npz", image=images, label=np.zeros(20, np.int64))


def _no_labels(folder: Path) -> None:
    np.savez(folder / "data.npz", image=fashion_mnist().images[:40])


def _no_samples(folder: Path) -> None:
    np.savez(folder / "data.npz", image=np.zeros((0, 1, 28, 28), np.float32))


def _labels_beyond(folder: Path) -> None:
    np.savez(folder / "data.npz", image=fashion_mnist().images[:40], label=np.full(40, 10))


def _raising_metric(folder: Path) -> None:
    (folder / "raising.py").write_text(
        "def score(outputs, labels):\n    raise KeyError('logits9')\n"
    )


def _wrong_metric(folder: Path) -> None:
    (folder / "counting.py").write_text("def score(outputs, labels):\n    return [1.0, 2.0, 3.0]\n")


def _unknown_rule(folder: Path) -> None:
    (folder / "quantkit.toml").write_text("[gate]\nmax_dorp = 0.01\n")


def _truncated(folder: Path) -> None:
    content = (folder / "static.onnx").read_bytes()
    (folder / "other.onnx").write_bytes(content[: len(content) // 2])


def _nothing(_: Path) -> None:
    pass


@pytest.mark.parametrize(
    ("prepare", "candidate", "more", "message"),
    [
        (_other_input, "other.onnx", (), "input"),
        (_other_output, "other.onnx", (), "renamed"),
        (_other_classes, "other.onnx", (), "logits"),
        (_half_labels, "static.onnx", (), "20 labels for 40 samples"),
        (_half_labels, "static.onnx", ("--metric", "top-1"), "20 labels for 40 samples"),
        (_no_labels, "static.onnx", ("--metric", "top-1"), "label"),
        (_no_samples, "static.onnx", (), "nothing to read"),
        (_labels_beyond, "static.onnx", ("--metric", "top-1"), "10"),
        (_raising_metric, "static.onnx", ("--metric", "raising:score"), "KeyError"),
        (_wrong_metric, "static.onnx", ("--metric", "counting:score"), "counting:score"),
        (_nothing, "static.onnx", ("--metric", "absent_module:score"), "absent_module"),
        (_nothing, "static.onnx", ("--metric", "top-2"), "top-2"),
        (_unknown_rule, "static.onnx", (), "max_drop"),
        (_truncated, "other.onnx", (), "other.onnx"),
        (_nothing, "absent.onnx", (), "absent.onnx"),
        (_nothing, "static.onnx", ("--skip", "latancy"), "latency"),
        (_nothing, "float.onnx", (), "Two models are called 'float'"),
        (_nothing, "static.onnx", ("--confidence", "95"), "confidence"),
    ],
    ids=lambda v: v.__name__.strip("_") if callable(v) else None,
)
def test_bad_input_is_one_line_and_exit_code_2(
    work: Path,
    capsys: pytest.CaptureFixture[str],
    prepare: Callable[[Path], None],
    candidate: str,
    more: tuple[str, ...],
    message: str,
) -> None:
    prepare(work)
    code = evaluate("float.onnx", candidate, "--data", "data.npz", "-o", "e", *more)
    captured = capsys.readouterr()
    assert code == 2, captured.out
    line = captured.err.strip().splitlines()[-1]
    assert line.startswith("error: ")
    assert message in line
    assert "Traceback" not in captured.err
    assert not (work / "e").exists() or not list((work / "e").iterdir())


def test_a_folder_that_cannot_be_written_is_said_before_the_work(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (work / "file").write_text("")
    code = evaluate("float.onnx", "static.onnx", "--data", "data.npz", "-o", "file/e")
    assert code == 2
    assert "Cannot make the folder" in capsys.readouterr().err


def test_no_data_is_asked_for(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate("float.onnx", "static.onnx") == 2
    assert "--data" in capsys.readouterr().err
    assert not (work / "evaluation").exists()


def test_a_metric_of_the_user(work: Path) -> None:
    (work / "mine.py").write_text(
        "def error(outputs, labels):\n"
        "    return outputs['logits'].argmax(1) != labels\n"
        "error.higher_is_better = False\n"
    )
    arguments = ("float.onnx", "static.onnx", "--data", "data.npz", "-o", "e", *_QUICK)
    assert evaluate(*arguments, "--metric", "mine:error") == 0
    result = result_of(work / "e")
    metric: Any = result.float_model.metric
    assert metric.name == "mine:error"
    assert not metric.higher_is_better
    assert metric.value < 0.15


def test_the_terminal_shows_what_the_report_shows(capsys: pytest.CaptureFixture[str]) -> None:
    found = example_result()
    good = found.models[1]
    assert good.drift is not None
    lost = OutputDrift(output="logits", sqnr_db=None, not_finite=9)
    broken = replace(good, drift=replace(good.drift, outputs=(lost,)), latency=good.latency[::-1])
    files = [Path("a b") / name for name in ("result.json", "report.html", "report.md")]
    present(replace(found, models=(found.models[0], broken)), files)
    out = capsys.readouterr().out
    assert "not finite" in out
    assert "0.65" in out
    assert "quantkit gate 'a b/result.json' --max-drop 1%" in out
    assert "advice: Keep /features/0/conv/Conv in float: +2.4 dB (measured)" in out


def test_slower_than_float_is_said_in_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    found = example_result()
    model = found.models[1]
    high = Interval(low=1.25, high=1.36)
    slow = tuple(replace(timed, ratio=1.3, ratio_interval=high) for timed in model.latency)
    files = [Path(name) for name in ("result.json", "report.html", "report.md")]
    present(replace(found, models=(found.models[0], replace(model, latency=slow))), files)
    said = " ".join(capsys.readouterr().err.split())
    assert "static: It runs slower than float: 1.30 times float's time." in said
    assert "quantkit quantize dynamic" in said


def test_from_python_the_same_and_nothing_is_written_unasked(work: Path) -> None:
    skip = ("latency", "memory", "fidelity", "layers", "runtime")
    before = set(work.iterdir())
    found = evaluate_models(
        "float.onnx",
        {"dyn": work / "dynamic.onnx"},
        "data.npz",
        skip=skip,
        limit=40,
        gate=GateSettings(min_size_reduction=0.5),
    )
    assert [m.name for m in found.models] == ["float", "dyn"]
    assert found.data.samples == 40
    assert [v.outcome for v in found.verdicts] == ["pass"]
    assert found.origin.command.startswith("quantkit.evaluate_models('float.onnx', {'dyn': '")
    assert set(work.iterdir()) == before
    with pytest.raises(UsageError, match="Two models are called 'float'"):
        evaluate_models("float.onnx", {"float": "dynamic.onnx"}, "data.npz")
    with pytest.raises(UsageError, match="There is no candidate"):
        evaluate_models("float.onnx", [], "data.npz")


# ---- what makes figures mean less than they seem to ------------------------------------------


def _warnings(folder: Path) -> list[str]:
    result = result_of(folder)
    return [*result.notes, *(w for model in result.models for w in model.warnings)]


def test_samples_that_were_calibrated_with_are_counted_and_can_be_held_out(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quantize = ("quantize", "static", "float.onnx", "own.onnx", "--data", "data.npz")
    assert run([*quantize, "--limit", "32"]) == 0
    arguments = ("float.onnx", "own.onnx", "static.onnx", "--data", "data.npz", *_QUICK)
    assert evaluate(*arguments, "-o", "e", "--limit", "100", "--no-hold-out") == 0
    own, other = result_of(work / "e").candidates
    assert own.warnings[0].startswith("32 of 100 samples were also used to calibrate it, so")
    assert not other.warnings
    assert "32 of 100 samples" in capsys.readouterr().err
    assert "32 of 100 samples" in (work / "e" / "report.md").read_text(encoding="utf-8")
    assert evaluate(*arguments, "-o", "held", "--hold-out") == 0
    held = result_of(work / "held")
    assert held.data.samples == 400 - 32
    assert held.data.order == "all, in order, 32 held out"
    assert not held.candidates[0].warnings


def test_the_float_model_as_a_candidate_is_noticed(work: Path) -> None:
    shutil.copyfile("float.onnx", "copy.onnx")
    assert evaluate("float.onnx", "copy.onnx", "--data", "data.npz", "-o", "e", *_QUICK) == 0
    assert _warnings(work / "e") == ["It is the float model itself."]


def test_swapped_arguments_are_noticed(work: Path) -> None:
    assert evaluate("static.onnx", "float.onnx", "--data", "data.npz", "-o", "e", *_QUICK) == 0
    assert "wrong order" in _warnings(work / "e")[0]


def _two_outputs() -> onnx.ModelProto:
    """image -> boxes [N, 4], logits [N, 10], in this order."""
    nodes = [
        node("Flatten", ["image"], ["f"]),
        node("MatMul", ["f", "b"], ["boxes"]),
        node("MatMul", ["f", "w"], ["logits"]),
    ]
    held = {"b": weight(784, 4), "w": weight(784, 10)}
    inputs: dict[str, Shape] = {"image": ["batch", 1, 28, 28]}
    outputs: dict[str, Shape] = {"boxes": ["batch", 4], "logits": ["batch", 10]}
    return model(graph(nodes, inputs, outputs, held))


def test_of_two_outputs_the_one_that_fits_the_labels_decides(work: Path) -> None:
    save(_two_outputs(), work / "two.onnx")
    quantize_dynamic(work / "two.onnx", work / "two.int8.onnx")
    arguments = ("two.onnx", "two.int8.onnx", "--data", "data.npz", "-o", "e", *_QUICK)
    assert evaluate(*arguments) == 0
    result = result_of(work / "e")
    assert result.candidates[0].drift is not None
    assert result.candidates[0].drift.decision is not None
    assert result.candidates[0].drift.decision.output == "logits"
    assert any("not of boxes: --answer NAME" in note for note in result.notes)
    assert evaluate(*arguments, "--answer", "logits") == 0
    assert not any("--answer" in note for note in result_of(work / "e").notes)


def test_an_output_that_is_not_there(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = evaluate("float.onnx", "static.onnx", "--data", "data.npz", "--answer", "logit")
    assert code == 2
    assert "did you mean 'logits'" in capsys.readouterr().err
    assert not (work / "evaluation").exists()


def test_a_metric_in_a_file(work: Path) -> None:
    (work / "my metric.py").write_text(
        "def hit(outputs, labels):\n    return outputs['logits'].argmax(1) == labels\n"
    )
    arguments = ("float.onnx", "static.onnx", "--data", "data.npz", "-o", "e", *_QUICK)
    assert evaluate(*arguments, "--metric", "./my metric.py:hit") == 0
    assert result_of(work / "e").float_model.metric is not None


def test_a_folder_stands_for_its_result(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate("float.onnx", "static.onnx", "--data", "data.npz", "-o", "e", *_QUICK) == 0
    assert "next:   quantkit gate e/result.json --max-drop 1%" in capsys.readouterr().out
    assert run(["gate", "e", "--max-drop", "5%"]) == 0
    assert run(["report", "e", "--picture", "p.svg"]) == 0
    assert (work / "p.svg").exists()
    assert run(["report", "e", "--picture", "p.png"]) == 2
    assert run(["diff", "e", "e"]) == 0


def test_a_damaged_record_is_a_warning(work: Path) -> None:
    proto = onnx.load("static.onnx")
    entry = next(e for e in proto.metadata_props if e.key == "quantkit.provenance")
    entry.value = entry.value[: len(entry.value) // 2]
    onnx.save(proto, "damaged.onnx")
    assert evaluate("float.onnx", "damaged.onnx", "--data", "data.npz", "-o", "e", *_QUICK) == 0
    assert "provenance" in _warnings(work / "e")[0]


def test_code_that_only_the_recipe_names_is_not_imported(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder from elsewhere must not run its code because somebody evaluates in it."""
    (work / "quantkit.toml").write_text("[evaluate]\nmetric = 'theirs:score'\n")
    (work / "theirs.py").write_text(
        "from pathlib import Path\nPath('imported').touch()\n"
        "def score(outputs, labels):\n    return [1.0] * len(labels)\n"
    )
    arguments = ("float.onnx", "static.onnx", "--data", "data.npz", "-o", "e", *_QUICK)
    assert evaluate(*arguments) == 2
    assert "add --metric theirs:score" in capsys.readouterr().err.replace("\n", " ")
    assert not (work / "imported").exists()
    assert evaluate(*arguments, "--metric", "theirs:score") == 0
    assert (work / "imported").exists()


def _objections(folder: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> list[str]:
    capsys.readouterr()
    code = run(["gate", str(folder), "--max-drop", "5%", "--json", *flags])
    (verdict,) = json.loads(capsys.readouterr().out)["verdicts"]
    kinds = [o["kind"] for o in verdict["objections"] if not o["allowed"]]
    assert (verdict["outcome"] == "invalid") == bool(kinds)
    assert code == int(verdict["outcome"] != "pass")
    return kinds


def test_wrong_preprocessing_does_not_pass_whatever_the_drop_is(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    samples = np.load("data.npz")
    np.savez("wrong.npz", image=samples["image"] * 255, label=samples["label"])
    np.savez("right.npz", image=samples["image"], label=samples["label"])
    few = [{"image": image[None]} for image in samples["image"][:64]]
    quantize_static("float.onnx", "again.onnx", few)
    for name in ("wrong", "right"):
        arguments = ("float.onnx", "again.onnx", "--data", f"{name}.npz", "-o", name)
        assert evaluate(*arguments, *_QUICK) == 0
    assert _objections(work / "right", capsys) == []
    assert "preprocessing" in _objections(work / "wrong", capsys)
    first = result_of(work / "wrong").notes[0]
    assert first.startswith("Other preprocessing than in the calibration of 'again': values of")


def test_pixels_are_prepared_as_the_model_says_unless_the_settings_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    _colour_model(tmp_path / "float.onnx")
    _colour_images(tmp_path / "images")
    made = ["quantize", "static", "float.onnx", "int8.onnx", "--data", "images"]
    assert run([*made, "--mean", "0.5", "--std", "0.5", "--limit", "4"]) == 0
    common = ("float.onnx", "int8.onnx", "--data", "images", "--hold-out", "--std", "0.5", *_QUICK)
    assert evaluate(*common, "--mean", "0.5", "-o", "right") == 0
    assert evaluate(*common, "--mean", "0.1", "--channels", "BGR", "-o", "wrong") == 0
    plain = ("float.onnx", "int8.onnx", "--data", "images", "--hold-out", *_QUICK)
    assert evaluate(*plain, "-o", "told") == 0
    assert "preprocessing" not in _objections(tmp_path / "right", capsys)
    assert "preprocessing" not in _objections(tmp_path / "told", capsys)
    assert "preprocessing" in _objections(tmp_path / "wrong", capsys)
    told, right = (result_of(tmp_path / name) for name in ("told", "right"))
    assert told.data.settings == right.data.settings
    assert "Preprocessing taken from 'int8'" in " ".join(told.notes)
    assert "Images are prepared" not in " ".join(right.notes)
    (found,) = result_of(tmp_path / "wrong").candidates
    assert found.calibration is not None
    assert found.calibration.differs == (
        "channels: calibrated with RGB, evaluated with BGR",
        "mean: calibrated with 0.5, 0.5, 0.5, evaluated with 0.1, 0.1, 0.1",
    )
    page = (tmp_path / "wrong" / "report.html").read_text(encoding="utf-8")
    assert "Other preprocessing than in calibration" in page


def _colour_model(path: Path) -> None:
    nodes = [node("Flatten", ["x"], ["f"]), node("MatMul", ["f", "w"], ["logits"])]
    held = {"w": weight(3 * 8 * 8, 128)}
    save(model(graph(nodes, {"x": (1, 3, 8, 8)}, {"logits": (1, 128)}, held)), path)


def _colour_images(folder: Path) -> None:
    from PIL import Image

    rng = np.random.default_rng(0)
    folder.mkdir()
    for place in range(8):
        pixels = rng.integers(0, 256, (8, 8, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{place}.png")


def test_a_copy_of_the_calibration_samples_is_told(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    samples = np.load("data.npz")
    calibrated = {"image": samples["image"][:64], "label": samples["label"][:64]}
    np.savez("calibrated.npz", **calibrated)
    quantize_static("float.onnx", "again.onnx", "calibrated.npz")
    order = np.random.default_rng(0).permutation(64)
    np.savez("copy.npz", **{name: array[order] for name, array in calibrated.items()})
    for name in ("copy", "data"):
        arguments = ("float.onnx", "again.onnx", "--data", f"{name}.npz", "-o", name)
        assert evaluate(*arguments, *_QUICK) == 0
    assert _objections(work / "copy", capsys) == ["calibrated"]
    assert _objections(work / "data", capsys) == []
    (found,) = result_of(work / "data").candidates
    assert found.calibration is not None
    assert 50 < found.calibration.seen <= 64  # some may be kept for verification


def test_a_limit_in_data_does_not_evaluate_the_calibration_samples(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("quantkit.toml").write_text(
        'model = "float.onnx"\n[data]\npath = "data.npz"\nlimit = 100\n'
    )
    assert run(["quantize", "static", "float.onnx", "again.onnx"]) == 0
    assert evaluate("again.onnx", "-o", "e", *_QUICK) == 0  # the float model is quantkit.toml's
    result = result_of(work / "e")
    assert [m.name for m in result.models] == ["float", "again"]
    assert result.data.order == "100 drawn with seed 0, 100 held out"
    assert _objections(work / "e", capsys) == []
    flags = ("--limit", "90", "--seed", "0")
    assert evaluate("again.onnx", "-o", "flags", *flags, *_QUICK) == 0
    assert result_of(work / "flags").data.order.startswith("90 drawn with seed 0, ")
    assert evaluate("again.onnx", "-o", "same", *_QUICK, "--no-hold-out") == 0
    assert _objections(work / "same", capsys) == ["calibrated"]


def test_calibration_and_evaluation_may_have_data_of_their_own(work: Path) -> None:
    Path("quantkit.toml").write_text(
        'model = "float.onnx"\n[data]\npath = "data.npz"\n'
        "[calibrate.data]\nlimit = 32\n[evaluate.data]\nlimit = 50\nseed = 7\n"
    )
    assert run(["quantize", "static", "float.onnx", "again.onnx"]) == 0
    assert evaluate("again.onnx", "-o", "e", *_QUICK) == 0
    result = result_of(work / "e")
    assert result.data.order == "50 drawn with seed 7, 32 held out"
    (found,) = result.candidates
    assert found.calibration is not None
    assert found.calibration.samples == 32


@pytest.mark.usefixtures("work")
def test_holding_out_everything_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run(
            [
                "calibrate",
                "float.onnx",
                "--data",
                "data.npz",
                "-o",
                "c.calibration",
                "--limit",
                "400",
            ]
        )
        == 0
    )
    made = ["quantize", "static", "float.onnx", "again.onnx", "--calibration", "c.calibration"]
    assert run(made) == 0
    capsys.readouterr()
    arguments = ("float.onnx", "again.onnx", "--data", "data.npz", "--hold-out", *_QUICK)
    assert evaluate(*arguments) == 2
    assert "All 400 samples of 'data.npz' were calibrated with, and --hold-out leaves none" in (
        " ".join(capsys.readouterr().err.split())
    )


@pytest.mark.parametrize(
    "command",
    [
        ["quantize", "static", "float.onnx", "out", "--data", "images"],
        ["quantize", "static", "float.onnx", "out", "--data", "images", "--json"],
        ["calibrate", "float.onnx", "-o", "out", "--data", "images"],
        ["tune", "float.onnx", "-o", "out", "--data", "images", "--max-drop", "1%"],
    ],
)
def test_an_unknown_preprocessing_is_asked_for_before_the_run(
    command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    _colour_model(tmp_path / "float.onnx")
    _colour_images(tmp_path / "images")
    assert run(command) == 2
    assert "How are these images prepared?" in capsys.readouterr().err
    assert not Path("out").exists()


@pytest.mark.usefixtures("work")
def test_the_samples_that_remain_are_counted_before_the_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["calibrate", "float.onnx", "--data", "data.npz", "-o", "c.calibration"]) == 0
    shown = capsys.readouterr().out
    assert "calibrating with 256 of 400 samples (--limit changes that)" in shown
    assert "144 remain to judge with" in shown


def test_a_flag_over_quantkit_toml_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    _colour_model(tmp_path / "float.onnx")
    _colour_images(tmp_path / "images")
    Path("quantkit.toml").write_text('[data.image]\nmean = [0.5]\nstd = [0.25]\nchannels = "RGB"\n')
    made = ["quantize", "static", "float.onnx", "int8.onnx", "--data", "images"]
    assert run([*made, "--channels", "BGR", "--mean", "0.5"]) == 0
    assert "Over quantkit.toml: channels BGR instead of RGB." in capsys.readouterr().err
    assert run([*made, "--preset", "unit"]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "Over quantkit.toml: mean unit instead of 0.5, std unit instead of 0.25." in said
    assert run(made) == 0
    assert "Over quantkit.toml" not in capsys.readouterr().err


def test_copies_of_a_few_samples_do_not_make_sure(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    samples = np.load("data.npz")
    again: dict[str, Any] = {
        name: np.repeat(samples[name][:20], 30, axis=0) for name in ("image", "label")
    }
    np.savez("copies.npz", **again)
    arguments = ("float.onnx", "static.onnx", "--data", "copies.npz", "-o", "e")
    assert evaluate(*arguments, *_QUICK) == 0
    assert _objections(work / "e", capsys) == ["copies"]
    assert result_of(work / "e").data.distinct == 20
