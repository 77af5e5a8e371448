"""Predicted against measured latency of plans: what the costs of nodes and conversions say, and what the files take.

For each model of zoo.py: nothing in integers, all that the rules allow, what measuring chooses, and plans drawn at random:
products left out one by one, and everything behind some place of the graph. Each is written, and all are run in
turn with the float model. Writes ``results/predicted.json``, ``.md`` and ``.svg``, after each model anew.
"""

import argparse
import json
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from measure import (
    RESULTS,
    SHARED,
    Timing,
    describe,
    interleaved,
    machine,
    session,
    table,
    write_results,
)
from svg import text
from zoo import Case, cases, repeated, work_of

from quantkit import DataSettings, StaticSettings, prepare_static, realize_plan
from quantkit.errors import QuantkitError
from quantkit.pipeline.measure import decide
from quantkit.pipeline.plan_prepared import plan_of
from quantkit.pipeline.prepared import Prepared
from quantkit.quantize.plan import Kept, Mode, Plan
from quantkit.quantize.plan.measured import predict
from quantkit.reasons import Why, because
from quantkit.settings import RecoverSettings

Report = dict[str, Any]
Point = dict[str, Any]

_SAMPLES = 12
_TIMING = Timing(rounds=40, warm_up=2, least=15, budget=40.0)
_QUANTIZED = frozenset({Mode.STATIC, Mode.ABSORBED})
# What integers are worth does not change what they take: no weight is rounded with care here.
_PLAIN = StaticSettings(
    measure=True,
    recover=RecoverSettings(rounding=False, bias=False, equalize=False, smooth=False),
)


def plans(prepared: Prepared, count: int) -> Iterator[tuple[str, Plan]]:
    """Yield plans by what they are: the three that matter, then `count` drawn at random."""
    rules = plan_of(prepared)
    static = [node.node for node in rules.nodes if node.mode in _QUANTIZED]
    products = [p.name for p in prepared.ready.view.weighted if p.name in set(static)]
    yield "all static", rules
    yield "all stored", plan_of(prepared, kept=_out(static))
    if kept := decide(prepared).kept:
        yield "measured choice", plan_of(prepared, kept=kept)
    rng = np.random.default_rng(0)
    for number in range(count):
        share = rng.uniform(0.1, 0.9)
        if number % 2:
            left = [name for name in products if rng.random() < share]
        else:
            left = static[round(share * len(static)) :]
        if left:
            yield f"drawn {number}", plan_of(prepared, kept=_out(left))


def _out(names: Sequence[str]) -> dict[str, Kept]:
    return {name: Kept(because(Why.OTHER, text="left out"), Mode.STORED) for name in names}


def measured(case: Case, folder: Path, count: int) -> Report:
    """Predict, write and run every plan of a model; return its points, times as ratios to float."""
    folder.mkdir(parents=True, exist_ok=True)
    samples = list(case.calibration[:_SAMPLES])
    prepared = prepare_static(case.model, samples, _PLAIN, DataSettings(limit=len(samples)))
    costs = decide(prepared).costs
    if costs is None:
        return {"points": [], "why": "nothing of it was measured"}
    points: list[Point] = []
    sessions = {"float": session(case.model, threads=1)}
    for name, plan in plans(prepared, count):
        path = folder / f"{name}.onnx"
        try:
            realize_plan(prepared, plan, path, verify=False)
        except QuantkitError as e:
            print(f"  {name}: {e}", flush=True)
            continue
        sessions[name] = session(path, threads=1)
        whole = sum(node.mode in _QUANTIZED for node in plan.nodes)
        seconds = predict(prepared.ready.view, plan, costs)
        points.append({"plan": name, "static": whole, "predicted": seconds / costs.total})
    feeds = [dict(sample) for sample in prepared.judged[:2]] or samples[:2]
    times = work_of(sessions["float"], feeds)
    calls = {name: repeated(found, feeds, times) for name, found in sessions.items()}
    took = dict(zip(calls, np.median(interleaved(calls, _TIMING), axis=0), strict=True))
    for point in points:
        point["measured"] = float(took[point["plan"]] / took["float"])
    return {"ms": 1e3 * float(took["float"]) / times / len(feeds), "points": points}


def correlation(points: Sequence[Point]) -> float:
    """Return how well the order and distance of predicted times agree with measured ones: of their logarithms."""
    both = np.log([[p["predicted"], p["measured"]] for p in points])
    return float(np.corrcoef(both.T)[0, 1]) if len(points) > 2 else math.nan


def _error(points: Sequence[Point]) -> float:
    """Return by how much of itself a prediction is wrong, in the middle."""
    return float(np.median([abs(p["predicted"] / p["measured"] - 1) for p in points]))


_TEXT = """\
*Predicted* are the seconds of all nodes, each in its mode, and of the conversions between them, as quantkit has measured them once for a
model, over the measured seconds of the float model. *Measured* are files, all plans of a model in turn, one thread. Correlations are those of
logarithms; the error is the median of |predicted / measured - 1|. Plans: nothing in calibrated integers, all that the rules
allow, what measuring chooses, and others drawn at random (products left out, or all behind some place of the graph).

![predicted against measured](predicted.svg)"""


