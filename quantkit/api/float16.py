"""`quantize_float16`: half the file, in a line."""

from collections.abc import Sequence
from pathlib import Path

import onnx

from quantkit.api.arguments import check_output, checked_kinds, checked_names, sample_settings
from quantkit.calibration.collect import CalibrateOptions
from quantkit.data.objects import check_data
from quantkit.pipeline.forms.float16 import Float16Job, float16
from quantkit.pipeline.result import QuantizeResult
from quantkit.settings import DataSettings, Float16Settings

__all__ = ["quantize_float16"]


@checked_kinds
def quantize_float16(  # noqa: PLR0913 - one parameter per question
    model_input: str | Path | onnx.ModelProto,
    model_output: str | Path,
    data: object = None,
    *,
    dtype: str = "float16",
    compute: bool = False,
    half_inputs: bool = False,
    half_outputs: bool = False,
    nodes_to_exclude: Sequence[str] | None = None,
    keep_inputs: bool = False,
    settings: DataSettings | None = None,
    limit: int | None = None,
    memory: int | str | None = None,
    skip_bad: bool = False,
    use_external_data_format: bool = False,
    verify: bool = True,
) -> QuantizeResult:
    """Store a float32 model's weights in 16 bits, which halves the file; on request compute in float16 too.

    Weights become float32 again when the file is loaded, so that it runs as fast as before and differs by their rounding alone.
    The result is checked, loaded, run and compared with the float model before it is written; the input is never touched.

    Args:
        model_input: A path, or a ModelProto.
        model_output: Where to write. Above 2 GB the weights go to a ``.data`` file beside it.
        data: What `quantkit.calibrate` takes as data: the result is judged on it, and with `compute` nodes whose values do not
            fit into float16 stay float32. None: inputs are made up, and ranges are unknown.
        dtype: "float16", or "bfloat16", which has the range of float32 and three digits less; for the file alone.
        compute: Compute in float16 where ONNX has it and values fit. Few CPUs gain by that: the result says what onnxruntime
            makes of it here.
        half_inputs: Inputs are float16 too; else they keep their type.
        half_outputs: Outputs are float16 too; else they keep their type.
        nodes_to_exclude: Leave these nodes and their weights in float32, by name or pattern.
        keep_inputs: Inputs that have a value in the file stay inputs, in float32; else they become constants.
        settings: How samples are prepared and ordered.
        limit: Use so many samples; overrides the settings.
        memory: Bytes that may be held at once (or "500MB", "1GB"); overrides the settings.
        skip_bad: Leave out samples that cannot be read, instead of failing.
        use_external_data_format: Write a ``.data`` file also below 2 GB.
        verify: Check the result before writing.

    Returns:
        What has 16 bits and what has not and why, sizes, what the verification found, and, with `compute`, what onnxruntime
        really computes in float16.

    Raises:
        QuantkitError: With one line that says what is wrong and what to do. Nothing is written then.
    """
    check_output(model_output)
    if data is not None and not isinstance(data, str | Path):
        check_data(data)
    options = Float16Settings(
        dtype=dtype,  # type: ignore[arg-type]  # checked there
        compute=compute,
        half_inputs=half_inputs,
        half_outputs=half_outputs,
        exclude=checked_names(nodes_to_exclude, "nodes_to_exclude"),
        keep_inputs=keep_inputs,
    )
    return float16(
        Float16Job(
            source=model_input,
            options=options,
            data=data,
            settings=sample_settings(settings, limit=limit, memory=memory),
            calibrate=CalibrateOptions(skip_bad=skip_bad),
        ),
        model_output,
        verify=verify,
        external_data=use_external_data_format,
    )
