"""Size against accuracy below a quarter of float: static int8 whose weights have fewer than 8 bits in the file.

Every size is asked for by ``target_size`` and made from one preparation; what is judged has not been calibrated with. The graph that onnxruntime makes of each file is compared
with that of plain int8 node by node, and timed beside it. Models and data are in ``../shared`` (``--shared``); ResNet-50 comes from elsewhere (``--resnet50 FILE``, with
torchvision's preprocessing): without it, it is left out. Writes ``results/frontier.json``, ``.md`` and ``.svg``, after each model; ``--only`` keeps the figures of the others.
"""

import argparse
import json
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
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
    table,
    write_results,
)
from svg import text
from tasks import Sizes, Task, tasks

from quantkit import StaticSettings, prepare_static, quantize_weights, realize_plan

_SIZES = Sizes(images=372, pairs=1500, calibration=128)
_SHARES = (0.22, 0.2, 0.18, 0.16, 0.15, 0.14, 0.12)
_TIMING = Timing(rounds=60, warm_up=2, least=15, budget=30.0)
_SENTENCES = "all-MiniLM-L6-v2"
_NAMES = ("mobilenet_v2", "efficientnet_lite0", "resnet50", _SENTENCES)
Report = dict[str, Any]


def optimized(path: Path, folder: Path) -> list[tuple[str, ...]]:
    """Return the nodes of the graph that onnxruntime makes of a file: operator, attributes, and what it computes."""
    target = folder / "optimized.onnx"
    session(path, optimized=target, threads=1)
    return [
        (n.domain, n.op_type, *sorted(str(a) for a in n.attribute), *n.output)
        for n in onnx.load(target, load_external_data=False).graph.node
    ]


def made(task: Task, folder: Path) -> dict[str, Path]:
    """Write the model in int8, and in every size; a size that cannot be had is left out."""
    prepared = None
    if task.name != _SENTENCES:
        prepared = prepare_static(task.model, list(task.calibration))
    paths = {"float": task.model}
    for share in (None, *_SHARES):
        name = "int8" if share is None else f"{share:.0%}"
        target = folder / f"{name}.onnx"
        try:
            if prepared is not None:
                settings = StaticSettings(target_size=share)
                result = realize_plan(prepared, None, target, static=settings)
            else:
                options: Report = {"bits": 8} if share is None else {"target_size": share}
                data = list(task.calibration)
                result = quantize_weights(task.model, target, data, **options)
        except ValueError as e:
            print(f"  {name}: {e}", flush=True)
            continue
        paths[name] = target
        print(f"  {name}: {result!r} in {result.seconds:.0f} s", flush=True)
    return paths


def judged(task: Task, paths: Mapping[str, Path], folder: Path) -> Report:
    """Compare every file with float, and with int8."""
    sessions = {name: session(path, threads=1) for name, path in paths.items()}
    reference = task.outputs(sessions["float"])
    plain = optimized(paths["int8"], folder)
    feeds = next(iter(task.feeds.values()))
    calls = {
        name: (lambda model=model: model.run(None, dict(feeds))) for name, model in sessions.items()
    }
    seconds = dict(zip(calls, interleaved(calls, _TIMING).T, strict=True))
    found: Report = {}
    for name, path in paths.items():
        nodes = optimized(path, folder)
        found[name] = {
            "bytes": model_bytes(path),
            "size": model_bytes(path) / model_bytes(task.model),
            "metrics": task.metrics(reference, task.outputs(sessions[name])),
            "nodes": len(nodes),
            "other_nodes": len(set(nodes) ^ set(plain)),
            "time": ratio(seconds[name], seconds["int8"]),
        }
    return found


_TEXT = """\
`quantize_static(..., target_size=...)`: weights have as few bits in the file as the size asks for, and int8 is made of them when it is loaded. All images but those that were
calibrated with ({images} judged, 128 calibrated) and {pairs} pairs of sentences of STS-B; *drop* in points of top-1 (sentences: Spearman's correlation), with its 95 % interval
from drawing examples again. *Nodes* are those of the graph that onnxruntime made of the file; *other* are those that plain int8 has not, or has and this has not, by operator,
attributes and result. *Time* is the ratio to int8's, one thread. MiniLM is `quantize_weights(..., target_size=...)`: its weights in blocks, 8 bits for comparison."""


def markdown(data: Mapping[str, Any]) -> str:
    """Return the report made from the JSON."""
    said = _TEXT.format(images=_SIZES.images, pairs=_SIZES.pairs)
    lines = ["# Size and accuracy below a quarter", "", describe(data["machine"]), "", said, ""]
    lines += ["![size and accuracy](frontier.svg)", ""]
    header = ["", "size / float", "accuracy", "drop", "SQNR", "nodes", "other", "time / int8"]
    for name, rows in data["models"].items():
        lines += [f"## {name}", "", *table(header, [_row(n, r) for n, r in rows.items()]), ""]
    return "\n".join(lines)


def _metric(row: Mapping[str, Any]) -> tuple[str, float]:
    """Return the name of a model's metric, and by how much one point is larger than its unit."""
    return ("spearman", 1.0) if "spearman" in row["metrics"] else ("top1", 100.0)


