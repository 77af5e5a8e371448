"""The mistakes that users make most, in Python and on the command line, and what they are told."""

import contextlib
import inspect
import io
import os
import re
import sys
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import numpy as np
from builders import graph, matmul_model, model, node, rng, save

import calibrators
import quantkit
import quantkit.ort
from quantkit import DataSettings, QuantkitError, StaticSettings, TensorRule
from quantkit.cli import main

_STAGE = re.compile(r"\.quantkit-[\w-]+/")


def prepare(folder: Path) -> None:
    """A model, data that fits it, data that does not, a result, and files that are something else."""
    save(matmul_model(), folder / "m.onnx")
    save(
        model(graph([node("Relu", ["x"], ["y"], "r")], {"x": [1, 4]}, {"y": None})),
        folder / "no.onnx",
    )
    (folder / "text.onnx").write_text("no model")
    (folder / "empty").mkdir()
    np.save(folder / "x.npy", rng().standard_normal((8, 128)).astype(np.float32))
    np.save(folder / "wide.npy", rng().standard_normal((8, 100)).astype(np.float32))
    np.save(folder / "nan.npy", np.full((8, 128), np.nan, np.float32))
    quantkit.quantize_dynamic(folder / "m.onnx", folder / "q.onnx")
    quantkit.quantize_float16(folder / "m.onnx", folder / "h.onnx")
    (folder / "plan.json").write_text("{}")
    (folder / "result.json").write_text("{}")


def _static(*, data: Any = "x.npy", source: str = "m.onnx", **options: Any) -> Any:
    return quantkit.quantize_static(source, "out.onnx", data, **options)


def _dynamic(*, source: Any = "m.onnx", output: Any = "out.onnx", **options: Any) -> Any:
    return quantkit.quantize_dynamic(source, output, **options)


def _float16(*, source: str = "m.onnx", **options: Any) -> Any:
    return quantkit.quantize_float16(source, "out.onnx", **options)


def _weights(*, source: str = "m.onnx", **options: Any) -> Any:
    return quantkit.quantize_weights(source, "out.onnx", **options)


