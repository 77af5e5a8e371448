"""What calibration takes beside plain inference and onnxruntime's calibrator, and what thinning moves.

Every run is a fresh process of this script (``--worker``) that times itself after its imports, the ways
in turn. Writes ``results/calibrate.json`` (everything) and ``results/calibrate.md`` (made from it).
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from measure import RESULTS, ROOT, SHARED, describe, machine, table, write_results
from worker import peak_bytes

from quantkit import calibrate
from quantkit.calibration import CalibratorOf
from quantkit.calibration.collect import CalibrateOptions
from quantkit.data import InputSpec, arrays, images, open_data, order  # noqa: F401 - not to be timed
from quantkit.pipeline.calibrate import calibrate_model
from quantkit.settings import DataSettings, ImageSettings

Report = dict[str, Any]

_IMAGES: dict[str, dict[str, Any]] = {
    "efficientnet_lite0": {"mean": (127.0,), "std": (128.0,)},
    "mobilenet_v2": {"preset": "imagenet"},
}
_SAMPLES = (10000, 20000, 50000, 100000)
_MB = 1e6
_GLANCE = 0.05  # seconds between two looks at the memory
_SHARE, _PROBE, _FEWER = (
    0.6,
    8,
    32,
)  # the peer: of free memory; images to learn its need; if too much
_WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("plain", {}),
    "quantkit": ("call", {}),
    "plain, images read before": ("plain", {"read_first": True}),
    "quantkit, stages timed": ("stages", {}),
    "quantkit, every value": ("stages", {"every_value": True}),
}


def settings_of(job: Report) -> DataSettings:
    """Return how a job's samples are prepared, and which."""
    image = ImageSettings(**_IMAGES.get(Path(job["model"]).stem, {}))
    batch, seed = job.get("batch", 1), job.get("seed", 0)
    return DataSettings(limit=job["images"], batch=batch, seed=seed, image=image)


def feeds_of(model: Any, job: Report) -> Iterator[dict[str, Any]]:
    """Read the samples that quantkit takes, with its reader, in its order."""
    i = model.get_inputs()[0]
    shape = tuple(n if isinstance(n, int) else None for n in i.shape)
    inputs = [InputSpec(name=i.name, dtype=np.dtype(np.float32), shape=shape)]
    samples: Any = open_data(job["data"], inputs, settings_of(job))
    for number in order(len(samples), limit=job["images"], shuffle=True):
        yield dict(samples[int(number)].feeds)


def plain(job: Report) -> Report:
    """Run the model as anybody would; ``read_first`` times the runs alone."""
    begin = time.perf_counter()
    model = ort.InferenceSession(job["model"], providers=["CPUExecutionProvider"])
    feeds: Any = feeds_of(model, job)
    if job.get("read_first"):
        feeds = list(feeds)
        begin = time.perf_counter()
    for one in feeds:
        model.run(None, one)
    return {"seconds": time.perf_counter() - begin}


def call(job: Report) -> Report:
    """Make the public call and take the ranges."""
    begin = time.perf_counter()
    settings, limit = settings_of(job), job["images"]
    found = calibrate(
        job["model"], job["data"], method="percentile", settings=settings, limit=limit
    )
    found.ranges()
    return {"seconds": time.perf_counter() - begin}


def stages(job: Report) -> Report:
    """Calibrate below the public call: stages timed, every value if asked, ranges returned."""
    at: dict[str, float] = {}

    def note(text: str) -> None:
        at[text] = time.perf_counter()

    rest: dict[str, Any] = dict.fromkeys(("described", "resumed", "tick"), id)
    clock: Any = SimpleNamespace(stage=note, start=lambda _: note("start"), **rest)
    ask = CalibratorOf(name=job.get("method", "percentile"))
    options = CalibrateOptions(method=ask, every_value=job.get("every_value", False))
    begin = time.perf_counter()
    found = calibrate_model(job["model"], job["data"], None, options, settings_of(job), clock)
    end = time.perf_counter()
    tensors = found.header["audit"]["tensors"]
    return {
        "seconds": end - begin,
        "before_audit": at["Auditing"] - begin,
        "observing": at["Auditing"] - at["start"],
        "ranges": {t["tensor"]: t["ranges"] for t in tensors},
        "split_half": [t["split_half"] for t in tensors],
        "counted": sum(t["counted"] for t in tensors) / sum(t["seen"] for t in tensors),
    }


