"""One static quantization in a process of its own: ``static_jobs.py '{"do": "nncf", ...}'``.

Started by compare_static.py through measure.alone, each tool with an interpreter that has it: this
file imports nothing but the standard library and numpy before a job is chosen. A job reads ``source``
and the samples of ``samples`` (see `save_samples`), takes ``options`` and writes ``target``:

* ``prepare``: opset 17 at least, and onnxruntime's own preparation (shapes, folded constants and
  BatchNormalization), which every peer's result is better with;
* ``onnxruntime``, ``onnxruntime_dynamic``, ``nncf``, ``quantkit``: quantize;
* ``nncf_control``: quantize by NNCF with accuracy control, on the labelled samples of ``choosing``.
"""

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from worker import answer

__all__ = ["load_samples", "save_samples"]

Job = dict[str, Any]
Feeds = Mapping[str, NDArray[Any]]

_OPSET = 17  # the encoder has 11, at which scales of channels are not possible


def save_samples(path: Path, samples: Sequence[Feeds]) -> None:
    """Write samples of any shapes: one array for each sample and input, named ``<number>/<input>``."""
    arrays: dict[str, Any] = {
        f"{i:04d}/{k}": v for i, sample in enumerate(samples) for k, v in sample.items()
    }
    np.savez(path, **arrays)


def load_samples(path: str) -> list[dict[str, Any]]:
    """Read what `save_samples` wrote, in its order."""
    found: dict[str, dict[str, Any]] = {}
    with np.load(path) as file:
        for key in file.files:
            number, _, name = key.partition("/")
            found.setdefault(number, {})[name] = file[key]
    return list(found.values())


def padded(samples: Sequence[Feeds]) -> list[dict[str, Any]]:
    """Pad all samples with zeros to one length: onnxruntime's histograms ask for one shape."""
    longest = max(v.shape[1] for sample in samples for v in sample.values())
    return [
        {k: np.pad(v, ((0, 0), (0, longest - v.shape[1]))) for k, v in sample.items()}
        for sample in samples
    ]


class Reader:
    """Samples as onnxruntime's CalibrationDataReader."""

    def __init__(self, samples: Sequence[Feeds]) -> None:
        self.samples = samples
        self.rewind()

    def rewind(self) -> None:
        """Begin again."""
        self.left: Iterator[Feeds] = iter(self.samples)

    def get_next(self) -> Feeds | None:
        """Return the next sample; None at the end."""
        return next(self.left, None)

    def __len__(self) -> int:
        return len(self.samples)


def timed(call: Callable[[], object]) -> Job:
    """Report the seconds of the call alone."""
    start = time.perf_counter()
    call()
    return {"seconds": time.perf_counter() - start}


def prepare(job: Job) -> Job:
    """Bring a model into the form that the peers' own instructions ask for."""
    import onnx
    from onnxruntime.quantization.shape_inference import quant_pre_process

    model = onnx.load(job["source"])
    if max(i.version for i in model.opset_import if i.domain in {"", "ai.onnx"}) < _OPSET:
        model = onnx.version_converter.convert_version(model, _OPSET)
    return timed(lambda: quant_pre_process(model, job["target"], skip_symbolic_shape=True))


def unweighted(path: str) -> list[str]:
    """Return the names of the MatMul of two activations."""
    import onnx

    graph = onnx.load(path).graph
    weights = {tensor.name for tensor in graph.initializer}
    products = (node for node in graph.node if node.op_type == "MatMul")
    return [node.name for node in products if weights.isdisjoint(node.input)]


def onnxruntime_row(job: Job) -> Job:
    """Call onnxruntime's quantize_static; on a copy, because it writes beside its input.

    ``padded: true`` pads the samples, ``weighted_only: true`` leaves out products of two activations
    (MatMulConstBOnly has no effect on static quantization); all else is quantize_static's.
    """
    from onnxruntime import quantization as q

    options = dict(job["options"])
    for key, kind in (("activation_type", q.QuantType), ("weight_type", q.QuantType)):
        if key in options:
            options[key] = kind[options[key]]
    if "calibrate_method" in options:
        options["calibrate_method"] = q.CalibrationMethod[options["calibrate_method"]]
    samples = load_samples(job["samples"])
    reader = Reader(padded(samples) if options.pop("padded", False) else samples)
    if options.pop("weighted_only", False):
        options["nodes_to_exclude"] = unweighted(job["source"])
    with tempfile.TemporaryDirectory() as folder:
        source = shutil.copyfile(job["source"], Path(folder) / "model.onnx")
        return timed(lambda: q.quantize_static(source, job["target"], reader, **options))


def onnxruntime_dynamic_row(job: Job) -> Job:
    """Call onnxruntime's quantize_dynamic, which needs no samples."""
    from onnxruntime import quantization as q

    options = dict(job["options"])
    kind = q.QuantType[options.pop("weight_type")]
    call = q.quantize_dynamic
    return timed(lambda: call(job["source"], job["target"], weight_type=kind, **options))