CALLS: dict[str, Callable[[], Any]] = {
    "no such model": lambda: _dynamic(source="none.onnx"),
    "no model": lambda: _dynamic(source="text.onnx"),
    "wrong kind of model": lambda: _dynamic(source=7),
    "no such folder to write to": lambda: _dynamic(output="none/out.onnx"),
    "output is the input": lambda: _dynamic(output="m.onnx"),
    "output is a folder": lambda: _dynamic(output="empty"),
    "quantized already": lambda: _dynamic(source="q.onnx"),
    "nothing to quantize": lambda: _dynamic(source="no.onnx"),
    "weight type": lambda: _dynamic(weight_type="int4"),
    "unknown node": lambda: _dynamic(nodes_to_exclude=["mn"]),
    "text for a list": lambda: _dynamic(nodes_to_exclude="mm"),
    "operator type": lambda: _dynamic(op_types_to_quantize=["Matmul"]),
    "extra option": lambda: _dynamic(extra_options={"Percentile": 99}),
    "sample without verification": lambda: _dynamic(verify=False, sample={}),
    "sample of another shape": lambda: _dynamic(sample={"x": np.zeros((1, 3), np.float32)}),
    "static quantized already": lambda: _static(source="q.onnx"),
    "static nothing to quantize": lambda: _static(
        source="no.onnx", data=np.zeros((2, 4), np.float32)
    ),
    "static target": lambda: _static(target="gpu"),
    "static format": lambda: _static(quant_format="qop"),
    "static activation type": lambda: _static(activation_type="int3"),
    "static 16 bits qoperator": lambda: _static(activation_type="uint16", quant_format="qoperator"),
    "static method": lambda: _static(method="mean"),
    "static percentile": lambda: _static(method="percentile", percentile=101.0),
    "static percentile without its method": lambda: _static(method="mse", percentile=99.0),
    "static limit": lambda: _static(limit=0),
    "static memory": lambda: _static(memory="lots"),
    "static unknown tensor": lambda: _static(tensors=[TensorRule(tensor="none", range=(0, 1))]),
    "static empty rule": lambda: _static(tensors=[TensorRule(tensor="y")]),
    "static no such data": lambda: _static(data="none.npy"),
    "static empty folder": lambda: _static(data="empty"),
    "static data of another shape": lambda: _static(data="wide.npy"),
    "static data that is not a number": lambda: _static(data="nan.npy"),
    "static no data": lambda: _static(data=[]),
    "static wrong kind of data": lambda: _static(data=7),
    "static wrong input name": lambda: _static(data={"z": np.zeros((2, 128), np.float32)}),
    "static no such plan": lambda: _static(plan="none.json"),
    "static not a plan": lambda: _static(plan="plan.json"),
    "static data for a calibration": lambda: _static(data="none.calibration"),
    "weights of 9 bits": lambda: _weights(bits=9),
    "weights in blocks of 48": lambda: _weights(block=48),
    "weights out of reach": lambda: _weights(target_size="1%"),
    "weights with two targets": lambda: _weights(target_size="15%", target_bits=4.5),
    "weights in nothing": lambda: _weights(source="no.onnx"),
    "weights unknown node": lambda: _weights(nodes_to_exclude=["mn"]),
    "weights data that is not a number": lambda: _weights(data="nan.npy"),
    "static out of reach": lambda: _static(target_size="1%"),
    "float16 already": lambda: _float16(source="h.onnx"),
    "float16 nothing to store": lambda: _float16(source="no.onnx"),
    "float16 type": lambda: _float16(dtype="float8"),
    "float16 bfloat16 arithmetic": lambda: _float16(dtype="bfloat16", compute=True),
    "float16 unknown node": lambda: _float16(nodes_to_exclude=["mn"]),
    "float16 empty folder": lambda: _float16(data="empty"),
    "float16 data of another shape": lambda: _float16(data="wide.npy", compute=True),
    "float16 data that is not a number": lambda: _float16(data="nan.npy", compute=True),
    "float16 wrong kind of data": lambda: _float16(data=7),
    "settings": lambda: DataSettings(batch=0),
    "static settings": lambda: StaticSettings(format="qop"),  # type: ignore[arg-type]
    "calibrate method": lambda: quantkit.calibrate("m.onnx", "x.npy", method="mean"),
    "calibrate workers": lambda: quantkit.calibrate("m.onnx", "x.npy", workers=0),
    "optimize pass": lambda: quantkit.optimize("m.onnx", "out.onnx", passes=["fold"]),
    "plan target": lambda: quantkit.plan_static("m.onnx", "x.npy", StaticSettings(target="gpu")),
    "result": lambda: quantkit.load_result(Path("result.json")),
    "inspect": lambda: quantkit.inspect_model("text.onnx"),
    "evaluate": lambda: quantkit.evaluate_models("m.onnx", [], "x.npy"),
}
COMMANDS = (
    "inspect none.onnx",
    "inspect text.onnx",
    "quantize dynamic m.onnx m.onnx",
    "quantize dynamic m.onnx out.onnx --exclude mn",
    "quantize dynamic q.onnx out.onnx",
    "quantize static m.onnx out.onnx",
    "quantize static m.onnx out.onnx --data none",
    "quantize static m.onnx out.onnx --data wide.npy",
    "quantize static m.onnx out.onnx --data x.npy --target gpu",
    "quantize static m.onnx out.onnx --data x.npy --plan plan.json",
    "quantize static m.onnx out.onnx --data x.npy --activation-type uint16 --format qoperator",
    "quantize weights m.onnx m.onnx",
    "quantize weights text.onnx out.onnx",
    "quantize weights m.onnx out.onnx --bits 1",
    "quantize weights m.onnx out.onnx --data empty",
    "quantize weights m.onnx out.onnx --format gguf",
    "quantize weights m.onnx out.onnx --plan plan.json",
    "plan weights none.onnx",
    "plan float16 text.onnx",
    "quantize float16 m.onnx m.onnx",
    "quantize float16 text.onnx out.onnx",
    "quantize float16 h.onnx out.onnx",
    "quantize float16 m.onnx out.onnx --type fp16",
    "quantize float16 m.onnx out.onnx --type bfloat16 --compute",
    "quantize float16 m.onnx out.onnx --data empty",
    "quantize float16 m.onnx out.onnx --data none --compute",
    "calibrate m.onnx --data empty -o c.calibration",
    "calibrate m.onnx --data x.npy --method mean -o c.calibration",
    "optimize m.onnx out.onnx --only fold",
    "plan m.onnx --data x.npy --target gpu",
    "evaluate m.onnx none.onnx --data x.npy",
    "gate result.json",
    "report result.json",
    "diff m.onnx none.onnx",
    "verify m.onnx",
    "targets gpu",
)
HELP: tuple[str, ...] = (
    "demo",
    "inspect",
    "quantize dynamic",
    "quantize static",
    "quantize float16",
    "quantize weights",
    "calibrate",
    "plan",
    "optimize",
)
HELP += ("evaluate", "report", "gate", "diff", "verify", "targets", "serve", "package")