def peer(job: Report) -> Report:
    """Calibrate a copy with onnxruntime (it writes beside its input), all tensors or the given ones."""
    from onnxruntime.quantization import calibrate as theirs

    select = theirs.CalibraterBase.select_tensors_to_calibrate

    def only(self: Any, model: Any) -> Any:
        found, infos = select(self, model)
        return found & set(job["tensors"] or found), infos

    theirs.CalibraterBase.select_tensors_to_calibrate = only
    with tempfile.TemporaryDirectory() as folder:
        copy = str(shutil.copyfile(job["model"], Path(folder) / "model.onnx"))
        begin, method = time.perf_counter(), theirs.CalibrationMethod.Percentile
        made = theirs.create_calibrator(copy, None, f"{folder}/aug.onnx", calibrate_method=method)
        bare, feeds = peak_bytes(), feeds_of(made.infer_session, job)
        made.collect_data(SimpleNamespace(get_next=lambda: next(feeds, None)))
        tensors = len(made.compute_data().data)
        seconds = time.perf_counter() - begin
    return {"seconds": seconds, "bare": bare, "peak": peak_bytes(), "tensors": tensors}


def spawn(do: str, job: Report, *, sampled: bool = False, **more: Any) -> Report:
    """Do a job in a fresh process; `sampled` adds the ``peak`` memory of it and its children."""
    command = [sys.executable, __file__, "--worker", json.dumps({"do": do, **job, **more})]
    pipe, peak = subprocess.PIPE, 0
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=ROOT) as process:
        while True:
            try:
                output, errors = process.communicate(timeout=_GLANCE if sampled else None)
                break
            except subprocess.TimeoutExpired:
                peak = max(peak, tree_bytes(process.pid))
    if process.returncode:
        error = f"exit code {process.returncode}: {errors.strip()[-500:]}"
        return {"error": error} if do == "peer" else sys.exit(error)
    report: Report = json.loads(output.strip().splitlines()[-1])
    return report | {"peak": peak, "samples": job["images"]} if sampled else report


def tree_bytes(pid: int) -> int:
    """Return the PSS of a process and all below it: memory that they share counts once."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8")
        tasks = list(Path(f"/proc/{pid}/task").glob("*/children"))
        children = [int(c) for t in tasks for c in t.read_text(encoding="utf-8").split()]
    except OSError:  # it has ended
        return 0
    own = re.search(r"^Pss:\s*(\d+) kB", text, re.MULTILINE)
    return (int(own.group(1)) * 1024 if own else 0) + sum(tree_bytes(c) for c in children)


def measure_time(job: Report, rounds: int) -> dict[str, list[Report]]:
    """Run every way once a round; the first round, on two images, fills caches and is not kept."""
    found: dict[str, list[Report]] = {name: [] for name in _WAYS}
    for turn in range(rounds + 1):
        for name, (do, more) in _WAYS.items():
            report = spawn(do, job if turn else job | {"images": 2}, **more)
            found[name] += [{k: v for k, v in report.items() if isinstance(v, float)}] * bool(turn)
    return found


def measure_peer(job: Report, tensors: list[str]) -> Report:
    """Run onnxruntime's calibrator once, on fewer images if its memory would not do."""
    few = min(_PROBE, job["images"])
    probe = spawn("peer", job | {"images": few, "tensors": tensors})
    if "error" in probe:
        return probe
    memory = Path("/proc/meminfo").read_text(encoding="utf-8")
    free = 1024 * int(memory.partition("MemAvailable:")[2].split()[0])
    need = probe["bare"] + (probe["peak"] - probe["bare"]) / few * job["images"]
    count = job["images"] if need <= _SHARE * free else min(_FEWER, job["images"])
    report = spawn("peer", job | {"images": count, "tensors": tensors})
    return report | {"images": count, "need": need, "available": free}


