"""What must hold before a model is quantized and before its result is written, and warnings about a result."""

from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path

import onnx
import onnx_ir as ir

from quantkit.errors import ModelError, NothingToQuantizeError, VerifyError
from quantkit.files import check_outputs
from quantkit.model.graph.load import LoadedModel
from quantkit.model.graph.save import copy_of
from quantkit.model.graph.unpack import unpack
from quantkit.model.ops import Kernel, fact_of
from quantkit.model.ops.integer_ops import quantized_among
from quantkit.model.provenance import Provenance, model_digest
from quantkit.pipeline.result import AnyPlan
from quantkit.quantize.plan import Mode, Plan
from quantkit.runtime.check_result import FLOOR_DB, MADE_UP, Verification
from quantkit.runtime.kernels import Fusion
from quantkit.runtime.saturation import saturating_nodes
from quantkit.runtime.session import load_model
from quantkit.targets import Target

_SHOWN = 3  # names in a message
TINY = 64 << 10  # bytes
_FEW_SAMPLES = 4  # from which on one sample can stand out
_LOUD_DB = 30.0  # below which a sample that stands out is worth a warning
_LOUDER = 2  # times the error of samples on average, at least: the signal of others is small
_APART_DB = 10.0  # below the figure of all samples
_LITTLE = 0.1  # of the file: less is not worth a file of its own
_NOT_RUN = frozenset({Mode.FLOAT, Mode.STORED, Mode.ABSORBED})
_ENOUGH = 8  # values without which a share of equal ones says nothing
_HALF, _FEW_DIFFER = 0.5, 0.9  # of the values equal: below, noise; below, worth a word


def read_model(
    source: str | Path | onnx.ModelProto, output: Path | None = None, data: object = None
) -> LoadedModel:
    """Load a model whose weights are all there, and that the output does not overwrite."""
    loaded = load_model(source)
    check_output_path(output, loaded, data)
    loaded.require_weights()
    return loaded


def check_output_path(output: Path | None, loaded: LoadedModel, data: object = None) -> None:
    """Refuse, before anything runs, an output that cannot be written or would overwrite what is read; None is no output.

    Args:
        output: Where to write; None: nowhere.
        loaded: The model that is read.
        data: What else is read; only paths count.
    """
    read = [Path(data)] if isinstance(data, str | Path) else []
    check_outputs([output], [*loaded.files, *read])


def require_change(plan: Plan, loaded: LoadedModel) -> None:
    """Refuse a plan that changes nothing, with the reasons."""
    if plan.changes:
        return
    raise NothingToQuantizeError(
        f"Nothing to quantize in {loaded.name}: "
        + (_why_not(plan, loaded) or "no operator in it holds weights")
    )


def require_static(plan: Plan, loaded: LoadedModel, *, observed: bool) -> list[str]:
    """Refuse a plan that gains nothing, with the reasons; of one that runs nothing in calibrated integers say so.

    Args:
        plan: What was decided.
        loaded: The float model.
        observed: Its tensors were looked at here. A calibration that was given may be of another model, or of too few of its
            tensors: then doing something else instead would hide that.
    """
    if any(n.mode is Mode.STATIC for n in plan.nodes):
        return []
    why = _why_not(plan, loaded) or "it has no Conv, Gemm or MatMul"
    if observed and plan.changes and plan.coverage == "gain":
        return [
            f"Nothing runs in calibrated integers ({why}): the model is quantized as `quantkit quantize dynamic` does it."
        ]
    else_ = "; `quantkit quantize dynamic` would shrink it" if plan.changes else ""
    raise NothingToQuantizeError(
        f"Nothing in {loaded.name} can run in calibrated integers: {why}", else_
    )


def require_smaller(loaded: LoadedModel, nbytes: int) -> None:
    """Refuse a result that gains nothing: nothing smaller came of any plan.

    Of a model so small that the record of its origin takes more than 8-bit weights save, it is a warning.

    Args:
        loaded: The float model.
        nbytes: Of the result and its external data.
    """
    if TINY <= loaded.nbytes <= nbytes:
        raise NothingToQuantizeError(
            f"Quantizing {loaded.name} gains nothing: of {loaded.nbytes} bytes {nbytes} would come, as its weights are too small "
            "or are not what fills the file",
            "; `quantkit optimize` may still make it smaller and faster",
        )