def recorded_messages() -> dict[str, str]:
    with TemporaryDirectory() as folder:
        return messages(Path(folder))


def messages(folder: Path) -> dict[str, str]:
    """What each mistake is answered with, run in the folder."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        prepare(folder)
        found = {f"Python: {name}": _raised(call) for name, call in CALLS.items()}
        found |= {f"quantkit {line}": _complaint(line) for line in COMMANDS}
    finally:
        os.chdir(before)
    return {k: _STAGE.sub("STAGE/", v.replace(str(folder), "FOLDER")) for k, v in found.items()}


def _raised(call: Callable[[], Any]) -> str:
    try:
        call()
    except QuantkitError as e:
        return f"{type(e).__name__}: {e}"
    except Exception as e:  # noqa: BLE001 - what should not happen is recorded as what it is
        return f"Unexpected {type(e).__name__}: {e}"
    return "no error"


def _complaint(line: str) -> str:
    code, _, errors = _run(line.split())
    lines = errors.splitlines()
    return f"exit {code}: {lines[-1] if lines else ''}"


def _run(arguments: list[str]) -> tuple[object, str, str]:
    out, errors, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["quantkit", *arguments]
    code: object = 0
    try:
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(out):
            main()
    except SystemExit as e:
        code = e.code
    finally:
        sys.argv = before
    return code, out.getvalue(), errors.getvalue()


def surface() -> dict[str, str]:
    """Public names with their parameters, and commands with their flags."""
    found = {}
    for package in (quantkit, quantkit.ort, calibrators):
        for name in package.__all__:
            found[f"{package.__name__}.{name}"] = _parameters(getattr(package, name))
    with mock.patch.dict(os.environ, {"COLUMNS": "400"}):
        for command in HELP:
            text = _run([*command.split(), "--help"])[1]
            flags = {*re.findall(r"(?<![\w-])--?[a-z][\w-]*", text)}
            found[f"quantkit {command}"] = " ".join(sorted(flags))
    return found


def _parameters(thing: Any) -> str:
    """Names of parameters, of members of an enum; of what has neither, its type."""
    if isinstance(thing, type) and issubclass(thing, Enum):
        return " | ".join(thing.__members__)
    if getattr(thing, "_is_protocol", False):
        return "protocol"
    if not inspect.isfunction(thing) and not inspect.isclass(thing):
        return type(thing).__name__
    if isinstance(thing, type) and issubclass(thing, Exception):
        return "exception"
    given = inspect.signature(thing).parameters.values()
    return " ".join("*" * (p.kind is p.KEYWORD_ONLY) + p.name for p in given)
