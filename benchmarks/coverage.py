"""Coverage "all" of every target beside onnxruntime's own QDQ tool: operator by operator, and on real models.

Both tools get the same samples, operators, types and ranges (lowest and highest value seen), scales by channel, and onnxruntime its own
preparation of the model first. Every file is checked, loaded, and run on samples that were not calibrated on,
with onnxruntime's optimizations off: what is judged is what the file says. On the CPU "gain" and "all" are timed
beside float, in turn and optimized.

Writes ``results/coverage.json`` and ``results/coverage.md``. What the former has already is not made again, unless
``--again`` says that quantkit's side is. Models come from ``../shared``; what is not there is left out.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.version_converter
import onnxruntime as ort
from coverage_models import OPERATORS, operator_model, operator_samples
from measure import (
    RESULTS,
    SHARED,
    Timing,
    describe,
    first_line,
    latency,
    machine,
    session,
    sqnr,
    table,
    write_results,
)
from static_jobs import Reader
from tasks import Sizes, tasks

import quantkit
from quantkit.targets import TARGETS, Target

Feeds = Mapping[str, Any]
Row = dict[str, Any]

_ENCODER, _CLASSIFIER = "all-MiniLM-L6-v2", "efficientnet_lite0"
_TARGETS = ("cpu", "arm64", "tensorrt", "openvino", "qnn")
_BIG = ("cpu", "tensorrt", "openvino", "qnn")  # of real models; arm64 differs from cpu in its types
_OPSET = 13
_CALIBRATE, _JUDGE = 16, 8
_ALLOWED = 0.5  # dB below onnxruntime
_CLOSE = 60.0  # dB, above which nobody can tell the difference
_NOISE = 5.0  # dB, up to which a result is of no use
_INTRODUCTION = """\
Made by `python benchmarks/coverage.py`. SQNR in dB of the worst output on samples that were not calibrated on; Q/DQ: the
number of QuantizeLinear and DequantizeLinear. Both tools have the same operators and types, minimum and maximum as ranges,
scales by channel; for QNN onnxruntime has its own configuration (`get_qnn_qdq_config`). Every file of quantkit's passes onnx's full check and loads, unless said otherwise. Names in bold: quantkit is
worse by more than 0.5 dB, and onnxruntime's result is not noise (5 dB or less)."""
_PAIRS = ("QuantizeLinear", "DequantizeLinear")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model with samples to calibrate on and others to judge by."""

    name: str
    model: Path
    calibration: Sequence[Feeds]
    evaluation: Sequence[Feeds]


def main(argv: Sequence[str] | None = None) -> int:
    """Make what is missing and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shared", type=Path, default=SHARED, help="folder of models and data")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where results are written")
    parser.add_argument("--only", nargs="*", help="operators or models to make")
    parser.add_argument("--again", action="store_true", help="make quantkit's files again")
    parser.add_argument("--targets", nargs="*", choices=_TARGETS, help="targets to make")
    parser.add_argument(
        "--skip", nargs="*", default=[], help="operators, models, latency, or a tool"
    )
    given = parser.parse_args(argv)
    path = given.results / "coverage.json"
    data = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    data = {"machine": machine(), "rows": data.get("rows", {}), "latency": data.get("latency", {})}
    with tempfile.TemporaryDirectory() as folder:
        _fill(data, given, Path(folder))
    return 0


def _fill(data: dict[str, Any], given: argparse.Namespace, folder: Path) -> None:
    groups: list[tuple[str, Iterable[Case], Sequence[str]]] = []
    if "operators" not in given.skip:
        groups.append(("operators", _operators(given.only, folder), _TARGETS))
    if "models" not in given.skip:
        groups.append(("models", _models(given.shared, given.only, folder), _BIG))
    for kind, cases, names in groups:
        for case in cases:
            for name in names if given.targets is None else given.targets:
                if not _listed(case.name, kind, name):
                    continue
                row = data["rows"].setdefault(f"{kind}/{name}/{case.name}", {})
                if given.again:
                    row.pop("quantkit", None)
                _complete(row, case, TARGETS[name], folder, given.skip)
                print(kind, name, case.name, row, flush=True)
            _save(given.results, data)
            timed = kind == "models" and "latency" not in given.skip
            if timed and (given.again or case.name not in data["latency"]):
                data["latency"][case.name] = _latencies(case, folder)
    write_results(given.results, "coverage", data, _page(data))


