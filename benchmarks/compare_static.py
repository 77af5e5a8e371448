"""quantkit, onnxruntime.quantization and NNCF side by side: static quantization of real models.

Everybody calibrates on the same samples. Every quantization runs in a fresh process; then every
result is compared with the float model on other data, timed beside it, and its optimized graph is
read. Writes ``results/static.json`` (everything) and ``results/static.md`` (made from it).

NNCF has an environment of its own: give its interpreter as ``--nncf-python`` or in NNCF_PYTHON.
With ``--work`` the files of the peers are kept, and made only once.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from compare_dynamic import interval, shown, target_of
from measure import (
    RESULTS,
    SHARED,
    Timing,
    alone,
    describe,
    first_line,
    latency,
    machine,
    model_bytes,
    session,
    table,
    write_results,
)
from static_jobs import save_samples
from static_rows import GROUPS, Row, rows_of
from tasks import Sizes, Task, tasks

from quantkit.runtime.kernels import fusion_of

Report = dict[str, Any]

_MODELS = ("efficientnet_lite0", "mobilenet_v2", "resnet20_cifar10", "all-MiniLM-L6-v2")
_JOBS = Path(__file__).resolve().parent / "static_jobs.py"


def made(job: Report, target: Path, python: str, *, kept: bool) -> Report:
    """Do a job that writes `target`; if `kept`, only where this very job has not been done before."""
    note = target.with_suffix(".json")
    wanted = {key: job[key] for key in ("do", "options", "calibration")}
    if kept and target.is_file() and note.is_file():
        before: Report = json.loads(note.read_text(encoding="utf-8"))
        if before["job"] == wanted:
            return dict(before["report"])
    target.unlink(missing_ok=True)
    report = alone(job | {"target": str(target)}, worker=_JOBS, python=python)
    if "error" not in report:
        note.write_text(json.dumps({"job": wanted, "report": report}), encoding="utf-8")
    return report


def make_all(
    task: Task, rows: Sequence[Row], folder: Path, pythons: Mapping[str, str]
) -> dict[str, Report]:
    """Write every row's file into `folder`; return what each took, or its error."""
    folder.mkdir(parents=True, exist_ok=True)
    samples = folder / "samples.npz"
    save_samples(samples, task.calibration)
    prepared = folder / "prepared.onnx"
    first = {"do": "prepare", "source": str(task.model), "options": {}, "calibration": 0}
    if "error" in (report := made(first, prepared, pythons["ort"], kept=True)):
        return {row.name: report for row in rows}
    found = {}
    for row in rows:
        source = task.model if row.as_it_is else prepared
        job: Report = {"do": row.job, "source": str(source), "options": dict(row.options)}
        job |= {"samples": str(samples), "calibration": len(task.calibration)}
        target, kept = target_of(folder, row.name), row.group != "quantkit"
        found[row.name] = made(job, target, pythons[row.group], kept=kept)
        print(f"  {row.name}: {_took(found[row.name])}", flush=True)
    return found


def _took(report: Report) -> str:
    return f"{report['seconds']:.0f} s" if "seconds" in report else f"failed: {report['error']}"


def evaluate(task: Task, folder: Path, results: dict[str, Report], timing: Timing) -> Report:
    """Add quality, kernels, size and latency to `results`; return the float model's own figures."""
    sessions = {"float": session(task.model)}
    reference = task.outputs(sessions["float"])
    for name, result in results.items():
        if "error" in result:
            continue
        path = target_of(folder, name)
        try:
            candidate = session(path)
            result["quality"] = task.metrics(reference, task.outputs(candidate))
            result["kernels"] = kernels_of(path)
        except Exception as e:  # noqa: BLE001 - a result that does not run is a result
            result["error"] = f"written, but it does not run: {first_line(e)}"
            continue
        result["bytes"] = model_bytes(path)
        sessions[name] = candidate
        print(f"  {name}: {result['quality']['sqnr_db']:.1f} dB", flush=True)
    key, feeds = next(iter(task.feeds.items()))
    timed = latency(sessions, feeds, timing)
    for name in sessions:
        if name != "float":
            results[name]["latency"] = timed[name]
    return {
        "bytes": model_bytes(task.model),
        "quality": task.metrics(reference, reference),
        "kernels": kernels_of(task.model),
        "latency": timed["float"],
        "latency_of": key,
    }


def kernels_of(model: Path) -> Report:
    """Return what onnxruntime runs, as plain data."""
    fusion = fusion_of(model)
    return {
        "int8_products": fusion.integer_count,
        "products": fusion.product_count,
        "integer": dict(fusion.integer),
        "float": dict(fusion.float),
        "conversions": dict(fusion.conversions),
        "float_products": list(fusion.float_products),
    }


_TEXT = """\
All calibrate on the same {calibration} samples: images that are not judged (of CIFAR-10, where there are no others, images
that are), texts that are not among the pairs judged. onnxruntime.quantization and NNCF get the model after
onnxruntime's own preparation (opset 17, folded BatchNormalization), quantkit gets it as it is. *Drop* is to float, with its
95 % bootstrap interval. *SQNR* is that of the outputs, for the encoder of the pooled and normalized embeddings. *Latency* is
the ratio to float of the medians, with its 95 % bootstrap interval; all models in turn in one process, threads that do not
spin. *int8* are products (Conv, MatMul, Gemm) that onnxruntime computes in integers, of all, in the graph that it optimized;
*Q/DQ left* are conversions in that graph. *Made in* is the call alone, on a machine that was not idle."""


