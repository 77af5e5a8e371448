"""What a CPU or an execution provider runs in integers, as data; and the check of such data.

A target decides nothing: the static planner reads it. One fact stands in one field, so that a new runtime
is a new `Target` and no new code.
"""

from dataclasses import dataclass, fields
from typing import Any

from quantkit.numerics.dtypes import INT4, INT8, INT16, INT32, UINT4, UINT8, UINT16, IntType

# QuantizeLinear and DequantizeLinear take one scale per channel from this opset on.
_PER_CHANNEL_OPSET = 13
_FORMATS = frozenset({"qdq", "qoperator"})
_SETS = (
    "products",
    "channelwise",
    "needs_output",
    "computes",
    "moves",
    "fixed_outputs",
    "bare",
    "covers",
    "written_as_sums",
    "uncovered",
    "decomposed",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What one runtime on one kind of hardware runs in integers.

    Operators stand in at most one of `products`, `computes` and `moves`; what stands in none runs in float,
    and is faster without QuantizeLinear and DequantizeLinear around it.

    Attributes:
        name: What users write: ``--target NAME``.
        title: The same in words.
        activation: The type of activations, UINT8 or INT8.
        weight: The type of weights.
        symmetric_activations: Zero points of activations are fixed in the middle: 0 for INT8, 128 for UINT8.
        symmetric_weights: Zero points of weights likewise.
        per_channel: One scale for each output channel is run, and as fast as one for all.
        channelwise: The products whose weights may have a scale per channel; empty without `per_channel`.
        saturates: Sums of two uint8 x int8 products may clip at int16 on hardware that the target
            stands for, so that weights must be pair-safe (`quantkit.numerics.pairs`).
        computes: Operators other than products that have an integer kernel, between DequantizeLinear on
            each input and QuantizeLinear on the output; scales and zero points are free.
        products: Operators with weights that run as integer products: Conv, Gemm, MatMul, ...
        moves: Operators that run on the integers as they are. Input and output must share scale and
            zero point, else the operator runs in float between two conversions.
        bare: Those of `moves` that the runtime does not look for between DequantizeLinear and QuantizeLinear, though it
            runs them on uint8: QDQ files have them on the integers themselves.
        needs_output: The products that run in integers only if their output is quantized.
        int16: Activations of 16 bits run in integers too.
        bias: The type of a product's bias, with ``scale = x_scale * w_scale`` and zero point 0; None
            where the bias stays float.
        min_opset: The oldest opset with all that 8-bit models use; 16-bit activations need opset 21.
        runtime: The runtime, and its execution provider.
        notes: What a user should know, with the reason.
        fixed_outputs: Operators whose output always has the range that their formula bounds (Softmax: 0 to 1), even
            if far less was observed.
        types: The integer types of activations and weights that the runtime reads; it refuses a file with others, or
            computes something else.
        zero_points: Zero points other than 0 are read.
        formats: The formats that the runtime runs in integers: "qdq", "qoperator".
        needs_barriers: onnxruntime rewrites the file before the target sees it, so that float nodes between integers, and
            products with float results, must be kept apart (`quantkit.quantize.emit.static`).
        covers: Operators beside those that run in integers that are quantized too where all is to be: the runtime
            takes them so, gains nothing by it, or nobody measured it.
        written_as_sums: Those of `computes` that have no kernel, and are a sum with a constant that the quantization of its
            result clips (HardSigmoid): they are written as that sum.
        uncovered: Those that run in integers and are not quantized where all is to be, unless they are named: other tools leave
            them as they are.
        least_group: Channels that a group of a Conv must have at least for its integer kernel to gain; depthwise ones have a
            kernel of their own.
        decomposed: Operators without a kernel that the float model is rewritten without, before it is planned, into some that
            have one and are no slower in float (`quantkit.quantize.rewrite.decompose`).
    """

    name: str
    title: str
    activation: IntType
    weight: IntType
    symmetric_activations: bool
    symmetric_weights: bool
    per_channel: bool
    channelwise: frozenset[str]
    saturates: bool
    computes: frozenset[str]
    products: frozenset[str]
    moves: frozenset[str]
    needs_output: frozenset[str]
    int16: bool
    bias: IntType | None
    min_opset: int
    runtime: str
    notes: tuple[str, ...] = ()
    fixed_outputs: frozenset[str] = frozenset()
    bare: frozenset[str] = frozenset()
    types: frozenset[IntType] = frozenset({UINT8, INT8, UINT16, INT16, UINT4, INT4})
    zero_points: bool = True
    formats: frozenset[str] = _FORMATS
    needs_barriers: bool = True
    covers: frozenset[str] = frozenset()
    written_as_sums: frozenset[str] = frozenset()
    uncovered: frozenset[str] = frozenset()
    decomposed: frozenset[str] = frozenset()
    least_group: int = 1

    @property
    def covered(self) -> frozenset[str]:
        """All that is quantized where coverage is "all"; Relu and Clip go with what is before them."""
        return (self.operators - self.uncovered) | self.covers | {"Relu", "Clip"}

    @property
    def wants_all(self) -> bool:
        """Whether an operator in float leaves the integer part of the hardware: then data movement is quantized as well."""
        return self.needs_output >= self.products

    @property
    def has_qlinear(self) -> bool:
        """Whether onnxruntime's own QLinear kernels run the file, and so all else that it computes of constants at load."""
        return "qoperator" in self.formats

    @property
    def operators(self) -> frozenset[str]:
        """All that can run in integers."""
        return self.products | self.computes | self.moves

    def to_json(self) -> dict[str, Any]:
        """Return plain data: types by their names, sets as sorted lists."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self)}


def _plain(value: object) -> object:
    match value:
        case IntType():
            return value.name
        case frozenset():
            return sorted(str(_plain(each)) for each in value)
        case tuple():
            return list(value)
        case _:
            return value


def check_target(target: Target) -> None:
    """Check that a target can be planned for; for the tests of anyone's target.

    Raises:
        AssertionError: A law is broken; the message names it.
    """
    for broken, law in _laws(target):
        if broken:
            raise AssertionError(f"Target '{target.name}' breaks a law: {law}.")


def _laws(t: Target) -> tuple[tuple[bool, str], ...]:
    # Each law is one that planners and emitters rely on without asking. A target that breaks one gets no error from
    # them but a file that its runtime refuses, or runs in float; that is why the tests of a plug-in ask.
    sets: dict[str, frozenset[str]] = {name: getattr(t, name) for name in _SETS}
    names = [op for s in sets.values() for op in s]
    kinds = len(t.products) + len(t.computes) + len(t.moves)
    return (
        (not t.name or t.name != t.name.lower() or " " in t.name, "a name is lower case, one word"),
        (not t.title or not t.runtime, "title and runtime are given"),
        (not all(isinstance(s, frozenset) for s in sets.values()), "operators are frozen sets"),
        (not all(op[:1].isupper() and op.isalnum() for op in names), "operators are ONNX names"),
        (not t.products, "some product runs in integers"),
        (len(t.operators) != kinds, "products, computes and moves are disjoint"),
        (not t.needs_output <= t.products, "needs_output is part of products"),
        (not t.channelwise <= t.products, "channelwise is part of products"),
        (not t.bare <= t.moves, "bare is part of moves"),
        (not t.written_as_sums <= t.computes, "written_as_sums is part of computes"),
        (bool(t.written_as_sums) and "Add" not in t.computes, "sums have a kernel"),
        (not t.uncovered <= t.operators, "uncovered is part of what runs in integers"),
        (bool(t.decomposed & t.operators), "what has a kernel is not decomposed"),
        (t.per_channel != bool(t.channelwise), "per_channel says whether channelwise is empty"),
        (not {t.activation, t.weight} <= {UINT8, INT8}, "activations and weights have 8 bits"),
        (not {t.activation, t.weight} <= t.types, "types has those of activations and weights"),
        (
            not t.zero_points and not (t.symmetric_activations and t.symmetric_weights),
            "without zero points activations and weights are symmetric",
        ),
        (
            not t.zero_points and not all(dtype.signed for dtype in t.types),
            "without zero points types are signed",
        ),
        (
            not (t.formats and t.formats <= _FORMATS),
            "formats are qdq and qoperator, or one of them",
        ),
        (t.bias not in {None, INT32}, "a bias is int32 or float"),
        (t.min_opset < _PER_CHANNEL_OPSET, f"the opset is at least {_PER_CHANNEL_OPSET}"),
        (
            t.saturates and (t.activation, t.weight) != (UINT8, INT8),
            "only uint8 x int8 saturates",
        ),
        (not all(n.endswith(".") for n in t.notes), "notes are sentences"),
    )
