"""The table [float16]: floats of 16 bits, in the file alone or in arithmetic too."""

from dataclasses import dataclass
from typing import Literal

from quantkit.errors import UsageError
from quantkit.settings.declare import Names, Settings, setting

HalfType = Literal["float16", "bfloat16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Float16Settings(Settings):
    """How a model is written in 16 bits. Empty: no node is left out.

    Without `compute` only the file has 16 bits: weights become float32 when it is loaded, and all is computed as before.
    """

    dtype: HalfType = setting(
        "float16 (default, 11 digits, up to 65504) or bfloat16 (8 digits, as large as float32).",
        "TYPE",
        default="float16",
        flag="--type",
        key="type",
    )
    compute: bool = setting(
        "Compute in float16 too, where ONNX has it and values fit; default: only the file has 16 bits.",
        default=False,
        flag="--compute",
    )
    half_inputs: bool = setting(
        "Inputs are float16 too; default: they keep their type.",
        default=False,
        flag="--half-inputs",
    )
    half_outputs: bool = setting(
        "Outputs are float16 too; default: they keep their type.",
        default=False,
        flag="--half-outputs",
    )
    exclude: Names = setting(
        "Leave this node in float32 (name or pattern). May be repeated.", "NODE", default=()
    )
    keep_inputs: bool = setting(
        "Inputs that have a value in the file stay inputs, in float32; default: they become constants.",
        default=False,
        flag="--keep-inputs",
    )

    def _check(self) -> None:
        if self.dtype == "bfloat16" and (self.compute or self.half_inputs or self.half_outputs):
            raise UsageError(
                "bfloat16 is for the file alone: onnxruntime's CPU provider neither computes nor takes it; use float16, or "
                "leave out compute, half_inputs and half_outputs."
            )
