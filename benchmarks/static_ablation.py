"""What each step of static quantization is worth: switched on alone, and left out of the defaults.

Three tables a model: the steps that win back accuracy; the ways to keep integers from saturating on x86 without VNNI;
the passes that simplify the graph. Writes ``results/static_ablation.json`` (everything) and
``results/static_ablation.md`` (made from it).
"""

import argparse
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from compare_dynamic import shown
from measure import RESULTS, SHARED, describe, first_line, machine, session, table, write_results
from static_ablation_rows import SATURATION, STEPS, Variant, recovery, steps_of
from tasks import Sizes, Task, tasks

from quantkit import DataSettings, StaticSettings, plan_static, quantize_static
from quantkit.evaluate.integer_layers import IntegerLayer, integer_layers, share, worst_db
from quantkit.model.graph.load import load
from quantkit.quantize.plan import Plan
from quantkit.quantize.rewrite.simplify import PASSES, select, simplify
from quantkit.runtime.kernels import fusion_of

Report = dict[str, Any]

_MODELS = ("efficientnet_lite0", "mobilenet_v2", "resnet20_cifar10", "all-MiniLM-L6-v2")


class Maker:
    """Makes and judges the variants of one model."""

    def __init__(self, task: Task, folder: Path, samples: int, positions: int) -> None:
        self.task = task
        self.folder = folder
        self.seen = task.calibration[:samples]
        self.positions = positions
        self.reference = task.outputs(session(task.model))
        self.steps = steps_of(task.model)
        self.made: dict[Variant, tuple[Path, Report]] = {}

    def judged(self, name: str, variant: Variant) -> Report:
        """Return quality and seconds of a variant, or its error."""
        variant = variant.doing(self.steps)
        if variant not in self.made:
            path = self.folder / f"{len(self.made)}.onnx"
            self.made[variant] = (path, self._judged(path, variant))
        report = self.made[variant][1]
        print(f"  {name}: {report.get('error') or report['quality']['sqnr_db']}", flush=True)
        return report

    def layers(self, variant: Variant) -> list[IntegerLayer]:
        """Compute the products of a variant that was made, exactly and with saturating sums."""
        return integer_layers(self.made[variant.doing(self.steps)][0], self.seen, self.positions)

    def kernels(self, variant: Variant) -> Report:
        """Return what onnxruntime runs of a variant that was made."""
        fusion = fusion_of(self.made[variant.doing(self.steps)][0])
        return {"integer": fusion.integer_count, "conversions": sum(fusion.conversions.values())}

    def _judged(self, path: Path, variant: Variant) -> Report:
        started = time.perf_counter()
        try:
            self._make(path, variant)
            seconds = time.perf_counter() - started
            outputs = self.task.outputs(session(path))
        except Exception as e:  # noqa: BLE001 - a result that does not run is a result
            return {"error": first_line(e).replace(f"{self.folder}/", "")}
        return {"quality": self.task.metrics(self.reference, outputs), "seconds": seconds}

    def _make(self, path: Path, variant: Variant) -> None:
        passes = select(exclude=[variant.without] if variant.without else [])
        samples = list(self.task.calibration)
        settings = DataSettings(limit=len(samples))
        # Users cannot leave a pass out, nor reduce the range: the constraint on pairs replaces it.
        with mock.patch(
            "quantkit.pipeline.static_model.simplify", partial(simplify, passes=passes)
        ):
            plan = None
            if variant.reduced:
                chosen = StaticSettings(target=variant.target, recover=variant.recover)
                plan = _reduced(plan_static(self.task.model, samples, chosen, settings))
            quantize_static(
                self.task.model,
                path,
                samples,
                target=variant.target,
                recover=variant.recover,
                settings=settings,
                plan=plan,
                verify=False,
            )


def _reduced(plan: Plan) -> Plan:
    """Return the plan with 7 bits for its weights."""
    weights = [replace(w, spec=replace(w.spec, reduced=True)) for w in plan.weights]
    return replace(plan, weights=tuple(weights))


def simplified(model: Path, maker: Maker) -> Report:
    """Count the nodes without each pass; of batchnorm, which changes weights, also judge the result."""

    def nodes(*, without: Sequence[str] = ()) -> int:
        return simplify(load(model).model, select(exclude=without)).nodes_after

    before = simplify(load(model).model, []).nodes_before
    rows: Report = {"all passes": {"nodes": nodes()}}
    rows |= {f"without {name}": {"nodes": nodes(without=[name])} for name in PASSES}
    judged = {"all passes": Variant()}
    if rows["without batchnorm"]["nodes"] != rows["all passes"]["nodes"]:
        judged["without batchnorm"] = Variant(without="batchnorm")
    for name, variant in judged.items():
        rows[name] |= maker.judged(name, variant)
        if "error" not in rows[name]:
            rows[name] |= maker.kernels(variant)
    return {"nodes_before": before, "rows": rows}


def ablate(task: Task, folder: Path, given: argparse.Namespace) -> Report:
    """Fill the three tables of one model."""
    maker = Maker(task, folder, given.samples, given.positions)
    steps = maker.steps
    recovered = {name: maker.judged(name, v) for name, v in recovery(steps).items()}
    saturation = {}
    for name, variant in SATURATION.items():
        saturation[name] = dict(maker.judged(name, variant))
        if "error" not in saturation[name]:
            saturation[name]["avx2"] = _saturation(maker.layers(variant))
    return {
        "float": task.metrics(maker.reference, maker.reference),
        "steps": steps,
        "recover": recovered,
        "saturation": saturation,
        "simplify": simplified(task.model, maker),
    }


