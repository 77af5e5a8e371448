"""Hostile quantkit.toml, plan.json and result.json, through every command that reads one: a result, or one clear error."""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import graph, model, node, save, weight
from fuzzing import chance, check, mutated, seeds
from onnx import ModelProto

from quantkit import evaluate_models, plan_static, quantize_static
from quantkit.model.provenance import json_digest
from quantkit.quantize.plan import write_plan
from quantkit.result import _seal

DEEP = 20_000
_SLOW = ("latency", "memory", "fidelity")
# What a value is replaced by: wrong types, nothing, extremes, texts that are paths, patterns or none at all.
VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2,
    3,
    255,
    10**6,
    2**31,
    2**63,
    -(2**63) - 1,
    10**40,
    10**400,
    0.0,
    -0.0,
    0.5,
    1e-320,
    1e308,
    float("nan"),
    float("inf"),
    float("-inf"),
    "",
    "x",
    "nan",
    "cpu",
    "int8",
    "uint16",
    "int4",
    "static",
    "*",
    "[",
    "a\0b",
    "a\x1b[31mb",
    "\ud800",
    "~nobody_of_that_name/x",
    "/",
    "..",
    "é" * 200,
    "y" * 5000,
    [],
    [[]],
    [0],
    [1, 2],
    [2**31] * 3,
    ["a", 1],
    {},
    {"a": 1},
)


def network() -> ModelProto:
    """Conv, Relu, pooling, Gemm."""
    nodes = [
        node("Conv", ["x", "w0", "b0"], ["c"], "conv", pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"], "relu"),
        node("GlobalAveragePool", ["r"], ["p"], "pool"),
        node("Flatten", ["p"], ["f"], "flat"),
        node("Gemm", ["f", "w1", "b1"], ["y"], "gemm"),
    ]
    weights = {"w0": weight(16, 3, 3, 3), "b0": weight(16), "w1": weight(16, 5), "b1": weight(5)}
    return model(graph(nodes, {"x": ["N", 3, 8, 8]}, {"y": ["N", 5]}, weights))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with model, candidate, data, plan and result."""
    folder = tmp_path_factory.mktemp("settings")
    draw = np.random.default_rng(0)
    np.savez(
        folder / "d.npz",
        x=draw.random((12, 3, 8, 8), dtype=np.float32),
        label=draw.integers(0, 5, 12),
    )
    source = save(network(), folder / "m.onnx")
    write_plan(plan_static(source, folder / "d.npz"), folder / "good.json")
    quantize_static(source, folder / "q.onnx", folder / "d.npz")
    evaluate_models(source, folder / "q.onnx", folder / "d.npz", folder / "e", skip=_SLOW)
    return folder


@pytest.fixture
def work(made: Path, tmp_path: Path) -> Path:
    for name in ("m.onnx", "q.onnx", "d.npz", "good.json"):
        shutil.copyfile(made / name, tmp_path / name)
    shutil.copyfile(made / "e" / "result.json", tmp_path / "good_result.json")
    return tmp_path


def places(plain: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every container and key of nested data."""
    pairs = plain.items() if isinstance(plain, dict) else enumerate(plain)
    for key, value in list(pairs):
        yield plain, key
        if isinstance(value, dict | list):
            yield from places(value)


def disturb(plain: Any, source: random.Random) -> None:
    """Change one to three places of nested data: other values, missing, added, renamed, repeated."""
    for _ in range(source.randint(1, 3)):
        holder, key = source.choice(list(places(plain)))
        change = source.random()
        if change < 0.6:
            holder[key] = source.choice(VALUES)
        elif change < 0.75:
            del holder[key]
        elif change < 0.9 and isinstance(holder, dict):
            holder[source.choice(("unknown", key + "s", key[:-1], "", "é"))] = source.choice(VALUES)
        elif isinstance(holder, list):
            holder.append(holder[key])
        if not plain:
            return


def spoil(text: str, source: random.Random) -> bytes:
    """Change how a text is written, half of the times: bytes, encodings, ends."""
    data = text.encode("utf-8", "surrogatepass")
    ways: tuple[Callable[[], bytes], ...] = (
        lambda: data[: source.randrange(len(data) + 1)],
        lambda: b"\xef\xbb\xbf" + data,
        lambda: text.encode("utf-16", "surrogatepass"),
        lambda: data.replace(b'"', b"\xff", 1),
        lambda: data + b"\0" * 10,
        lambda: source.choice((b"", b" \n")),
        lambda: mutated(data, source),
    )
    return source.choice(ways)() if source.random() < 0.5 else data


# --- quantkit.toml ---

RECIPE: dict[str, Any] = {
    "model": "m.onnx",
    "data": {
        "path": "d.npz",
        "batch": 2,
        "limit": 8,
        "shuffle": True,
        "seed": 1,
        "label": "label",
        "image": {"resize": 8, "crop": [8, 8], "mean": [0.5], "std": [0.5], "layout": "NCHW"},
        "text": {"column": ["a"], "max_length": 4},
    },
    "calibrate": {"method": "percentile", "percentile": 99.9, "output": "out.calibration"},
    "static": {
        "target": "cpu",
        "format": "qdq",
        "activation_type": "uint8",
        "per_channel": True,
        "exclude": ["gemm"],
        "op_types": ["Conv", "Gemm"],
        "recover": {"equalize": True, "smooth": False, "rounding": "auto"},
        "tensor": [{"tensor": "r", "range": [0.0, 4.0]}],
        "node": [{"node": "conv", "mode": "integer"}],
    },
    "evaluate": {
        "metric": "top-1",
        "confidence": 0.9,
        "batches": [1],
        "threads": [1],
        "output": "o",
    },
    "gate": {"max_drop": 0.5, "min_int8_share": 0.1, "confidence": 0.9},
}


def toml(value: Any) -> str:
    """Write a value as TOML, inline."""
    if value is None:
        return "null"  # which TOML does not have
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {toml(v)}" for k, v in value.items()) + "}"
    return repr(value)


