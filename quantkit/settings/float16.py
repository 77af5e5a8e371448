"""The table [float16]: floats of 16 bits, in the file alone or in arithmetic too."""

from dataclasses import dataclass
from typing import Annotated, Literal

from quantkit.errors import UsageError
from quantkit.settings.declare import Setting, check
from quantkit.settings.values import Names

__all__ = ["Float16Settings", "HalfType"]

HalfType = Literal["float16", "bfloat16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Float16Settings:
    """How a model is written in 16 bits. Empty: no node is left out.

    Without `compute` only the file has 16 bits: weights become float32 when it is loaded, and all is computed as before.
    """

    dtype: Annotated[
        HalfType,
        Setting(
            "float16 (default, 11 digits, up to 65504) or bfloat16 (8 digits, as large as float32).",
            "TYPE",
            flag="--type",
            key="type",
        ),
    ] = "float16"
    compute: Annotated[
        bool,
        Setting(
            "Compute in float16 too, where ONNX has it and values fit; default: only the file has 16 bits.",
            flag="--compute",
        ),
    ] = False
    half_inputs: Annotated[
        bool,
        Setting("Inputs are float16 too; default: they keep their type.", flag="--half-inputs"),
    ] = False
    half_outputs: Annotated[
        bool,
        Setting("Outputs are float16 too; default: they keep their type.", flag="--half-outputs"),
    ] = False
    exclude: Annotated[
        Names, Setting("Leave this node in float32 (name or pattern). May be repeated.", "NODE")
    ] = ()
    keep_inputs: Annotated[
        bool,
        Setting(
            "Inputs that have a value in the file stay inputs, in float32; default: they become constants.",
            flag="--keep-inputs",
        ),
    ] = False

    def __post_init__(self) -> None:
        check(self)
        if self.dtype == "bfloat16" and (self.compute or self.half_inputs or self.half_outputs):
            raise UsageError(
                "bfloat16 is for the file alone: onnxruntime's CPU provider neither computes nor takes it; use float16, or "
                "leave out compute, half_inputs and half_outputs."
            )
