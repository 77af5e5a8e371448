"""Models that nobody looked at: static int8 of seven models out of package registries, and of the four of the README.

What a user gets without a flag, beside the float model and onnxruntime's own tool (uint8 activations, int8 weights per
channel, reduced range, after its own preparation). Writes ``results/zoo.json`` (everything) and ``results/zoo.md``.

Models and inputs are in ``../shared`` (``--shared``): where they are not there, it says so and does nothing. The results are
written after each model: ``--resume`` goes on where a run was stopped, ``--only`` measures some anew and keeps the others.
``--before`` writes ``zoo_before.json``, the figures to compare with, of whichever quantkit is imported.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
from compare_dynamic import interval
from measure import (
    RESULTS,
    SHARED,
    Timing,
    alone,
    describe,
    first_line,
    interleaved,
    machine,
    model_bytes,
    ratio,
    session,
    sqnr,
    table,
    write_results,
)
from numpy.typing import NDArray
from static_jobs import save_samples
from tasks import Sizes, tasks

__all__ = ["Case", "cases", "repeated", "work_of"]

Feeds = Mapping[str, NDArray[Any]]
Outputs = dict[str, NDArray[Any]]
Report = dict[str, Any]

_HERE = Path(__file__).resolve().parent
_BEFORE = _HERE / "zoo_before.json"
_JOBS = _HERE / "static_jobs.py"
_README = ("mobilenet_v2", "efficientnet_lite0", "resnet20_cifar10", "all-MiniLM-L6-v2")
_SIZES = Sizes(images=100, small=1000, pairs=100, calibration=128)
_TIMED = 4  # samples a round: some have lengths of their own
_ROUND = 0.02  # seconds that a round of the float model takes at least
_MODES = ("static", "absorbed", "integer", "stored", "float")
_ORT: Report = {
    "activation_type": "QUInt8",
    "weight_type": "QInt8",
    "per_channel": True,
    "reduce_range": True,
}
_TIMING = Timing(rounds=60, warm_up=2, least=15, budget=60.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model with its real inputs.

    Attributes:
        name: For tables.
        model: The float model.
        calibration: One sample each.
        timed: Samples that latency is measured with.
        outputs: Runs a session on samples that were not calibrated with; every float output by name.
    """

    name: str
    model: Path
    calibration: Sequence[Feeds]
    timed: Sequence[Feeds]
    outputs: Callable[[Any], Outputs]


def cases(shared: Path) -> dict[str, Callable[[], Case]]:
    """Return every model by name; each loads its data when it is called.

    Raises:
        SystemExit: The models or what makes their inputs are not there.
    """
    maker, models = shared / "zoo" / "inputs.py", shared / "models" / "zoo"
    for needed in (maker, models):
        if not needed.exists():
            raise SystemExit(
                f"{needed} is not there; nothing was measured. --shared names the folder"
            )
    found: dict[str, Callable[[], Case]] = {
        path.stem: partial(_zoo, path, maker) for path in sorted(models.glob("*.onnx"))
    }
    known = tasks(shared, _SIZES)
    return found | {name: partial(_readme, name, known[name]) for name in _README}


def _zoo(model: Path, maker: Path) -> Case:
    spec = spec_from_file_location("zoo_inputs", maker)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{maker} cannot be read")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    samples = module.samples(model.stem, "evaluation")
    return Case(
        name=model.stem,
        model=model,
        calibration=module.samples(model.stem, "calibration"),
        timed=samples[:_TIMED],
        outputs=partial(_outputs, samples),
    )


def _outputs(samples: Sequence[Feeds], session: Any) -> Outputs:
    """Return every float output, of all samples one after the other."""
    names = [output.name for output in session.get_outputs()]
    runs = [session.run(None, dict(sample)) for sample in samples]
    flat = {n: [run[i].ravel() for run in runs] for i, n in enumerate(names)}
    return {n: np.concatenate(parts) for n, parts in flat.items() if parts[0].dtype == np.float32}