def nncf_row(job: Job) -> Job:
    """Call NNCF's quantize with its defaults but for what is given.

    ``smooth_quant: false``, ``bias: false`` and ``ranges`` (how those of activations are found) are
    shorthands for its advanced parameters; all else is nncf.quantize's.
    """
    import onnx

    # Not imported by name: NNCF is installed in an environment of its own only.
    nncf: Any = import_module("nncf")
    advanced: Any = import_module("nncf.quantization.advanced_parameters")
    estimators: Any = import_module("nncf.quantization.range_estimator")
    options, more = dict(job["options"]), {}
    if "preset" in options:
        options["preset"] = nncf.QuantizationPreset[options["preset"]]
    if "model_type" in options:
        options["model_type"] = nncf.ModelType[options["model_type"]]
    if not options.pop("smooth_quant", True):
        off = advanced.AdvancedSmoothQuantParameters(convolution=-1, matmul=-1)
        more["smooth_quant_alphas"] = off
    if not options.pop("bias", True):
        more["disable_bias_correction"] = True
    if ranges := options.pop("ranges", None):
        chosen = getattr(estimators.RangeEstimatorParametersSet, ranges)
        more["activations_range_estimator_params"] = chosen
    if more:
        options["advanced_parameters"] = advanced.AdvancedQuantizationParameters(**more)
    samples = load_samples(job["samples"])
    data, model = nncf.Dataset(samples), onnx.load(job["source"])

    def call() -> None:
        made = nncf.quantize(model, data, subset_size=len(samples), **options)
        onnx.save(made, job["target"])

    return {**timed(call), "version": nncf.__version__}


class Control:
    """What NNCF's accuracy control asks: how good a model is on some items; counts what it ran.

    An item is one sample and its class, or two and how alike they are.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.samples = 0

    def __call__(self, model: Any, items: Any) -> tuple[float, list[float] | None]:
        """Return top-1 and whether each item is a hit; or Spearman's correlation, which single pairs have none of.

        Raises:
            ValueError: One pair: NNCF then ranks by outputs.
        """
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.log_severity_level = 4
        run = ort.InferenceSession(model.SerializeToString(), options).run
        self.calls += 1
        answers, wanted = [], []
        for *feeds, label in items:
            outputs = [run(None, dict(one))[0] for one in feeds]
            answers.append(_alike(outputs, feeds) if len(feeds) > 1 else int(outputs[0].argmax()))
            wanted.append(label)
        self.samples += len(wanted)
        if isinstance(wanted[0], float):
            from scipy.stats import spearmanr

            if len(wanted) < 2:
                raise ValueError("a correlation of one pair")
            return float(spearmanr(answers, wanted)[0]), None
        hits = [float(a == w) for a, w in zip(answers, wanted, strict=True)]
        return float(np.mean(hits)), hits


def _alike(outputs: Sequence[Any], feeds: Sequence[Feeds]) -> float:
    """Return the cosine of two texts: tokens are averaged over their masks."""
    masks = [one["attention_mask"][..., np.newaxis].astype(np.float32) for one in feeds]
    a, b = (((o * m).sum(1) / m.sum(1))[0] for o, m in zip(outputs, masks, strict=True))
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def nncf_control_row(job: Job) -> Job:
    """Call NNCF's quantize_with_accuracy_control; ``max_drop`` and all else of ``options`` are its own."""
    import onnx

    nncf: Any = import_module("nncf")
    options = dict(job["options"])
    if "preset" in options:
        options["preset"] = nncf.QuantizationPreset[options["preset"]]
    if "model_type" in options:
        options["model_type"] = nncf.ModelType[options["model_type"]]
    samples, choosing = load_samples(job["samples"]), load_samples(job["choosing"])
    labels = np.load(job["labels"]).tolist()
    sides = len(choosing) // len(labels)
    items = [(*choosing[i * sides : (i + 1) * sides], label) for i, label in enumerate(labels)]
    control, model = Control(), onnx.load(job["source"])

    def call() -> None:
        made = nncf.quantize_with_accuracy_control(
            model,
            nncf.Dataset(samples),
            nncf.Dataset(items, lambda item: item[0]),
            control,
            subset_size=len(samples),
            **options,
        )
        onnx.save(made, job["target"])

    report = timed(call)
    runs = {"calls": control.calls, "evaluations": control.samples / len(items)}
    return {**report, **runs, "version": nncf.__version__}


def quantkit_row(job: Job) -> Job:
    """Call quantkit's quantize_static on the float model as it is: it needs no preparation."""
    from quantkit import quantize_static
    from quantkit.settings import DataSettings

    samples = load_samples(job["samples"])
    settings = DataSettings(limit=len(samples))
    start = time.perf_counter()
    made = quantize_static(
        job["source"], job["target"], samples, settings=settings, **job["options"]
    )
    seconds = time.perf_counter() - start
    modes = Counter(node.mode.value for node in made.plan.nodes)
    return {"seconds": seconds, "modes": dict(modes), "warnings": list(made.warnings)}


if __name__ == "__main__":
    answer(
        {
            "prepare": prepare,
            "onnxruntime": onnxruntime_row,
            "onnxruntime_dynamic": onnxruntime_dynamic_row,
            "nncf": nncf_row,
            "nncf_control": nncf_control_row,
            "quantkit": quantkit_row,
        }
    )