def _row(name: str, row: Mapping[str, Any]) -> list[str]:
    metric, scale = _metric(row)
    own, digits = row["metrics"], 2 if scale > 1 else 4
    value, drop, low, high = (
        scale * own[key]
        for key in (metric, f"{metric}_drop", f"{metric}_drop_low", f"{metric}_drop_high")
    )
    is_float = name == "float"
    return [
        name,
        f"{row['size']:.1%}",
        f"{value:.{digits}f}",
        "" if is_float else f"{drop:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]",
        "" if is_float else f"{own['sqnr_db']:.1f} dB",
        str(row["nodes"]),
        "" if is_float else str(row["other_nodes"]),
        ""
        if is_float
        else f"{row['time']['ratio']:.2f} [{row['time']['low']:.2f}, {row['time']['high']:.2f}]",
    ]


_PANEL, _HEIGHT, _LEFT, _TOP, _GAP = 420, 190, 70, 84, 74
_SMALLEST, _LARGEST = 0.11, 0.28


def picture(models: Mapping[str, Any]) -> str:
    """Return the picture: a panel a model, what is lost over the size."""
    width, height = _LEFT + _PANEL + 40, _TOP + len(models) * (_HEIGHT + _GAP)
    title = "What is lost (up is better) at which share of float's size"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        'font-family="system-ui, sans-serif" font-size="13" role="img">'
    )
    parts = [head, f"<title>{title}</title>"]
    parts.append(f'<rect width="{width}" height="{height}" rx="10" fill="#ffffff"/>')
    parts.append(text(24, 30, title, size=16, weight=600))
    said = "Points of accuracy, on samples that were not calibrated with; bars are 95 % intervals."
    parts.append(text(24, 50, said, colour="#666", size=11))
    for i, (name, rows) in enumerate(models.items()):
        parts += _panel(name, rows, _TOP + i * (_HEIGHT + _GAP))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(name: str, rows: Mapping[str, Any], top: float) -> list[str]:
    points = [r for n, r in rows.items() if n != "float"]
    metric, scale = _metric(points[0])
    drops = [scale * p["metrics"][f"{metric}_drop"] for p in points]
    floor = 2.0 if scale > 1 else 0.02
    lowest: float = max(floor, *(d * 1.1 for d in drops))
    highest = -0.3 * lowest

    def y(drop: float) -> float:
        inside = min(max(drop, highest), lowest)
        return top + _HEIGHT * (inside - highest) / (lowest - highest)

    def x(share: float) -> float:
        return _LEFT + _PANEL * (share - _SMALLEST) / (_LARGEST - _SMALLEST)

    parts = [text(_LEFT, top - 8, name, weight=600)]
    for share in (0.12, 0.15, 0.18, 0.21, 0.24, 0.27):
        parts.append(_line(x(share), top, x(share), top + _HEIGHT, "#eee"))
        parts.append(text(x(share), top + _HEIGHT + 18, f"{share:.0%}", anchor="middle", size=11))
    digits = 1 if scale > 1 else 3
    for drop in np.linspace(0, lowest, 4):
        parts.append(_line(_LEFT, y(drop), _LEFT + _PANEL, y(drop), "#ddd" if drop else "#888"))
        parts.append(
            text(_LEFT - 8, y(drop) + 4, f"{0.0 - drop:.{digits}f}", anchor="end", size=11)
        )
    track = " ".join(f"{x(p['size']):.1f},{y(d):.1f}" for p, d in zip(points, drops, strict=True))
    parts.append(f'<polyline points="{track}" fill="none" stroke="#0072B2" stroke-width="2"/>')
    for p, d in zip(points, drops, strict=True):
        low, high = (scale * p["metrics"][f"{metric}_drop_{end}"] for end in ("low", "high"))
        parts.append(_line(x(p["size"]), y(low), x(p["size"]), y(high), "#0072B255"))
        parts.append(f'<circle cx="{x(p["size"]):.1f}" cy="{y(d):.1f}" r="4" fill="#0072B2"/>')
    return parts


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _task(name: str, shared: Path, resnet50: Path | None) -> Task | None:
    """Return a model with its data; None if it is not there."""
    if name != "resnet50":
        return tasks(shared, _SIZES)[name]()
    if resnet50 is None:
        return None
    # The same images, prepared as for MobileNetV2.
    like = tasks(shared, _SIZES)["mobilenet_v2"]()
    return None if like is None else replace(like, name=name, model=resnet50)


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", default=_NAMES, help="these models")
    parser.add_argument("--shared", type=Path, default=SHARED, help="folder of models and data")
    parser.add_argument("--resnet50", type=Path, help="ResNet-50, ImageNet, torchvision's input")
    given = parser.parse_args()
    before = RESULTS / "frontier.json"
    models: Report = {}
    if before.is_file():
        models = json.loads(before.read_text(encoding="utf-8"))["models"]
    for name in given.only:
        task = _task(name, given.shared, given.resnet50)
        if task is None:
            continue
        print(name, flush=True)
        with tempfile.TemporaryDirectory() as temporary:
            paths = made(task, Path(temporary))
            models[name] = judged(task, paths, Path(temporary))
        ordered = {n: models[n] for n in _NAMES if n in models}
        (RESULTS / "frontier.svg").write_text(picture(ordered), encoding="utf-8")
        data = {"machine": machine(), "models": ordered}
        write_results(RESULTS, "frontier", data, markdown(data))


if __name__ == "__main__":
    main()
