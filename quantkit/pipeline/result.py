"""What a form of the pipeline reports of the file that it wrote."""

from dataclasses import dataclass
from html import escape
from typing import Any, Protocol

from quantkit.quantize.plan import Plan
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
class FormResult:
    """What every form reports of a file.

    Attributes:
        plan: Every decision, with its reason.
        input_bytes: Size of the float model, external data included.
        output_bytes: Size of the result, external data included.
        external_data: Whether its weights are in a ``.data`` file beside it.
        verification: What was checked before writing; None if that was switched off.
        warnings: What the user should know.
        notes: What was done to the float model.
        seconds: Wall time.
    """

    plan: AnyPlan
    input_bytes: int
    output_bytes: int
    external_data: bool
    verification: Verification | None
    warnings: tuple[str, ...]
    seconds: float
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Say what counts, in a few lines."""
        lines = [self._sizes(), str(self.plan), *self._runs()]
        lines.append("not verified" if self.verification is None else str(self.verification))
        lines += [f"note: {text}" for text in self.warnings[:_SHOWN]]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._sizes()}>"

    def _runs(self) -> list[str]:
        """Return what is known of how the file runs, line by line."""
        return []

    def _repr_html_(self) -> str:
        """Return the summary for notebooks, line by line."""
        return f"<pre>{escape(str(self))}</pre>"

    def _sizes(self) -> str:
        share = self.output_bytes / self.input_bytes
        sizes = f"{human(self.input_bytes)} -> {human(self.output_bytes)}"
        return f"{sizes} ({share:.1%} of float) in {self.seconds:.2f} s"

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        checked = self.verification
        return {
            "input_bytes": self.input_bytes,
            "output_bytes": self.output_bytes,
            "external_data": self.external_data,
            "seconds": round(self.seconds, 4),
            "warnings": list(self.warnings),
            "notes": list(self.notes),
            "verification": None if checked is None else checked.to_json(),
            **self._inside(),
            "plan": self.plan.to_json(),
        }

    def _inside(self) -> dict[str, Any]:
        """Return as plain data what only one form reports."""
        return {}


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
        found = {"fusion": None if self.fusion is None else self.fusion.to_json()}
        return found if self.half is None else {**found, "half": self.half.to_json()}
