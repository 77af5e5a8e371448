"""`quantize_weights` and `plan_weights`: weights in blocks of few bits, activations in float."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import onnx

from quantkit.api.arguments import (
    check_output,
    checked_kinds,
    checked_names,
    sample_settings,
)
from quantkit.data.objects import check_data
from quantkit.pipeline.result import QuantizeResult
from quantkit.pipeline.weights import WeightsJob
from quantkit.pipeline.weights import plan_weights as planned
from quantkit.pipeline.weights import quantize_weights as quantized
from quantkit.quantize.plan import Plan, read_plan
from quantkit.settings import DataSettings, WeightsSettings

__all__ = ["plan_weights", "quantize_weights"]


@checked_kinds
def quantize_weights(  # noqa: PLR0913 - one parameter per question
    model_input: str | Path | onnx.ModelProto,
    model_output: str | Path,
    data: object = None,
    *,
    bits: int = 4,
    block: int | None = None,
    symmetric: bool | None = None,
    embedding_bits: int | None = None,
    target_bits: float | None = None,
    target_size: float | str | None = None,
    quant_format: str = "contrib",
    accuracy_level: int | None = None,
    op_types_to_quantize: Sequence[str] | None = None,
    nodes_to_quantize: Sequence[str] | None = None,
    nodes_to_exclude: Sequence[str] | None = None,
    weights: WeightsSettings | None = None,
    settings: DataSettings | None = None,
    limit: int | None = None,
    memory: int | str | None = None,
    skip_bad: bool = False,
    plan: Plan | str | Path | None = None,
    use_external_data_format: bool = False,
    verify: bool = True,
) -> QuantizeResult:
    """Quantize a float32 model's weights to 2 to 8 bits in blocks; activations stay float.

    MatMul and Gemm become MatMulNBits, look-ups GatherBlockQuantized, and what has no such kernel gets its weight back as float when the file is loaded. A head that is its
    embedding's transpose is stored once. The result is checked, loaded, run and compared with the float model before it is written; the input is never touched.

    Args:
        model_input: A path, or a ModelProto.
        model_output: Where to write. Above 2 GB the weights go to a ``.data`` file beside it.
        data: Samples that weights are fitted to, as `quantkit.calibrate` takes them: far better below 8 bits. None: weights are rounded without.
        bits: Of a weight in the file, 2 to 8.
        block: Neighbours that share a scale: 16 to 256; None: 32 as a rule.
        symmetric: Zero points in the middle; None: from 5 bits on.
        embedding_bits: Of tables that rows are looked up in, and of a head that is such a table; None: 8.
        target_bits: Bits per weight on average, scales counted: each weight gets as many as it needs, by what is measured on the data.
        target_size: Size of the file instead: a share up to 1 or "15%", bytes or "14.6MB".
        quant_format: "contrib", onnxruntime's own operators; "onnx", DequantizeLinear of blocks (opset 21).
        accuracy_level: Of MatMulNBits: 4 (None) rounds activations to 8 bits inside the kernel, 0 leaves them float.
        op_types_to_quantize: Only these operator types.
        nodes_to_quantize: Only these nodes, by name or pattern.
        nodes_to_exclude: Never these nodes, by name or pattern.
        weights: All settings at once, instead of those above.
        settings: How samples are prepared and ordered.
        limit: Use so many samples; overrides the settings.
        memory: Bytes that may be held at once (or "500MB", "1GB"); overrides the settings.
        skip_bad: Leave out samples that cannot be read, instead of failing.
        plan: A plan to apply, or the path of one that was saved and perhaps edited.
        use_external_data_format: Write a ``.data`` file also below 2 GB.
        verify: Check the result before writing.

    Returns:
        What was decided for each node and weight and why, sizes, and what the verification found.

    Raises:
        QuantkitError: With one line that says what is wrong and what to do. Nothing is written then.
    """
    check_output(model_output)
    given = weights or WeightsSettings(
        bits=bits,
        block=block,
        symmetric=symmetric,
        embedding_bits=embedding_bits,
        target_bits=target_bits,
        target_size=target_size,  # type: ignore[arg-type]  # read there
        format=quant_format,  # type: ignore[arg-type]  # checked there
        accuracy_level=accuracy_level,
        op_types=checked_names(op_types_to_quantize, "op_types_to_quantize"),
        include=checked_names(nodes_to_quantize, "nodes_to_quantize"),
        exclude=checked_names(nodes_to_exclude, "nodes_to_exclude"),
    )
    samples = sample_settings(settings, limit=limit, memory=memory)
    job = _job(model_input, data, given, samples)
    applied = read_plan(plan) if isinstance(plan, str | Path) else plan
    return quantized(
        replace(job, skip_bad=skip_bad),
        model_output,
        plan=applied,
        verify=verify,
        external_data=use_external_data_format,
    )


@checked_kinds
def plan_weights(
    model: str | Path | onnx.ModelProto,
    data: object = None,
    weights: WeightsSettings | None = None,
    settings: DataSettings | None = None,
) -> Plan:
    """Decide how each node and weight of a model would be quantized in blocks; write nothing.

    Args:
        model: A path, or a ModelProto.
        data: As for `quantize_weights`; needed where each weight gets bits of its own by what is measured.
        weights: What is chosen.
        settings: How samples are prepared and ordered.

    Returns:
        The plan: it can be saved, edited, compared, and given to `quantize_weights`.

    Raises:
        QuantkitError: With one line that says what is wrong and what to do.
    """
    return planned(_job(model, data, weights or WeightsSettings(), settings or DataSettings()))


def _job(
    source: str | Path | onnx.ModelProto,
    data: object,
    given: WeightsSettings,
    samples: DataSettings,
) -> WeightsJob:
    if data is not None and not isinstance(data, str | Path):
        check_data(data)
    return WeightsJob(source=source, data=data, options=given, settings=samples)
