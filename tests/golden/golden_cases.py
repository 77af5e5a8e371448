"""What is quantized for the golden digests, through the public API only, so that no move of a module touches it."""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from builders import rng
from golden.golden_digests import described, digest, environment, plan_lines
from PIL import Image
from random_graphs import random_graph

import calibrators
import quantkit
from quantkit import NodeRule, QuantkitError, RecoverSettings, StaticSettings, TensorRule
from quantkit.samples import fashion_mnist

TARGETS = ("cpu", "x86-vnni", "x86-avx2", "arm64", "tensorrt", "openvino", "qnn")
FORMATS = ("qdq", "qoperator")
COMBINATIONS = [(t, f) for t in TARGETS for f in FORMATS]
GRAPHS = 210
EVERYWHERE = 35  # of the graphs are tried whenever the tests are run, all if QUANTKIT_GOLDEN=all
SHARED = Path(__file__).parents[3] / "shared"
ALL_ON = RecoverSettings(
    equalize=True, smooth=True, bias=True, empirical=True, ranges=True, rounding=True, adaptive=True
)
ALL_OFF = RecoverSettings(
    equalize=False, smooth=False, bias=False, empirical=False, rounding=False, adaptive=False
)

_STAGE = re.compile(r"\.quantkit-[\w-]+/")  # where a result stands until it is checked

Make = Callable[[Path], dict[str, str]]


@dataclass(frozen=True)
class Case:
    """`make` gives each part as text, and may write to the folder; `often`: also without QUANTKIT_GOLDEN=all."""

    name: str
    make: Make
    often: bool = True

    def texts(self) -> dict[str, str]:
        """The parts of what is written; of an error its type and message."""
        with TemporaryDirectory() as folder, _one_core():
            try:
                return self.make(Path(folder))
            except QuantkitError as e:
                said = _STAGE.sub("STAGE/", str(e).replace(folder, "FOLDER"))
                return {"error": f"{type(e).__name__}: {said}"}

    def digests(self) -> dict[str, str]:
        """What is compared: short digests, but an error in full; nothing of a part that is empty."""
        return {k: v if k == "error" else digest(v) for k, v in self.texts().items() if v}


