"""The result of quantizing a model."""

from dataclasses import dataclass
from html import escape
from typing import Any

from quantkit.numbers import human
from quantkit.quantize.plan import Plan
from quantkit.runtime.check_result import Verification
from quantkit.runtime.kernels import Fusion, HalfKernels

_SHOWN = 3  # warnings


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
        notes: What was done to the float model before it was quantized.
        seconds: Wall time.
        fusion: What onnxruntime really runs in integers; None if that was not looked at.
        half: What it really computes in 16 bits; None if that was not looked at.
    """

    plan: Plan
    input_bytes: int
    output_bytes: int
    external_data: bool
    verification: Verification | None
    warnings: tuple[str, ...]
    seconds: float
    fusion: Fusion | None = None
    notes: tuple[str, ...] = ()
    half: HalfKernels | None = None

    def __str__(self) -> str:
        """Say what counts, in a few lines."""
        lines = [self._sizes(), str(self.plan)]
        if self.fusion is not None:
            ran = f"{self.fusion.integer_count} of {self.fusion.product_count}"
            lines.append(
                f"onnxruntime runs {ran} layers (Conv, Gemm, MatMul, ...) in integers on this CPU"
            )
        if self.half is not None:
            lines.append(str(self.half))
        lines.append("not verified" if self.verification is None else str(self.verification))
        lines += [f"note: {text}" for text in self.warnings[:_SHOWN]]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<QuantizeResult: {self._sizes()}>"

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
            "fusion": None if self.fusion is None else self.fusion.to_json(),
            **({} if self.half is None else {"half": self.half.to_json()}),
            "plan": self.plan.to_json(),
        }
