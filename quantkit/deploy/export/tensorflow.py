"""Keras, TFLite and SavedModel files, run by TensorFlow and written by tf2onnx, where these are installed."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from quantkit.deploy.export.framework import Exported, Feeds, Framework, Outputs, output_names
from quantkit.deploy.export.inputs import Bound, Inputs, InputSpec, with_sizes
from quantkit.deploy.export.user_code import hushed, quiet_import, said_by
from quantkit.errors import ModelError, UsageError
from quantkit.settings import ExportSettings

_WHAT = {"keras": "A .keras model", "tflite": "A .tflite model", "saved model": "A SavedModel"}
_NEWEST = 18  # opset that tf2onnx writes
_Call = Callable[..., Sequence[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFlowModel(Framework):
    """A model as TensorFlow runs it; its types are fixed, and its parts have no names here.

    Attributes:
        call: Runs it on arrays, in the order of its inputs.
        write: Writes it as ONNX: to a file, in an opset.
    """

    call: _Call
    write: Callable[[Path, int], None]

    def run(self, feeds: Feeds) -> Outputs:
        """Run the model as it is."""
        found = self.call(*feeds.values())
        return {n: np.asarray(v) for n, v in zip(self.outputs, found, strict=True)}

    def export(self, folder: Path, opset: int) -> Exported:
        """Write it as ONNX into a folder."""
        path = folder / "exported.onnx"
        try:
            with hushed():
                self.write(path, min(opset, _NEWEST))
        except Exception as e:
            raise ModelError(f"tf2onnx cannot write this model: {said_by(e)}.") from e
        return Exported(path=path, exporter="tf2onnx", sizes=next(iter(self.inputs.traced())))


def open_tensorflow(
    path: Path, kind: str, given: Inputs | None, settings: ExportSettings
) -> Framework:
    """Load a model of TensorFlow; its inputs are those that it says.

    Args:
        path: The file or folder.
        kind: "keras", "tflite" or "saved model".
        given: Inputs that the user described, which such a model does not need.
        settings: Names of outputs, sizes to try.

    Raises:
        UsageError: TensorFlow or tf2onnx is not installed, or the inputs given are others.
        ModelError: The model cannot be read.
    """
    tensorflow = _needed(kind)
    opener = {"keras": _keras, "tflite": _tflite, "saved model": _saved}[kind]
    try:
        with hushed():
            specs, names, call, write = opener(tensorflow, path)
    except Exception as e:
        raise ModelError(f"TensorFlow cannot read '{path}': {said_by(e)}.") from e
    if given is not None and [s.dims for s in given.specs] != [s.dims for s in specs]:
        own = ", ".join(map(str, specs))
        raise UsageError(f"'{path}' takes {own}: leave out --input, or give the same.")
    bounds = {d: Bound() for spec in specs for d in spec.dims if isinstance(d, str)}
    inputs = given or with_sizes(Inputs(specs=tuple(specs), bounds=bounds), settings.sizes)
    digest, nbytes = _digest(path)
    return TensorFlowModel(
        name="tensorflow",
        version=str(tensorflow.__version__),
        inputs=inputs,
        outputs=output_names(names, settings.outputs, inputs),
        weights=digest,
        nbytes=nbytes,
        call=call,
        write=write,
    )


def _needed(kind: str) -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    needs = f"{_WHAT[kind]} is run by TensorFlow and written by tf2onnx: pip install tensorflow-cpu tf2onnx."
    quiet_import("tf2onnx", needs)
    return quiet_import("tensorflow", needs)


_Parts = tuple[list[InputSpec], list[str], _Call, Callable[[Path, int], None]]


def _keras(tensorflow: Any, path: Path) -> _Parts:
    keras = quiet_import("keras", f"{_WHAT['keras']} needs Keras: pip install keras.")
    model = keras.saving.load_model(path, compile=False, safe_mode=True)  # no code from the file
    specs = [_spec(i.name, i.dtype, i.shape) for i in model.inputs]

    def run(*given: Any) -> Any:
        found = model(list(given) if len(given) > 1 else given[0], training=False)
        return tensorflow.nest.flatten(found)

    names = list(dict.fromkeys(getattr(model, "output_names", ())))
    if len(names) != len(model.outputs):
        names = _numbered(len(model.outputs))
    return specs, names, run, _writer(tensorflow, run, specs)


def _saved(tensorflow: Any, path: Path) -> _Parts:
    loaded = tensorflow.saved_model.load(str(path))
    serve = loaded.signatures["serving_default"]
    given = serve.structured_input_signature[1]
    specs = [_spec(name, spec.dtype.name, spec.shape) for name, spec in given.items()]
    names = list(serve.structured_outputs)

    def run(*tensors: Any) -> Any:
        named = dict(zip(given, tensors, strict=True))
        found = serve(**{k: tensorflow.convert_to_tensor(v) for k, v in named.items()})
        return [found[name] for name in names]

    run.keep = loaded  # type: ignore[attr-defined]  # signatures hold their variables weakly
    return specs, names, run, _writer(tensorflow, run, specs)


def _tflite(tensorflow: Any, path: Path) -> _Parts:
    lite = tensorflow.lite.Interpreter(model_path=str(path))
    given, found = lite.get_input_details(), lite.get_output_details()
    specs = [
        _spec(
            str(i["name"]).partition(":")[0],
            np.dtype(i["dtype"]).name,
            [None if n < 0 else int(n) for n in i["shape_signature"]],
        )
        for i in given
    ]

    def run(*arrays: Any) -> Any:
        for one, array in zip(given, arrays, strict=True):
            lite.resize_tensor_input(one["index"], array.shape)
        lite.allocate_tensors()
        for one, array in zip(given, arrays, strict=True):
            lite.set_tensor(one["index"], array)
        lite.invoke()
        return [lite.get_tensor(one["index"]) for one in found]

    def write(target: Path, opset: int) -> None:
        convert = quiet_import("tf2onnx.convert", "")
        convert.from_tflite(str(path), opset=opset, output_path=str(target))

    return specs, _numbered(len(found)), run, write


def _writer(tensorflow: Any, run: Any, specs: Sequence[InputSpec]) -> Callable[[Path, int], None]:
    def write(target: Path, opset: int) -> None:
        convert = quiet_import("tf2onnx.convert", "")
        signature = [
            tensorflow.TensorSpec(
                [None if isinstance(d, str) else d for d in spec.dims], spec.dtype, name=spec.name
            )
            for spec in specs
        ]
        traced = tensorflow.function(run, input_signature=signature)
        convert.from_function(
            traced, input_signature=signature, opset=opset, output_path=str(target)
        )

    return write


def _spec(name: str, dtype: str, shape: Sequence[int | None]) -> InputSpec:
    dims = (
        n if n is not None else "batch" if axis == 0 else f"{name}_{axis}"
        for axis, n in enumerate(shape)
    )
    return InputSpec(name=name, dtype=dtype, dims=tuple(dims))


def _numbered(count: int) -> list[str]:
    return ["output"] if count == 1 else [f"output_{i}" for i in range(count)]


def _digest(path: Path) -> tuple[str, int]:
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    digest = sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest(), sum(file.stat().st_size for file in files)