def _save(folder: Path, data: Mapping[str, Any]) -> None:
    """Keep what is there: the tables are made at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "coverage.json").write_text(json.dumps(data, indent=1), encoding="utf-8")


def _listed(name: str, kind: str, target: str) -> bool:
    return kind == "models" or name.partition(":")[0] in TARGETS[target].covered


def _operators(only: Sequence[str] | None, folder: Path) -> Iterator[Case]:
    for name in OPERATORS:
        if only and name not in only:
            continue
        path = folder / "operator.onnx"
        onnx.save(operator_model(name), path)
        yield Case(
            name=name,
            model=path,
            calibration=operator_samples(_CALIBRATE, 1),
            evaluation=operator_samples(8 * _JUDGE, 2),
        )


def _models(shared: Path, only: Sequence[str] | None, folder: Path) -> Iterator[Case]:
    zoo = sorted(p.stem for p in (shared / "models" / "zoo").glob("*.onnx"))
    for name in (_CLASSIFIER, _ENCODER, *zoo):
        if only and name not in only:
            continue
        case = _task(shared, name) if name not in zoo else _zoo(shared, name, folder)
        if case is not None:
            yield case


def _task(shared: Path, name: str) -> Case | None:
    sizes = Sizes(images=1, pairs=1, calibration=_CALIBRATE + _JUDGE)
    task = tasks(shared, sizes)[name]()
    if task is None:
        return None
    every = (_CALIBRATE + _JUDGE) // _JUDGE
    return Case(
        name=name,
        model=task.model,
        calibration=[s for i, s in enumerate(task.calibration) if i % every],
        evaluation=task.calibration[::every],
    )


def _zoo(shared: Path, name: str, folder: Path) -> Case:
    script = shared / "zoo" / "inputs.py"
    subprocess.run(
        [sys.executable, str(script), str(folder), name], check=True, capture_output=True
    )

    def read(part: str, count: int) -> list[Feeds]:
        files = sorted((folder / name / part).glob("*.npz"))[:count]
        return [dict(np.load(file)) for file in files]

    return Case(
        name=name,
        model=shared / "models" / "zoo" / f"{name}.onnx",
        calibration=read("calibration", _CALIBRATE),
        evaluation=read("evaluation", _JUDGE),
    )


def _complete(
    row: Row, case: Case, target: Target, folder: Path, skip: Collection[str] = ()
) -> None:
    """Add the tools that are not in the row yet; an error stands in the place of figures."""
    makers: dict[str, Callable[[Case, Target, Path], None]] = {
        "quantkit": _by_quantkit,
        "onnxruntime": _by_onnxruntime,
    }
    missing = [tool for tool in makers if tool not in row and tool not in skip]
    expected = _outputs(case.model, case.evaluation) if missing else []
    for tool in missing:
        path = folder / f"{tool}.onnx"
        try:
            makers[tool](case, target, path)
            row[tool] = _judged(path, case.evaluation, expected)
        except Exception as error:  # noqa: BLE001 - whatever a tool raises is its result
            text = f"{type(error).__name__}: {first_line(error)}".replace(f"{folder}/", "")
            row[tool] = {"error": text[:300]}


def _by_quantkit(case: Case, target: Target, path: Path) -> None:
    quantkit.quantize_static(
        case.model,
        path,
        list(case.calibration),
        target=target.name,
        coverage="all",
        method="minmax",
    )


def _by_onnxruntime(case: Case, target: Target, path: Path) -> None:
    """Quantize with the same types, ranges and granularity; for QNN by onnxruntime's own configuration for it."""
    from onnxruntime import quantization as peer
    from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config

    prepared = path.with_name("prepared.onnx")
    peer.quant_pre_process(str(_modern(case.model, path)), str(prepared), skip_symbolic_shape=True)
    types = {
        "activation_type": peer.QuantType[f"Q{_enum(target.activation.name)}"],
        "weight_type": peer.QuantType[f"Q{_enum(target.weight.name)}"],
    }
    reader = Reader(case.calibration)
    if target.name == "qnn":
        config = get_qnn_qdq_config(str(prepared), reader, per_channel=True, **types)
        reader.rewind()
        peer.quantize(str(prepared), str(path), config)
        return
    options = {
        "ActivationSymmetric": target.symmetric_activations,
        "QuantizeBias": target.bias is not None,
    }
    peer.quantize_static(
        str(prepared),
        str(path),
        reader,
        op_types_to_quantize=sorted(target.covered),
        per_channel=True,
        extra_options=options,
        **types,
    )


def _modern(model: Path, beside: Path) -> Path:
    """Return the model, or a copy of an opset that has scales by channel."""
    found = onnx.load(model)
    if max(o.version for o in found.opset_import if not o.domain) >= _OPSET:
        return model
    path = beside.with_name("modern.onnx")
    onnx.save(onnx.version_converter.convert_version(found, _OPSET), path)
    return path


def _enum(name: str) -> str:
    return name.replace("uint", "UInt").replace("int", "Int")


