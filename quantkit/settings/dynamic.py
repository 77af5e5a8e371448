"""How weights are quantized where nothing is calibrated. No table of quantkit.toml: flags and arguments say it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from quantkit.settings.declare import Range, Setting, check
from quantkit.settings.static import Coverage, WeightType, check_packing
from quantkit.settings.values import FileSize, Names, OperatorTypes

if TYPE_CHECKING:
    from quantkit.numerics.dtypes import IntType

__all__ = ["DynamicSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicSettings:
    """How a model is quantized dynamically; the defaults are what an expert would choose. Empty: all.

    Nodes that are included run in integer arithmetic where a kernel exists, whatever their size. So do all nodes where
    coverage is "all"; Conv, which takes longer than in float, where it is named or nothing else can.
    """

    weight_type: Annotated[
        WeightType,
        Setting(
            "uint8 (default, most accurate) or int8 (faster on x86, as safe from saturation).",
            "TYPE",
        ),
    ] = "uint8"
    weight_bits: Annotated[
        int | None,
        Setting(
            "Bits of a weight in the file, 2 to 8: int8 is made of fewer when it is loaded, and the same kernels run.",
            "N",
            least=2,
            most=8,
        ),
    ] = None
    target_size: Annotated[
        FileSize | None,
        Setting(
            "Size of the file, 15% of float's or 3.2MB: bits are assigned per weight by its quantization error.",
            "SIZE",
            range=Range(above=0),
        ),
    ] = None
    per_channel: Annotated[
        bool,
        Setting(
            "One scale per channel (default), or one per tensor.", flag="--per-channel/--per-tensor"
        ),
    ] = True
    reduce_range: Annotated[
        bool, Setting("Use 7 bits: not needed, int8 weights are safe from saturation.", flag=None)
    ] = False
    op_types: Annotated[
        OperatorTypes,
        Setting("Only these operator types: MatMul,Gemm,... May be repeated.", "TYPES"),
    ] = ()
    include: Annotated[
        Names, Setting("Only this node (name or pattern). May be repeated.", "NODE")
    ] = ()
    exclude: Annotated[
        Names, Setting("Never this node (name or pattern). May be repeated.", "NODE")
    ] = ()
    coverage: Annotated[
        Coverage,
        Setting(
            "gain (default): what is faster in integers, or smaller; all: every operator that has an integer kernel.",
            "WHICH",
        ),
    ] = "gain"
    keep_inputs: Annotated[
        bool,
        Setting(
            "Inputs that have a value in the file stay inputs, in float; default: they become constants.",
            flag="--keep-inputs",
        ),
    ] = False
    integer: Annotated[
        bool, Setting("Integer arithmetic, not only weights stored as integers.", flag=None)
    ] = True
    pair_safe: Annotated[
        bool, Setting("Keep int8 weights from saturating x86 without VNNI.", flag=None)
    ] = True
    symmetric_weights: Annotated[
        bool | None,
        Setting("Zero points of weights in the middle; else as the type has it.", flag=None),
    ] = None
    activation_products: Annotated[
        bool, Setting("Also MatMul of two activations, where coverage is all.", flag=None)
    ] = False
    subgraphs: Annotated[bool, Setting("Also nodes inside of If, Loop and Scan.", flag=None)] = True

    def __post_init__(self) -> None:
        check(self)
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
