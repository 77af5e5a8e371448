"""The calls: `quantize_dynamic`, which everybody makes first, and `calibrate`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray

from quantkit.calibration import CalibrateOptions, calibrate_model
from quantkit.errors import UsageError
from quantkit.observe import Calibration, CalibratorAsk, Request
from quantkit.pipeline import QuantizeResult, dynamic
from quantkit.plan import DynamicOptions
from quantkit.recipe import DataSettings
from quantkit.spec import QuantType, QUInt8, weight_int_type

__all__ = ["calibrate", "quantize_dynamic"]


def quantize_dynamic(  # noqa: PLR0913 - the names that onnxruntime's users type
    model_input: str | Path | onnx.ModelProto,
    model_output: str | Path,
    weight_type: QuantType | str = QUInt8,
    *,
    per_channel: bool = True,
    reduce_range: bool = False,
    op_types_to_quantize: Sequence[str] | None = None,
    nodes_to_quantize: Sequence[str] | None = None,
    nodes_to_exclude: Sequence[str] | None = None,
    use_external_data_format: bool = False,
    extra_options: Mapping[str, Any] | None = None,
    verify: bool = True,
    sample: Mapping[str, NDArray[Any]] | None = None,
) -> QuantizeResult:
    """Quantize a float32 model's weights to 8 bits; activations are quantized as they come.

    The result is checked, loaded, run and compared with the float model before it is written; the input is
    never touched. The defaults are the ones to use.

    Args:
        model_input: A path, or a ModelProto.
        model_output: Where to write. Above 2 GB the weights go to a ``.data`` file beside it.
        weight_type: `QUInt8`, or `QInt8` (faster on x86, and just as safe from saturation).
        per_channel: One scale an output channel, where the kernels allow.
        reduce_range: Use 7 bits of the 8; never needed here.
        op_types_to_quantize: Only these operator types.
        nodes_to_quantize: Only these nodes, by name or pattern; they run in integer arithmetic whatever
            their size.
        nodes_to_exclude: Never these nodes, by name or pattern.
        use_external_data_format: Write a ``.data`` file also below 2 GB.
        extra_options: onnxruntime's option dictionary; see `check_extra_options`.
        verify: Check the result before writing.
        sample: Inputs to verify with; made up from the model's signature if not given.

    Returns:
        What was decided for each node and why, sizes, and what the verification found.

    Raises:
        QuantkitError: With one line that says what is wrong and what to do. Nothing is written then.
    """
    check_extra_options(extra_options)
    if not isinstance(model_output, str | Path) or not str(model_output):
        raise UsageError(f"model_output is the path to write to, not {model_output!r}.")
    if sample is not None and not verify:
        raise UsageError("A sample is what the result is verified with; it needs verify=True.")
    if sample is not None and not isinstance(sample, Mapping):
        raise UsageError("A sample maps input names to arrays: {'input_ids': array, ...}.")
    op_types = _names(op_types_to_quantize, "op_types_to_quantize")
    return dynamic(
        model_input,
        model_output,
        DynamicOptions(
            weight_type=weight_int_type(weight_type),
            per_channel=per_channel,
            reduce_range=reduce_range,
            op_types=op_types or None,
            include=_names(nodes_to_quantize, "nodes_to_quantize"),
            exclude=_names(nodes_to_exclude, "nodes_to_exclude"),
        ),
        verify=verify,
        external_data=use_external_data_format,
        sample=sample,
    )


def calibrate(  # noqa: PLR0913 - one parameter a question
    model: str | Path | onnx.ModelProto,
    data: object,
    output: str | Path | None = None,
    *,
    method: str = "mse",
    percentile: float | None = None,
    settings: DataSettings | None = None,
    limit: int | None = None,
    batch: int | None = None,
    requests: Sequence[Request] = (),
    skip_bad: bool = False,
    workers: int | None = None,
    scheduler: str | None = None,
) -> Calibration:
    """Learn the ranges of a model's activations from real data, in one pass.

    All methods read the same sketches: `Calibration.range(tensor, method)` gives another one's ranges
    without running anything again.

    Args:
        model: A path, or a ModelProto.
        data: A directory or file (see the README for formats); an iterable or sequence of dicts of arrays; an
            object with `get_next()`, as onnxruntime's CalibrationDataReader; a `datasets.Dataset`.
        output: Where to write. If the data is a path, an interrupted call then continues when it is made again.
        method: "mse", "minmax", "percentile", "entropy", "moving_average", or a plug-in's name.
        percentile: Per cent of the values that the method "percentile" keeps.
        settings: How samples are prepared and ordered.
        limit: Use so many samples; overrides the settings.
        batch: Samples in one run; overrides the settings.
        requests: What else later stages must see.
        skip_bad: Leave out samples that cannot be read, instead of failing.
        workers: Processes; None is one a core.
        scheduler: Address of a dask scheduler, to run on a cluster.

    Returns:
        Sketches and ranges of every tensor that can be quantized, the audit of the data, provenance.

    Raises:
        QuantkitError: With one line that says what is wrong and what to do.
    """
    given: dict[str, Any] = {"limit": limit, "batch": batch}
    given = {key: value for key, value in given.items() if value is not None}
    keep = (("keep", percentile),) if percentile is not None else ()
    try:
        ask = CalibratorAsk(name="percentile" if percentile is not None else method, settings=keep)
        ask.create(1)
    except ValueError as e:
        raise UsageError(str(e)) from e
    return calibrate_model(
        model,
        data,
        None if output is None else Path(output),
        CalibrateOptions(
            method=ask,
            requests=tuple(requests),
            skip_bad=skip_bad,
            workers=workers,
            scheduler=scheduler,
        ),
        replace(settings or DataSettings(), **given),
    )


def _names(names: Sequence[str] | None, parameter: str) -> tuple[str, ...]:
    if isinstance(names, str):
        raise UsageError(f"{parameter} is a list of names; write [{names!r}] for one.")
    chosen = tuple(names or ())
    strange = next((name for name in chosen if not isinstance(name, str)), None)
    if strange is not None:
        raise UsageError(f"{parameter} is a list of names, and {strange!r} is none.")
    return chosen


# Keys of onnxruntime's dictionary: the value that quantkit always behaves by, and what to do instead
# of any other.
_ALWAYS: dict[str, tuple[Any, str]] = {
    "EnableSubgraph": (True, "subgraphs are always quantized; exclude nodes by name instead"),
    "MatMulConstBOnly": (True, "only products with a constant weight are quantized dynamically"),
    "WeightSymmetric": (None, "int8 weights are symmetric and uint8 weights asymmetric"),
    "ActivationSymmetric": (False, "DynamicQuantizeLinear is asymmetric by definition"),
    "ForceQuantizeNoInputCheck": (False, "it has no meaning for dynamic quantization"),
}


def check_extra_options(extra_options: Mapping[str, Any] | None) -> None:
    """Accept the settings that quantkit always has; explain why any other cannot be had.

    Raises:
        UsageError: A key is unknown or asks for something else.
    """
    for key, value in (extra_options or {}).items():
        if key not in _ALWAYS:
            raise UsageError(
                f"extra_options key '{key}' has no meaning for quantkit's dynamic quantization; "
                f"remove it (understood: {', '.join(_ALWAYS)})."
            )
        fixed, why = _ALWAYS[key]
        if fixed is None or bool(value) != fixed:
            raise UsageError(f"extra_options {key}={value!r} is not available: {why}.")