def _readme(name: str, load: Callable[[], Any]) -> Case:
    task = load()
    if task is None:
        raise SystemExit(f"{name} or its data is not there; --only leaves it out")
    # What it is timed with is not padded and not made up: samples, as they are used.
    return Case(
        name=name,
        model=task.model,
        calibration=task.calibration,
        timed=task.calibration[:_TIMED],
        outputs=lambda session: {"outputs": task.outputs(session)},
    )


def repeated(model: Any, samples: Sequence[Feeds], times: int) -> Callable[[], object]:
    """Return a call that runs all samples so many times."""

    def call() -> None:
        for _ in range(times):
            for sample in samples:
                model.run(None, dict(sample))

    return call


def work_of(model: Any, samples: Sequence[Feeds]) -> int:
    """Return how often a round must run the samples, so that it can be timed."""
    once = repeated(model, samples, 1)
    once()
    seconds = interleaved({"": once}, Timing(rounds=3, warm_up=1, least=3))
    return max(1, round(_ROUND / float(seconds.min())))


def made(case: Case, folder: Path) -> dict[str, Report]:
    """Let each tool write its file, in a process of its own; return what it took, or its error."""
    folder.mkdir(parents=True, exist_ok=True)
    samples, prepared = folder / "samples.npz", folder / "prepared.onnx"
    save_samples(samples, case.calibration)
    first = {"do": "prepare", "source": str(case.model), "target": str(prepared), "options": {}}
    ready = "error" not in alone(first, worker=_JOBS)
    jobs: dict[str, Report] = {
        "quantkit": {"source": str(case.model), "options": {}},
        # What onnxruntime cannot prepare it gets as it is.
        "onnxruntime": {"source": str(prepared if ready else case.model), "options": _ORT},
    }
    reports = {}
    for name, job in jobs.items():
        target = folder / f"{name}.onnx"
        target.unlink(missing_ok=True)
        whole = job | {"do": name, "samples": str(samples), "target": str(target)}
        done = alone(whole, worker=_JOBS)
        if "error" in done:
            # Messages may hold this machine's folders.
            done["error"] = (
                done["error"].replace(f"{folder}/", "").replace(f"{case.model.parent}/", "")
            )
        reports[name] = done
        print(f"  {name}: {done.get('error', 'done')}", flush=True)
    return reports


def judged(case: Case, folder: Path, reports: dict[str, Report]) -> Report:
    """Add to each report how far from float its file is, how fast and how large; return float's own figures."""
    sessions = {"float": session(case.model, threads=1)}
    reference = case.outputs(sessions["float"])
    for name, report in reports.items():
        path = folder / f"{name}.onnx"
        if "error" in report:
            continue
        try:
            found = session(path, threads=1)
            actual = case.outputs(found)
        except Exception as e:  # noqa: BLE001 - a result that does not run is a result
            report["error"] = f"written, but it does not run: {first_line(e)}"
            continue
        report["sqnr_db"] = {key: sqnr(reference[key], actual[key]) for key in reference}
        report["size"] = model_bytes(path) / model_bytes(case.model)
        sessions[name] = found
    times = work_of(sessions["float"], case.timed)
    calls = {name: repeated(found, case.timed, times) for name, found in sessions.items()}
    seconds = dict(zip(calls, interleaved(calls, _TIMING).T, strict=True))
    for name in sessions:
        if name != "float":
            reports[name]["latency"] = ratio(seconds[name], seconds["float"])
    once = float(np.median(seconds["float"])) / times / len(case.timed)
    return {"ms": 1e3 * once, "bytes": model_bytes(case.model), "samples": len(case.calibration)}


def measured(given: argparse.Namespace, work: Path, found: Report) -> Iterator[tuple[str, Report]]:
    """Make and judge every model that was asked for."""
    for name, load in cases(given.shared).items():
        if (given.only and name not in given.only) or (given.resume and name in found):
            continue
        print(name, flush=True)
        case = load()
        reports = made(case, work / name)
        own = judged(case, work / name, reports)
        yield name, {"float": own, "rows": reports}


