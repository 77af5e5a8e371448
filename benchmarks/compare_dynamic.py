"""quantkit and onnxruntime.quantization side by side: dynamic quantization of real models.

Every quantization runs in a fresh process, tools in turn; then every result is compared with the
float model on real data, timed beside it, and its optimized graph is read. Writes
``results/dynamic.json`` (everything) and ``results/dynamic.md`` (made from it).
"""

import argparse
import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
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
    first_line,
    kernels,
    latency,
    machine,
    model_bytes,
    session,
    table,
    write_results,
)
from tasks import Sizes, Task, tasks

_MEMORY_BOUND = 2.5  # quantkit's claim: peak <= 2.5 x file + interpreter
_MB = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """One way to call one tool, as its users would."""

    name: str
    tool: str
    options: Mapping[str, Any]


CONFIGURATIONS = (
    Configuration(name="quantkit QUInt8", tool="quantkit", options={"weight_type": "QUInt8"}),
    Configuration(
        name="quantkit QUInt8, verify off",
        tool="quantkit",
        options={"weight_type": "QUInt8", "verify": False},
    ),
    Configuration(name="quantkit QInt8", tool="quantkit", options={"weight_type": "QInt8"}),
    Configuration(name="onnxruntime QUInt8", tool="onnxruntime", options={"weight_type": "QUInt8"}),
    Configuration(
        name="onnxruntime QUInt8, per channel",
        tool="onnxruntime",
        options={"weight_type": "QUInt8", "per_channel": True},
    ),
    Configuration(name="onnxruntime QInt8", tool="onnxruntime", options={"weight_type": "QInt8"}),
)


def measure_interpreters(repeats: int) -> dict[str, dict[str, float]]:
    """Return what a process takes that imports a tool's call and does nothing."""
    found = {}
    for tool in ("quantkit", "onnxruntime"):
        alone({"do": "import", "tool": tool})  # compiles what was never imported
        reports = [alone({"do": "import", "tool": tool}) for _ in range(repeats)]
        found[tool] = {
            "peak_bytes": float(np.median([r["peak_bytes"] for r in reports])),
            "process_seconds": float(np.median([r["process_seconds"] for r in reports])),
        }
    return found


def quantize_all(model: Path, folder: Path, repeats: int) -> dict[str, dict[str, Any]]:
    """Quantize with every configuration; the files stay in `folder`.

    Where one fails on the model as it is, it is measured on a copy without ``value_info`` (the
    shapes of intermediate values, which a model may hold or not), and the note says so.
    """
    results = quantize_each(CONFIGURATIONS, model, folder, repeats)
    failed = [c for c in CONFIGURATIONS if "error" in results[c.name]]
    if failed:
        proto = onnx.load(model)
        del proto.graph.value_info[:]
        plain = folder / "without_value_info.onnx"
        onnx.save(proto, plain)
        for name, second in quantize_each(failed, plain, folder, repeats).items():
            error = results[name]["error"]
            if "error" not in second:
                second["notes"].insert(0, f"failed on the model as it is ({error}); {_SECOND}")
                results[name] = second
    return results


_SECOND = "these figures are of a copy without value_info"


def quantize_each(
    configurations: Sequence[Configuration], model: Path, folder: Path, repeats: int
) -> dict[str, dict[str, Any]]:
    """Quantize a copy `repeats` times, in an order drawn anew each time.

    A copy, because onnxruntime.quantization writes a temporary file beside its input.
    """
    source = folder / "input" / model.name
    source.parent.mkdir(exist_ok=True)
    shutil.copyfile(model, source)
    runs: dict[str, list[dict[str, Any]]] = {c.name: [] for c in configurations}
    generator = np.random.default_rng(0)
    for _ in range(repeats):
        for i in generator.permutation(len(configurations)):
            chosen = configurations[i]
            report = alone(
                {
                    "do": "quantize",
                    "tool": chosen.tool,
                    "source": str(source),
                    "target": str(target_of(folder, chosen.name)),
                    "options": dict(chosen.options),
                }
            )
            runs[chosen.name].append(report)
    return {name: summary(reports, target_of(folder, name)) for name, reports in runs.items()}


def target_of(folder: Path, name: str) -> Path:
    """Return where a configuration writes its result."""
    return folder / f"{name.replace(', ', '_').replace(' ', '_')}.onnx"


def summary(reports: list[dict[str, Any]], target: Path) -> dict[str, Any]:
    """Return the medians of a configuration's runs, and the runs."""
    failed = [r for r in reports if "error" in r]
    if failed:
        return {"error": failed[0]["error"], "runs": reports}
    return {
        "seconds": float(np.median([r["seconds"] for r in reports])),
        "process_seconds": float(np.median([r["process_seconds"] for r in reports])),
        "peak_bytes": float(np.median([r["peak_bytes"] for r in reports])),
        "bytes": model_bytes(target),
        "sha256": hashlib.sha256(target.read_bytes()).hexdigest(),
        "modes": reports[-1].get("modes"),
        "notes": reports[-1]["notes"],
        "runs": [
            {key: r[key] for key in ("seconds", "cpu_seconds", "process_seconds", "peak_bytes")}
            for r in reports
        ],
    }


