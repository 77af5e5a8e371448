"""What each way to round weights that cannot saturate is worth, layer by layer; activations stay float.

Rounding learns the moments of each layer's input from calibration images. Layers and the whole model are judged on other
images. Writes ``results/static_weights.json`` (everything) and ``results/static_weights.md`` (made from it).
"""

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from measure import RESULTS, SHARED, describe, machine, session, table, write_results
from numpy.typing import NDArray
from static_weights_rows import VARIANTS, Layer, Rounded, is_reorderable
from tasks import Sizes, Task, tasks

from calibrators import PatchMoments
from quantkit import DataSettings
from quantkit.calibration.collect import CalibrateOptions
from quantkit.model.graph.load import load
from quantkit.model.graph.products import Product, products_of
from quantkit.numerics.pairs import FREE, PAIRED, round_pairs
from quantkit.numerics.second_order import output_error
from quantkit.pipeline.calibrate import calibrate_model
from quantkit.pipeline.prepared import FloatModel
from quantkit.pipeline.static_model import runnable, simplified
from quantkit.quantize.solve.weights import moment_request, moment_requests, peak_scale, safe_scale
from quantkit.settings import StaticSettings

Array = NDArray[Any]
Report = dict[str, Any]

_MODELS = ("efficientnet_lite0", "mobilenet_v2")


def moments_of(
    ready: FloatModel, products: Sequence[Product], samples: Sequence[Mapping[str, Array]]
) -> list[PatchMoments]:
    """Run the float model; return the moments of what each product reads."""
    options = CalibrateOptions(ranges=False, requests=moment_requests(products))
    settings = DataSettings(limit=len(samples))
    with runnable(ready) as written:
        seen = calibrate_model(written.source, list(samples), None, options, settings)
    found = [seen.seen.answers[p.reads][moment_request(p).statistic] for p in products]
    return [m for m in found if isinstance(m, PatchMoments)]


def layers_of(ready: FloatModel, count: int | None, samples: Sequence[Any]) -> list[Layer]:
    """Return the first `count` products (None: all) with their weights and moments."""
    products = products_of(ready.view)
    named = {p.node: p for p in products}
    chosen = products[:count]
    return [
        Layer(
            product=product,
            weight=_constant(ready, product.weight),
            moments=moments,
            reorderable=is_reorderable(product, ready.view, named),
        )
        for product, moments in zip(chosen, moments_of(ready, chosen, samples), strict=True)
    ]


def _constant(ready: FloatModel, name: str) -> Array:
    tensor = ready.model.graph.initializers[name].const_value
    assert tensor is not None  # noqa: S101 - weights are constant
    return tensor.numpy()


def layer_db(layer: Layer, error: Array, judged: PatchMoments, *, corrected: bool) -> float:
    """Return the SQNR of a layer's output; the signal is what varies of it.

        noise = E |e x - c|^2 = tr e Cov e^T + |e E[x] - c|^2

    c is what the bias takes away: e times the mean of the calibration data, or nothing.
    """
    away = judged.mean - (layer.moments.mean if corrected else 0)
    left = np.einsum("gnk,gk->gn", error, away)
    noise = output_error(error, judged.covariance).sum() + np.square(left).sum()
    signal = output_error(layer.rows, judged.covariance).sum()
    return float(10 * np.log10(signal / max(noise, signal * 1e-20)))


class Judge:
    """Judges the rounded weights of one model."""

    def __init__(self, task: Task, ready: FloatModel, layers: Sequence[Layer]) -> None:
        self.task = task
        self.ready = ready
        self.layers = layers
        products = [layer.product for layer in layers]
        self.moments = moments_of(ready, products, task.calibration[1::2])
        self.reference = self._outputs({})

    def judged(self, rounded: Sequence[Rounded]) -> Report:
        """Return SQNR of layers and outputs, without and with bias correction."""
        weights: dict[str, Array] = {}
        biases: dict[str, Array] = {}
        figures: list[list[float]] = [[], []]
        for layer, found, moments in zip(self.layers, rounded, self.moments, strict=True):
            product = layer.product
            kept = found.dequantized(product.layout)
            error = layer.rows - product.layout.rows(kept.astype(np.float64))
            for corrected, column in enumerate(figures):
                column.append(layer_db(layer, error, moments, corrected=bool(corrected)))
            shift = np.einsum("gnk,gk->gn", error, layer.moments.mean).reshape(-1)
            bias = _constant(self.ready, product.bias)
            weights[product.weight] = kept
            biases[product.bias] = (bias + product.alpha / product.beta * shift).astype(np.float32)
        return {
            "unsafe": sum(not found.safe for found in rounded),
            "plain": self._report(figures[0], weights),
            "corrected": self._report(figures[1], weights | biases),
        }

    def _report(self, layers: Sequence[float], constants: Mapping[str, Array]) -> Report:
        quality = self.task.metrics(self.reference, self._outputs(constants))
        return {"layer_db": float(np.mean(layers)), "layers_db": list(layers), "model": quality}

    def _outputs(self, constants: Mapping[str, Array]) -> Array:
        """Run the model with other constants."""
        values = self.ready.model.graph.initializers
        own = {name: values[name].const_value for name in constants}
        for name, array in constants.items():
            values[name].const_value = ir.Tensor(array, name=name)
        serialized = ir.serde.serialize_model(self.ready.model).SerializeToString()
        for name, tensor in own.items():
            values[name].const_value = tensor
        return self.task.outputs(session(serialized))