@contextmanager
def _one_core() -> Iterator[None]:
    """Calibrate in this process: forking costs more than these models, and changes nothing."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@dataclass(frozen=True)
class Quantized:
    """One call: which function, of which model, with what."""

    verb: str
    model: Callable[[], Any]
    data: Callable[[], Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, folder: Path) -> dict[str, str]:
        given = [] if self.data is None else [self.data()]
        path = folder / "q.onnx"
        result = getattr(quantkit, self.verb)(self.model(), path, *given, **self.options)
        return described(path, result)


# The sample that the project ships


@cache
def images(count: int = 16) -> Any:
    return fashion_mnist().images[:count]


def sample_model() -> Path:
    return fashion_mnist().model


STATIC: dict[str, dict[str, Any]] = {
    "per tensor": {"per_channel": False},
    "int8": {"activation_type": "int8"},
    "uint16": {"activation_type": "uint16"},
    "int16 qnn": {"activation_type": "int16", "target": "qnn"},
    "uint16 qoperator": {"activation_type": "uint16", "quant_format": "qoperator"},
    "uint8 weights": {"weight_type": "uint8"},
    "symmetric": {"symmetric_activations": True},
    "minmax": {"method": "minmax"},
    "percentile": {"method": "percentile", "percentile": 99.0},
    "entropy": {"method": "entropy"},
    "moving average": {"method": "moving_average"},
    "all recovery": {"recover": ALL_ON},
    "no recovery": {"recover": ALL_OFF},
    "no recovery qoperator": {"recover": ALL_OFF, "quant_format": "qoperator"},
    "only Gemm": {"op_types_to_quantize": ["Gemm"]},
    "without conv2": {"nodes_to_exclude": ["conv2"]},
    "only fc": {"nodes_to_quantize": ["fc*"]},
    "range given": {"tensors": [TensorRule(tensor="relu1_out", range=(0.0, 4.0))]},
    "tensor in float": {"tensors": [TensorRule(tensor="relu1_out", keep_float=True)]},
    "tensor of 16 bits": {"tensors": [TensorRule(tensor="relu2_out", dtype="uint16")]},
    "tensor by minmax": {"tensors": [TensorRule(tensor="relu1_out", method="minmax")]},
    "node in float": {"nodes": [NodeRule(node="fc1", mode="float")]},
    "external data": {"use_external_data_format": True},
    "unverified": {"verify": False},
    "limit": {"limit": 5},
}
SELDOM = {"x86-vnni qoperator", "x86-avx2 qdq", "x86-avx2 qoperator", "arm64 qoperator", "entropy"}
SELDOM |= {"int8", "int16 qnn", "uint8 weights", "symmetric", "minmax", "percentile", "only fc"}
SELDOM |= {"moving average", "tensor of 16 bits", "tensor by minmax", "node in float", "limit"}
SELDOM |= {"no recovery qoperator", "unverified", "external data", "range given"}
DYNAMIC: dict[str, dict[str, Any]] = {
    "uint8": {},
    "int8": {"weight_type": "int8"},
    "per tensor": {"per_channel": False},
    "7 bits": {"reduce_range": True},
    "only Gemm": {"op_types_to_quantize": ["Gemm"]},
    "without fc1": {"nodes_to_exclude": ["fc1"]},
    "only fc2": {"nodes_to_quantize": ["fc2"]},
    "external data": {"use_external_data_format": True},
}


def sample_cases() -> Iterator[Case]:
    """The embedded model in every way."""
    static = {f"{t} {f}": {"target": t, "quant_format": f} for t, f in COMBINATIONS} | STATIC
    for name, options in static.items():
        call = Quantized("quantize_static", sample_model, images, options)
        yield Case(f"static {name}", call, often=name not in SELDOM)
    for name, options in DYNAMIC.items():
        yield Case(f"dynamic {name}", Quantized("quantize_dynamic", sample_model, None, options))
    yield Case("optimize", Quantized("optimize", sample_model))
    yield Case("calibrate", _calibrated)
    yield Case("static by a calibration", _by_calibration)
    yield Case("plan", _planned)
    yield Case("static by a plan", _by_plan)


def _calibrated(folder: Path) -> dict[str, str]:
    """Ranges by every method, of what was saved and read again."""
    quantkit.calibrate(sample_model(), images(), folder / "c.calibration")
    seen = quantkit.Calibration.load(folder / "c.calibration")
    ranges = {
        f"{tensor} {method}": repr(seen.range(tensor, calibrators.method(method)))
        for tensor in seen.tensors
        for method in ("mse", "minmax", "percentile", "entropy")
    }
    return {
        "graph": "\n".join(seen.tensors),
        "values": "\n".join(f"{k}: {v}" for k, v in ranges.items()),
    }


def _by_calibration(folder: Path) -> dict[str, str]:
    path = folder / "c.calibration"
    quantkit.calibrate(sample_model(), images(), path)
    return Quantized("quantize_static", sample_model, lambda: path)(folder)


def _planned(_: Path) -> dict[str, str]:
    plan = quantkit.plan_static(sample_model(), images(), StaticSettings(target="cpu"))
    numbers = [f"{a.tensor}: {a.scale!r} {a.zero_point}" for a in plan.activations]
    return {"plan": "\n".join(plan_lines(plan)), "values": "\n".join(numbers)}


def _by_plan(folder: Path) -> dict[str, str]:
    plan = quantkit.plan_static(sample_model(), images())
    return Quantized("quantize_static", sample_model, images, {"plan": plan})(folder)


# Graphs that grow at random


@cache
def batches() -> list[dict[str, Any]]:
    values = rng(5).standard_normal((4, 1, 8, 6, 6)).astype(np.float32)
    return [{"x": one} for one in values]


def generated_cases() -> Iterator[Case]:
    """Two combinations of target and format for each graph, and a third or a dynamic or a simplified one."""
    dynamic: list[dict[str, Any]] = [
        {},
        {"weight_type": "int8"},
        {"per_channel": False},
        {"reduce_range": True},
    ]
    others: list[dict[str, Any]] = [
        {"per_channel": False},
        {"recover": ALL_OFF},
        {"recover": ALL_ON},
    ]
    others += [{"method": "minmax"}, {"activation_type": "int8"}, {"activation_type": "uint16"}]
    for seed in range(GRAPHS):
        often = seed < EVERYWHERE
        made = partial(random_graph, seed)
        name = f"graph {seed:03}"
        for k in (2 * seed, 2 * seed + 1):
            target, quant_format = COMBINATIONS[k % len(COMBINATIONS)]
            options = {"target": target, "quant_format": quant_format}
            call = Quantized("quantize_static", made, batches, options)
            yield Case(f"{name} static {target} {quant_format}", call, often)
        chosen: Mapping[str, Any] = dynamic[seed // 3 % len(dynamic)]
        call = Quantized("quantize_dynamic", made, None, chosen)
        if seed % 3 == 1:
            call = Quantized("optimize", made)
        elif seed % 3 == 2:
            chosen = {
                "target": TARGETS[seed // 3 % len(TARGETS)],
                **others[seed // 3 % len(others)],
            }
            call = Quantized("quantize_static", made, batches, chosen)
        verb = call.verb.removeprefix("quantize_")
        yield Case(f"{name} {verb} {_words(call.options)}".rstrip(), call, often)


def _words(options: Mapping[str, Any]) -> str:
    named = {id(ALL_OFF): "no recovery", id(ALL_ON): "all recovery"}
    return " ".join(
        named.get(id(v), f"{k}={v}" if k != "target" else v) for k, v in options.items()
    )


# 16 bits

FLOAT16: dict[str, dict[str, Any]] = {
    "stored": {},
    "bfloat16": {"dtype": "bfloat16"},
    "computed": {"compute": True},
    "computed, ends too": {"compute": True, "half_inputs": True, "half_outputs": True},
    "without fc1": {"nodes_to_exclude": ["fc1"]},
    "external data": {"use_external_data_format": True},
}
HALVED_GRAPHS = 20


def float16_cases() -> Iterator[Case]:
    """The embedded model in every way, and random graphs in two: most of those have next to no weights."""
    for name, options in FLOAT16.items():
        yield Case(name, Quantized("quantize_float16", sample_model, None, options))
    call = Quantized("quantize_float16", sample_model, images, {"compute": True})
    yield Case("computed, by samples", call)
    for seed in range(HALVED_GRAPHS):
        made, name = partial(random_graph, seed), f"graph {seed:03}"
        yield Case(f"{name} stored", Quantized("quantize_float16", made))
        data = batches if seed % 2 else None
        yield Case(f"{name} computed", Quantized("quantize_float16", made, data, {"compute": True}))


# Few bits

WEIGHTS: dict[str, dict[str, Any]] = {
    "4 bits": {},
    "2 bits, blocks of 64": {"bits": 2, "block": 64},
    "5 bits": {"bits": 5},
    "8 bits, plain": {"bits": 8, "quant_format": "onnx"},
    "5.5 bits on average": {"target_bits": 5.5},
    "only Gemm": {"op_types_to_quantize": ["Gemm"]},
    "external data": {"use_external_data_format": True},
}
PACKED: dict[str, dict[str, Any]] = {"5 bits": {"weight_bits": 5}, "20 %": {"target_size": 0.2}}


def weights_cases() -> Iterator[Case]:
    """The embedded model in blocks, with samples and without, and int8 with fewer bits in the file; random graphs in blocks."""
    for name, options in WEIGHTS.items():
        call = Quantized("quantize_weights", sample_model, None, options)
        yield Case(name, call, often=name in {"4 bits", "5 bits"})
    fitted = Quantized("quantize_weights", sample_model, images)
    yield Case("4 bits, by samples", fitted, often=False)
    for name, options in PACKED.items():
        call = Quantized("quantize_static", sample_model, images, options)
        yield Case(f"static {name}", call, often=False)
        yield Case(f"dynamic {name}", Quantized("quantize_dynamic", sample_model, None, options))
    for seed in range(HALVED_GRAPHS):
        made = partial(random_graph, seed)
        yield Case(f"graph {seed:03}", Quantized("quantize_weights", made), often=seed % 4 == 0)


# Real models, where they are


def shared_cases() -> Iterator[Case]:
    """The four models of the folder beside the project."""
    photographs = {"efficientnet_lite0": (127.0, 128.0), "mobilenet_v2": (120.0, 58.0)}
    for name, (mean, deviation) in photographs.items():
        path, data = SHARED / "models" / f"{name}.onnx", partial(_photographs, mean, deviation)
        options: dict[str, Any] = {"recover": ALL_OFF}
        yield Case(
            f"{name} static no recovery",
            _shared("quantize_static", path, data, options),
            often=False,
        )
        yield Case(f"{name} dynamic", _shared("quantize_dynamic", path), often=False)
    path = SHARED / "models" / "resnet20_cifar10.onnx"
    for target, quant_format in (
        ("cpu", "qdq"),
        ("cpu", "qoperator"),
        ("tensorrt", "qdq"),
        ("qnn", "qdq"),
    ):
        options = {"target": target, "quant_format": quant_format}
        call = _shared("quantize_static", path, _small_pictures, options)
        yield Case(f"resnet20 static {target} {quant_format}", call, often=False)
    yield Case("resnet20 dynamic", _shared("quantize_dynamic", path), often=False)
    path = SHARED / "models" / "all-MiniLM-L6-v2" / "model.onnx"
    call = _shared("quantize_static", path, _sentences, {"recover": ALL_OFF})
    yield Case("all-MiniLM-L6-v2 static no recovery", call, often=False)
    yield Case("all-MiniLM-L6-v2 dynamic", _shared("quantize_dynamic", path), often=False)
    yield Case(
        "all-MiniLM-L6-v2 dynamic int8",
        _shared("quantize_dynamic", path, None, {"weight_type": "int8"}),
        often=False,
    )


def _shared(
    verb: str,
    path: Path,
    data: Callable[[], Any] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Quantized:
    return Quantized(verb, lambda: path, data, options or {})


def _photographs(mean: float, deviation: float) -> list[dict[str, Any]]:
    found = []
    for path in sorted((SHARED / "data" / "imagenet500").glob("*.jpg"))[:2]:
        pixels = np.asarray(Image.open(path).convert("RGB").resize((224, 224)), np.float32)
        found.append({"input": ((pixels - mean) / deviation).transpose(2, 0, 1)[None]})
    return found


def _small_pictures() -> list[dict[str, Any]]:
    Image.MAX_IMAGE_PIXELS = None
    rows = np.asarray(Image.open(SHARED / "data" / "cifar10" / "test.png").crop((0, 0, 1024, 8)))
    pixels = rows.reshape(8, 1, 32, 32, -1).astype(np.float32).transpose(0, 1, 4, 2, 3)
    return [{"input": (one - 120) / 58} for one in pixels]


def _sentences() -> list[dict[str, Any]]:
    tokens = rng(2).integers(1000, 20000, (4, 1, 12))
    ones, zeros = np.ones_like(tokens), np.zeros_like(tokens)
    names = ("input_ids", "attention_mask", "token_type_ids")
    return [dict(zip(names, each, strict=True)) for each in zip(tokens, ones, zeros, strict=True)]


FAMILIES: dict[str, Callable[[], Iterator[Case]]] = {
    "sample": sample_cases,
    "generated": generated_cases,
    "float16": float16_cases,
    "weights": weights_cases,
    "shared": shared_cases,
}


@cache
def here() -> dict[str, str]:
    """The CPU and the versions that values are made with."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "q.onnx")
        quantkit.quantize_dynamic(sample_model(), path)
        return environment(path)
