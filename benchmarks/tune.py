"""`quantkit tune` beside NNCF's accuracy control, onnxruntime's static quantization and a random search.

Every tool gets the same samples, and may calibrate and choose on them as it likes; the other half of the samples, which no
tool has seen, judges all files together by ``quantkit evaluate``. Writes ``results/tune.json`` (everything),
``results/tune.md`` (made from it), ``reports/tune.svg``, and the report of each search as ``reports/tuned_NAME``.

What was made is kept in ``--work`` and not made again: a run that was stopped goes on, and ``--only`` makes single rows.
NNCF has an environment of its own: give its interpreter as ``--nncf-python`` or in NNCF_PYTHON.
"""

import argparse
import csv
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from measure import (
    RESULTS,
    ROOT,
    SHARED,
    Timing,
    alone,
    describe,
    interleaved,
    machine,
    ratio,
    session,
    sqnr,
    table,
    write_results,
)
from numpy.typing import NDArray
from static_jobs import load_samples, save_samples
from tasks import evenly
from tune_picture import duration, picture

from quantkit.pipeline.measure import decide
from quantkit.pipeline.plan_prepared import planner_of
from quantkit.pipeline.prepared import Prepared
from quantkit.quantize.plan import Format
from quantkit.quantize.plan.measured import predict
from quantkit.quantize.plan.model import Kept
from quantkit.reasons import Why, because
from quantkit.result import Evaluated, Result, load_result

Report = dict[str, Any]

