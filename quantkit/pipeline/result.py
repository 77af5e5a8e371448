"""What a form plans to write, and what it reports of the file that it wrote."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any, Protocol

from quantkit.quantize.plan import Kept, Mode, Plan
from quantkit.reasons import Why, because
from quantkit.runtime.check_result import Verification
from quantkit.runtime.kernels import Fusion, HalfKernels
from quantkit.text import human

_SHOWN = 3  # warnings


class AnyPlan(Protocol):
    """The plan of any form: it can be shown, and written down."""

    @property
    def changes(self) -> bool:
        """Whether it changes anything."""

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileResult:
    """What is reported of a model that was made of another, and written.

    Attributes:
        input_bytes: Size of the float model, external data included.
        output_bytes: Size of the result, external data included.
        external_data: Whether its weights are in a ``.data`` file beside it.
        verification: What was checked before writing; None if that was switched off.
        warnings: What the user should know.
        seconds: Wall time.
    """

    input_bytes: int
    output_bytes: int
    external_data: bool
    verification: Verification | None
    warnings: tuple[str, ...]
    seconds: float

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._sizes()}>"

    def _sizes(self) -> str:
        return f"{human(self.input_bytes)} -> {human(self.output_bytes)}"

    def _checked(self) -> str:
        return "not verified" if self.verification is None else str(self.verification)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "input_bytes": self.input_bytes,
            "output_bytes": self.output_bytes,
            "external_data": self.external_data,
            "seconds": round(self.seconds, 4),
            "warnings": list(self.warnings),
            **self._inside(),
        }

    def _inside(self) -> dict[str, Any]:
        """Return as plain data what was checked, and what only some results have."""
        return {"verification": None if self.verification is None else self.verification.to_json()}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class FormResult(FileResult):
    """What every form reports of a file.

    Attributes:
        plan: Every decision, with its reason.
        notes: What was done to the float model.
    """

    plan: AnyPlan
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Say what counts, in a few lines."""
        lines = [self._sizes(), str(self.plan), *self._runs()]
        lines += [self._checked(), *(f"note: {text}" for text in self.warnings[:_SHOWN])]
        return "\n".join(lines)

    def _runs(self) -> list[str]:
        """Return what is known of how the file runs, line by line."""
        return []

    def _repr_html_(self) -> str:
        """Return the summary for notebooks, line by line."""
        return f"<pre>{escape(str(self))}</pre>"

    def _sizes(self) -> str:
        share = self.output_bytes / self.input_bytes
        sizes = super(FormResult, self)._sizes()  # `super()` does not know classes with slots
        return f"{sizes} ({share:.1%} of float) in {self.seconds:.2f} s"

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {**super(FormResult, self).to_json(), "plan": self.plan.to_json()}

    def _inside(self) -> dict[str, Any]:
        return {"notes": list(self.notes), **super(FormResult, self)._inside()}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class QuantizeResult(FormResult):
    """What was quantized, and how it runs.

    Attributes:
        fusion: What onnxruntime really runs in integers; None if that was not looked at.
        half: What it really computes in 16 bits; None if that was not looked at.
    """

    plan: Plan
    fusion: Fusion | None = None
    half: HalfKernels | None = None

    def _runs(self) -> list[str]:
        found = []
        if self.fusion is not None:
            ran = f"{self.fusion.integer_count} of {self.fusion.product_count}"
            found.append(
                f"onnxruntime runs {ran} layers (Conv, Gemm, MatMul, ...) in integers on this CPU"
            )
        return found if self.half is None else [*found, str(self.half)]

    def _inside(self) -> dict[str, Any]:
        found = super(QuantizeResult, self)._inside()
        found |= {"fusion": None if self.fusion is None else self.fusion.to_json()}
        return found if self.half is None else {**found, "half": self.half.to_json()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A plan, and what led to it. A form may add to it in a subclass.

    Attributes:
        plan: What to do.
        notes: What was done.
        warnings: What the user should know.
    """

    plan: AnyPlan
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDraft(Draft):
    """A plan for quantization, and what measuring decided.

    Attributes:
        kept: Nodes that measuring left in float.
        bits: Bits of weights in the file, where these are less than 8 or differ.
    """

    plan: Plan
    kept: Mapping[str, Kept] = field(default_factory=dict)
    bits: Mapping[str, int] = field(default_factory=dict)

    @property
    def decided(self) -> dict[str, Any]:
        """What timing and data decided, for the record of origin."""
        return {**kept_record(self.kept), **({"bits": dict(self.bits)} if self.bits else {})}


def kept_record(kept: Mapping[str, Kept]) -> dict[str, Any]:
    """Return which nodes were left out of calibrated integers, by how they run instead; nothing if none was.

    Why is not part of it: figures differ from run to run, and the file must not.
    """
    if not kept:
        return {}
    modes: dict[str, list[str]] = {}
    for name, one in kept.items():
        modes.setdefault("any" if one.mode is None else one.mode.value, []).append(name)
    return {"kept": {mode: sorted(names) for mode, names in sorted(modes.items())}}


def kept_of(options: Mapping[str, Any]) -> dict[str, Kept]:
    """Read what `kept_record` wrote."""
    why = because(Why.MEASURED_BEFORE)
    return {
        name: Kept(why, None if mode == "any" else Mode(mode))
        for mode, names in options.get("kept", {}).items()
        for name in names
    }
