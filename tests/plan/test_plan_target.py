"""A plan knows what it was made for; what does not go together is refused before data is opened."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import node, op_types, rng, run, save, sqnr
from static_cases import X, chain

import quantkit
from quantkit import RecoverSettings, StaticSettings, TensorRule, ort, quantize_static
from quantkit.cli.app import run as run_command
from quantkit.errors import UsageError
from quantkit.numerics.dtypes import INT8
from quantkit.quantize.plan import Format, Plan, diff_plans, read_plan, write_plan
from quantkit.settings import StaticFormat
from quantkit.targets import DEFAULT, TARGETS, registry

PLAIN = RecoverSettings(equalize=False, smooth=False, rounding=False, bias=False)
SAMPLES = [{"x": rng(seed).standard_normal(X.shape).astype(np.float32)} for seed in range(4)]
Edit = Callable[[dict[str, Any]], None]


class Unopened:
    """Data that nobody may look at."""

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("the data was opened")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return save(chain(node("Relu", ["a"], ["b"], "relu")), tmp_path / "m.onnx")


def plan_for(source: Path, **settings: Any) -> Plan:
    return quantkit.plan_static(source, SAMPLES, StaticSettings(recover=PLAIN, **settings))


def edited(plan: Plan, path: Path, edit: Edit) -> Path:
    write_plan(plan, path)
    plain = json.loads(path.read_text())
    edit(plain)
    path.write_text(json.dumps(plain))
    return path


def older(plain: dict[str, Any]) -> None:
    """As a plan was before it knew what it is for."""
    for key in ("target", "output_format"):
        del plain[key]


def zero_points(path: Path) -> set[int]:
    held = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}
    return {
        int(v) for k, array in held.items() if k.endswith("zero_point") for v in np.ravel(array)
    }


def test_a_plan_says_what_it_was_made_for(source: Path, tmp_path: Path) -> None:
    default, other = plan_for(source), plan_for(source, target="arm64", format="qoperator")
    assert (default.target, default.output_format) == ("cpu", Format.QDQ)
    assert (other.target, other.output_format) == ("arm64", Format.QOPERATOR)
    assert {"target: cpu -> arm64", "output_format: qdq -> qoperator"} <= {
        *diff_plans(default, other)
    }
    read = read_plan(edited(default, tmp_path / "p.json", older))
    assert (read.target, read.output_format) == (None, None)
    assert diff_plans(read, default)[0] == "target: not known -> cpu"


def test_a_plan_for_another_target_is_refused_before_data_is_opened(
    source: Path, tmp_path: Path
) -> None:
    plan = plan_for(source)
    with pytest.raises(UsageError, match="made for cpu, and tensorrt is asked for: make one with"):
        quantize_static(source, tmp_path / "q.onnx", Unopened(), plan=plan, target="tensorrt")
    assert not (tmp_path / "q.onnx").exists()


def test_without_a_target_that_of_the_plan_is_used(source: Path, tmp_path: Path) -> None:
    plan = plan_for(source, target="tensorrt")
    out = tmp_path / "q.onnx"
    result = quantize_static(source, out, SAMPLES, plan=plan, recover=PLAIN)
    assert result.plan == plan
    assert zero_points(out) == {0}
    record = json.loads(
        next(p.value for p in onnx.load(out).metadata_props if "provenance" in p.key)
    )
    assert record["options"]["static"]["target"] == "tensorrt"


def test_without_a_format_that_of_the_plan_is_used_and_another_can_be_asked_for(
    source: Path, tmp_path: Path
) -> None:
    plan = plan_for(source, format="qoperator")
    for asked, expected in ((None, "QLinearConv"), ("qdq", "Conv")):
        out = tmp_path / f"{expected}.onnx"
        result = quantize_static(source, out, SAMPLES, plan=plan, quant_format=asked, recover=PLAIN)
        assert expected in op_types(onnx.load(out))
        assert result.plan.output_format == (asked or "qoperator")


def typed(tensor: str, dtype: str, zero_point: int) -> Edit:
    def edit(plain: dict[str, Any]) -> None:
        found = next(a for a in plain["activations"] if a["tensor"] == tensor)
        found.update(dtype=dtype, zero_point=zero_point)

    return edit


def weight_spec(**changes: Any) -> Edit:
    return lambda plain: plain["weights"][0]["spec"].update(changes)


@pytest.mark.parametrize("forgets", [None, older], ids=["", "older file"])
@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (typed("x", "uint8", 128), "'x' the type uint8, which tensorrt does not take: use int8"),
        (typed("x", "int16", 0), "'x' the type int16, which tensorrt does not take"),
        (typed("x", "int8", 3), "'x' the zero point 3, and tensorrt takes no zero points"),
        (weight_spec(dtype="uint8"), "weight 'c1_w' the type uint8, which tensorrt does not take"),
        (weight_spec(symmetric=False), "weight 'c1_w' zero points, and tensorrt takes no"),
    ],
)
def test_an_edit_that_the_target_does_not_take_is_refused_before_data_is_opened(
    edit: Edit, message: str, forgets: Edit | None, source: Path, tmp_path: Path
) -> None:
    path = edited(plan_for(source, target="tensorrt"), tmp_path / "p.json", edit)
    if forgets is not None:
        edited(read_plan(path), path, forgets)
    with pytest.raises(UsageError, match=message):
        quantize_static(source, tmp_path / "q.onnx", Unopened(), plan=path, target="tensorrt")


def test_an_older_plan_is_used_for_what_is_asked_for(source: Path, tmp_path: Path) -> None:
    path = edited(plan_for(source, target="arm64"), tmp_path / "p.json", older)
    out = tmp_path / "q.onnx"
    result = quantize_static(source, out, SAMPLES, plan=path, target="arm64", recover=PLAIN)
    assert (result.plan.target, result.plan.output_format) == ("arm64", Format.QDQ)
    cpu = edited(plan_for(source), tmp_path / "c.json", older)
    with pytest.raises(UsageError, match="'x' the type uint8"):
        quantize_static(source, out, Unopened(), plan=cpu, target="tensorrt")


FORMATS: tuple[StaticFormat, ...] = ("qdq", "qoperator")
ACTIVATIONS = (None, "uint8", "int8", "uint16", "int16")
WEIGHTS = (None, "int8", "uint8")


def is_refused(name: str, form: str, activation: str | None, weights: str | None) -> bool:
    """Say which combinations have no file: told here once more, from what runtimes document."""
    signed = activation == "int8" or (activation is None and TARGETS[name].activation is INT8)
    if name == "tensorrt" and ({activation, weights} - {None, "int8"}):
        return True
    wide = activation in {"uint16", "int16"}
    unknown = wide or (signed and weights == "uint8")
    return form == "qoperator" and (name in {"tensorrt", "openvino", "qnn"} or unknown)


@pytest.mark.parametrize("name", TARGETS)
def test_every_combination_gives_a_file_that_runs_or_one_error_before_data_is_opened(
    name: str, source: Path, tmp_path: Path
) -> None:
    out, seen = tmp_path / "q.onnx", quantkit.calibrate(source, SAMPLES)
    for form, activation, weights in product(FORMATS, ACTIVATIONS, WEIGHTS):
        settings: dict[str, Any] = {"activation_type": activation, "weight_type": weights}
        if is_refused(name, form, activation, weights):
            with pytest.raises(UsageError, match=r": use .*\.$"):
                quantize_static(source, out, Unopened(), target=name, quant_format=form, **settings)
            chosen = StaticSettings(target=name, format=form, **settings)
            with pytest.raises(UsageError, match=r": use .*\.$"):
                quantkit.plan_static(source, Unopened(), chosen)
            assert not out.exists()
        else:
            settings |= {"target": name, "quant_format": form, "recover": PLAIN}
            quantize_static(source, out, seen, verify=False, **settings)
            onnx.checker.check_model(onnx.load(out), full_check=True)
            assert sqnr(run(source, {"x": X})[0], run(out, {"x": X})[0]) > 20, settings
            out.unlink()


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"target": "tensorrt", "symmetric_activations": False}, "takes no zero points"),
        ({"target": "tensorrt", "tensors": [TensorRule(tensor="x", dtype="uint8")]}, "rule for 'x' says uint8"),
        ({"quant_format": "qoperator", "tensors": [TensorRule(tensor="x", dtype="int16")]}, "rule for 'x' says int16"),
    ],
)  # fmt: skip
def test_rules_are_looked_at_before_data_is_opened(
    asked: dict[str, Any], message: str, source: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        quantize_static(source, tmp_path / "q.onnx", Unopened(), **asked)


def test_a_cache_of_onnxruntime_users_is_not_filled_for_what_cannot_be_written(
    source: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="uint16, for which there are no QLinear operators"):
        ort.quantize_static(
            source,
            tmp_path / "q.onnx",
            Unopened(),
            ort.QuantFormat.QOperator,
            activation_type=ort.QuantType.QUInt16,
            calibration_cache_path=tmp_path / "cache",
        )


def handing_on_floats(plain: dict[str, Any]) -> None:
    next(n for n in plain["nodes"] if n["node"] == "c2")["float_output"] = True


def without_scale(plain: dict[str, Any]) -> None:
    plain["activations"] = [a for a in plain["activations"] if a["tensor"] != "x"]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (typed("x", "int16", 0), "'x' has 16 bits.*use the QDQ format"),
        (typed("x", "int8", 0), "'c1' reads and writes int8 and uint8"),
        (handing_on_floats, "no QLinear operator for Conv 'c2' with a float result"),
        (without_scale, "no scale for 'x'"),
    ],
)
def test_an_edit_that_qlinear_operators_cannot_say_is_refused_before_data_is_opened(
    edit: Edit, message: str, source: Path, tmp_path: Path
) -> None:
    path = edited(plan_for(source), tmp_path / "p.json", edit)
    with pytest.raises(UsageError, match=message):
        quantize_static(
            source, tmp_path / "q.onnx", Unopened(), plan=path, quant_format="qoperator"
        )


def test_a_plan_of_16_bits_needs_no_other_settings_to_be_applied(tmp_path: Path) -> None:
    old = save(chain(node("Relu", ["a"], ["b"], "relu"), opset=13), tmp_path / "old.onnx")
    plan = plan_for(old, activation_type="int16")
    quantize_static(old, tmp_path / "q.onnx", SAMPLES, plan=plan, recover=PLAIN)
    assert sqnr(run(old, {"x": X})[0], run(tmp_path / "q.onnx", {"x": X})[0]) > 25


def test_a_target_of_others_that_does_not_name_its_formats_says_what_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, source: Path, tmp_path: Path
) -> None:
    # Not named, both formats are tried: a target like the CPU's runs them.
    mine = replace(TARGETS["openvino"], name="mine", formats=DEFAULT.formats)
    monkeypatch.setattr(registry, "TARGETS", {**TARGETS, "mine": mine})
    asked: dict[str, Any] = {"target": "mine", "recover": PLAIN}
    with pytest.raises(UsageError, match="no QLinear operator for Conv 'c2' with a float result"):
        quantize_static(source, tmp_path / "q.onnx", SAMPLES, quant_format="qoperator", **asked)
    quantize_static(source, tmp_path / "q.onnx", SAMPLES, **asked)


def test_the_command_line_uses_the_target_of_the_plan_and_refuses_another(
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.concatenate([s["x"] for s in SAMPLES]))
    rest = ["--data", "x.npy", "--no-equalize", "--no-smooth"]
    plan = [
        "plan",
        source.name,
        *rest,
        "--target",
        "arm64",
        "--format",
        "qoperator",
        "-o",
        "p.json",
    ]
    assert run_command(plan) == 0
    assert "for arm64" in capsys.readouterr().out
    apply = ["quantize", "static", source.name, "q.onnx", *rest, "--plan", "p.json"]
    assert run_command(apply) == 0
    assert "QLinearConv" in op_types(onnx.load("q.onnx"))
    capsys.readouterr()
    assert run_command([*apply, "--target", "cpu"]) == 2
    assert "made for arm64, and cpu is asked for" in " ".join(capsys.readouterr().err.split())
    Path("quantkit.toml").write_text('[static]\ntarget = "cpu"\n')
    assert run_command(apply) == 2
    assert "made for arm64, and cpu is asked for" in " ".join(capsys.readouterr().err.split())