_QUANTKIT = Path(sys.executable).with_name("quantkit")
_JOBS = Path(__file__).resolve().parent / "static_jobs.py"
_CALIBRATED = 128
_PIXELS = 32
_CIFAR = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_IMAGENET = "[data.image]\n{}mean = [0.485, 0.456, 0.406]\nstd = [0.229, 0.224, 0.225]\n"
_PAIRS = ("--column", "sentence1", "--column", "sentence2", "--pairs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model, how its samples are laid out, and the budget.

    Attributes:
        title: For tables.
        model: What its file is called.
        lay_out: Writes the model, quantkit.toml, and the samples ``tools`` and ``test`` into a folder.
        drop: The budget, as users write it.
        limit: The same for NNCF, in units of the metric.
        flags: Of commands that read the samples.
        suffix: Of ``tools`` and ``test``.
        transformer: Whether NNCF is told that it is one.
        random: Whether plans are drawn at random too.
    """

    title: str
    model: str
    lay_out: Callable[[Path], None]
    drop: str
    limit: float
    flags: tuple[str, ...] = ()
    suffix: str = ""
    transformer: bool = False
    random: bool = False


def cases(shared: Path) -> dict[str, Case]:
    """Return every model by name."""
    return {
        "mobilenet_v2": Case(
            title="MobileNetV2, ImageNet",
            model="mobilenet_v2.onnx",
            lay_out=lambda folder: _lay_out_images(shared, folder),
            drop="0.5%",
            limit=0.005,
        ),
        "minilm_encoder": Case(
            title="all-MiniLM-L6-v2, likeness of sentences",
            model="minilm_encoder.onnx",
            lay_out=lambda folder: _lay_out_pairs(shared, folder),
            drop="0.5%",
            limit=0.005 * 0.87,  # of float's Spearman correlation
            flags=_PAIRS,
            suffix=".csv",
            transformer=True,
        ),
        "resnet20_cifar10": Case(
            title="ResNet-20, CIFAR-10",
            model="resnet20_cifar10.onnx",
            lay_out=lambda folder: _lay_out_cifar(shared, folder),
            drop="0.2%",
            limit=0.002,
            random=True,
        ),
    }


# ---- samples ----


def _lay_out_images(shared: Path, folder: Path) -> None:
    images = shared / "data" / "imagenet500"
    with (images / "labels.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    # Labels are sorted: every other one is of all classes.
    for part, some in (("tools", rows[::2]), ("test", rows[1::2])):
        (folder / part).mkdir()
        for row in some:
            shutil.copyfile(images / row["file"], folder / part / row["file"])
        lines = ["file,label", *(f"{row['file']},{row['label']}" for row in some)]
        (folder / part / "labels.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    name = "mobilenet_v2.onnx"
    _finish(shared / "models" / name, folder / name, _IMAGENET.format("crop = 224\n"))


def _lay_out_cifar(shared: Path, folder: Path) -> None:
    from PIL import Image

    source = shared / "data" / "cifar10"
    with Image.open(source / "test.png") as file:
        # One image a row of 1024 RGB pixels.
        pixels = np.asarray(file).reshape(-1, _PIXELS, _PIXELS, 3)
    labels = json.loads((source / "test_labels.json").read_text(encoding="utf-8"))
    for number, (image, label) in enumerate(zip(pixels, labels, strict=True)):
        # A fifth is enough to search on; the rest tells a tenth of a point.
        target = folder / ("tools" if number % 5 == 0 else "test") / _CIFAR[label]
        target.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(target / f"{number:05d}.png", compress_level=1)
    name = "resnet20_cifar10.onnx"
    _finish(shared / "models" / name, folder / name, _IMAGENET.format(""))


def _lay_out_pairs(shared: Path, folder: Path) -> None:
    model, source = shared / "models" / "all-MiniLM-L6-v2", shared / "data" / "sts" / "dev.csv"
    with source.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    for part, some in (("tools", rows[1::2]), ("test", rows[2::2])):
        with (folder / f"{part}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([rows[0], *some])
    shutil.copyfile(model / "tokenizer.json", folder / "tokenizer.json")
    _finish(model / "model.onnx", folder / "minilm_encoder.onnx", "[evaluate]\npairs = true\n")


def _finish(model: Path, target: Path, recipe: str) -> None:
    shutil.copyfile(model, target)
    (target.parent / "quantkit.toml").write_text(recipe, encoding="utf-8")


def laid_out(case: Case, folder: Path) -> None:
    """Lay out a model's folder, once."""
    if (folder / "laid_out").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    case.lay_out(folder)
    _save_samples(case, folder)
    (folder / "laid_out").touch()


def _save_samples(case: Case, folder: Path) -> None:
    """Write the tools' samples for those that read arrays: what to calibrate with, what to choose by, and its labels."""
    from quantkit.calibration.model_inputs import inputs_of
    from quantkit.data import Samples, open_data
    from quantkit.model.graph.load import load
    from quantkit.settings import TextSettings, load_recipe

    inputs = inputs_of(load(folder / case.model))
    settings = load_recipe(folder / "quantkit.toml").data
    columns = ("sentence1", "sentence2") if case.suffix else (None,)
    sides = []
    for column in columns:
        text = TextSettings(column=(column,)) if column else settings.text
        found = open_data(folder / f"tools{case.suffix}", inputs, replace(settings, text=text))
        if not isinstance(found, Samples):
            raise TypeError(case.title)
        sides.append([found[i] for i in range(len(found))])
    count = len(sides[0])
    # Folders are read by class: take evenly from all of them.
    kept = set(evenly(range(count), _CALIBRATED if count > 2 * _CALIBRATED else count // 2))
    rest = [i for i in range(count) if i not in kept]
    save_samples(folder / "calibration.npz", [sides[0][i].feeds for i in sorted(kept)])
    save_samples(folder / "choosing.npz", [side[i].feeds for i in rest for side in sides])
    if case.suffix:
        with (folder / f"tools{case.suffix}").open(encoding="utf-8", newline="") as file:
            scores = [float(row["score"]) for row in csv.DictReader(file)]
        labels: NDArray[Any] = np.array([scores[i] for i in rest])
    else:
        labels = np.array([_class_of(sides[0][i].label) for i in rest])
    np.save(folder / "labels.npy", labels)


def _class_of(label: object) -> int:
    return _CIFAR.index(label) if isinstance(label, str) and label in _CIFAR else int(str(label))


# ---- rows ----


def tune_row(case: Case, folder: Path, given: argparse.Namespace) -> Report:
    """Run the command as a user would."""
    words = ["tune", case.model, "--data", f"tools{case.suffix}", *case.flags]
    words += ["--max-drop", case.drop, "--minutes", f"{given.minutes:g}", "-o", "tuned"]
    start = time.perf_counter()
    done = _run(folder, words)
    if done.returncode not in {0, 1}:
        return {"error": done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "failed"}
    seconds = time.perf_counter() - start
    shutil.copyfile(folder / "tuned" / "model.onnx", folder / "quantkit tune.onnx")
    found = load_result(folder / "tuned")
    if found.tuning is None:
        return {"error": "the result holds no search"}
    return {
        "seconds": max(found.tuning.seconds, seconds),
        "met": done.returncode == 0,
        "evaluations": found.tuning.evaluations,
        "files": len(found.tuning.trials),
        "sentence": found.tuning.sentence,
        "frontier": _frontier(found),
    }


def _frontier(found: Result) -> list[Report]:
    """Return what each trial of a search did on the samples that chose."""
    tuning = found.tuning
    if tuning is None:
        return []
    names, metric = {m.name for m in found.candidates}, found.float_model.metric
    # A budget in per cent of what is no share is one of float's own figure.
    relative = metric is not None and tuning.is_fraction and not metric.is_fraction
    scale = metric.value if metric is not None and relative else 1.0
    return [
        {
            "name": t.name,
            "made": t.made,
            "verdict": t.verdict,
            "drop": None if t.drop is None else t.drop * scale,
            "time": t.latency,
            "size": t.size,
            "samples": t.samples,
            "frontier": t.name in names,
            "chosen": t.name == tuning.chosen,
        }
        for t in tuning.trials
    ]


def static_row(case: Case, folder: Path, given: argparse.Namespace) -> Report:
    """Run quantkit's static quantization with its defaults, for what a search adds to it."""
    del given
    columns = case.flags[:2] if case.suffix else ()
    words = ["quantize", "static", case.model, "quantkit static.onnx"]
    words += ["--data", f"tools{case.suffix}", *columns, "--limit", str(_CALIBRATED)]
    start = time.perf_counter()
    done = _run(folder, words)
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["failed"])[-1]}
    return {"seconds": time.perf_counter() - start}


def _run(folder: Path, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    print(f"$ {shlex.join(['quantkit', *words])}", flush=True)
    command = [str(_QUANTKIT), *words]
    return subprocess.run(command, cwd=folder, check=False, text=True, stderr=subprocess.PIPE)


def peer_row(job: Report, python: str, row: str) -> Callable[..., Report]:
    """Return a row that another tool makes of the model after onnxruntime's own preparation."""

    def made(case: Case, folder: Path, given: argparse.Namespace) -> Report:
        if not python:
            return {"error": "no interpreter: give --nncf-python, or NNCF_PYTHON"}
        prepared = folder / "prepared.onnx"
        if not prepared.exists():
            first = {"do": "prepare", "source": str(folder / case.model)}
            alone(first | {"target": str(prepared)}, worker=_JOBS)
        options = dict(job["options"])
        if job["do"] == "nncf_control":
            options |= {"max_drop": case.limit}
            options |= {"model_type": "TRANSFORMER"} if case.transformer else {}
        whole = job | {"source": str(prepared), "options": options}
        whole |= {"samples": str(folder / "calibration.npz")}
        whole |= {"choosing": str(folder / "choosing.npz"), "labels": str(folder / "labels.npy")}
        target = folder / f"{row}.onnx"
        return alone(whole | {"target": str(target)}, given.timeout, worker=_JOBS, python=python)

    return made


def random_row(case: Case, folder: Path, given: argparse.Namespace) -> Report:
    """Draw plans at random, make each and run it; keep the fastest that loses no more than the budget allows.

    A plan leaves each product in float with a chance that is itself drawn. What was tried is kept line by line.
    """
    from quantkit import DataSettings, StaticSettings, plan_prepared, prepare_static, realize_plan

    start, log = time.perf_counter(), folder / "random.jsonl"
    tried = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    before = tried[-1]["seconds"] if tried else 0.0
    samples = load_samples(str(folder / "calibration.npz"))
    usual, limited = StaticSettings(measure=False), DataSettings(limit=len(samples))
    measured = StaticSettings(measure=True)
    prepared = prepare_static(folder / case.model, samples, measured, limited)
    products = [n.node for n in plan_prepared(prepared, usual).nodes if n.op_type in _PRODUCTS]
    predicted = _predicted(prepared, products, 6 * given.random_minutes)
    judge = _Judge(folder, case.model)
    while before + time.perf_counter() - start < 60 * given.random_minutes:
        rng = np.random.default_rng(len(tried))
        share = rng.random() if tried else 0.0
        floats = [p for p in products if rng.random() < share]
        path = folder / "random trial.onnx"
        static = replace(usual, exclude=tuple(floats))
        realize_plan(prepared, plan_prepared(prepared, static), path, static=static, verify=False)
        found = judge(path) | {"float": floats, "products": len(products)}
        best = [t for t in tried if t["drop"] <= case.limit]
        if found["drop"] <= case.limit and all(found["time"] < t["time"] for t in best):
            shutil.copyfile(path, folder / "random search.onnx")
        found["seconds"] = before + time.perf_counter() - start
        tried.append(found)
        with log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(found) + "\n")
    if not (folder / "random search.onnx").exists():
        return {"error": f"none of {len(tried)} plans keeps the budget"}
    keys = ("drop", "time", "sqnr_db")
    points = [{k: t[k] for k in keys} | {"float": len(t["float"])} for t in tried]
    return {
        "seconds": tried[-1]["seconds"],
        "evaluations": len(tried),
        "points": points,
        "predicted": predicted,
    }


def _predicted(prepared: Prepared, products: Sequence[str], seconds: float) -> Report:
    """Return how many of as many plans as can be planned in some seconds are faster, by prediction, than the cut's.

    All of them are 2 ** 22 for ResNet-20, too many even to plan.
    """
    found = decide(prepared)
    if found.costs is None:
        return {}
    view, rng, faster, drawn = prepared.ready.view, np.random.default_rng(0), 0, 0
    planned = planner_of(prepared, Format.QDQ)
    cut = predict(view, planned(found.kept), found.costs)
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        share = rng.random()
        kept = {p: Kept(because(Why.OTHER, text="drawn")) for p in products if rng.random() < share}
        plan = planned(kept)
        # What differs by less is within the noise that the cut allows for.
        faster += predict(view, plan, found.costs) < cut * (1 - found.costs.noise)
        drawn += 1
    return {"plans": drawn, "faster": faster, "of_float": cut / found.costs.total}


_PRODUCTS = frozenset({"Conv", "Gemm", "MatMul"})


class _Judge:
    """Runs a file on the samples that choose, and beside the float model."""

    def __init__(self, folder: Path, model: str) -> None:
        self.samples = load_samples(str(folder / "choosing.npz"))
        self.labels = np.load(folder / "labels.npy")
        self.float = session(folder / model)
        self.reference = self._outputs(self.float)
        self.right = self.reference.argmax(1) == self.labels

    def _outputs(self, model: Any) -> NDArray[Any]:
        return np.concatenate([model.run(None, dict(one))[0] for one in self.samples])

    def __call__(self, path: Path) -> Report:
        """Return what it loses, how near it is, and its time as a multiple of float's."""
        model, feeds = session(path), dict(self.samples[0])
        outputs = self._outputs(model)
        calls = {"float": lambda: self.float.run(None, feeds), "it": lambda: model.run(None, feeds)}
        seconds = interleaved(calls, Timing(rounds=60, warm_up=3))
        return {
            "drop": float(np.mean(self.right) - np.mean(outputs.argmax(1) == self.labels)),
            "sqnr_db": sqnr(self.reference, outputs),
            "time": ratio(seconds[:, 1], seconds[:, 0])["ratio"],
        }


def rows(case: Case, nncf: str) -> dict[str, Callable[..., Report]]:
    """Return how each row of a model is made."""
    best: Report = {"activation_type": "QUInt8", "weight_type": "QInt8", "per_channel": True}
    ort = {"do": "onnxruntime", "options": best}
    reduced = {"do": "onnxruntime", "options": best | {"reduce_range": True}}
    control = {"do": "nncf_control", "options": {"preset": "MIXED"}}
    names = ("onnxruntime static", "onnxruntime static, reduced range", "NNCF accuracy control")
    found: dict[str, Callable[..., Report]] = {
        "quantkit tune": tune_row,
        "quantkit static": static_row,
        names[0]: peer_row(ort, sys.executable, names[0]),
        names[1]: peer_row(reduced, sys.executable, names[1]),
        names[2]: peer_row(control, nncf, names[2]),
    }
    return found | ({"random search": random_row} if case.random else {})


# ---- all together ----


def make(case: Case, folder: Path, given: argparse.Namespace) -> dict[str, Report]:
    """Make the rows that are asked for and not there yet; return all that are there."""
    found = {}
    for name, row in rows(case, given.nncf_python or "").items():
        note, target = folder / f"{name}.json", folder / f"{name}.onnx"
        wanted = not given.only or name in given.only
        if wanted and not (note.exists() and target.exists()):
            print(f"  {name} ...", flush=True)
            report = row(case, folder, given)
            if "error" not in report:
                note.write_text(json.dumps(report), encoding="utf-8")
            found[name] = report
        elif note.exists():
            found[name] = json.loads(note.read_text(encoding="utf-8"))
        if name in found:
            said = found[name].get("error") or f"{found[name]['seconds']:.0f} s"
            print(f"  {name}: {said}", flush=True)
    return found


def judge(case: Case, folder: Path, made: Mapping[str, Report]) -> Report:
    """Evaluate all files together on samples that no tool has seen; return float's figures and add the others'."""
    files = [f"{name}={name}.onnx" for name, report in made.items() if "error" not in report]
    words = [
        "evaluate",
        f"float32={case.model}",
        *files,
        "--data",
        f"test{case.suffix}",
        *case.flags,
    ]
    skipped = [w for part in ("layers", "fidelity", "memory") for w in ("--skip", part)]
    done = _run(folder, [*words, *skipped, "-o", "judged"])
    if done.returncode:
        raise SystemExit(done.stderr)
    result = load_result(folder / "judged")
    for model in result.candidates:
        made[model.name].update(_figures(model))
    return _figures(result.float_model) | {"samples": result.data.samples}


def _figures(model: Evaluated) -> Report:
    metric, timed = model.metric, model.typical_latency
    if metric is None or timed is None:
        raise SystemExit(f"{model.name}: nothing was measured")
    drop, times = metric.drop_interval, timed.ratio_interval
    output = model.worst_output
    return {
        "metric": metric.name,
        "value": metric.value,
        "drop": metric.drop,
        "drop_ends": [drop.low, drop.high] if drop else None,
        "sqnr_db": output.sqnr_db if output else None,
        "time": timed.ratio,
        "time_ends": [times.low, times.high] if times else None,
        "median_ms": timed.median_ms,
        "size": model.size.ratio,
        "int8": [model.runtime.integer, model.runtime.products] if model.runtime else None,
    }


_TEXT = """\
Every tool has the same samples ({tools}) and may calibrate and choose on them as it likes: `quantkit tune` divides
them itself, the others calibrate on 128 of them, and NNCF's accuracy control and the random search choose on the rest. All
files are judged together on the samples that no tool has seen, by `quantkit evaluate`: *lost* is against float with its
95 % interval, *time* is that of one run as a multiple of float's, in turn with it, with its 95 % interval. *Runs* are runs over
all samples that choose, what was stopped early counted in part. *Made in* is the whole search, calibration included."""


def markdown(data: Mapping[str, Any]) -> str:
    """Return the report made from the JSON."""
    lines = ["# quantkit tune, NNCF's accuracy control, onnxruntime's static quantization", ""]
    nncf = {
        f" NNCF {row['version']}."
        for model in data["models"].values()
        for row in model["rows"].values()
        if "version" in row
    }
    sizes = ", ".join(
        f"{m['title']}: {m['tools']} given, {m['float']['samples']} judged"
        for m in data["models"].values()
    )
    lines += [describe(data["machine"]) + "".join(sorted(nncf)), "", _TEXT.format(tools=sizes)]
    for model in data["models"].values():
        lines += ["", f"## {model['title']}: at most {model['drop']} lost", "", *_table(model)]
        errors = {n: r["error"] for n, r in model["rows"].items() if "error" in r}
        lines += [""] * bool(errors) + [f"* {n}: {e}" for n, e in errors.items()]
        lines += _search(model["rows"].get("quantkit tune", {}))
        lines += _drawn(model["rows"])
    return "\n".join(lines) + "\n"


def _table(model: Mapping[str, Any]) -> list[str]:
    base = model["float"]
    header = ["", base["metric"], "lost", "SQNR", "time", "size", "int8", "runs", "made in"]
    own = [f"{base['value']:.4g}", "", "", f"{base['median_ms']:.2f} ms", "100 %", "", "", ""]
    found = [["float32", *own]]
    for name, row in model["rows"].items():
        if "value" not in row:
            found.append([name, *["failed"] * (len(header) - 1)])
            continue
        runs = f"{row['evaluations']:.1f}" if "evaluations" in row else ""
        cells = [f"{row['value']:.4g}", _ends(row["drop"], row["drop_ends"], 4)]
        cells += ["" if row["sqnr_db"] is None else f"{row['sqnr_db']:.1f} dB"]
        cells += [_ends(row["time"], row["time_ends"], 2), f"{100 * row['size']:.1f} %"]
        cells += [f"{row['int8'][0]} of {row['int8'][1]}" if row["int8"] else "", runs]
        found.append([name, *cells, duration(row["seconds"])])
    return table(header, found)


def _ends(value: float, ends: Sequence[float] | None, digits: int) -> str:
    spread = f" [{ends[0]:.{digits}f}, {ends[1]:.{digits}f}]" if ends else ""
    return f"{value:.{digits}f}{spread}"


def _search(row: Mapping[str, Any]) -> list[str]:
    """Return what tune tried, by the samples that chose."""
    if "frontier" not in row:
        return []
    lines = [
        "",
        f"What `quantkit tune` made ({row['sentence'].rstrip('.')}), by the samples that chose:",
        "",
    ]
    cells = []
    for t in row["frontier"]:
        signs = " **chosen**" if t["chosen"] else "" if t["frontier"] else " (beaten)"
        lost = "-" if t["drop"] is None else f"{t['drop']:.4f}"
        timed = "-" if t["time"] is None else f"{t['time']:.2f}"
        size = "-" if t["size"] is None else f"{100 * t['size']:.1f} %"
        cells.append([f"{t['made']}{signs}", lost, timed, size, str(t["samples"]), t["verdict"]])
    header = ["", "lost", "time", "size", "samples run", "budget"]
    return [*lines, *table(header, cells)]


def _drawn(found: Mapping[str, Any]) -> list[str]:
    """Return how the plans drawn at random compare with what tune chose, all by the samples that chose."""
    points = found.get("random search", {}).get("points", [])
    trials = found.get("quantkit tune", {}).get("frontier", [])
    chosen = next((t for t in trials if t["chosen"]), None)
    if not points or chosen is None or chosen["time"] is None:
        return []
    faster = sum(p["time"] < chosen["time"] and p["drop"] <= chosen["drop"] for p in points)
    fastest = min(p["time"] for p in points)
    said = (
        f"Of {len(points)} plans drawn at random, {faster} are faster than what tune chose ({chosen['time']:.2f}) and lose "
        f"no more; the fastest of all takes {fastest:.2f} of float's time."
    )
    by = found["random search"].get("predicted")
    if by:
        said += (
            f" Of {by['plans']} more that were only planned, {by['faster']} are predicted to be faster than the minimum "
            f"cut's plan ({by['of_float']:.2f} of float's time)."
        )
    return ["", said]


def keep_report(folder: Path, target: Path) -> None:
    """Copy the result of a search to where reports are committed, and make its pages there."""
    if not (folder / "tuned" / "result.json").exists():
        return
    target.mkdir(parents=True, exist_ok=True)
    result = target / "result.json"
    shutil.copyfile(folder / "tuned" / "result.json", result)
    _run(ROOT, ["report", str(result), "--picture", str(target / "picture.svg")])


def arguments() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    known = tuple(cases(SHARED))
    parser.add_argument("--models", nargs="*", default=known, choices=known)
    parser.add_argument("--only", action="append", metavar="ROW", help="make this row; may repeat")
    parser.add_argument("--make-only", action="store_true", help="fill --work and judge nothing")
    parser.add_argument("--minutes", type=float, default=10.0, help="of each search")
    parser.add_argument("--random-minutes", type=float, default=10.0, help="of the random search")
    parser.add_argument("--timeout", type=float, default=3600.0, help="seconds, of other tools")
    parser.add_argument("--nncf-python", default=os.environ.get("NNCF_PYTHON"), help="interpreter")
    parser.add_argument("--work", type=Path, required=True, help="folder that keeps what was made")
    parser.add_argument("--shared", type=Path, default=SHARED, help="folder of models and data")
    parser.add_argument("--out", type=Path, default=RESULTS / "tune", help="without a suffix")
    parser.add_argument("--reports", type=Path, default=ROOT / "reports", help="for its pages")
    parser.add_argument("--render", action="store_true", help="make table and picture anew")
    return parser.parse_args()


def measure(given: argparse.Namespace) -> Report:
    """Make and judge all that was asked for; models that were not asked for stay as they were."""
    kept = given.out.with_suffix(".json")
    old = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {"models": {}}
    data: Report = {"machine": machine(), "models": old["models"]}
    for name, case in cases(given.shared).items():
        if name not in given.models:
            continue
        print(name, flush=True)
        folder = given.work.resolve() / name
        laid_out(case, folder)
        made = make(case, folder, given)
        if given.make_only or not any("error" not in row for row in made.values()):
            continue
        base = judge(case, folder, made)
        keep_report(folder, given.reports / f"tuned_{name}")
        tools = len(np.load(folder / "labels.npy")) + _count(folder / "calibration.npz")
        for row in (r for r in made.values() if "error" in r):
            row["error"] = row["error"].replace(f"{folder}/", "")
        data["models"][name] = {
            "title": case.title,
            "drop": case.drop,
            "limit": case.limit,
            "tools": tools,
            "float": base,
            "rows": made,
        }
    order = [name for name in cases(given.shared) if name in data["models"]]
    data["models"] = {name: data["models"][name] for name in order}
    return data


def _count(samples: Path) -> int:
    with np.load(samples) as file:
        return len({key.partition("/")[0] for key in file.files})


def main() -> None:
    """Measure and write."""
    given = arguments()
    if given.render:
        data = json.loads(given.out.with_suffix(".json").read_text(encoding="utf-8"))
    else:
        data = measure(given)
    if not given.make_only:
        write_results(given.out.parent, given.out.name, data, markdown(data))
        (given.reports / "tune.svg").write_text(picture(data["models"]), encoding="utf-8")


if __name__ == "__main__":
    main()
