"""The table [weights]: weights in blocks of few bits, activations in float."""

from dataclasses import dataclass
from functools import partial
from typing import Literal

from quantkit.errors import UsageError
from quantkit.settings.declare import (
    FileSize,
    Names,
    OperatorTypes,
    Settings,
    Switch,
    Wholes,
    setting,
)
from quantkit.settings.integers import exclude_nodes, include_nodes, keep_inputs

BlocksFormat = Literal["contrib", "onnx"]

_BLOCKS = (16, 32, 64, 128, 256)  # that kernels have
_selection = partial(setting, panel="Selection")
_recovery = partial(setting, default="auto", panel="Accuracy")


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsSettings(Settings):
    """How weights are quantized in blocks. None: as it is best; empty: all."""

    bits: int = setting(
        "Bits of a weight in the file, 2 to 8. Default: 4.", "N", default=4, ge=2, le=8
    )
    block: int | None = setting(
        "Neighbours that share a scale: 16, 32, 64, 128 or 256. Default: 32, or 16 where 32 would be padded much.",
        "N",
        choices=lambda: _BLOCKS,
    )
    symmetric: bool | None = setting(
        "Zero points in the middle, or where they fit best. Default: in the middle from 5 bits on.",
        flag="--symmetric/--asymmetric",
    )
    embedding_bits: int | None = setting(
        "Bits of tables that rows are looked up in, and of the head where it is the same table. Default: 8.",
        "N",
        ge=2,
        le=8,
    )
    target_bits: float | None = setting(
        "Bits of a weight on average, all counted: each weight gets as many as it needs, by what is measured.",
        "X",
        ge=2,
        le=9,
    )
    target_size: FileSize | None = setting(
        "Size of the file instead: 15% of float's, or 14.6MB.", "SIZE", gt=0
    )
    format: BlocksFormat = setting(
        "contrib (default): onnxruntime's MatMulNBits and GatherBlockQuantized; onnx: DequantizeLinear of blocks, "
        "opset 21, for other runtimes.",
        "FORMAT",
        default="contrib",
    )
    accuracy_level: int | None = setting(
        "4 (default) rounds activations to 8 bits inside the kernel, which is faster; 0 leaves them float.",
        "N",
        ge=0,
        le=4,
    )
    force: bool = setting(
        "Also what the kernel computes on its slow path.", default=False, flag="--force"
    )
    measure: bool | None = _selection(
        "Time layers of this size to find out what gains, or decide by size. Default: time them.",
        flag="--measure/--no-measure",
    )
    rows: Wholes = _selection(
        "Rows of activations that layers are timed with. May be repeated. Default: 1 and 128.",
        "N",
        default=(1, 128),
        ge=1,
        le=1 << 16,
    )
    op_types: OperatorTypes = _selection(
        "Only these operator types: MatMul,Gather,... May be repeated.", "TYPES", default=()
    )
    include: Names = include_nodes(panel="Selection")
    exclude: Names = exclude_nodes(panel="Selection")
    keep_inputs: bool = keep_inputs()
    method: Literal["mse", "hqq", "minmax"] = _recovery(
        "How ranges of blocks are chosen: mse (default), hqq or minmax.",
        "NAME",
        default="mse",
        flag="--range-method",
    )
    rounding: Switch = _recovery(
        "With data: round weights so that each layer's output changes least (second order)."
    )
    sequential: Switch = _recovery(
        "With data: fit each layer to what the quantized layers before it deliver."
    )
    awq: Switch = _recovery(
        "With data: scale the inputs that count most up, in the normalization before (AWQ)."
    )

    def _check(self) -> None:
        if self.target_bits is not None and self.target_size is not None:
            raise UsageError("target_bits and target_size say the same twice: give one of them.")

    @property
    def level(self) -> int:
        """How MatMulNBits treats activations."""
        return 4 if self.accuracy_level is None else self.accuracy_level

    @property
    def has_target(self) -> bool:
        """Whether each weight gets bits of its own."""
        return self.target_bits is not None or self.target_size is not None