def _judged(path: Path, samples: Sequence[Feeds], expected: Sequence[Sequence[Any]]) -> Row:
    model = onnx.load(path)
    try:
        onnx.checker.check_model(str(path), full_check=True)
        valid = ""
    except Exception as error:  # noqa: BLE001 - of onnx's many kinds
        valid = first_line(error)[:200]
    found = _outputs(path, samples)
    worst = [
        _likeness(
            np.concatenate([np.ravel(e) for e in want]), np.concatenate([np.ravel(g) for g in got])
        )
        for want, got in zip(zip(*expected, strict=True), zip(*found, strict=True), strict=True)
        if any(np.asarray(e).any() for e in want)
    ]
    counts = Counter(node.op_type for node in model.graph.node)
    row: Row = {"sqnr": round(min(worst), 2), "pairs": [counts[op] for op in _PAIRS]}
    return row | ({"invalid": valid} if valid else {})


def _likeness(expected: Any, found: Any) -> float:
    """Return the SQNR in dB; of integers, which are right or wrong, the share that is wrong in dB."""
    if expected.dtype.kind == "f":
        return sqnr(expected, found)
    return float(-10 * np.log10(max(np.mean(expected != found), 1e-20)))


def _outputs(model: Path, samples: Sequence[Feeds]) -> list[list[Any]]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    run = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"]).run
    return [list(run(None, dict(sample))) for sample in samples]


def _latencies(case: Case, folder: Path) -> Row:
    sessions = {"float": session(case.model)}
    for coverage in ("gain", "all"):
        path = folder / f"{coverage}.onnx"
        try:
            quantkit.quantize_static(case.model, path, list(case.calibration), coverage=coverage)
            sessions[coverage] = session(path)
        except quantkit.QuantkitError as error:
            return {"error": f"{coverage}: {first_line(error)}"[:300]}
    timing = Timing(rounds=60, least=15, budget=30.0)
    found = latency(sessions, case.evaluation[0], timing)
    return {name: {k: v for k, v in each.items() if k != "ms"} for name, each in found.items()}


def _page(data: Mapping[str, Any]) -> str:
    rows: Mapping[str, Row] = {k: r for k, r in data["rows"].items() if len(r) > 1}
    parts = [
        "# Coverage: every listed operator quantized",
        _INTRODUCTION,
        _totals(rows),
    ]
    for kind, title in (("models", "Real models"), ("operators", "Operators")):
        for target in _TARGETS:
            chosen = {
                k.split("/", 2)[2]: r for k, r in rows.items() if k.startswith(f"{kind}/{target}/")
            }
            if chosen:
                parts += [f"## {title}: {target}", _figures(chosen)]
    if data["latency"]:
        parts += ['## Latency on this CPU: "gain" and "all", as a ratio to float', _timed(data)]
    parts.append(describe(data["machine"]))
    return "\n\n".join(parts) + "\n"


def _worse(row: Row) -> bool:
    ours, theirs = row["quantkit"].get("sqnr"), row["onnxruntime"].get("sqnr")
    if ours is None or theirs is None:
        return ours is None
    return bool(theirs > _NOISE and ours < min(theirs, _CLOSE) - _ALLOWED)


def _totals(rows: Mapping[str, Row]) -> str:
    header = [
        "target",
        "models",
        "quantkit valid",
        "onnxruntime fails",
        f"more than {_ALLOWED} dB worse",
    ]
    lines = []
    for target in _TARGETS:
        chosen = [r for k, r in rows.items() if k.split("/")[1] == target]
        valid = sum("error" not in r["quantkit"] and "invalid" not in r["quantkit"] for r in chosen)
        failed = sum("error" in r["onnxruntime"] for r in chosen)
        worse = sum(_worse(r) for r in chosen)
        lines.append([target, *(str(n) for n in (len(chosen), valid, failed, worse))])
    return "\n".join(table(header, lines))


def _figures(rows: Mapping[str, Row]) -> str:
    header = ["", "quantkit dB", "onnxruntime dB", "quantkit Q/DQ", "onnxruntime Q/DQ", "remark"]
    lines = []
    for name, row in rows.items():
        sides = (row["quantkit"], row["onnxruntime"])
        remarks = [f"{t}: {r['error']}" for t, r in row.items() if "error" in r]
        remarks += [f"{t} is invalid: {r['invalid']}" for t, r in row.items() if "invalid" in r]
        lines.append(
            [
                f"**{name}**" if _worse(row) else name,
                *(f"{s['sqnr']:.1f}" if "sqnr" in s else "-" for s in sides),
                *("/".join(map(str, s["pairs"])) if "pairs" in s else "-" for s in sides),
                "; ".join(remarks).replace("|", "\\|"),
            ]
        )
    return "\n".join(table(header, lines))


def _timed(data: Mapping[str, Any]) -> str:
    lines = []
    for name, row in data["latency"].items():
        if "error" in row:
            lines.append([name, row["error"], "", ""])
            continue
        cells = [
            f"{row[c]['ratio']:.2f} ({row[c]['low']:.2f} to {row[c]['high']:.2f})"
            for c in ("gain", "all")
        ]
        lines.append([name, f"{row['float']['median_ms']:.2f}", *cells])
    return "\n".join(table(["model", "float ms", "gain", "all"], lines))


if __name__ == "__main__":
    sys.exit(main())