def _why_not(plan: Plan, loaded: LoadedModel) -> str:
    """Return the most frequent reasons why nodes stay float, those of layers first; "" if there is no node that could be quantized."""
    if quantized := quantized_among(n.op_type for n in loaded.model.graph.all_nodes()):
        return f"it is quantized already ({', '.join(quantized)})"
    counted = Counter((n.op_type, n.why) for n in plan.nodes if n.mode in _NOT_RUN)
    # What a Gather of an index does not gain explains nothing; sorting keeps the order of equals.
    reasons = sorted(counted.most_common(), key=lambda one: not _holds_weights(one[0][0]))[:2]
    return "; ".join(f"{count} {op_type}: {why}" for (op_type, why), count in reasons)


def _holds_weights(op_type: str) -> bool:
    """Say whether an operator is a layer: it has weights, which it does not only look up."""
    fact = fact_of("", op_type)
    return fact is not None and fact.kernel is not Kernel.LOOKUP


def _gains_little(plan: Plan, loaded: LoadedModel, nbytes: int) -> str:
    """Say that neither the size nor the arithmetic of a result is worth it, and why; "" if one is."""
    runs = any(n.mode not in _NOT_RUN and _holds_weights(n.op_type) for n in plan.nodes)
    share = 1 - nbytes / max(1, loaded.nbytes)
    if runs or loaded.nbytes < TINY or not 0 < share < _LITTLE:
        return ""
    left = _why_not(plan, loaded) or "what it holds weights in is a small part of the file"
    return f"Next to nothing is gained: the file is {share:.1%} smaller, and no layer computes with fewer bits ({left})."


def require_pair_safe(model: ir.Model, target: Target, own: Collection[str]) -> list[str]:
    """Refuse weights that could saturate on x86 without VNNI: the file would not mean the same everywhere.

    Of weights whose numbers somebody gave, or whose integers the file had, it is what was asked for: a warning is returned.

    Args:
        model: The quantized model.
        target: What runs it.
        own: The nodes whose weights' scales were chosen here.
    """
    loaded = copy_of(model)
    unpack(loaded)
    unsafe = saturating_nodes(loaded) if target.saturates else []
    if not unsafe:
        return []
    said = f"The weights of {len(unsafe)} nodes could saturate on x86 without VNNI ({unsafe[0]})"
    if not any(name in own for name in unsafe):
        return [f"{said}: their integers or scales were given. Use uint8 weights there."]
    raise VerifyError(f"{said}. Nothing was written.")


def require_same(loaded: LoadedModel, origin: Provenance) -> None:
    """Refuse to write what was made from a file that has changed meanwhile: it would be of two models."""
    loaded.require_unchanged()
    if loaded.path is None or loaded.is_untouched:
        return
    if model_digest(loaded)["sha256"] != origin.float.sha256:
        raise ModelError(f"{loaded.name} was changed while it was being read; nothing was written.")


def unfused(plan: Plan, fusion: Fusion | None, target: Target) -> list[str]:
    """Say which products were planned in integers and are computed in float by onnxruntime on this CPU.

    Args:
        plan: What was decided.
        fusion: What onnxruntime runs; None: not looked at.
        target: What the plan is for: only what onnxruntime runs on this CPU can be said.
    """
    if fusion is None or not target.has_qlinear:
        return []
    planned = {n.node for n in plan.nodes if n.mode is Mode.STATIC}
    lost = [name for name in fusion.float_products if name in planned]
    if not lost:
        return []
    more = f" and {len(lost) - _SHOWN} more" if len(lost) > _SHOWN else ""
    shown = ", ".join(lost[:_SHOWN]) + more
    return [f"onnxruntime computes {len(lost)} nodes in float that were to be integers: {shown}."]