def recipe_text(plain: dict[str, Any], source: random.Random) -> str:
    lines = [f"{json.dumps(key)} = {toml(value)}" for key, value in plain.items()]
    if source.random() < 0.1:
        lines.append(source.choice(lines or ["a = 1"]))
    if source.random() < 0.05:
        lines.append(f"deep = {'[' * DEEP}{']' * DEEP}")
    return "\n".join(lines)


RECIPE_COMMANDS: tuple[list[str], ...] = (
    ["calibrate"],
    ["calibrate", "--data", "d.npz"],
    ["quantize", "static", "m.onnx", "out.onnx"],
    ["plan", "m.onnx"],
    ["evaluate", "m.onnx", "q.onnx", "--skip", "memory", "--skip", "fidelity"],
    ["gate", "good_result.json"],
    ["verify", "q.onnx", "--float", "m.onnx"],
    ["diff", "m.onnx", "q.onnx", "--data", "d.npz"],
    ["quantize", "m.onnx", "out.onnx"],
)
WRITES = ("out.onnx", "out.calibration", "m.calibration", "o", "evaluation")


@pytest.mark.parametrize("seed", seeds(15))
def test_a_changed_recipe_is_a_result_or_one_error(seed: int, work: Path) -> None:
    source = chance(seed)
    plain = json.loads(json.dumps(RECIPE))
    for name in source.sample(list(plain), source.randint(0, 3)):
        del plain[name]
    if plain and source.random() < 0.8:
        disturb(plain, source)
    written = recipe_text(plain, source)
    (work / "quantkit.toml").write_bytes(spoil(written, source))
    # A recipe may name any place to write to; what it may not do is tell by other tests.
    check(*source.choice(RECIPE_COMMANDS), folder=work, writes=[*WRITES, *new_names(plain)])


def new_names(plain: dict[str, Any]) -> list[str]:
    found = []
    for table in ("calibrate", "evaluate"):
        inner = plain.get(table)
        name = inner.get("output") if isinstance(inner, dict) else None
        if isinstance(name, str) and name and "\0" not in name and name not in {"/", ".."}:
            found.append(name.encode("utf-8", "replace").decode())
    return found


# --- plan.json and result.json ---


def json_text(plain: Any, source: random.Random) -> str:
    text = json.dumps(plain, indent=source.choice((None, 1)), ensure_ascii=source.random() < 0.5)
    if source.random() < 0.05:
        text = f'{text[:-1].rstrip()}, "deep": {"[" * DEEP}{"]" * DEEP}}}'
    if source.random() < 0.05 and isinstance(plain, dict) and plain:
        key = source.choice(list(plain))
        text = f"{text[:-1].rstrip()}, {json.dumps(key)}: {json.dumps(source.choice(VALUES))}}}"
    return text


