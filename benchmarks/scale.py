"""What quantkit takes for a model over 2 GB and for graphs of many nodes.

Every quantization runs in a process of its own. The large result is then loaded and run in
another process and compared with float. With ``--peer``, onnxruntime.quantization does the same
(minutes, 8 GB), on the large model and on the smallest graph. Several GB of temporary files are
written to ``--work`` and removed. Writes ``results/scale.json`` and ``results/scale.md``.
"""

import argparse
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from measure import (
    RESULTS,
    alone,
    describe,
    machine,
    model_bytes,
    sqnr,
    table,
    write_results,
)
from synthetic import big_model, long_graph

_GB = 1e9
_MB = 1e6
_NODES = (5000, 10000, 20000)


def measure_big(work: Path | None, *, layers: int, peer: bool) -> dict[str, Any]:
    """Quantize the large model, then load and run float and the results."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=work) as temporary:
        folder = Path(temporary)
        source = big_model(folder / "big.onnx", layers=layers)
        found["float"] = {"bytes": model_bytes(source), "run": _run(source, folder / "float.npy")}
        found["import"] = alone({"do": "import", "tool": "quantkit"})
        tools: dict[str, dict[str, Any]] = {"quantkit": {}}
        if peer:
            tools["onnxruntime"] = {"use_external_data_format": True}
        for tool, options in tools.items():
            print(f"large model: {tool}", flush=True)
            target = folder / f"{tool}.onnx"
            found[tool] = _quantize(tool, source, target, options)
            if "error" in found[tool]:
                continue
            found[tool]["bytes"] = model_bytes(target)
            found[tool]["run"] = _run(target, folder / f"{tool}.npy")
            found[tool]["sqnr_db"] = _distance(folder / "float.npy", folder / f"{tool}.npy")
            for path in folder.glob(f"{tool}.*"):
                path.unlink()
    return found


def _quantize(tool: str, source: Path, target: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    job = {"do": "quantize", "tool": tool, "source": str(source), "target": str(target)}
    return alone({**job, "options": dict(options)})


def _run(model: Path, output: Path) -> dict[str, Any]:
    return alone({"do": "run", "source": str(model), "target": str(output)})


def _distance(reference: Path, output: Path) -> float | None:
    if not (reference.is_file() and output.is_file()):
        return None
    expected = np.load(reference)
    # A constant output agrees with anything: no evidence.
    return sqnr(expected, np.load(output)) if expected.std() > 0 else None


def measure_long(
    work: Path | None, counts: list[int], repeats: int, *, peer: bool
) -> dict[str, dict[str, Any]]:
    """Quantize graphs of more and more nodes, with verification and without."""
    found: dict[str, dict[str, Any]] = {}
    ways: dict[str, tuple[str, dict[str, Any]]] = {
        "quantkit": ("quantkit", {}),
        "quantkit, verify off": ("quantkit", {"verify": False}),
        "quantkit, in integers": ("quantkit", {"nodes_to_quantize": ["mm*"]}),
        "onnxruntime": ("onnxruntime", {}),
    }
    with tempfile.TemporaryDirectory(dir=work) as temporary:
        folder = Path(temporary)
        for count in counts:
            print(f"{count} nodes", flush=True)
            source = long_graph(folder / f"{count}.onnx", count)
            found[str(count)] = {"bytes": model_bytes(source)}
            for name, (tool, options) in ways.items():
                if tool == "onnxruntime" and not (peer and count == min(counts)):
                    continue
                target = folder / "result.onnx"
                runs = [_quantize(tool, source, target, options) for _ in range(repeats)]
                found[str(count)][name] = _median(runs)
            source.unlink()
    return found


def _median(runs: list[dict[str, Any]]) -> dict[str, Any]:
    failed = [run for run in runs if "error" in run]
    if failed:
        return {"error": failed[0]["error"]}
    keys = ("seconds", "cpu_seconds", "process_seconds", "peak_bytes")
    medians: dict[str, Any] = {key: float(np.median([run[key] for run in runs])) for key in keys}
    medians["modes"] = runs[0].get("modes")
    return medians | {"runs": [{key: run[key] for key in keys} for run in runs]}


def markdown(data: Mapping[str, Any]) -> str:
    """Return the report made from the JSON."""
    lines = ["# Scale", "", describe(data["machine"])]
    if data["big"]:
        lines += ["", *_big_table(data["big"])]
    if data["long"]:
        lines += ["", *_long_table(data["long"], data["settings"]["repeats"])]
    return "\n".join(lines) + "\n"


def _big_table(big: Mapping[str, Any]) -> list[str]:
    nbytes = big["float"]["bytes"]
    rows = [["float32", "", "", "", f"{nbytes / _GB:.2f} GB", _loaded(big["float"]["run"]), ""]]
    notes = []
    for tool in ("quantkit", "onnxruntime"):
        found = big.get(tool)
        if found is None:
            continue
        if "error" in found:
            rows.append([tool, *["failed"] * 6])
            notes.append(f"* {tool} failed: {found['error']}")
            continue
        distance = found["sqnr_db"]
        rows.append(
            [
                tool,
                f"{found['seconds']:.1f} s",
                f"{found['peak_bytes'] / _MB:.0f} MB",
                f"{found['peak_bytes'] / nbytes:.2f} x",
                f"{found['bytes'] / _GB:.2f} GB",
                _loaded(found["run"]),
                "" if distance is None else f"{distance:.1f} dB",
            ]
        )
        notes += [f"* {tool}: {note}" for note in found["notes"]]
    header = ["", "call", "peak memory", "of the float file", "size", "loads and runs", "SQNR"]
    title = f"## A model of {nbytes / _GB:.1f} GB with external data"
    bare = f"A process that only imports quantkit takes {big['import']['peak_bytes'] / _MB:.0f} MB."
    return [title, "", *table(header, rows), "", bare, *notes]


def _loaded(run: Mapping[str, Any]) -> str:
    if "error" in run:
        return f"no: {run['error']}"
    finite = "" if run["finite"] else ", output not finite"
    return f"yes, {run['load_seconds']:.1f} s, {run['peak_bytes'] / _MB:.0f} MB{finite}"


def _long_table(found: Mapping[str, Any], repeats: int) -> list[str]:
    names = ("quantkit", "quantkit, verify off", "quantkit, in integers", "onnxruntime")
    rows, last = [], None
    for count, row in found.items():
        shown = [f"{int(count):,}", f"{row['bytes'] / _MB:.1f} MB"]
        for name in names:
            shown += _cells(row.get(name), last.get(name) if last else None)
        rows.append(shown)
        last = row
    header = ["nodes", "float file"]
    for name in names:
        header += [name, "times the row above", "peak"]
    title = "## Graphs of many nodes"
    text = (
        f"Seconds of the call, median of {repeats}. By default quantkit only stores these 64 x 64 "
        "weights in 8 bits; onnxruntime.quantization computes all of them in integers, so its like "
        "is *quantkit, in integers* (nodes_to_quantize), verified as by default."
    )
    return [title, "", text, "", *table(header, rows)]


def _cells(now: Mapping[str, Any] | None, before: Mapping[str, Any] | None) -> list[str]:
    if now is None:
        return ["", "", ""]
    if "error" in now:
        return ["failed", "", ""]
    grown = f"{now['seconds'] / before['seconds']:.2f}" if before and "seconds" in before else ""
    return [f"{now['seconds']:.2f} s", grown, f"{now['peak_bytes'] / _MB:.0f} MB"]


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3, help="quantizations a graph")
    parser.add_argument("--layers", type=int, default=25, help="of 105 MB each; 0: no large model")
    parser.add_argument("--nodes", type=int, nargs="*", default=list(_NODES), help="graph sizes")
    parser.add_argument("--peer", action="store_true", help="run onnxruntime.quantization too")
    parser.add_argument("--work", type=Path, help="where temporary files go; not a RAM disk")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    given = parser.parse_args()
    data: dict[str, Any] = {
        "machine": machine(),
        "settings": {"repeats": given.repeats, "layers": given.layers, "peer": given.peer},
        "big": {},
        "long": {},
    }
    if given.nodes:
        data["long"] = measure_long(given.work, given.nodes, given.repeats, peer=given.peer)
    if given.layers:
        data["big"] = measure_big(given.work, layers=given.layers, peer=given.peer)
    write_results(given.out, "scale", data, markdown(data))


if __name__ == "__main__":
    main()