def measure_thinning(job: Report) -> dict[str, Any]:
    """Compare ranges: some values or all of the same images, other images, the audit's two halves."""
    every = spawn("stages", job, every_value=True)["ranges"]
    other = spawn("stages", job, seed=1)["ranges"]
    found: dict[str, Any] = {"tensors": list(every), "methods": {}}
    for method in ("percentile", "entropy", "mse"):
        some = spawn("stages", job, method=method)
        found["counted"] = some["counted"]
        # All as shares of the same width, that of the default's range, as the audit's.
        own, *rest = (
            np.array([r[method] for r in x.values()]) for x in (some["ranges"], every, other)
        )
        width = np.maximum(own[:, 1] - own[:, 0], np.finfo(np.float32).tiny)
        moved, redrawn = (np.abs(r - own).max(axis=1) / width for r in rest)
        parts = {"thinned": moved, "other images": redrawn, "split half": some["split_half"]}
        found["methods"][method] = {
            **{k: [*np.quantile(v, (0.5, 0.9, 1.0)).tolist()] for k, v in parts.items()},
            "thinning moved more": int((moved > redrawn).sum()),
        }
    return found


def measure_scale(counts: Sequence[int]) -> list[Report]:
    """Calibrate three Gemm with Relu on very many small samples."""
    layers = "".join(f"g{i} = Gemm(y{i}, w{i}) y{i + 1} = Relu(g{i})\n" for i in range(3))
    head = '<ir_version: 8, opset_import: ["" : 17]> mlp (float[N,64] y0) => (float[N,64] y3)'
    mlp, random = onnx.parser.parse_model(f"{head} {{ {layers} }}"), np.random.default_rng(0)
    for i, (n, m) in enumerate(((64, 128), (128, 128), (128, 64))):
        weight = random.standard_normal((n, m), np.float32) / np.float32(np.sqrt(n / 2))
        mlp.graph.initializer.append(onnx.numpy_helper.from_array(weight, f"w{i}"))
    with tempfile.TemporaryDirectory() as folder:
        model, data = f"{folder}/mlp.onnx", f"{folder}/x.npy"
        onnx.save(mlp, model)
        np.save(data, random.standard_normal((max(counts), 64), np.float32))
        jobs = [{"model": model, "data": data, "images": n, "batch": 64} for n in counts]
        return [spawn("call", job, sampled=True) for job in jobs]


_TEXT = """\
Fresh processes in turn, timed after imports; medians, and ratios of medians, with the least and the most of a round.
*plain* makes a default session (all cores on one image), reads and runs image after image; *images read before* is
its inference alone. *quantkit* is the whole public call (percentile) and the ranges; it reads on all cores at once,
plain does not. onnxruntime's calibrator ran once, on what it takes by default and on quantkit's tensors only.
How peaks are measured, and what they miss: benchmarks/README.md."""
_THIN = """\
Thinning counts {:.1%} of the values of {} tensors. How far an end moves from where all values put it, in per cent of
the width (median, 90th percentile, maximum), beside what other images do: another draw of as many (it may share
some), and the audit's halves (half as many images, so further apart). Last: tensors that thinning moved more than
the other draw did."""
_SCALE = "Three Gemm with Relu (64, 128, 128, 64), one npy file, batches of 64; one run each."


def markdown(data: Mapping[str, Any]) -> str:
    """Return the report made from the JSON."""
    lines = ["# Calibration", "", describe(data["machine"]), "", _TEXT]
    for name, model in data["models"].items():
        lines += ["", f"## {name}", "", *_times(model, data["settings"]["images"])]
        lines += ["", *_peaks(model["memory"], "images"), "", *_thinning(model["thinning"])]
    if data["scale"]:
        lines += ["", "## Many small samples", "", _SCALE, "", *_peaks(data["scale"], "samples")]
    return "\n".join(lines) + "\n"


