"""Where onnxruntime's DynamicQuantizeMatMul beats float MatMul, by the size of the product.

Products of M x K by K x N with bias, in float and with uint8 and int8 weights, in turn in one
process. Supports the thresholds in quantkit/quantize/plan/dynamic.py: the report marks the products that
quantkit runs in integers by default, and counts where that loses or another choice would gain.
Writes ``results/crossover.json`` and ``results/crossover.md``.
"""

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from measure import (
    RESULTS,
    Timing,
    describe,
    kernels,
    latency,
    machine,
    session,
    table,
    write_results,
)
from onnx import TensorProto, helper, numpy_helper

from quantkit import QuantkitError, quantize_dynamic

_EXTENTS = (16, 32, 64, 128, 256, 512, 1024, 2048)
_ROWS = (1, 8, 64, 256)
_TYPES = ("uint8", "int8")
_MARGIN = 0.05  # closer to 1 than this is a draw


def float_model(rows: int, columns: int) -> onnx.ModelProto:
    """Return MatMul with bias."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"], name="product")]
    return _model(nodes, [numpy_helper.from_array(_weight(rows, columns), "w")], rows, columns)


def integer_model(rows: int, columns: int, kind: str) -> onnx.ModelProto:
    """Return the nodes that onnxruntime fuses into one DynamicQuantizeMatMul, a scale per column."""
    weight = _weight(rows, columns)
    scale = (np.abs(weight).max(axis=0) / 127).astype(np.float32)
    shift = 128 if kind == "uint8" else 0
    constants = {
        "q": (np.round(weight / scale) + shift).astype(kind),
        "s": scale,
        "z": np.full(columns, shift, kind),
    }
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["xq", "xs", "xz"]),
        helper.make_node("MatMulInteger", ["xq", "q", "xz", "z"], ["i"]),
        helper.make_node("Cast", ["i"], ["c"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["xs", "s"], ["xss"]),
        helper.make_node("Mul", ["c", "xss"], ["m"]),
    ]
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    return _model(nodes, tensors, rows, columns)


def _weight(rows: int, columns: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(0).standard_normal((rows, columns), np.float32)


def _model(
    nodes: list[onnx.NodeProto], tensors: list[onnx.TensorProto], rows: int, columns: int
) -> onnx.ModelProto:
    bias = numpy_helper.from_array(np.ones(columns, np.float32), "b")
    graph = helper.make_graph(
        [*nodes, helper.make_node("Add", ["m", "b"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["M", rows])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["M", columns])],
        [*tensors, bias],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def chosen_by_quantkit(model: onnx.ModelProto) -> bool:
    """Return whether quantkit's default call runs the product in integer arithmetic."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            result = quantize_dynamic(model, Path(folder) / "product.onnx", verify=False)
        except QuantkitError:  # nothing to quantize
            return False
    return any(node.mode == "integer" for node in result.plan.nodes)


def measure_cell(rows: int, columns: int, timing: Timing) -> dict[str, Any]:
    """Measure one K x N for all M."""
    floating = float_model(rows, columns)
    models = {"float": floating} | {kind: integer_model(rows, columns, kind) for kind in _TYPES}
    sessions = {name: session(model.SerializeToString()) for name, model in models.items()}
    cell: dict[str, Any] = {"K": rows, "N": columns, "chosen": chosen_by_quantkit(floating)}
    for kind in _TYPES:
        ran = kernels(models[kind].SerializeToString())["int8"]
        if ran != {"DynamicQuantizeMatMul": 1}:
            raise SystemExit(f"{rows} x {columns} {kind} is not fused but runs as {ran}")
    for m in _ROWS:
        x = np.random.default_rng(1).standard_normal((m, rows), np.float32)
        timed = latency(sessions, {"x": x}, timing)
        cell[f"M={m}"] = {"float_us": 1e3 * timed["float"]["median_ms"]} | {
            kind: {key: timed[kind][key] for key in ("ratio", "low", "high")} for kind in _TYPES
        }
    return cell


def markdown(data: Mapping[str, Any]) -> str:
    """Return the report made from the JSON."""
    cells = data["cells"]
    lines = [
        "# DynamicQuantizeMatMul against float MatMul",
        "",
        describe(data["machine"]),
        "",
        (
            "Latency of M x K by K x N with bias in integers, as a ratio to float (below 1 is faster): "
            f"medians of {data['settings']['rounds']} runs in turn, threads that do not spin. **Bold**: "
            "quantkit runs this product in integers by default. A call from Python costs both sides "
            "the same, which draws the ratios of small products towards 1. *Slower* and *faster* "
            f"count products whose whole 95 % interval is over {_MARGIN:.0%} away from 1."
        ),
        "",
        *_summary(cells),
    ]
    for kind in _TYPES:
        for m in _ROWS:
            lines += ["", f"## {kind} weights, M = {m}", "", *_grid(cells, kind, m)]
    return "\n".join(lines) + "\n"


def _grid(cells: Sequence[Mapping[str, Any]], kind: str, m: int) -> list[str]:
    shown = {(c["K"], c["N"]): _cell(c, c[f"M={m}"][kind]["ratio"]) for c in cells}
    extents = sorted({c["K"] for c in cells})
    rows = [[f"{k}", *(shown[k, n] for n in extents)] for k in extents]
    return table(["K \\ N", *map(str, extents)], rows)


def _cell(cell: Mapping[str, Any], value: float) -> str:
    return f"**{value:.2f}**" if cell["chosen"] else f"{value:.2f}"


def _summary(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = []
    for kind in _TYPES:
        for m in _ROWS:
            chosen = [c[f"M={m}"][kind]["ratio"] for c in cells if c["chosen"]]
            left = [c[f"M={m}"][kind]["ratio"] for c in cells if not c["chosen"]]
            lost = [c for c in cells if c["chosen"] and c[f"M={m}"][kind]["low"] > 1 + _MARGIN]
            missed = [
                c for c in cells if not c["chosen"] and c[f"M={m}"][kind]["high"] < 1 - _MARGIN
            ]
            rows.append(
                [
                    f"{kind}, M = {m}",
                    f"{np.exp(np.mean(np.log(chosen))):.2f}" if chosen else "",
                    f"{len(lost)} of {len(chosen)}",
                    f"{max(chosen):.2f}" if chosen else "",
                    f"{len(missed)} of {len(left)}",
                    f"{min(left):.2f}" if left else "",
                ]
            )
    header = ["", "in integers: geometric mean", "slower than float", "worst"]
    return table([*header, "left in float: would be faster", "best"], rows)


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=150, help="runs timed a product")
    parser.add_argument("--extents", type=int, nargs="*", default=_EXTENTS, help="of K and N")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    given = parser.parse_args()
    timing = Timing(rounds=given.rounds, warm_up=10, budget=20.0)
    data: dict[str, Any] = {"machine": machine(), "settings": asdict(timing), "cells": []}
    for rows in given.extents:
        for columns in given.extents:
            data["cells"].append(measure_cell(rows, columns, timing))
        print(f"K = {rows} measured", flush=True)
    write_results(given.out, "crossover", data, markdown(data))


if __name__ == "__main__":
    main()