def evaluate(task: Task, folder: Path, results: dict[str, Any], timing: Timing) -> dict[str, Any]:
    """Add drift, kernels and latency to `results`; return the float model's own figures."""
    sessions = {"float": session(task.model)}
    reference = task.outputs(sessions["float"])
    for name, result in results.items():
        if "error" in result:
            continue
        path = target_of(folder, name)
        try:
            candidate = session(path)
            result["quality"] = task.metrics(reference, task.outputs(candidate))
            result["kernels"] = kernels(path)
        except Exception as e:  # noqa: BLE001 - a result that does not run is a result
            result["error"] = f"written, but it does not run: {first_line(e)}"
            continue
        sessions[name] = candidate
    timed = {key: latency(sessions, feeds, timing) for key, feeds in task.feeds.items()}
    for name in sessions:
        if name != "float":
            results[name]["latency"] = {key: timed[key][name] for key in timed}
    return {
        "bytes": model_bytes(task.model),
        "quality": task.metrics(reference, reference),
        "latency": {key: timed[key]["float"] for key in timed},
    }


def measure_task(task: Task, repeats: int, timing: Timing) -> dict[str, Any]:
    """Measure one model with all configurations."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        print(f"{task.name}: quantizing", flush=True)
        results = quantize_all(task.model, folder, repeats)
        print(f"{task.name}: comparing and timing", flush=True)
        return {"float": evaluate(task, folder, results, timing), "configurations": results}


def markdown(data: Mapping[str, Any]) -> str:
    """Return the report made from the JSON."""
    settings = data["settings"]
    lines = [
        "# Dynamic quantization: quantkit and onnxruntime.quantization",
        "",
        describe(data["machine"]),
        "",
        (
            f"Each quantization ran in its own process, tools in turn, median of {settings['repeats']}. "
            "*Call* is the call alone, imports done; *process* is the whole process. *Peak over import* "
            "is the peak memory less that of a process that only imports the call "
            f"(quantkit {data['interpreter']['quantkit']['peak_bytes'] / _MB:.0f} MB, "
            f"onnxruntime {data['interpreter']['onnxruntime']['peak_bytes'] / _MB:.0f} MB), in float "
            "file sizes. *Drop* is to float, with its 95 % bootstrap interval. *Latency* is the ratio to float of the medians, with its 95 % bootstrap "
            "interval; all models in turn in one process, threads that do not spin. *Int8 nodes* are "
            "those of the graph that onnxruntime optimized; *decoded each run* are weights turned "
            "back into float at every run. Where a tool has no ConvInteger, Conv weights are stored "
            "in 8 bits and computed in float: its drift is then of the weights only, while "
            "ConvInteger quantizes activations too."
        ),
    ]
    if _same_files(data):
        lines += ["", "quantkit's two QUInt8 files are identical: their difference is noise."]
    for name, model in data["models"].items():
        lines += ["", f"## {name}", "", *_quantizing(data, model), "", *_result(model)]
        lines += _failures(model)
    lines += ["", "## Memory", "", *_memory(data)]
    return "\n".join(lines) + "\n"


def _same_files(data: Mapping[str, Any]) -> bool:
    """Return whether verification left the file the same, in every model."""
    pairs = [
        [model["configurations"][c.name].get("sha256") for c in CONFIGURATIONS[:2]]
        for model in data["models"].values()
    ]
    return bool(pairs) and all(a is not None and a == b for a, b in pairs)


def _quantizing(data: Mapping[str, Any], model: Mapping[str, Any]) -> list[str]:
    nbytes = model["float"]["bytes"]
    rows = [["float32", "", "", "", "", f"{nbytes / _MB:.2f} MB", "100 %"]]
    for name, result in model["configurations"].items():
        if "seconds" not in result:
            rows.append([name, *["failed"] * 6])
            continue
        bare = data["interpreter"][_tool(name)]["peak_bytes"]
        rows.append(
            [
                name,
                f"{result['seconds']:.2f} s",
                f"{result['process_seconds']:.2f} s",
                f"{result['peak_bytes'] / _MB:.0f} MB",
                f"{(result['peak_bytes'] - bare) / nbytes:.2f} x",
                f"{result['bytes'] / _MB:.2f} MB",
                f"{100 * result['bytes'] / nbytes:.1f} %",
            ]
        )
    header = ["", "call", "process", "peak", "peak over import", "size", "of float"]
    return table(header, rows)


def _tool(name: str) -> str:
    return next(c.tool for c in CONFIGURATIONS if c.name == name)


_FORMATS = {
    "cosine": ("cosine to float", "{:.5f}"),
    "cosine_min": ("worst cosine", "{:.4f}"),
    "spearman": ("Spearman", "{:.4f}"),
    "spearman_drop": ("drop", "{:+.4f}"),
    "top1": ("top-1", "{:.2%}"),
    "top1_drop": ("drop", "{:+.2%}"),
    "agreement": ("same answer as float", "{:.2%}"),
    "sqnr_db": ("SQNR", "{:.1f} dB"),
}


def _result(model: Mapping[str, Any]) -> list[str]:
    base = model["float"]
    keys, timed = [key for key in base["quality"] if key in _FORMATS], list(base["latency"])
    header = [""] + [_FORMATS[key][0] for key in keys] + [f"latency, {key}" for key in timed]
    header += ["int8 nodes", "decoded each run"]
    first = ["float32"] + [_own(base["quality"], key) for key in keys]
    first += [f"{base['latency'][key]['median_ms']:.2f} ms" for key in timed] + ["", ""]
    rows = [first]
    for name, result in model["configurations"].items():
        if "latency" not in result:
            rows.append([name, *["failed"] * (len(header) - 1)])
            continue
        row = [name] + [shown(result["quality"], key) for key in keys]
        row += [interval(result["latency"][key]) for key in timed]
        row += [_counts(result["kernels"]["int8"]), _counts(result["kernels"]["decoded"])]
        rows.append(row)
    return table(header, rows)


def _own(quality: Mapping[str, float], key: str) -> str:
    """The float model's figure, if it is one of its own and no distance to itself."""
    return shown(quality, key) if key in {"top1", "spearman"} else ""