def is_noise(checked: Verification | None) -> bool:
    """Say whether an output has nothing to do with that of the float model, not even by its mean."""
    return checked is not None and checked.is_noise


def require_signal(checked: Verification | None, instead: str = "") -> None:
    """Refuse noise where the inputs were the user's own; `instead`: what to do about it."""
    if checked is not None and checked.is_noise and checked.on != MADE_UP:
        raise VerifyError(f"{noise(checked)} Nothing was written{instead and f': {instead}'}.")


def noise(checked: Verification | None) -> str:
    """Return a sentence about the worst output."""
    assert checked is not None  # noqa: S101 - noise was measured
    if not checked.compared:
        name, found = min(checked.agreement.items(), key=lambda one: one[1].share)
        return (
            f"Of the {found.values} values of output '{name}' only {found.equal} are those of the float model, "
            f"on {checked.judged_on}."
        )
    name, db = min(checked.compared.items(), key=lambda one: one[1])
    wanted = f"and {FLOOR_DB:.0f} are wanted"
    if not checked.below_floor:
        wanted += " with some to spare, as other samples may fare worse"
    return (
        f"Output '{name}' of the quantized model is {db:.1f} dB from float on {checked.judged_on}, "
        f"{'which is noise' if checked.has_noise else wanted}."
    )


def warnings_of(
    plan: AnyPlan, loaded: LoadedModel, nbytes: int, checked: Verification | None
) -> list[str]:
    """Return what the user should know about a result.

    Args:
        plan: What was decided.
        loaded: The float model.
        nbytes: Of the result and its external data.
        checked: What the comparison with float found; None: switched off.
    """
    little = _gains_little(plan, loaded, nbytes) if isinstance(plan, Plan) else ""
    found = [little] if little else []
    if nbytes >= loaded.nbytes:
        found.append(
            f"The result is not smaller than the float model: {loaded.nbytes} -> {nbytes} bytes. In a model this small "
            "scales, conversions and the record of its origin take more than 8-bit weights save."
            if loaded.nbytes < TINY
            else f"The result is not smaller than the float model: {loaded.nbytes} -> {nbytes} bytes."
        )
    if checked is None:
        found.append("Not verified: the result was neither loaded nor compared with float.")
        return found
    found += _doubts(checked)
    if checked.remark:
        found.append(checked.remark)
    return found


def _doubts(checked: Verification) -> Iterator[str]:
    """Yield what the figures of a verification say against a result."""
    if checked.has_noise:
        yield (
            f"{noise(checked)} This model may amplify any small change: verify it with a real sample before you ship "
            "it."
            if checked.on == MADE_UP
            else f"{noise(checked)} Evaluate it before you ship it (`quantkit evaluate`)."
        )
    elif checked.on != MADE_UP and checked.below_floor:
        yield (
            f"{noise(checked)} Evaluate it before you ship it (`quantkit evaluate` names the layers that lose most)."
        )
    for name, share in checked.largest_share.items():
        lowest, apart = checked.lowest[name], checked.compared[name] - checked.lowest[name]
        if checked.samples < _FEW_SAMPLES:
            continue
        if checked.median[name] - checked.compared[name] > _APART_DB:
            yield (
                f"The samples differ widely in output '{name}' (median {checked.median[name]:.1f} dB, worst {lowest:.1f}): the "
                "figure above is that of a few, and other inputs may get far less. More samples tell."
            )
        elif (
            share * checked.samples > _LOUDER
            and lowest <= _LOUD_DB
            and (share > _HALF or apart > _APART_DB)
        ):
            yield (
                f"One of {checked.judged_on} has {share:.0%} of the error of output '{name}' ({lowest:.1f} dB, median "
                f"{checked.median[name]:.1f}): other inputs may get far less than the figure above."
            )
    for name, found in checked.agreement.items():
        if found.values >= _ENOUGH and found.share < _FEW_DIFFER and not is_noise(checked):
            yield f"{1 - found.share:.1%} of the values of output '{name}' differ from the float model."
