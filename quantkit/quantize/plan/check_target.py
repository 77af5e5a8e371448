"""What settings or a plan ask for that a target does not run, found before anything is read."""

from collections.abc import Mapping

from quantkit.errors import UsageError
from quantkit.numerics.dtypes import IntType
from quantkit.quantize.plan.model import Format, Mode, Plan
from quantkit.settings import StaticSettings
from quantkit.targets import Target, integer_time


def _check_unpacks(target: Target) -> None:
    """Refuse packed weights where onnxruntime's CPU provider does not unpack them: OpenVINO computed other values of them."""
    if not target.has_qlinear:
        raise UsageError(
            f"Weights of fewer than 8 bits in the file are for onnxruntime's CPU provider, which unpacks them at load; {target.name} "
            f"({target.runtime}) may compute other values of them: leave out --weight-bits and --target-size, or the target."
        )


def _check_types(types: Mapping[str, IntType], target: Target) -> None:
    for what, dtype in types.items():
        if dtype not in target.types:
            taken = " or ".join(sorted(t.name for t in target.types))
            raise UsageError(
                f"{what} {dtype.name}, which {target.name} does not take: use {taken}."
            )


def check_target_of(plan: Plan, target: Target) -> None:
    """Check that a plan that was saved, and perhaps edited, is one for this target.

    A plan older than the field does not say what it was made for; what it holds is checked all the same.

    Args:
        plan: What is to be applied.
        target: What is asked for.

    Raises:
        UsageError: It was made for another, or holds what the target's runtime refuses.
    """
    if plan.halves or any(node.mode is Mode.HALF for node in plan.nodes):
        raise UsageError(
            "The plan is one of floats of 16 bits, as `quantkit quantize float16` makes them: static quantization applies its own."
        )
    if plan.target not in {None, target.name}:
        raise UsageError(
            f"The plan was made for {plan.target}, and {target.name} is asked for: make one with --target {target.name}, or "
            "leave the target away (--target, target in quantkit.toml)."
        )
    if any(weight.blocks is not None for weight in plan.weights):
        _check_unpacks(target)
    types = {f"The plan gives '{a.tensor}' the type": a.dtype for a in plan.activations}
    types |= {f"The plan gives weight '{w.tensor}' the type": w.spec.dtype for w in plan.weights}
    _check_types(types, target)
    if target.zero_points:
        return
    shifted = [
        f"'{a.tensor}' the zero point {a.zero_point}" for a in plan.activations if a.zero_point
    ]
    shifted += [f"weight '{w.tensor}' zero points" for w in plan.weights if not w.spec.symmetric]
    if shifted:
        raise UsageError(
            f"The plan gives {shifted[0]}, and {target.name} takes no zero points: use 0 and scales for both signs, or make "
            f"the plan with --target {target.name}."
        )


_WEIGHTS = "Weights have the type"


def check_settings(options: StaticSettings, output_format: Format) -> None:
    """Check what is chosen about target, format and types; no model is needed for it.

    Raises:
        UsageError: There is no file with these types in this format that the target's runtime reads.
    """
    target = options.runs_on
    if output_format.value not in target.formats:
        taken = " or ".join(sorted(target.formats))
        raise UsageError(
            f"{target.name} does not read the format {output_format.value}: use the format {taken}."
        )
    if options.packs and options.weight_bits != 8:
        _check_unpacks(target)
    types = {"Activations have the type": options.activation}
    types |= {_WEIGHTS: options.weight}
    types |= {f"The rule for '{o.tensor}' says": o.int_type for o in options.tensors if o.int_type}
    _check_types(types, target)
    if not options.covers_all:
        _check_gain(types, options)
    if options.measure and (options.covers_all or integer_time(target.name) is None):
        why = "everything is quantized" if options.covers_all else f"{target.name} is no CPU"
        raise UsageError(f"Nothing can be measured where {why}: leave --measure (measure) away.")
    if options.qdq.block_size and output_format is Format.QOPERATOR:
        raise UsageError("QLinear operators have no blocks: use the QDQ format.")
    if not target.zero_points and options.symmetric_activations is False:
        raise UsageError(
            f"{target.name} takes no zero points: leave asymmetric activations away, or use another target."
        )
    if output_format is Format.QOPERATOR:
        _check_qlinear_types(types, options)


def _check_gain(types: Mapping[str, IntType], options: StaticSettings) -> None:
    """Refuse what no kernel of a CPU gains by."""
    for what, dtype in types.items():
        if dtype.bits < 8 or (dtype.bits != 8 and what is _WEIGHTS):
            raise UsageError(
                f"{what} {dtype.name}, of which no kernel is faster than float: use 8 bits, or coverage 'all'."
            )
    for rule in options.tensors:
        if rule.readers or rule.axis is not None or rule.reduced or len(rule.scales) > 1:
            raise UsageError(
                f"The rule for '{rule.tensor}' is about a constant, or converts for single nodes: that needs coverage 'all'."
            )


def _check_qlinear_types(types: Mapping[str, IntType], options: StaticSettings) -> None:
    for what, dtype in types.items():
        if dtype.bits != 8:
            raise UsageError(
                f"{what} {dtype.name}, for which there are no QLinear operators: use 8 bits, or the QDQ format."
            )
    if options.conversions:
        raise UsageError(
            f"The rule for '{options.conversions[0].tensor}' converts it for some nodes, which QLinear operators do not: use "
            "the QDQ format."
        )
    activation, weight = options.activation, options.weight
    if activation.signed and not weight.signed:
        raise UsageError(
            f"There is no QLinear operator for {activation.name} activations and {weight.name} weights: use int8 weights, "
            "uint8 activations, or the QDQ format."
        )