def markdown(data: Mapping[str, Any]) -> str:
    """Return the report made from the JSON."""
    lines = ["# Static quantization: quantkit, onnxruntime.quantization, NNCF", ""]
    rows = [row for model in data["models"].values() for row in model["rows"].values()]
    nncf = {f" NNCF {row['version']}." for row in rows if "version" in row}
    lines += [describe(data["machine"]) + "".join(nncf), "", _TEXT.format(**data["settings"])]
    for name, model in data["models"].items():
        lines += ["", f"## {name}", "", *_result(model)]
        errors = {n: r["error"] for n, r in model["rows"].items() if "error" in r}
        lines += [""] * bool(errors) + [f"* {n} failed: {e}" for n, e in errors.items()]
    return "\n".join(lines) + "\n"


def _result(model: Mapping[str, Any]) -> list[str]:
    base = model["float"]
    figure = "top1" if "top1" in base["quality"] else "spearman"
    header = ["", {"top1": "top-1", "spearman": "Spearman"}[figure], "drop", "SQNR"]
    header += [f"latency, {base['latency_of']}", "int8", "Q/DQ left", "size", "made in"]
    total = f"0 of {base['kernels']['products']}"
    own = [shown(base["quality"], figure), "", "", f"{base['latency']['median_ms']:.2f} ms"]
    rows = [["float32", *own, total, "0", f"{base['bytes'] / 1e6:.2f} MB", ""]]
    for name, row in model["rows"].items():
        if "latency" not in row:
            rows.append([name, *["failed"] * (len(header) - 1)])
            continue
        quality = [shown(row["quality"], k) for k in (figure, f"{figure}_drop", "sqnr_db")]
        kernels = row["kernels"]
        rows.append(
            [
                name,
                *quality,
                interval(row["latency"]),
                f"{kernels['int8_products']} of {kernels['products']}",
                str(sum(kernels["conversions"].values())),
                f"{100 * row['bytes'] / base['bytes']:.1f} %",
                f"{row['seconds']:.0f} s",
            ]
        )
    return table(header, rows)


def arguments() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="*", default=_MODELS, choices=_MODELS)
    parser.add_argument(
        "--rows", default=",".join(GROUPS), help="of these tools: quantkit,ort,nncf"
    )
    parser.add_argument("--rounds", type=int, default=100, help="runs timed a model")
    parser.add_argument("--calibration", type=int, default=128, help="samples to calibrate on")
    parser.add_argument("--small", type=int, default=10000, help="CIFAR images judged")
    parser.add_argument("--pairs", type=int, default=1500, help="sentence pairs judged")
    parser.add_argument("--nncf-python", default=os.environ.get("NNCF_PYTHON"), help="interpreter")
    parser.add_argument("--work", type=Path, help="folder that keeps the peers' files")
    parser.add_argument("--make-only", action="store_true", help="fill --work and measure nothing")
    parser.add_argument("--shared", type=Path, default=SHARED, help="folder of models and data")
    parser.add_argument("--out", type=Path, default=RESULTS / "static", help="without a suffix")
    parser.add_argument("--render", action="store_true", help="make the table anew from the JSON")
    return parser.parse_args()


def measure(given: argparse.Namespace, work: Path) -> Report:
    """Make and measure all that was asked for."""
    groups = set(given.rows.split(","))
    if "nncf" in groups and not given.nncf_python:
        print("NNCF is left out: give its interpreter as --nncf-python or in NNCF_PYTHON")
        groups.remove("nncf")
    pythons = {"quantkit": sys.executable, "ort": sys.executable, "nncf": given.nncf_python}
    # Of ImageNet all that calibration leaves is judged.
    counts = {"small": given.small, "pairs": given.pairs, "calibration": given.calibration}
    sizes, timing = Sizes(images=10**6, **counts), Timing(rounds=given.rounds)
    data: Report = {"machine": machine(), "settings": counts | asdict(timing), "models": {}}
    for name in given.models:
        task = tasks(given.shared, sizes)[name]()
        if task is None:
            continue
        print(name, flush=True)
        rows = [row for row in rows_of(name) if row.group in groups]
        results = make_all(task, rows, work / name, pythons)
        if given.make_only:
            continue
        base = evaluate(task, work / name, results, timing)
        for result in (r for r in results.values() if "error" in r):
            # Messages may hold this machine's folders.
            result["error"] = result["error"].replace(f"{work / name}/", "")
        data["models"][name] = {"float": base, "rows": results}
    return data


def main() -> None:
    """Measure and write."""
    given = arguments()
    if given.render:
        data = json.loads(given.out.with_suffix(".json").read_text(encoding="utf-8"))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            data = measure(given, given.work or Path(temporary))
    if not given.make_only:
        write_results(given.out.parent, given.out.name, data, markdown(data))


if __name__ == "__main__":
    main()
