"""Floats of 16 bits: size, error, latency, and what stays float32 and why, of the eleven models of ``zoo.py``.

In the file alone (float16, bfloat16), and in arithmetic too, with ranges of the calibration samples. Writes
``results/float16.json`` (everything) and ``results/float16.md``. ``--only`` measures some models anew and keeps the others.
It is not called float16.py, as onnxruntime has a module of that name which it imports from the path.
"""

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from compare_dynamic import interval
from measure import (
    RESULTS,
    SHARED,
    Timing,
    describe,
    interleaved,
    machine,
    model_bytes,
    ratio,
    session,
    sqnr,
    table,
    write_results,
)
from onnx import numpy_helper
from zoo import Case, cases, repeated, work_of

from quantkit import QuantizeResult, quantize_float16
from quantkit.model.graph.protos import tensors_of

__all__ = ["made", "markdown"]

Report = dict[str, Any]

_ROWS: dict[str, dict[str, Any]] = {
    "stored": {},
    "bfloat16": {"dtype": "bfloat16"},
    "computed": {"compute": True},
}
_LABELS = {
    "stored": "float16 in the file",
    "bfloat16": "bfloat16 in the file",
    "computed": "float16 arithmetic",
}
_FROM = 16  # values of a tensor, about, that is worth a Cast
_REASONS = 3
_TIMING = Timing(rounds=60, warm_up=2, least=15, budget=40.0)


def made(case: Case, folder: Path) -> dict[str, Report]:
    """Write each form of a model; return what was decided, and what it took."""
    reports = {}
    for name, options in _ROWS.items():
        data = list(case.calibration) if options.get("compute") else None
        result = quantize_float16(case.model, folder / f"{name}.onnx", data, **options)
        reports[name] = _described(result) | {"size": result.output_bytes / model_bytes(case.model)}
        print(f"  {name}: {result!r}", flush=True)
    return reports


def _described(result: QuantizeResult) -> Report:
    floats = [n for n in result.plan.nodes if n.mode.value in {"float", "stored"}]
    kept = [n for n in floats if "16 bits in the file" not in n.why]
    heads = Counter(f"{n.op_type}: {n.why.partition(': ')[0]}" for n in kept)
    return {
        "seconds": result.seconds,
        "modes": Counter(n.mode.value for n in result.plan.nodes),
        "tensors": len(result.plan.halves),
        "kept": dict(heads.most_common()),
        "half": None if result.half is None else result.half.to_json(),
    }


def judged(case: Case, folder: Path, reports: dict[str, Report]) -> Report:
    """Add to each report how far from float its file is, and how fast; return float's own figures."""
    sessions = {"float": session(case.model, threads=1)}
    reference = case.outputs(sessions["float"])
    for name, report in reports.items():
        sessions[name] = session(folder / f"{name}.onnx", threads=1)
        actual = case.outputs(sessions[name])
        report["sqnr_db"] = min(sqnr(reference[key], actual[key]) for key in reference)
    vectors = case.outputs(session(_every_tensor_rounded(case.model), threads=1))
    reports["stored"]["with_vectors_db"] = min(sqnr(reference[k], vectors[k]) for k in reference)
    times = work_of(sessions["float"], case.timed)
    calls = {name: repeated(found, case.timed, times) for name, found in sessions.items()}
    seconds = dict(zip(calls, interleaved(calls, _TIMING).T, strict=True))
    for name, report in reports.items():
        report["latency"] = ratio(seconds[name], seconds["float"])
    once = float(np.median(seconds["float"])) / times / len(case.timed)
    return {"ms": 1e3 * once, "bytes": model_bytes(case.model)}


def _every_tensor_rounded(path: Path) -> bytes:
    """Return a model whose biases and gains are rounded to float16 too, where they fit."""
    model = onnx.load(path)
    for tensor in tensors_of(model):
        if tensor.data_type != onnx.TensorProto.FLOAT:
            continue
        array = numpy_helper.to_array(tensor)
        with np.errstate(over="ignore"):
            rounded = array.astype(np.float16).astype(np.float32)
        if array.size >= _FROM and np.isfinite(rounded).all():
            tensor.CopyFrom(numpy_helper.from_array(rounded, tensor.name))
    return bytes(model.SerializeToString())


_TEXT = """\
The four models of the README and seven out of package registries, with real inputs. *SQNR* is that of the worst float output on
samples that nobody calibrated with; *vectors too* is what it would be if biases and gains of channels were rounded as well, which
the file leaves in float32. *Time* is the ratio to float of the medians, with its 95 % bootstrap interval, all forms in turn, one
thread. *Nodes* are those of the plan: in float16, with weights of 16 bits in the file, and in float32. *Casts* are those that
onnxruntime runs every time. This CPU has no float16 arithmetic, so that all products are computed in float32 all the same."""


def markdown(data: Mapping[str, Any]) -> str:
    """Return the report made from the JSON."""
    lines = ["# Floats of 16 bits", "", describe(data["machine"]), "", _TEXT, ""]
    header = ["model", "", "size / float", "SQNR", "vectors too", "time / float", "nodes", "casts"]
    rows, kept = [], []
    for name, model in data["models"].items():
        for form, row in model["rows"].items():
            rows.append([name if form == "stored" else "", _LABELS[form], *_cells(row)])
            kept += _kept(name, form, row)
    lines += [*table(header, rows), "", "What stays float32, and why:", "", *kept]
    return "\n".join(lines).rstrip() + "\n"


def _cells(row: Mapping[str, Any]) -> list[str]:
    nodes = " / ".join(str(row["modes"].get(mode, 0)) for mode in ("half", "stored", "float"))
    vectors = f"{row['with_vectors_db']:.1f} dB" if "with_vectors_db" in row else ""
    casts = "" if row["half"] is None else str(row["half"]["casts"])
    figures = [f"{row['size']:.3f}", f"{row['sqnr_db']:.1f} dB", vectors, interval(row["latency"])]
    return [*figures, nodes, casts]


def _kept(name: str, form: str, row: Mapping[str, Any]) -> list[str]:
    """Return a line with the most frequent reasons; none if nothing is kept."""
    if not row["kept"]:
        return []
    listed = list(row["kept"].items())
    shown = "; ".join(f"{count} {reason}" for reason, count in listed[:_REASONS])
    rest = sum(count for _, count in listed[_REASONS:])
    return [f"* {name}, {_LABELS[form]}: {shown}" + (f"; {rest} more" if rest else "")]


def arguments() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--only", nargs="*", default=(), help="these models, and keep the others' figures"
    )
    parser.add_argument("--shared", type=Path, default=SHARED, help="folder of models and data")
    parser.add_argument("--out", type=Path, default=RESULTS / "float16", help="without a suffix")
    parser.add_argument("--render", action="store_true", help="make the table anew from the JSON")
    return parser.parse_args()


def main() -> None:
    """Measure and write, after each model."""
    given = arguments()
    path = given.out.with_suffix(".json")
    keeps = (given.only or given.render) and path.is_file()
    kept: Report = json.loads(path.read_text(encoding="utf-8")) if keeps else {}
    data = {"machine": kept.get("machine") or machine(), "models": kept.get("models", {})}
    for name, load in cases(given.shared).items() if not given.render else ():
        if given.only and name not in given.only:
            continue
        print(name, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            case = load()
            rows = made(case, Path(folder))
            data["models"][name] = {"float": judged(case, Path(folder), rows), "rows": rows}
        write_results(given.out.parent, given.out.name, data, markdown(data))
    if given.render:
        write_results(given.out.parent, given.out.name, data, markdown(data))


if __name__ == "__main__":
    main()
