"""onnxruntime's `quantize_dynamic`, and its dictionary of options for it."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
from onnxruntime.quantization.quant_utils import QuantType

from quantkit.api.arguments import check_output, checked_names
from quantkit.errors import NothingToQuantizeError
from quantkit.model.ops import FACTS
from quantkit.ort.extra_options import read_extra_options
from quantkit.ort.quant_utils import type_name
from quantkit.pipeline.apart import write_float
from quantkit.pipeline.form import run_form
from quantkit.pipeline.forms.dynamic import DynamicForm
from quantkit.pipeline.prepared import Job, Output
from quantkit.pipeline.result import QuantizeResult
from quantkit.quantize.plan import Plan
from quantkit.reasons import Why
from quantkit.settings import DynamicSettings

__all__ = ["float_instead", "quantize_dynamic", "told"]

_LOG = logging.getLogger("quantkit.ort")

# Keys of onnxruntime's dictionary that mean something here, and what is said of some that do not.
_READ = ("WeightSymmetric", "MatMulConstBOnly", "EnableSubgraph")
_NO_MEANING = "it has no meaning for dynamic quantization"
_IDLE = {
    "ActivationSymmetric": "DynamicQuantizeLinear is asymmetric by definition",
    "ActivationRestrictedAsymmetric": "DynamicQuantizeLinear chooses its own zero point",
    "DefaultTensorType": "types are inferred",
}


def quantize_dynamic(  # noqa: PLR0913 - onnxruntime's signature
    model_input: str | Path | onnx.ModelProto,
    model_output: str | Path,
    op_types_to_quantize: Sequence[str] | None = None,
    per_channel: bool | None = None,  # noqa: FBT001 - onnxruntime's signature
    reduce_range: bool = False,  # noqa: FBT001 - onnxruntime's signature
    weight_type: QuantType = QuantType.QInt8,
    nodes_to_quantize: Sequence[str] | None = None,
    nodes_to_exclude: Sequence[str] | None = None,
    use_external_data_format: bool = False,  # noqa: FBT001 - onnxruntime's signature
    extra_options: Mapping[str, Any] | None = None,
    *,
    coverage: str | None = None,
) -> QuantizeResult:
    """Quantize as `quantkit.quantize_dynamic` does, called as onnxruntime's users do.

    What gains in integers is quantized. Where operators or nodes are named, or nothing gains, all that onnxruntime
    would quantize is (Conv, which takes longer in integers, where it is named or nothing else can); where that is nothing
    either, the float model is written. What that means is said in the warnings
    of the result, and logged.

    Args:
        model_input: A path, or a ModelProto.
        model_output: Where to write.
        op_types_to_quantize: Only these operator types.
        per_channel: One scale per output channel; left out, it is quantkit's choice, which is to do so.
        reduce_range: Use 7 bits of the 8 where products are summed in integers.
        weight_type: Type of weights.
        nodes_to_quantize: Only these nodes.
        nodes_to_exclude: Never these nodes.
        use_external_data_format: Write a ``.data`` file also below 2 GB.
        extra_options: onnxruntime's option dictionary.
        coverage: "gain" or "all", whatever else is said.
    """
    check_output(model_output)
    settings, notes = _extra(extra_options)
    stored: Any = type_name(weight_type)
    settings = replace(
        settings,
        weight_type=stored,
        per_channel=per_channel is not False,
        reduce_range=bool(reduce_range),
        op_types=checked_names(op_types_to_quantize, "op_types_to_quantize"),
        include=checked_names(nodes_to_quantize, "nodes_to_quantize"),
        exclude=checked_names(nodes_to_exclude, "nodes_to_exclude"),
    )
    named = settings.op_types or settings.include or settings.activation_products
    asked = coverage or ("all" if named else None)
    external = bool(use_external_data_format)
    how = replace(settings, coverage=asked or "gain")  # type: ignore[arg-type]  # checked there
    otherwise = None if asked else replace(settings, coverage="all")
    job = Job(source=model_input, options=how)
    to = Output(path=Path(model_output), external_data=external)
    try:
        result: QuantizeResult = run_form(DynamicForm(job, to, otherwise=otherwise))
    except NothingToQuantizeError as e:
        result = write_float(model_input, model_output, float_instead(e), external_data=external)
    notes += _without_effect(settings.op_types)
    notes += _without_gain(result.plan)
    return told(replace(result, warnings=(*notes, *result.warnings)))


def float_instead(error: NothingToQuantizeError) -> str:
    """Return what is said where the float model is written in place of a quantized one."""
    outcome = "The float model was written as it is"
    return str(NothingToQuantizeError(error.why, error.advice, outcome))


def told(result: QuantizeResult) -> QuantizeResult:
    """Log the warnings of a result: scripts written for onnxruntime look at no result."""
    for warning in result.warnings:
        _LOG.warning(warning)
    return result


def _without_gain(plan: Plan) -> tuple[str, ...]:
    """Say how much runs in integers that is not faster by it."""
    found = [n for n in plan.nodes if n.reason.why is Why.RUNS_AS_REQUESTED]
    if not found:
        return ()
    first = f"{found[0].op_type} '{found[0].node}' {found[0].why}"
    return (
        f'{len(found)} nodes are not faster in integers, such as {first} (coverage="gain" leaves them).',
    )


def _without_effect(op_types: Sequence[str]) -> tuple[str, ...]:
    """Say which operators were named for nothing."""
    weighted = {op_type for _, op_type in FACTS}
    idle = sorted(set(op_types) - weighted)
    if not idle:
        return ()
    return (f"Dynamic quantization has nothing to do for {', '.join(idle)}: they hold no weights.",)


def _extra(extra_options: Mapping[str, Any] | None) -> tuple[DynamicSettings, tuple[str, ...]]:
    """Return what onnxruntime's dictionary asks of dynamic quantization, and what is to be said of the rest."""
    given, extra = dict(extra_options or {}), read_extra_options(extra_options)
    settings = DynamicSettings(
        symmetric_weights=extra.qdq.symmetric_weights,
        activation_products=given.get("MatMulConstBOnly") is not None and not extra.constant_b,
        subgraphs=extra.subgraphs is not False,
    )
    idle = [key for key, value in given.items() if value and key not in (*_READ, *extra.unknown)]
    notes = (f"{key} changes nothing: {_IDLE.get(key, _NO_MEANING)}." for key in idle)
    return settings, (*notes, *extra.notes)