def changed_json(good: Path, source: random.Random, seal: Callable[[Any], None]) -> bytes:
    plain = json.loads(good.read_text())
    if source.random() < 0.8:
        disturb(plain, source)
    seal(plain)
    return spoil(json_text(plain, source), source)


_APPLY = ("quantize", "static", "m.onnx", "out.onnx", "--data", "d.npz", "--plan")
PLAN_COMMANDS: tuple[list[str], ...] = (
    ["plan", "p.json"],
    ["plan", "p.json", "--nodes"],
    ["plan", "p.json", "--json"],
    ["plan", "p.json", "--diff", "good.json"],
    ["diff", "good.json", "p.json"],
    [*_APPLY, "p.json"],
    [*_APPLY, "p.json", "--external-data"],
    [*_APPLY, "p.json", "--format", "qoperator"],
)


@pytest.mark.parametrize("seed", seeds(15))
def test_a_changed_plan_is_a_result_or_one_error(seed: int, work: Path) -> None:
    source = chance(seed)
    (work / "p.json").write_bytes(changed_json(work / "good.json", source, lambda _: None))
    check(*source.choice(PLAN_COMMANDS), folder=work, writes=["out.onnx", "out.onnx.data"])


# --- what quantkit wrote into a model about itself ---

MODEL_COMMANDS: tuple[list[str], ...] = (
    ["verify", "changed.onnx"],
    ["verify", "changed.onnx", "--float", "m.onnx", "--data", "d.npz"],
    ["verify", "changed.onnx", "--float", "m.onnx", "--data", "d.npz", "--again"],
    ["diff", "m.onnx", "changed.onnx"],
    ["diff", "q.onnx", "changed.onnx", "--json"],
    ["inspect", "changed.onnx"],
    [
        *("evaluate", "m.onnx", "changed.onnx", "--data", "d.npz", "-o", "o"),
        *(word for part in (*_SLOW, "layers") for word in ("--skip", part)),
    ],
)


@pytest.mark.parametrize("seed", seeds(15))
def test_changed_metadata_of_a_model_are_a_result_or_one_error(seed: int, work: Path) -> None:
    source = chance(seed)
    proto = onnx.load_model(work / "q.onnx")
    entry = source.choice(proto.metadata_props)
    try:
        plain = json.loads(entry.value)
    except ValueError:
        plain = None
    if isinstance(plain, dict | list) and plain:
        disturb(plain, source)
        if isinstance(plain, dict) and "seal" in plain and source.random() < 0.9:
            plain["seal"] = _sealed_record(plain)
        written = json_text(plain, source)
    else:
        written = str(source.choice(VALUES))
    entry.value = spoil(written, source).decode("utf-8", "replace")
    onnx.save_model(proto, work / "changed.onnx")
    check(*source.choice(MODEL_COMMANDS), folder=work, writes=["o"])


def _sealed_record(plain: Any) -> str:
    try:
        return json_digest({**plain, "seal": ""})
    except (TypeError, ValueError, OverflowError):
        return ""


RESULT_COMMANDS: tuple[list[str], ...] = (
    ["report", "result.json", "-o", "o"],
    ["report", "result.json", "-o", "o", "--picture", "o.svg"],
    ["gate", "result.json"],
    ["gate", "result.json", "--max-drop", "1%", "--junit", "o.xml", "--badge", "o.txt"],
    ["gate", "result.json", "--max-flips", "1%", "--min-sqnr-db", "20", "--json"],
    ["diff", "good_result.json", "result.json"],
    ["diff", "result.json", "good_result.json", "--json"],
)


def sealed(plain: Any) -> None:
    """Seal what was changed, as somebody would who wants it to be read."""
    if not isinstance(plain, dict):
        return
    plain.pop("seal", None)
    try:
        plain["seal"] = _seal(plain)
    except (TypeError, ValueError, OverflowError, UnicodeError):
        plain["seal"] = ""


@pytest.mark.parametrize("seed", seeds(15))
def test_a_changed_result_is_a_result_or_one_error(seed: int, work: Path) -> None:
    source = chance(seed)
    good = work / "good_result.json"
    seal = sealed if source.random() < 0.9 else lambda _: None
    (work / "result.json").write_bytes(changed_json(good, source, seal))
    written = ["o", "o.svg", "o.xml", "o.txt"]
    check(*source.choice(RESULT_COMMANDS), folder=work, writes=written)
