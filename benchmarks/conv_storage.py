"""Why quantkit stores Conv weights as Cast, (Sub,) Mul: latency of every way to keep them in 8 bits.

Dynamic quantization of a convolution can store the weight and give it back as float (by
DequantizeLinear, or by Cast and Mul), or compute in integers (ConvInteger, as onnxruntime's own
tool does). Writes ``results/conv_storage.json`` and ``results/conv_storage.md``.
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from measure import (
    RESULTS,
    SHARED,
    Timing,
    alone,
    describe,
    kernels,
    latency,
    machine,
    session,
    sqnr,
    table,
    write_results,
)
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

_MODELS = {"efficientnet_lite0": 224, "mobilenet_v2": 224, "resnet20_cifar10": 32}
_MB = 1e6
Array = NDArray[Any]
Storage = Callable[[str, Array], tuple[list[onnx.NodeProto], list[onnx.TensorProto]]]


def dequantize_linear(name: str, weight: Array) -> tuple[list[Any], list[Any]]:
    """Store int8 and a scale per channel; DequantizeLinear gives the weight back."""
    q, scale = _symmetric(weight)
    nodes = [helper.make_node("DequantizeLinear", [f"{name}_q", f"{name}_s"], [name], axis=0)]
    return nodes, _tensors(name, q=q, s=scale.reshape(-1))


def cast_mul(name: str, weight: Array) -> tuple[list[Any], list[Any]]:
    """Store int8 and a scale per channel; Cast and Mul give the weight back."""
    q, scale = _symmetric(weight)
    nodes = [
        helper.make_node("Cast", [f"{name}_q"], [f"{name}_c"], to=TensorProto.FLOAT),
        helper.make_node("Mul", [f"{name}_c", f"{name}_s"], [name]),
    ]
    return nodes, _tensors(name, q=q, s=scale)


def cast_sub_mul(name: str, weight: Array) -> tuple[list[Any], list[Any]]:
    """Store uint8 with scale and zero point a channel; Cast, Sub and Mul give the weight back."""
    axes = tuple(range(1, weight.ndim))
    low = np.minimum(weight.min(axis=axes, keepdims=True), 0)
    high = np.maximum(weight.max(axis=axes, keepdims=True), 0)
    scale = _nonzero((high - low) / 255)
    zero = np.round(-low / scale).astype(np.float32)
    q = np.clip(np.round(weight / scale) + zero, 0, 255).astype(np.uint8)
    nodes = [
        helper.make_node("Cast", [f"{name}_q"], [f"{name}_c"], to=TensorProto.FLOAT),
        helper.make_node("Sub", [f"{name}_c", f"{name}_z"], [f"{name}_d"]),
        helper.make_node("Mul", [f"{name}_d", f"{name}_s"], [name]),
    ]
    return nodes, _tensors(name, q=q, s=scale, z=zero)


def _symmetric(weight: Array) -> tuple[Array, Array]:
    axes = tuple(range(1, weight.ndim))
    scale = _nonzero(np.abs(weight).max(axis=axes, keepdims=True) / 127)
    return np.round(weight / scale).astype(np.int8), scale


def _nonzero(scale: Array) -> Array:
    return np.where(scale == 0, 1, scale).astype(np.float32)


def _tensors(name: str, **arrays: Array) -> list[onnx.TensorProto]:
    return [numpy_helper.from_array(array, f"{name}_{key}") for key, array in arrays.items()]


STORAGES: dict[str, Storage] = {
    "DequantizeLinear, int8": dequantize_linear,
    "Cast + Mul, int8": cast_mul,
    "Cast + Sub + Mul, uint8": cast_sub_mul,
}
TOOLS = {"ConvInteger, uint8 (onnxruntime)": "onnxruntime", "quantkit QUInt8": "quantkit"}


def store(source: Path, target: Path, storage: Storage) -> None:
    """Write the model with every constant Conv weight stored in 8 bits."""
    model = onnx.load(source)
    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    nodes: list[onnx.NodeProto] = []
    stored: dict[str, list[onnx.TensorProto]] = {}
    for node in graph.node:
        weight = node.input[1] if node.op_type == "Conv" else ""
        if weight in constants and weight not in stored:
            before, stored[weight] = storage(weight, numpy_helper.to_array(constants[weight]))
            nodes += before
        nodes.append(node)
    kept = [tensor for tensor in graph.initializer if tensor.name not in stored]
    del graph.initializer[:], graph.node[:]
    graph.initializer.extend([*kept, *(tensor for new in stored.values() for tensor in new)])
    graph.node.extend(nodes)
    onnx.save(model, target)


def variants(source: Path, folder: Path) -> dict[str, Path]:
    """Write every variant of a model into `folder`."""
    paths = {"float": source}
    for i, (name, storage) in enumerate(STORAGES.items()):
        paths[name] = folder / f"stored{i}.onnx"
        store(source, paths[name], storage)
    for name, tool in TOOLS.items():
        paths[name] = folder / f"{tool}.onnx"
        job = {"do": "quantize", "tool": tool, "source": str(source), "target": str(paths[name])}
        report = alone(job)
        if "error" in report:
            print(f"{name}: {report['error']}")
            del paths[name]
    return paths


def measure_model(source: Path, extent: int, timing: Timing, loads: int) -> dict[str, Any]:
    """Measure latency, load time, drift and what remains in the optimized graph."""
    image = np.random.default_rng(0).standard_normal((1, 3, extent, extent), np.float32)
    with tempfile.TemporaryDirectory() as folder:
        # A copy, because onnxruntime.quantization writes a temporary file beside its input.
        paths = variants(Path(shutil.copy(source, folder)), Path(folder))
        sessions = {name: session(path) for name, path in paths.items()}
        reference = sessions["float"].run(None, {"input": image})[0]
        rows: dict[str, dict[str, Any]] = {}
        for name, path in paths.items():
            output = sessions[name].run(None, {"input": image})[0]
            rows[name] = {
                "bytes": path.stat().st_size,
                "sqnr_db": sqnr(reference, output),
                "load_ms": load_milliseconds(path, loads),
                "kernels": kernels(path),
            }
        for name, timed in latency(sessions, {"input": image}, timing).items():
            rows[name] |= timed
    return rows


def load_milliseconds(path: Path, repeats: int) -> float:
    """Return the median time to make a session."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        session(path)
        times.append(time.perf_counter() - start)
    return 1e3 * float(np.median(times))