def markdown(data: Mapping[str, Any]) -> str:
    """Return the report made from the JSON."""
    lines = ["# Predicted against measured latency", "", describe(data["machine"]), "", _TEXT, ""]
    header = [
        "model",
        "plans",
        "correlation",
        "error",
        "all static",
        "all stored",
        "measured choice",
    ]
    rows = []
    everything = [p for model in data["models"].values() for p in model["points"]]
    for name, model in data["models"].items():
        known = {p["plan"]: p for p in model["points"]}
        cells = [_pair(known.get(plan)) for plan in header[4:]]
        rows.append([name, *_figures(model["points"]), *cells])
    rows.append(["**all**", *_figures(everything), "", "", ""])
    why = [f"* {n}: {m['why']}" for n, m in data["models"].items() if "why" in m]
    return "\n".join([*lines, *table(header, rows), *([""] if why else []), *why]) + "\n"


def _figures(points: Sequence[Point]) -> list[str]:
    if not points:
        return ["0", "", ""]
    return [str(len(points)), f"{correlation(points):.3f}", f"{100 * _error(points):.0f} %"]


def _pair(point: Point | None) -> str:
    return f"{point['predicted']:.2f}, is {point['measured']:.2f}" if point else ""


_SIDE, _TOP, _LEFT = 520, 60, 70
# Okabe-Ito colours and two greys, told apart by colour-blind readers; shapes differ too.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#888888")


def picture(models: Mapping[str, Any]) -> str:
    """Return the scatter of all plans, predicted to the right, measured upwards."""
    points = [p for model in models.values() for p in model["points"]]
    values = [p[key] for p in points for key in ("predicted", "measured")] or [0.5, 1.0]
    low, high = min(values) / 1.1, max(values) * 1.1

    def place(value: float) -> float:
        return _SIDE * math.log(value / low) / math.log(high / low)

    width, height = _LEFT + _SIDE + 210, _TOP + _SIDE + 60
    title = f"Latency of {len(points)} plans of {len(models)} models, as a ratio to float"
    bottom = _TOP + _SIDE
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" font-family="system-ui, sans-serif" font-size="13" role="img">'
        ),
        f"<title>{title}</title>",
        f'<rect width="{width}" height="{height}" rx="10" fill="#ffffff"/>',
        text(24, 30, title, size=16, weight=600),
        f'<rect x="{_LEFT}" y="{_TOP}" width="{_SIDE}" height="{_SIDE}" fill="#fafafa" stroke="#ddd"/>',
        f'<line x1="{_LEFT}" y1="{bottom}" x2="{_LEFT + _SIDE}" y2="{_TOP}" stroke="#bbb"/>',
        text(_LEFT + _SIDE, bottom + 40, "predicted", anchor="end", colour="#666"),
        text(_LEFT - 6, _TOP - 8, "measured", colour="#666"),
    ]
    for tick in (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0):
        if low < tick < high:
            at = place(tick)
            parts += [
                text(_LEFT + at, bottom + 18, f"{tick:g}", anchor="middle", size=11),
                text(_LEFT - 8, bottom - at + 4, f"{tick:g}", anchor="end", size=11),
            ]
    for number, (name, model) in enumerate(models.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        hollow = number >= len(_COLOURS)
        row = _TOP + 14 + 20 * number
        parts += [_mark(_LEFT + _SIDE + 24, row - 4, colour, hollow=hollow)]
        parts += [text(_LEFT + _SIDE + 36, row, name, size=12)]
        for p in model["points"]:
            x, y = _LEFT + place(p["predicted"]), bottom - place(p["measured"])
            parts.append(_mark(x, y, colour, hollow=hollow, said=f"{name}: {p['plan']}"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _mark(x: float, y: float, colour: str, *, hollow: bool, said: str = "") -> str:
    fill = f'fill="#fff" stroke="{colour}" stroke-width="2"' if hollow else f'fill="{colour}"'
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" {fill} opacity="0.85"><title>{said}</title></circle>'


def arguments() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", default=(), help="these models, and keep the others")
    parser.add_argument("--resume", action="store_true", help="only models without figures")
    parser.add_argument("--plans", type=int, default=6, help="drawn at random, a model")
    parser.add_argument("--shared", type=Path, default=SHARED, help="folder of models and data")
    parser.add_argument("--out", type=Path, default=RESULTS / "predicted", help="without a suffix")
    parser.add_argument("--render", action="store_true", help="table and picture from the JSON")
    return parser.parse_args()


def main() -> None:
    """Measure and write, after each model."""
    given = arguments()
    path, keeps = given.out.with_suffix(".json"), given.only or given.resume or given.render
    kept = json.loads(path.read_text(encoding="utf-8")) if keeps and path.is_file() else {}
    data: Report = {"machine": machine(), "models": {}, **kept}
    with tempfile.TemporaryDirectory() as temporary:
        for name, load in ({} if given.render else cases(given.shared)).items():
            if (given.only and name not in given.only) or (given.resume and name in data["models"]):
                continue
            print(name, flush=True)
            try:
                found = measured(load(), Path(temporary) / name, given.plans)
            except QuantkitError as e:
                found = {"points": [], "why": str(e)}
            data["models"][name] = found
            _write(given.out, data)
    if given.render:
        _write(given.out, data)


def _write(out: Path, data: Report) -> None:
    write_results(out.parent, out.name, data, markdown(data))
    out.with_suffix(".svg").write_text(picture(data["models"]), encoding="utf-8")


if __name__ == "__main__":
    main()
