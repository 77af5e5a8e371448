"""The product, in order: load, analyze, plan, emit, verify, write. The only place that wires the stages."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit._version import __version__
from quantkit.analyze.view import facts_of
from quantkit.emit import emit_dynamic
from quantkit.errors import ModelError, NothingToQuantizeError, UsageError, VerifyError
from quantkit.graph.load import LoadedModel, load
from quantkit.graph.opset import raise_opset
from quantkit.graph.save import Stage, staged
from quantkit.ops import QUANTIZED_OPS
from quantkit.plan import DynamicOptions, Mode, Plan, plan_dynamic
from quantkit.runtime import readable_ir_version
from quantkit.verify import NOISE_DB, Reference, Verification, compare, run_float

__all__ = ["QuantizeResult", "dynamic"]

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizeResult:
    """What was done.

    Attributes:
        plan: Every decision, with its reason.
        input_bytes: Size of the float model, external data included.
        output_bytes: Size of the result, external data included.
        external_data: Whether its weights are in a ``.data`` file beside it.
        verification: What was checked before writing; None if that was switched off.
        warnings: What the user should know.
        seconds: Wall time.
    """

    plan: Plan
    input_bytes: int
    output_bytes: int
    external_data: bool
    verification: Verification | None
    warnings: tuple[str, ...]
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        checked = self.verification
        return {
            "input_bytes": self.input_bytes,
            "output_bytes": self.output_bytes,
            "external_data": self.external_data,
            "seconds": round(self.seconds, 4),
            "warnings": list(self.warnings),
            "verification": None
            if checked is None
            else {
                # Infinite where nothing changed at all, which JSON cannot say.
                "sqnr_db": {k: v if isfinite(v) else None for k, v in checked.compared.items()},
                "note": checked.note,
                "ran": checked.ran,
            },
            "plan": self.plan.to_json(),
        }


def dynamic(  # noqa: PLR0913 - one parameter a question
    source: str | Path | onnx.ModelProto,
    target: str | Path,
    options: DynamicOptions,
    *,
    verify: bool = True,
    external_data: bool = False,
    sample: Mapping[str, NDArray[Any]] | None = None,
    progress: Progress = lambda _: None,
) -> QuantizeResult:
    """Quantize a model dynamically and write it; see `quantkit.quantize_dynamic`."""
    started = time.perf_counter()
    target = Path(target)
    progress("Reading")
    loaded = load(source)
    _check_target(loaded, target)
    loaded.require_weights()
    draft = _draft(loaded.model, options)
    _require_change(draft.plan, loaded)
    with staged(target) as stage:
        reference = None
        if verify:
            progress("Running the float model")
            loaded.release()  # onnxruntime maps the same file
            reference = run_float(loaded, sample)
        progress("Quantizing")
        nbytes, checked = _realize(stage, draft, reference, external=external_data)
        if _is_noise(checked) and any(n.mode is Mode.INTEGER for n in draft.plan.nodes):
            progress("Quantizing again, without integer arithmetic")
            draft = _second_draft(source, options, checked)
            nbytes, checked = _realize(stage, draft, reference, external=external_data)
        if _is_noise(checked) and sample is not None:
            raise VerifyError(f"{_noise(checked)} Nothing was written.")
        external = stage.data_path.exists()
        stage.commit()
    return QuantizeResult(
        plan=draft.plan,
        input_bytes=loaded.nbytes,
        output_bytes=nbytes,
        external_data=external,
        verification=checked,
        warnings=(*draft.warnings, *_warnings(loaded, nbytes, checked)),
        seconds=time.perf_counter() - started,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    """A float graph and the plan for it; the opset is already what the plan needs."""

    model: ir.Model
    plan: Plan
    warnings: tuple[str, ...] = ()


def _draft(model: ir.Model, options: DynamicOptions) -> _Draft:
    """Plan, and raise the opset if the plan needs it; where that fails, plan without it."""
    facts = facts_of(model)
    plan = plan_dynamic(facts, options)
    if facts.opset >= plan.min_opset or not plan.weights:
        return _Draft(model=model, plan=plan)
    try:
        raised = raise_opset(model, plan.min_opset)
    except ModelError as e:
        plan = plan_dynamic(facts, _stored_only(options))
        return _Draft(model=model, plan=plan, warnings=(f"{e}; weights are stored only.",))
    note = f"Opset raised from {facts.opset} to {plan.min_opset}."
    return _Draft(model=raised, plan=plan_dynamic(facts_of(raised), options), warnings=(note,))


def _second_draft(
    source: str | Path | onnx.ModelProto, options: DynamicOptions, checked: Verification | None
) -> _Draft:
    """Plan without integer arithmetic, for a model that does not bear it."""
    again = _draft(load(source).model, _stored_only(options))
    warning = (
        f"{_noise(checked)} Integer arithmetic was switched off for the whole model; "
        "weights are stored in 8 bits."
    )
    return _Draft(model=again.model, plan=again.plan, warnings=(*again.warnings, warning))


def _stored_only(options: DynamicOptions) -> DynamicOptions:
    return replace(options, integer=False)


def _realize(
    stage: Stage, draft: _Draft, reference: Reference | None, *, external: bool
) -> tuple[int, Verification | None]:
    """Emit, check and write the result into the staging folder, and compare it with float."""
    emit_dynamic(draft.model, draft.plan)
    draft.model.ir_version = readable_ir_version(draft.model.ir_version or 0)
    draft.model.metadata_props["quantkit"] = f"{__version__} dynamic"
    try:
        nbytes = stage.write(draft.model, external=external)
    except onnx.checker.ValidationError as e:
        reason = str(e).strip().splitlines()[0]
        raise VerifyError(f"The quantized model is not valid ONNX: {reason}") from e
    if reference is None:
        return nbytes, None
    return nbytes, compare(stage.model_path, reference, nbytes=nbytes)


def _check_target(loaded: LoadedModel, target: Path) -> None:
    if target.is_dir():
        raise UsageError(f"The output '{target}' is a directory; give a file name.")
    if not target.parent.is_dir():
        raise UsageError(f"The output's folder '{target.parent}' does not exist.")
    written = {target.resolve(), target.with_name(f"{target.name}.data").resolve()}
    for path in loaded.files:
        if path.resolve() in written:
            raise UsageError(
                f"Writing '{target}' would overwrite the input '{path}'; choose another output."
            )


def _require_change(plan: Plan, loaded: LoadedModel) -> None:
    if plan.weights:
        return
    reasons = Counter(f"{n.op_type}: {n.why}" for n in plan.nodes).most_common(2)
    listed = "; ".join(f"{count} {reason}" for reason, count in reasons)
    present = {node.op_type for node in loaded.model.graph.all_nodes()}
    if present & QUANTIZED_OPS:
        listed = f"it is quantized already ({', '.join(sorted(present & QUANTIZED_OPS))})"
    raise NothingToQuantizeError(
        f"Nothing to quantize in {loaded.name}: "
        + (listed or "no operator in it holds weights")
        + ". Nothing was written."
    )


def _is_noise(checked: Verification | None) -> bool:
    return checked is not None and checked.worst is not None and checked.worst < NOISE_DB


def _noise(checked: Verification | None) -> str:
    assert checked is not None  # noqa: S101 - noise was measured
    name = min(checked.compared, key=lambda n: checked.compared[n])
    return (
        f"Output '{name}' of the quantized model is {checked.compared[name]:.1f} dB from float, "
        "which is noise."
    )


def _warnings(loaded: LoadedModel, nbytes: int, checked: Verification | None) -> list[str]:
    found = []
    if nbytes >= loaded.nbytes:
        found.append(f"The result is not smaller: {loaded.nbytes} -> {nbytes} bytes.")
    if checked is None:
        found.append("Not verified: the result was neither loaded nor compared with float.")
    elif _is_noise(checked):
        found.append(
            f"{_noise(checked)} It was judged on made-up inputs, and this model may amplify any "
            "small change: verify it with a real sample before you ship it."
        )
    elif checked.note:
        found.append(f"Verification: {checked.note}.")
    return found