def markdown(data: Mapping[str, Any]) -> str:
    """Return the report made from the JSON."""
    lines = [
        "# Conv weights in 8 bits: stored in three ways, or computed in integers",
        "",
        describe(data["machine"]),
        "",
        (
            "One image, all variants of a model in turn in one process, threads that do not spin; median "
            f"of up to {data['settings']['rounds']} runs and its ratio to float with the 95 % bootstrap "
            "interval. *Load* is the time to make a session, in which onnxruntime folds Cast, Sub and "
            "Mul of constants away; a DequantizeLinear it keeps and runs every time. SQNR is on noise."
        ),
    ]
    for name, rows in data["models"].items():
        shown = [_row(variant, row) for variant, row in rows.items()]
        header = ["", "size", "load", "latency", "of float", "SQNR", "decoded each run"]
        lines += ["", f"## {name}", "", *table([*header, "int8 nodes"], shown)]
    return "\n".join(lines) + "\n"


def _row(name: str, row: Mapping[str, Any]) -> list[str]:
    return [
        name,
        f"{row['bytes'] / _MB:.2f} MB",
        f"{row['load_ms']:.0f} ms",
        f"{row['median_ms']:.2f} ms",
        f"{row['ratio']:.2f} [{row['low']:.2f}, {row['high']:.2f}]",
        "" if name == "float" else f"{row['sqnr_db']:.1f} dB",
        f"{sum(row['kernels']['decoded'].values())}",
        f"{sum(row['kernels']['int8'].values())}",
    ]


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100, help="runs timed a variant")
    parser.add_argument("--loads", type=int, default=5, help="sessions made for the load time")
    parser.add_argument("--shared", type=Path, default=SHARED, help="folder of models and data")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    given = parser.parse_args()
    timing = Timing(rounds=given.rounds)
    data: dict[str, Any] = {"machine": machine(), "settings": asdict(timing), "models": {}}
    for name, extent in _MODELS.items():
        source = given.shared / "models" / f"{name}.onnx"
        if not source.is_file():
            print(f"{name}: skipped, {source} is not there")
            continue
        print(f"{name}: measuring", flush=True)
        data["models"][name] = measure_model(source, extent, timing, given.loads)
    write_results(given.out, "conv_storage", data, markdown(data))


if __name__ == "__main__":
    main()
