"""A reason, and the words that many of them share."""

from dataclasses import dataclass

__all__ = ["AGAIN", "NOTHING", "STATIC", "Reason"]

NOTHING = "none"  # how a fix begins where there is none
STATIC = "`quantkit quantize static`"
AGAIN = f"quantize again with {STATIC}, or with activation_type=QuantType.QUInt8 in onnxruntime.quantization"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a product stays float.

    Attributes:
        cause: The rule; the same words for all products that it holds for.
        fix: What would change it.
        detail: What is particular to this product.
    """

    cause: str
    fix: str
    detail: str = ""

    @property
    def why(self) -> str:
        """The rule, and what in this model breaks it."""
        return f"{self.cause} ({self.detail})" if self.detail else self.cause
