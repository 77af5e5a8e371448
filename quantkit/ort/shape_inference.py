"""onnxruntime's `quant_pre_process`: here it is `quantkit.optimize`, and a model of an old opset is raised to 11."""

import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

import onnx

from quantkit.errors import ModelError, RuntimeSupportError, UsageError
from quantkit.files import check_outputs, put, scratch
from quantkit.graph.intake import complaint_of
from quantkit.graph.load import external_files, load, read_structure
from quantkit.graph.opset import opset_of, raise_opset
from quantkit.ort.missing import missing
from quantkit.runtime.session import load_model
from quantkit.workflows.optimize import OptimizeResult, optimize_model

__all__ = ["quant_pre_process"]
__path__: list[str] = []  # so that what is missing is said; see quantkit.ort.missing

_LOG = logging.getLogger(__name__)
_INT_MAX = 2**31 - 1
_THRESHOLD = 1024
_OPSET = 11  # before it there is Upsample, and bounds of Clip are attributes
# By this entry onnxruntime's quantizer knows that a model was prepared.
_MARK = {"onnx.quant.pre_process": "onnxruntime.quant"}


def quant_pre_process(  # noqa: PLR0913 - onnxruntime's signature
    input_model: str | Path | onnx.ModelProto | None = None,
    output_model_path: str | Path | None = None,
    skip_optimization: bool = False,  # noqa: FBT001 - onnxruntime's signature
    skip_onnx_shape: bool = False,  # noqa: FBT001
    skip_symbolic_shape: bool = False,  # noqa: FBT001
    auto_merge: bool = False,  # noqa: ARG001, FBT001 - what steers onnxruntime's shape inference
    int_max: int = _INT_MAX,  # noqa: ARG001
    guess_output_rank: bool = False,  # noqa: ARG001, FBT001
    verbose: int = 0,  # noqa: ARG001
    save_as_external_data: bool = False,  # noqa: FBT001
    all_tensors_to_one_file: bool = False,  # noqa: ARG001, FBT001 - it is one file
    external_data_location: str | None = None,
    external_data_size_threshold: int = _THRESHOLD,
    **deprecated_kwargs: Any,
) -> OptimizeResult:
    """Simplify a float model as `quantkit.optimize` does, and compare it with the original.

    Static quantization does so by itself: this call is not needed before it. A model below opset 11 is raised to it
    (Upsample becomes Resize). What steers onnxruntime's shape inference is accepted: there is nothing to steer.

    Args:
        input_model: A path or a model.
        output_model_path: Where to write.
        skip_optimization: Leave the nodes as they are.
        skip_onnx_shape: Together with `skip_symbolic_shape`: write no inferred shapes.
        skip_symbolic_shape: See there.
        auto_merge: Accepted.
        int_max: Accepted.
        guess_output_rank: Accepted.
        verbose: Accepted.
        save_as_external_data: Write weights to a file of their own beside the model.
        all_tensors_to_one_file: Accepted: it is one file.
        external_data_location: The name of that file; None: it is named by what is in it.
        external_data_size_threshold: Bytes from which a tensor goes there.
        **deprecated_kwargs: ``input_model_path``, as `input_model` was called.

    Raises:
        UsageError: Input or output are missing, or external data cannot be where it is asked for.
    """
    source = deprecated_kwargs.pop("input_model_path", None) if input_model is None else input_model
    if source is None or output_model_path is None:
        raise UsageError("quant_pre_process needs input_model and output_model_path.")
    if deprecated_kwargs:
        raise UsageError(f"quant_pre_process has no parameter '{next(iter(deprecated_kwargs))}'.")
    target = Path(output_model_path)
    data = None
    if save_as_external_data:
        exact = external_data_location or external_data_size_threshold != _THRESHOLD
        location = external_data_location or f"{target.name}.data"
        data = _data_beside(target, location, source) if exact else None
    elif external_data_location is not None:
        _LOG.warning("external_data_location has no effect without save_as_external_data.")
    shapes = not (skip_onnx_shape and skip_symbolic_shape)
    source = _labelled(source)
    result = optimize_model(
        source,
        target,
        passes=(("shapes",) if shapes else ()) if skip_optimization else None,
        exclude=() if shapes or skip_optimization else ("shapes",),
        external_data=save_as_external_data,
        opset=_opset_for(source),
        metadata=_MARK,
    )
    if data is not None:
        _place_data(target, data, external_data_size_threshold)
    return result


def _labelled(source: str | Path | onnx.ModelProto) -> str | Path | onnx.ModelProto:
    """Return a model whose opset is that of its nodes: some declare another, and no runtime loads them.

    A Clip with three inputs has been since opset 11, an Upsample until 9. The nearest opset counts in which all nodes
    are valid.
    """
    try:
        load_model(source)
    except RuntimeSupportError:
        declared = opset_of(load(source).model)
        proto = source if isinstance(source, onnx.ModelProto) else read_structure(Path(source))
        others = range(1, onnx.defs.onnx_opset_version() + 1)
        for opset in sorted(others, key=lambda other: abs(other - declared)):
            if not complaint_of(_in_opset(proto, opset)):
                _LOG.warning("The model says opset %s, and its nodes are of %s.", declared, opset)
                whole = proto if isinstance(source, onnx.ModelProto) else onnx.load(source)
                return _in_opset(whole, opset)
        raise
    return source


def _opset_for(source: str | Path | onnx.ModelProto) -> int:
    """Return the opset to raise a model to; 0 if it stays in its own."""
    model = load(source).model
    if opset_of(model) < _OPSET:
        try:
            raise_opset(model, _OPSET)
        except ModelError as e:
            _LOG.warning("%s The model stays in its opset.", e)
            return 0
    return _OPSET


def _in_opset(proto: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """Return a copy that declares another opset."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for entry in copy.opset_import:
        if entry.domain in {"", "ai.onnx"}:
            entry.version = opset
    return copy


def _data_beside(target: Path, location: str, source: str | Path | onnx.ModelProto) -> Path:
    """Return where external data goes; ONNX wants it in the folder of the model.

    Raises:
        UsageError: It would be elsewhere, or overwrite what is read.
    """
    if Path(location).name != location:
        raise UsageError(
            f"external_data_location '{location}' is no file name: the file goes beside the model."
        )
    read = [] if isinstance(source, onnx.ModelProto) else load(source).files
    data = target.with_name(location)
    check_outputs([target, data], read)
    return data


def _place_data(target: Path, data: Path, threshold: int) -> None:
    """Write the weights of a model that is there already to a file, from a number of bytes on; the model is renamed last.

    Args:
        target: The model.
        data: The file, beside it.
        threshold: Bytes from which a tensor goes there.
    """
    before = external_files(read_structure(target), target.parent)
    with scratch(target.parent) as folder:
        made = folder / target.name
        onnx.save_model(
            onnx.load(target),
            made,
            save_as_external_data=True,
            location=data.name,
            size_threshold=threshold,
        )
        if (folder / data.name).exists():
            put(folder / data.name, data)
        put(made, target)
    for path in before - {data}:
        with suppress(OSError):
            path.unlink()


def __getattr__(name: str) -> Any:
    raise missing(__name__, name)
