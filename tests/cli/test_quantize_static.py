"""`quantkit quantize static`: what it prints, what it writes, how it exits."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import graph, matmul_model, model, node, op_types, rng, run, save, sqnr, weight

from quantkit.cli.app import run as quantkit
from quantkit.errors import UsageError
from quantkit.quantize.plan import read_plan
from quantkit.settings import RecoverSettings
from quantkit.settings.declare import declared


def call(*arguments: str | Path) -> int:
    return quantkit(["quantize", "static", *(str(a) for a in arguments)])


def network() -> onnx.ModelProto:
    """x [N, 3, 8, 8] -> Conv 'c1' -> Relu 'r' -> Conv 'c2' -> y; and a Tanh that stays float -> z."""
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["m"], "c1", pads=[1, 1, 1, 1]),
        node("Relu", ["m"], ["a"], "r"),
        node("Conv", ["a", "w2"], ["y"], "c2"),
        node("Tanh", ["y"], ["z"], "t"),
    ]
    held = {"w1": weight(8, 3, 3, 3), "b1": weight(8, seed=1), "w2": weight(4, 8, 1, 1, seed=2)}
    return model(graph(nodes, {"x": ["N", 3, 8, 8]}, {"z": ["N", 4, 8, 8]}, held))


def pictures(samples: int = 12, seed: int = 3) -> Any:
    return rng(seed).standard_normal((samples, 3, 8, 8)).astype(np.float32)


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with m.onnx and data/x.npy."""
    monkeypatch.chdir(tmp_path)
    save(network(), tmp_path / "m.onnx")
    (tmp_path / "data").mkdir()
    np.save(tmp_path / "data" / "x.npy", pictures())
    return tmp_path


@pytest.mark.parametrize(("op", "more"), [("Add", True), ("Mul", True), ("Concat", False)])
def test_what_may_differ_on_arm_is_named(
    op: str, work: Path, capsys: pytest.CaptureFixture[str], *, more: bool
) -> None:
    attributes = {"axis": 1} if op == "Concat" else {}
    nodes = [
        node("Conv", ["x", "w1"], ["a"], "c1", pads=[1, 1, 1, 1]),
        node("Conv", ["x", "w2"], ["b"], "c2", pads=[1, 1, 1, 1]),
        node(op, ["a", "b"], ["s"], "both", **attributes),
        node("Conv", ["s", "w3"], ["y"], "c3"),
    ]
    width = 16 if op == "Concat" else 8
    held = {"w1": weight(8, 3, 3, 3), "w2": weight(8, 3, 3, 3, seed=1)}
    held["w3"] = weight(8, width, 1, 1, seed=2)
    save(model(graph(nodes, {"x": ["N", 3, 8, 8]}, {"y": ["N", 8, 8, 8]}, held)), work / "m.onnx")
    assert call("m.onnx", "o.onnx", "--data", "data", "--no-measure") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "layers give the same integers on AVX2, VNNI and ARM CPUs" in out
    assert ("Add and Mul may differ by one step on ARM" in out) is more