def offending(layers: Sequence[Layer]) -> Report:
    """Count the pairs that plain rounding at the scale of the peak leaves unsafe, and what safety costs."""
    bad: list[NDArray[np.bool_]] = []
    touched: list[NDArray[np.bool_]] = []
    wider: list[Array] = []
    for layer in layers:
        if layer.limits is FREE:
            continue
        scale = peak_scale(layer.rows)
        q = round_pairs(layer.rows / scale[..., np.newaxis], FREE)
        sums = np.abs(q[..., 0 : q.shape[-1] // 2 * 2 : 2] + q[..., 1::2]) > PAIRED.pair
        bad.append(sums.reshape(-1))
        touched.append(sums.any(axis=-1).reshape(-1))
        wider.append((safe_scale(layer.rows) / scale).reshape(-1))
    means = {"pairs": bad, "channels": touched, "wider": wider}
    return {key: float(np.concatenate(parts).mean()) for key, parts in means.items()}


def ablate(task: Task, count: int | None) -> Report:
    """Judge all variants on one model."""
    ready = simplified(load(task.model), StaticSettings())
    layers = layers_of(ready, count, task.calibration[0::2])
    judge = Judge(task, ready, layers)
    rows: Report = {}
    for name, variant in VARIANTS.items():
        started = time.perf_counter()
        rounded = [variant(layer) for layer in layers]
        seconds = time.perf_counter() - started
        rows[name] = {"seconds": seconds, **judge.judged(rounded)}
        print(f"  {name}: {rows[name]['corrected']['layer_db']:.2f} dB a layer", flush=True)
    described = [
        {"node": n.product.node, "shape": n.product.layout.shape, "reorderable": n.reorderable}
        for n in layers
    ]
    return {"layers": described, "offending": offending(layers), "rows": rows}


_TEXT = """\
Weights are rounded, activations stay float. Moments are learned from {calibration} images; layers are judged on as many others
(SQNR of what varies of a layer's output, in dB, mean over the layers), the model's output on {images} more. *Bias* columns: the
mean of each channel's error, as calibration saw it, is taken off the bias. *Unsafe* are layers in which some activations would
make a pair of products exceed 16 bits on x86 without VNNI. Rows that begin with + add to the row above. *Centred* rounding
minimises what is left after the bias correction, so only its *bias* columns count. *Reordered inputs* is not in quantkit:
whoever makes what a layer reads would have to write it in another order. The last row is what could be had without the
constraint."""


def markdown(data: Mapping[str, Any]) -> str:
    """Return the report made from the JSON."""
    lines = ["# Weights that cannot saturate, by how they are rounded", ""]
    lines += [describe(data["machine"]), "", _TEXT.format(**data["settings"])]
    header = ["", "unsafe", "layer", "layer, bias", "model", "model, bias", "rounded in"]
    for name, model in data["models"].items():
        found, layers = model["offending"], model["layers"]
        free = sum(layer["reorderable"] for layer in layers)
        lines += ["", f"## {name}", ""]
        lines.append(
            f"{len(layers)} layers, of which {free} can have their inputs reordered. Nearest integers at the scale of the "
            f"largest weight leave {found['pairs']:.2%} of the pairs unsafe, in {found['channels']:.1%} of the channels; the "
            f"pair-safe scale is {found['wider']:.3f} times as wide."
        )
        lines += ["", *table(header, [_line(k, row) for k, row in model["rows"].items()])]
    return "\n".join(lines) + "\n"


def _line(name: str, row: Mapping[str, Any]) -> list[str]:
    both = [row["plain"], row["corrected"]]
    figures = [r["layer_db"] for r in both] + [r["model"]["sqnr_db"] for r in both]
    return [name, str(row["unsafe"]), *(f"{db:.2f}" for db in figures), f"{row['seconds']:.1f} s"]


def arguments() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="*", default=_MODELS, choices=_MODELS)
    parser.add_argument("--calibration", type=int, default=128, help="images to learn moments from")
    parser.add_argument("--images", type=int, default=120, help="images the model is judged on")
    parser.add_argument("--layers", type=int, help="round only so many layers, from the first on")
    parser.add_argument("--shared", type=Path, default=SHARED, help="folder of models and data")
    parser.add_argument("--out", type=Path, default=RESULTS / "static_weights", help="no suffix")
    parser.add_argument("--render", action="store_true", help="make the tables anew from the JSON")
    return parser.parse_args()


def measure(given: argparse.Namespace) -> Report:
    """Judge all models that were asked for."""
    sizes = Sizes(images=given.images, calibration=2 * given.calibration)
    settings = {key: getattr(given, key) for key in ("calibration", "images", "layers")}
    data: Report = {"machine": machine(), "settings": settings, "models": {}}
    for name in given.models:
        task = tasks(given.shared, sizes)[name]()
        if task is not None:
            print(name, flush=True)
            data["models"][name] = ablate(task, given.layers)
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
