"""How weights are quantized where nothing is calibrated. No table of quantkit.toml: flags and arguments say it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from quantkit.settings.declare import Settings, setting
from quantkit.settings.static import Coverage, WeightType, check_packing
from quantkit.settings.values import FileSize, Names, OperatorTypes

if TYPE_CHECKING:
    from quantkit.numerics.dtypes import IntType

__all__ = ["DynamicSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicSettings(Settings):
    """How a model is quantized dynamically; the defaults are what an expert would choose. Empty: all.

    Nodes that are included run in integer arithmetic where a kernel exists, whatever their size. So do all nodes where
    coverage is "all"; Conv, which takes longer than in float, where it is named or nothing else can.
    """

    weight_type: WeightType = setting(
        "uint8 (default, most accurate) or int8 (faster on x86, as safe from saturation).",
        "TYPE",
        default="uint8",
    )
    weight_bits: int | None = setting(
        "Bits of a weight in the file, 2 to 8: int8 is made of fewer when it is loaded, and the same kernels run.",
        "N",
        ge=2,
        le=8,
    )
    target_size: FileSize | None = setting(
        "Size of the file, 15% of float's or 3.2MB: bits are assigned per weight by its quantization error.",
        "SIZE",
        gt=0,
    )
    per_channel: bool = setting(
        "One scale per channel (default), or one per tensor.",
        default=True,
        flag="--per-channel/--per-tensor",
    )
    reduce_range: bool = setting(
        "Use 7 bits: not needed, int8 weights are safe from saturation.", default=False, flag=None
    )
    op_types: OperatorTypes = setting(
        "Only these operator types: MatMul,Gemm,... May be repeated.", "TYPES", default=()
    )
    include: Names = setting(
        "Only this node (name or pattern). May be repeated.", "NODE", default=()
    )
    exclude: Names = setting(
        "Never this node (name or pattern). May be repeated.", "NODE", default=()
    )
    coverage: Coverage = setting(
        "gain (default): what is faster in integers, or smaller; all: every operator that has an integer kernel.",
        "WHICH",
        default="gain",
    )
    keep_inputs: bool = setting(
        "Inputs that have a value in the file stay inputs, in float; default: they become constants.",
        default=False,
        flag="--keep-inputs",
    )
    integer: bool = setting(
        "Integer arithmetic, not only weights stored as integers.", default=True, flag=None
    )
    pair_safe: bool = setting(
        "Keep int8 weights from saturating x86 without VNNI.", default=True, flag=None
    )
    symmetric_weights: bool | None = setting(
        "Zero points of weights in the middle; else as the type has it.", flag=None
    )
    activation_products: bool = setting(
        "Also MatMul of two activations, where coverage is all.", default=False, flag=None
    )
    subgraphs: bool = setting("Also nodes inside of If, Loop and Scan.", default=True, flag=None)

    def _check(self) -> None:
        check_packing(self.weight_bits, self.target_size)

    @property
    def packs(self) -> bool:
        """Whether weights may have fewer than 8 bits in the file."""
        return self.weight_bits is not None or self.target_size is not None

    @property
    def covers_all(self) -> bool:
        """Whether size and speed do not matter."""
        return self.coverage == "all"

    @property
    def weight(self) -> "IntType":
        """The type of weights."""
        from quantkit.numerics.dtypes import int_type

        return int_type(self.weight_type)