def shown(quality: Mapping[str, float], key: str) -> str:
    """Return a figure as a table has it, a drop with its interval."""
    text = _FORMATS[key][1].format(quality[key])
    if not key.endswith("_drop"):
        return text
    low, high = (_FORMATS[key][1].format(quality[f"{key}_{end}"]) for end in ("low", "high"))
    return f"{text} [{low}, {high}]"


def interval(timed: Mapping[str, float]) -> str:
    """Return a ratio with its interval."""
    return f"{timed['ratio']:.2f} [{timed['low']:.2f}, {timed['high']:.2f}]"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {op}" for op, n in sorted(counts.items())) or "none"


def _failures(model: Mapping[str, Any]) -> list[str]:
    lines = []
    for name, result in model["configurations"].items():
        if "error" in result:
            lines.append(f"* {name} failed: {result['error']}")
        if "verify off" not in name:
            lines += [f"* {name}: {note}" for note in result.get("notes", ())]
    return ["", *lines] if lines else []


def _memory(data: Mapping[str, Any]) -> list[str]:
    """Compare quantkit's default call with its memory bound."""
    bare = data["interpreter"]["quantkit"]["peak_bytes"]
    rows = []
    for name, model in data["models"].items():
        result = model["configurations"][CONFIGURATIONS[0].name]
        if "peak_bytes" not in result:
            continue
        bound = _MEMORY_BOUND * model["float"]["bytes"] + bare
        rows.append(
            [
                name,
                f"{model['float']['bytes'] / _MB:.1f} MB",
                f"{result['peak_bytes'] / _MB:.0f} MB",
                f"{bound / _MB:.0f} MB",
                "yes" if result["peak_bytes"] <= bound else "no",
            ]
        )
    header = [CONFIGURATIONS[0].name, "file", "peak", "2.5 x file + interpreter", "within"]
    return table(header, rows)


def arguments() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5, help="quantizations a configuration")
    parser.add_argument("--rounds", type=int, default=100, help="runs timed a model")
    parser.add_argument("--images", type=int, default=200, help="ImageNet images")
    parser.add_argument("--small", type=int, default=2000, help="CIFAR and Fashion images")
    parser.add_argument("--pairs", type=int, default=1500, help="sentence pairs")
    parser.add_argument("--models", nargs="*", help="only these")
    parser.add_argument("--shared", type=Path, default=SHARED, help="folder of models and data")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--render", action="store_true", help="make the table anew from the JSON")
    return parser.parse_args()


def main() -> None:
    """Measure and write."""
    given = arguments()
    if given.render:
        data = json.loads((given.out / "dynamic.json").read_text(encoding="utf-8"))
        write_results(given.out, "dynamic", data, markdown(data))
        return
    sizes = Sizes(images=given.images, small=given.small, pairs=given.pairs)
    timing = Timing(rounds=given.rounds)
    data = {
        "machine": machine(),
        "settings": {"repeats": given.repeats, "timing": asdict(timing), "sizes": asdict(sizes)},
        "interpreter": measure_interpreters(given.repeats),
        "models": {},
    }
    for name, load in tasks(given.shared, sizes).items():
        task = None if given.models and name not in given.models else load()
        if task is not None:
            data["models"][name] = measure_task(task, given.repeats, timing)
    write_results(given.out, "dynamic", data, markdown(data))


if __name__ == "__main__":
    main()
