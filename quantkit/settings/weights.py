"""The table [weights]: weights in blocks of few bits, activations in float."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

from quantkit.errors import UsageError
from quantkit.settings.declare import Range, Setting, check
from quantkit.settings.values import FileSize, Names, OperatorTypes, Switch

__all__ = ["BlocksFormat", "WeightsSettings"]

BlocksFormat = Literal["contrib", "onnx"]

_BLOCKS = (16, 32, 64, 128, 256)  # that kernels have
_selection = partial(Setting, panel="Selection")
_recovery = partial(Setting, panel="Accuracy")


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsSettings:
    """How weights are quantized in blocks. None: as it is best; empty: all."""

    bits: Annotated[int, Setting("Bits of a weight in the file, 2 to 8. Default: 4.", "N")] = 4
    block: Annotated[
        int | None,
        Setting(
            "Neighbours that share a scale: 16, 32, 64, 128 or 256. Default: 32, or 16 where 32 would be padded much.",
            "N",
        ),
    ] = None
    symmetric: Annotated[
        bool | None,
        Setting(
            "Zero points in the middle, or where they fit best. Default: in the middle from 5 bits on.",
            flag="--symmetric/--asymmetric",
        ),
    ] = None
    embedding_bits: Annotated[
        int | None,
        Setting(
            "Bits of tables that rows are looked up in, and of the head where it is the same table. Default: 8.",
            "N",
        ),
    ] = None
    target_bits: Annotated[
        float | None,
        Setting(
            "Bits of a weight on average, all counted: each weight gets as many as it needs, by what is measured.",
            "X",
            range=Range(least=2, most=9),
        ),
    ] = None
    target_size: Annotated[
        FileSize | None,
        Setting(
            "Size of the file instead: 15% of float's, or 14.6MB.", "SIZE", range=Range(above=0)
        ),
    ] = None
    format: Annotated[
        BlocksFormat,
        Setting(
            "contrib (default): onnxruntime's MatMulNBits and GatherBlockQuantized; onnx: DequantizeLinear of blocks, "
            "opset 21, for other runtimes.",
            "FORMAT",
        ),
    ] = "contrib"
    accuracy_level: Annotated[
        int | None,
        Setting(
            "4 (default) rounds activations to 8 bits inside the kernel, which is faster; 0 leaves them float.",
            "N",
        ),
    ] = None
    force: Annotated[
        bool,
        Setting("Also what the kernel computes on its slow path.", flag="--force"),
    ] = False
    measure: Annotated[
        bool | None,
        _selection(
            "Time layers of this size to find out what gains, or decide by size. Default: time them.",
            flag="--measure/--no-measure",
        ),
    ] = None
    rows: Annotated[
        tuple[int, ...],
        _selection(
            "Rows of activations that layers are timed with. May be repeated. Default: 1 and 128.",
            "N",
            least=1,
            most=1 << 16,
        ),
    ] = (1, 128)
    op_types: Annotated[
        OperatorTypes,
        _selection("Only these operator types: MatMul,Gather,... May be repeated.", "TYPES"),
    ] = ()
    include: Annotated[
        Names, _selection("Only this node (name or pattern). May be repeated.", "NODE")
    ] = ()
    exclude: Annotated[
        Names, _selection("Never this node (name or pattern). May be repeated.", "NODE")
    ] = ()
    keep_inputs: Annotated[
        bool,
        Setting(
            "Inputs that have a value in the file stay inputs, in float; default: they become constants.",
            flag="--keep-inputs",
        ),
    ] = False
    method: Annotated[
        Literal["mse", "hqq", "minmax"],
        _recovery(
            "How ranges of blocks are chosen: mse (default), hqq or minmax.",
            "NAME",
            flag="--range-method",
        ),
    ] = "mse"
    rounding: Annotated[
        Switch,
        _recovery(
            "With data: round weights so that each layer's output changes least (second order)."
        ),
    ] = "auto"
    sequential: Annotated[
        Switch,
        _recovery("With data: fit each layer to what the quantized layers before it deliver."),
    ] = "auto"
    awq: Annotated[
        Switch,
        _recovery(
            "With data: scale the inputs that count most up, in the normalization before (AWQ)."
        ),
    ] = "auto"

    def __post_init__(self) -> None:
        check(self)
        for name in ("bits", "embedding_bits"):
            value = getattr(self, name)
            if value is not None and not 2 <= value <= 8:
                raise UsageError(f"{name} '{value}' is out of range: use 2 to 8.")
        if self.block is not None and self.block not in _BLOCKS:
            listed = ", ".join(map(str, _BLOCKS))
            raise UsageError(f"block '{self.block}' has no kernel: use one of {listed}.")
        if self.accuracy_level not in {None, 0, 1, 2, 3, 4}:
            raise UsageError(f"accuracy_level '{self.accuracy_level}' is unknown: use 0 to 4.")
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