def test_writes_a_model_and_says_what_it_did(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("m.onnx", "o.onnx", "--data", "data") == 0
    out = capsys.readouterr().out
    for text in (
        "static int8",
        "fused into",
        "2 of 2 layers (Conv, Gemm, MatMul, ...) run in integers",
        "wrote",
    ):
        assert text in out
    for text in ("QLinearConv 2", "same integers on AVX2, VNNI and ARM", "of float)", "verified"):
        assert text in out
    assert "samples, each left out of calibration in turn: z" in out
    feeds = {"x": pictures(1, seed=9)}
    for optimize in (True, False):
        expected = run(work / "m.onnx", feeds, optimize=optimize)[0]
        assert sqnr(expected, run(work / "o.onnx", feeds, optimize=optimize)[0]) > 20


def test_json_is_the_whole_result(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("m.onnx", "o.onnx", "--data", "data", "--json") == 0
    plain = json.loads(capsys.readouterr().out)
    assert (plain["input"], plain["output"]) == ("m.onnx", "o.onnx")
    assert plain["output_bytes"] == (work / "o.onnx").stat().st_size
    assert plain["fusion"]["integer"]["QLinearConv"] == 2
    assert {n["node"]: n["mode"] for n in plain["plan"]["nodes"]}["c1"] == "static"


def test_a_calibration_takes_the_place_of_data(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert quantkit(["calibrate", "m.onnx", "--data", "data", "-o", "c"]) == 0
    assert call("m.onnx", "o.onnx", "--calibration", "c", "--method", "minmax") == 0
    assert "random inputs: z" in capsys.readouterr().out
    assert (work / "o.onnx").exists()


def test_everything_may_come_from_the_recipe(work: Path) -> None:
    (work / "quantkit.toml").write_text(
        'model = "m.onnx"\n[data]\npath = "data"\nlimit = 4\n'
        '[static]\nformat = "qoperator"\nexclude = ["c2"]\n'
    )
    assert call() == 0
    ops = op_types(onnx.load(work / "m.int8.onnx"))
    assert ops.count("QLinearConv") == 1


def test_flags_override_the_recipe(work: Path) -> None:
    (work / "quantkit.toml").write_text(
        'model = "m.onnx"\n[data]\npath = "nowhere"\n'
        '[static]\nformat = "qoperator"\nexclude = ["c2"]\nactivation_type = "int8"\n'
        '[static.recover]\nrounding = false\n[[static.tensor]]\ntensor = "x"\nrange = [-1, 1]\n'
    )
    flags = ("--data", "data", "--format", "qdq", "--exclude", "c1", "--activation-type", "uint8")
    assert call("m.onnx", "o.onnx", *flags, "--range", "a=0,2", "--save-plan", "p.json") == 0
    plan = read_plan(work / "p.json")
    assert plan.node["c1"].mode == "float"
    assert plan.node["c2"].mode == "static"
    assert plan.activation["a"].dtype.name == "uint8"
    assert plan.activation["a"].high == pytest.approx(2)


def test_every_choice_reaches_the_plan(work: Path) -> None:
    flags = ("--per-tensor", "--symmetric-activations", "--weight-type", "uint8", "--no-bias")
    more = ("--no-rounding", "--no-equalize", "--no-smooth", "--op-types", "Conv", "--limit", "4")
    assert call("m.onnx", "o.onnx", "--data", "data", *flags, *more, "--save-plan", "p.json") == 0
    plan = read_plan(work / "p.json")
    assert {a.zero_point for a in plan.activations} == {128}
    spec = plan.weight["w1"].spec
    assert spec.dtype.name == "uint8"
    assert type(spec.granularity).__name__ == "PerTensor"


def test_a_tensor_is_left_in_float(work: Path) -> None:
    flags = ("--float-tensor", "y", "--range", "x=-3,3", "--save-plan", "p.json", "--no-verify")
    assert call("m.onnx", "o.onnx", "--data", "data", *flags) == 0
    plan = read_plan(work / "p.json")
    assert "y" not in plan.activation
    assert plan.activation["x"].why.startswith("given")


def test_a_saved_plan_is_applied_with_its_edits(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("m.onnx", "o.onnx", "--data", "data", "--save-plan", "p.json") == 0
    plain = json.loads((work / "p.json").read_text())
    for entry in plain["activations"]:
        if entry["tensor"] == "x":
            entry["scale"] *= 2
    (work / "p.json").write_text(json.dumps(plain))
    capsys.readouterr()
    assert call("m.onnx", "o2.onnx", "--data", "data", "--plan", "p.json") == 0
    assert "2 of 2 layers" in capsys.readouterr().out
    scales = [
        float(onnx.numpy_helper.to_array(t))
        for t in onnx.load(work / "o2.onnx").graph.initializer
        if t.data_type == onnx.TensorProto.FLOAT and not t.dims
    ]
    wanted = next(e["scale"] for e in plain["activations"] if e["tensor"] == "x")
    assert np.float32(wanted) in np.array(scales, np.float32)


@pytest.mark.usefixtures("work")
def test_another_target_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("m.onnx", "o.onnx", "--data", "data", "--target", "x86-vnni") == 0
    out = capsys.readouterr().out
    assert "target x86-vnni" in out
    assert "same integers" not in out


def test_external_data(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(matmul_model(), work / "mm.onnx")
    np.save(work / "rows.npy", rng(0).standard_normal((20, 128)).astype(np.float32))
    assert call("mm.onnx", "o.onnx", "--data", "rows.npy", "--external-data", "--no-verify") == 0
    captured = capsys.readouterr()
    (data,) = work.glob("o.onnx.*.data")
    assert f"wrote o.onnx and {data.name}" in captured.out
    assert "Not verified" in captured.err


Case = Callable[[Path], list[str]]


def flags(*arguments: str) -> Case:
    return lambda _: ["m.onnx", "o.onnx", *arguments]


def with_plan(change: Callable[[dict[str, Any]], object]) -> Case:
    def prepare(work: Path) -> list[str]:
        assert quantkit(["plan", "m.onnx", "--data", "data", "-o", "p.json"]) == 0
        plain = json.loads((work / "p.json").read_text())
        change(plain)
        (work / "p.json").write_text(json.dumps(plain))
        return ["m.onnx", "o.onnx", "--data", "data", "--plan", "p.json"]

    return prepare


def file(name: str, content: str, *arguments: str) -> Case:
    def prepare(work: Path) -> list[str]:
        (work / name).write_text(content)
        return ["m.onnx", "o.onnx", *arguments]

    return prepare


def empty_folder(work: Path) -> list[str]:
    (work / "empty").mkdir()
    return ["m.onnx", "o.onnx", "--data", "empty"]


def quantized(_: Path) -> list[str]:
    assert call("m.onnx", "q.onnx", "--data", "data") == 0
    return ["q.onnx", "o.onnx", "--data", "data"]


def other_model(work: Path) -> list[str]:
    save(model(graph([node("Tanh", ["x"], ["z"])], {"x": ["N", 4]}, {"z": ["N", 4]})), work / "t")
    return ["t", "o.onnx", "--data", "data"]


BAD: dict[str, tuple[Case, str]] = {
    "no-model": (lambda _: ["--data", "data"], "Which model"),
    "no-data": (flags(), "--data DIR or --calibration FILE"),
    "data-and-calibration": (flags("--data", "data", "--calibration", "c"), "remove one"),
    "limit-and-calibration": (flags("--limit", "3", "--calibration", "c"), "--limit is for data"),
    "missing-data": (flags("--data", "nowhere"), "nowhere"),
    "empty-data": (empty_folder, "empty"),
    "missing-calibration": (flags("--calibration", "nowhere"), "nowhere"),
    "calibration-is-none": (file("c", "text", "--calibration", "c"), "'c'"),
    "missing-model": (lambda _: ["no.onnx", "o.onnx", "--data", "data"], "no.onnx"),
    "output-is-input": (lambda _: ["m.onnx", "m.onnx", "--data", "data"], "overwrite the input"),
    "output-is-a-folder": (lambda _: ["m.onnx", "data", "--data", "data"], "is a directory"),
    "output-folder-missing": (lambda _: ["m.onnx", "no/o", "--data", "data"], "does not exist"),
    "not-writable": (lambda _: ["m.onnx", "/proc/o.onnx", "--data", "data"], "/proc"),
    "plan-not-writable": (flags("--data", "data", "--save-plan", "/proc/p"), "/proc"),
    "unknown-target": (flags("--data", "data", "--target", "gpu"), "target 'gpu' is unknown"),
    "unknown-format": (flags("--data", "data", "--format", "qd"), "--format 'qd'"),
    "unknown-type": (
        flags("--data", "data", "--activation-type", "int5"),
        "--activation-type 'int5'",
    ),
    "type-without-gain": (flags("--data", "data", "--activation-type", "int4"), "coverage 'all'"),
    "unknown-method": (flags("--data", "data", "--method", "msee"), "did you mean 'mse'"),
    "two-methods": (flags("--data", "data", "--method", "mse", "--percentile", "9"), "percentile"),
    "no-such-node": (flags("--data", "data", "--exclude", "c9"), "no node 'c9'"),
    "no-such-tensor": (flags("--data", "data", "--float-tensor", "q*"), "no tensor 'q*'"),
    "no-such-operator": (flags("--data", "data", "--op-types", "Convv"), "did you mean 'Conv'"),
    "range-is-none": (flags("--data", "data", "--range", "x"), "TENSOR=LOW,HIGH"),
    "range-without-zero": (flags("--data", "data", "--range", "x=1,2"), "must hold 0"),
    "range-and-float": (
        flags("--data", "data", "--range", "x=0,2", "--float-tensor", "x"),
        "both --float-tensor and --range",
    ),
    "missing-plan": (flags("--data", "data", "--plan", "nope.json"), "nope.json"),
    "plan-is-no-json": (file("p", "{", "--data", "data", "--plan", "p"), "is not JSON"),
    "plan-is-no-plan": (file("p", "{}", "--data", "data", "--plan", "p"), "is not a plan"),
    "plan-is-damaged": (with_plan(lambda p: p.pop("nodes")), "missing required field `nodes`"),
    "plan-of-another-node": (
        with_plan(lambda p: p["nodes"][0].update(node="elsewhere")),
        "node 'elsewhere', which the model does not have",
    ),
    "plan-and-a-choice": (
        lambda work: [*with_plan(len)(work), "--exclude", "c1"],
        "--exclude is for a plan to be made",
    ),
    "nothing-left": (flags("--data", "data", "--exclude", "*"), "Nothing was written"),
    "already-quantized": (quantized, "quantized already"),
    "nothing-to-quantize": (other_model, "Nothing in"),
    "wrong-recipe": (file("quantkit.toml", "[static]\nfoo = 1\n"), "unknown key 'foo'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_writes_nothing(
    case: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare, expected = BAD[case]
    arguments = prepare(work)
    capsys.readouterr()
    before = {p.name: p.stat().st_mtime_ns for p in work.iterdir()}
    assert call(*arguments) == 2
    err = [x for x in capsys.readouterr().err.splitlines() if not x.startswith("note:")]
    assert len(err) == 1, err
    assert err[0].startswith("error:")
    assert expected in err[0]
    assert "Unexpected" not in err[0]
    assert {p.name: p.stat().st_mtime_ns for p in work.iterdir()} == before


@pytest.mark.usefixtures("work")
def test_the_reason_for_float_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("m.onnx", "o.onnx", "--data", "data", "--exclude", "c2") == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("1 in float: excluded") and "Conv 1" in line for line in lines)


def test_a_matrix_product(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(matmul_model(16, 12), work / "mm.onnx")
    np.save(work / "rows.npy", rng(0).standard_normal((20, 16)).astype(np.float32))
    assert call("mm.onnx", "o.onnx", "--data", "rows.npy") == 0
    assert "1 of 1 layers (Conv, Gemm, MatMul, ...) run in integers" in capsys.readouterr().out


@pytest.mark.usefixtures("work")
@pytest.mark.parametrize("name", declared(RecoverSettings))
def test_every_recovery_switch_has_a_flag_and_a_line_in_the_help(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flag = {"ranges": "weight-ranges"}.get(name, name.replace("_", "-"))
    seen: list[RecoverSettings] = []

    def stop(job: Any, *_: Any, **__: Any) -> None:
        seen.append(job.options.recover)
        raise UsageError("far enough")

    monkeypatch.setattr("quantkit.api.quantize.form_of", stop)
    for given, expected in ((f"--{flag}", True), (f"--no-{flag}", False)):
        assert call("m.onnx", "q.onnx", "--data", "data", given) == 2
        assert seen.pop() == replace(RecoverSettings(), **{name: expected})
    capsys.readouterr()
    for command in (["quantize", "static"], ["plan"]):
        assert quantkit([*command, "--help"]) == 0
        shown = capsys.readouterr().out
        assert f"--{flag}" in shown
        assert declared(RecoverSettings)[name].setting.text.split()[0] in shown