def _times(model: Mapping[str, Any], count: int) -> list[str]:
    runs = {name: np.array([r["seconds"] for r in rs]) for name, rs in model["time"].items()}
    for name, key in (("before the audit", "before_audit"), ("observing alone", "observing")):
        stage = [r[key] for r in model["time"]["quantkit, stages timed"]]
        runs[f"quantkit, {name}"] = np.array(stage)
    notes = []
    for name, r in model["peer"].items():
        if "error" in r:
            notes += ["", f"{name} failed: {r['error'].splitlines()[-1]}"]
            continue
        runs[name] = np.array([r["seconds"] * count / r["images"]])
        scaled = "" if r["images"] == count else f" (its time above is scaled to {count})"
        need = (
            f"{count} would take about {r['need'] / _MB:.0f} of {r['available'] / _MB:.0f} MB free"
        )
        peak = f"{r['tensors']} tensors, peak {r['peak'] / _MB:.0f} MB; {need}"
        notes += ["", f"{name}: {r['images']} images{scaled}, {peak}."]
    bases = ("plain", "plain, images read before", "quantkit")
    rows = [
        [name, _span(s, s, " s"), *(_span(s / runs[b], s, "", runs[b]) for b in bases)]
        for name, s in runs.items()
    ]
    return [*table([f"{count} images", "time", *(f"/ {b}" for b in bases)], rows), *notes]


def _span(rounds: Any, s: Any, unit: str, base: Any = 1) -> str:
    """The ratio of medians, with its least and most within a round (a single run: against each)."""
    return f"{np.median(s) / np.median(base):.2f}{unit} [{rounds.min():.2f}, {rounds.max():.2f}]"


def _peaks(found: Sequence[Report], what: str) -> list[str]:
    header = [what, "call (memory sampled)", "peak", "time / first row", "peak / first row"]
    rows = [
        [f"{r['samples']:,}", f"{r['seconds']:.2f} s", f"{r['peak'] / _MB:.0f} MB"]
        + [f"{r[key] / found[0][key]:.2f}" for key in ("seconds", "peak")]
        for r in found
    ]
    return table(header, rows)


def _thinning(found: Mapping[str, Any]) -> list[str]:
    rows = []
    for name, m in found["methods"].items():
        shown = [m[kind] for kind in ("thinned", "other images", "split half")]
        percents = [", ".join(f"{100 * v:.2f}" for v in values) for values in shown]
        rows.append([name, *percents, str(m["thinning moved more"])])
    header = ["", "thinned", "other images", "split half", "thinning moved more"]
    return [_THIN.format(found["counted"], len(found["tensors"])), "", *table(header, rows)]


def measure_model(name: str, given: argparse.Namespace) -> dict[str, Any] | None:
    """Measure one model, or say what is missing."""
    model, data = given.shared / "models" / f"{name}.onnx", given.shared / "data" / "imagenet500"
    if absent := [path for path in (model, data) if not path.exists()]:
        print(f"{name}: skipped, {absent[0]} is not there")
        return None
    print(name, flush=True)
    job = {"model": str(model), "data": str(data), "images": given.images}
    timed, thinning = measure_time(job, given.rounds), measure_thinning(job)
    peers = {"onnxruntime's calibrator": [], "same, quantkit's tensors": thinning["tensors"]}
    return {
        "time": timed,
        "peer": {n: measure_peer(job, t) for n, t in peers.items() if not given.skip_peer},
        "memory": [spawn("call", job | {"images": n}, sampled=True) for n in given.memory],
        "thinning": thinning,
    }


def main() -> None:
    """Measure and write; or, as a worker, do one job and print its report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="*", default=list(_IMAGES), choices=list(_IMAGES))
    parser.add_argument("--images", type=int, default=128, help="to time, and to compare ranges of")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each way")
    parser.add_argument(
        "--memory", type=int, nargs="*", default=[64, 500], help="images, for peaks"
    )
    parser.add_argument("--samples", type=int, nargs="*", default=_SAMPLES, help="small samples")
    parser.add_argument("--skip-peer", action="store_true", help="no onnxruntime.quantization")
    parser.add_argument("--shared", type=Path, default=SHARED, help="folder of models and data")
    parser.add_argument("--out", type=Path, default=RESULTS / "calibrate", help="without a suffix")
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        work = {f.__name__: f for f in (plain, call, stages, peer)}[given.worker["do"]]
        print(f"\n{json.dumps(work(given.worker))}")
        return
    shown = {key: value for key, value in vars(given).items() if not isinstance(value, Path)}
    data: dict[str, Any] = {"machine": machine(), "settings": shown}
    measured = {name: measure_model(name, given) for name in given.models}
    data["models"] = {name: found for name, found in measured.items() if found}
    data["scale"] = measure_scale(given.samples) if given.samples else []
    write_results(given.out.parent, given.out.name, data, markdown(data))


if __name__ == "__main__":
    main()