def _saturation(layers: Sequence[IntegerLayer]) -> Report:
    pairs = sum(layer.pairs for layer in layers)
    return {
        "products": len(layers),
        "unsafe": sum(layer.may_saturate for layer in layers),
        "clipped": sum(layer.clipped for layer in layers) / max(1, pairs),
        "changed": share(layers),
        "worst_db": worst_db(layers),
    }


_TEXT = """\
Calibrated on {calibration} samples. Judged on {images} images of ImageNet, {small} of CIFAR-10 or {pairs} pairs of sentences:
fewer than in [static.md](static.md), so look at SQNR. *Drop* is to float, with its 95 % bootstrap interval. SQNR is that of the
outputs, as onnxruntime computes them here.

*Saturation* leaves out equalization and smoothing. *Unsafe* are products in which some activations would make a pair of
products exceed 16 bits. *Clipped* is the share of pairs that really do, *changed* the share of the outputs that this makes
wrong, on x86 without VNNI, simulated on {samples} samples at {positions} positions of each layer; *worst layer* is the power
of that error over the power of the layer's output. With "no constraint" SQNR holds only where nothing saturates.

*Simplification*: nodes of the float graph that is quantized; of the result, *int8* are products that onnxruntime computes in
integers, *Q/DQ left* conversions in the graph that it optimized."""


def markdown(data: Mapping[str, Any]) -> str:
    """Return the report made from the JSON."""
    lines = ["# What each step of static quantization is worth", "", describe(data["machine"]), ""]
    lines.append(_TEXT.format(**data["settings"]))
    for name, model in data["models"].items():
        figure = "top1" if "top1" in model["float"] else "spearman"
        word = {"top1": "top-1", "spearman": "Spearman"}[figure]
        idle = [step for step in STEPS if step not in model["steps"]]
        lines += ["", f"## {name}", "", f"Float: {word} {shown(model['float'], figure)}."]
        lines += [f"Finding nothing to do: {', '.join(idle)}."] * bool(idle)
        header = ["", word, "drop", "SQNR"]
        rows = [[n, *_quality(r, figure)] for n, r in model["recover"].items()]
        lines += ["", *table([*header, "made in"], [[*r, _took(model, r[0])] for r in rows])]
        more = ["unsafe", "clipped", "changed", "worst layer"]
        rows = [[n, *_quality(r, figure), *_avx2(r)] for n, r in model["saturation"].items()]
        lines += ["", "### Saturation", "", *table([*header, *more], rows)]
        counts = model["simplify"]
        rows = [[n, *_nodes(r), *_quality(r, figure)] for n, r in counts["rows"].items()]
        rows.insert(0, ["as it was exported", str(counts["nodes_before"]), *[""] * 5])
        header = ["", "nodes", "int8", "Q/DQ left", *header[1:]]
        lines += ["", "### Simplification", "", *table(header, rows)]
    return "\n".join(lines) + "\n"


def _quality(row: Mapping[str, Any], figure: str) -> list[str]:
    if "quality" not in row:
        return ["failed" if "error" in row else ""] * 3
    return [shown(row["quality"], key) for key in (figure, f"{figure}_drop", "sqnr_db")]


def _nodes(row: Mapping[str, Any]) -> list[str]:
    return [str(row.get(key, "")) for key in ("nodes", "integer", "conversions")]


def _took(model: Mapping[str, Any], name: str) -> str:
    row = model["recover"][name]
    return f"{row['seconds']:.0f} s" if "seconds" in row else ""


def _avx2(row: Mapping[str, Any]) -> list[str]:
    if "avx2" not in row:
        return [""] * 4
    found = row["avx2"]
    worst = "" if found["worst_db"] is None else f"{found['worst_db']:.1f} dB"
    shares = [f"{100 * found[key]:.3f} %" for key in ("clipped", "changed")]
    return [f"{found['unsafe']} of {found['products']}", *shares, worst]


_QUICK = {"calibration": 8, "images": 8, "small": 32, "pairs": 8, "samples": 1, "positions": 4}


def arguments() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="*", default=_MODELS, choices=_MODELS)
    parser.add_argument("--calibration", type=int, default=128, help="samples to calibrate on")
    parser.add_argument("--images", type=int, default=120, help="ImageNet images judged")
    parser.add_argument("--small", type=int, default=1000, help="CIFAR images judged")
    parser.add_argument("--pairs", type=int, default=200, help="sentence pairs judged")
    parser.add_argument("--samples", type=int, default=3, help="samples to look for saturation in")
    parser.add_argument("--positions", type=int, default=16, help="of each layer and sample")
    parser.add_argument("--quick", action="store_true", help="hardly any data, to see that it runs")
    parser.add_argument("--shared", type=Path, default=SHARED, help="folder of models and data")
    parser.add_argument("--out", type=Path, default=RESULTS / "static_ablation", help="no suffix")
    parser.add_argument("--render", action="store_true", help="make the tables anew from the JSON")
    given = parser.parse_args()
    if given.quick:
        vars(given).update(_QUICK)
    return given


def measure(given: argparse.Namespace) -> Report:
    """Make and judge all that was asked for."""
    counts = {key: getattr(given, key) for key in _QUICK}
    sizes = Sizes(**{k: counts[k] for k in ("images", "small", "pairs", "calibration")})
    data: Report = {"machine": machine(), "settings": counts, "models": {}}
    for name in given.models:
        task = tasks(given.shared, sizes)[name]()
        if task is None:
            continue
        print(name, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            data["models"][name] = ablate(task, Path(folder), given)
    return data


def main() -> None:
    """Measure and write."""
    given = arguments()
    if given.render:
        data = json.loads(given.out.with_suffix(".json").read_text(encoding="utf-8"))
    else:
        data = measure(given)
    write_results(given.out.parent, given.out.name, data, markdown(data))


if __name__ == "__main__":
    main()