_TEXT = """\
Seven models out of package registries (`../shared/models/zoo`) with real inputs, and the four of the README; static
quantization as it comes, without a flag. *SQNR* is that of the worst float output on samples that were not calibrated with.
*Time* is the ratio to float of the medians, with its 95 % bootstrap interval, all models in turn, one thread. *Nodes* are those
of the plan: {modes}. *Made in* is the call alone, calibration, measurement and verification included. *Before* are
the figures of the version before plans were measured (`zoo_before.json`): those that a reader reported, and those measured on
the same machine (intervals of the seven are quartiles; the README's four are those of `static.md`, with all threads).
onnxruntime is its own quantize_static: uint8 activations, int8 weights per channel, reduced range, after its own preparation."""


def markdown(data: Mapping[str, Any], before: Mapping[str, Any]) -> str:
    """Return the report made from the JSON."""
    lines = ["# Models that nobody looked at", "", describe(data["machine"]), ""]
    lines += [_TEXT.format(modes=", ".join(_MODES)), ""]
    header = ["model", "", "SQNR", "time / float", "size / float", "nodes", "made in"]
    rows, errors = [], []
    for name, model in data["models"].items():
        old = before.get(name, {})
        if "reported" in old:
            rows.append([name, "before, as reported", *old["reported"], "", ""])
        rows.append(["" if "reported" in old else name, "before", *_cells(old.get("row", {}))])
        for tool, label in (("quantkit", "**now**"), ("onnxruntime", "onnxruntime")):
            row = model["rows"][tool]
            rows.append(["", label, *_cells(row)])
            if "error" in row:
                errors.append(f"* {name}, {tool}: {row['error']}")
            errors += [f"* {name}, warning: {w}" for w in row.get("warnings", ())]
    lines += [*table(header, rows), "", *errors]
    return "\n".join(lines).rstrip() + "\n"


def _cells(row: Mapping[str, Any]) -> list[str]:
    if "latency" not in row:
        return ["fails" if "error" in row else "", *[""] * 4]
    modes = row.get("modes", {})
    nodes = " / ".join(str(modes.get(mode, 0)) for mode in _MODES) if modes else ""
    worst = f"{min(row['sqnr_db'].values()):.1f} dB" if row["sqnr_db"] else "no float output"
    return [worst, interval(row["latency"]), f"{row['size']:.2f}", nodes, f"{row['seconds']:.0f} s"]


def arguments() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--only", nargs="*", default=(), help="these models, and keep the others' figures"
    )
    parser.add_argument("--resume", action="store_true", help="only models without figures")
    parser.add_argument("--before", action="store_true", help="write zoo_before.json instead")
    parser.add_argument("--work", type=Path, help="folder that keeps the files")
    parser.add_argument("--shared", type=Path, default=SHARED, help="folder of models and data")
    parser.add_argument("--out", type=Path, default=RESULTS / "zoo", help="without a suffix")
    parser.add_argument("--render", action="store_true", help="make the table anew from the JSON")
    return parser.parse_args()


def _read(path: Path) -> Report:
    found: Report = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found


def main() -> None:
    """Measure and write, after each model."""
    given = arguments()
    before, path = _read(_BEFORE), given.out.with_suffix(".json")
    kept = {} if given.before or not (given.only or given.resume or given.render) else _read(path)
    found: Report = kept.get("models", {})
    if given.render:
        write_results(given.out.parent, given.out.name, kept, markdown(kept, before))
        return
    own = machine()
    with tempfile.TemporaryDirectory() as temporary:
        for name, model in measured(given, given.work or Path(temporary), found):
            if given.before:
                before.setdefault(name, {})["row"] = model["rows"]["quantkit"]
                _BEFORE.write_text(json.dumps(before, indent=1) + "\n", encoding="utf-8")
                continue
            found[name] = model
            data = {"machine": own, "models": found}
            write_results(given.out.parent, given.out.name, data, markdown(data, before))


if __name__ == "__main__":
    main()
