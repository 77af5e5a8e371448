"""Reasons of plans as data: a code and its facts. Their English is in this module alone.

Plans hold for each node and tensor why it is quantized as it is. (`quantkit.runtime.kernels.reasons` words why onnxruntime
computes a layer of a file in float.)

Decisions compare codes (`reason.why is Why.EXCLUDED`), never sentences. Files hold code, facts and the sentence; files
of versions that wrote only the sentence are read as `Why.OTHER`.

To reword a reason, edit its entry in `Why`. Names of entries and of facts are in files: they stay.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, unique
from math import isfinite
from types import MappingProxyType
from typing import Any


@unique
class Why(Enum):
    """Every reason: its sentence, and what follows the sentence with the values of one case.

    Views that count nodes by reason leave the second part away where cases differ in it.
    """

    def __init__(self, text: str, detail: str = "") -> None:
        self.text = text
        self.detail = detail

    OTHER = "{text}"

    # What the user chose
    EXCLUDED = "excluded"
    NOT_CHOSEN = "not among the chosen nodes (--include, --exclude)"
    OP_TYPE_NOT_CHOSEN = "operator type {op_type} not asked for"
    REQUESTED = "asked for"
    TENSOR_STAYS_FLOAT = "tensor '{tensor}' is to stay float"
    INTEGERS_OFF = "integer arithmetic is switched off"

    # Weights
    NO_WEIGHT = "has no constant float32 weight"
    WEIGHT_COMPUTED = "its weight is computed"
    WEIGHT_COMPUTED_AT_RUN_TIME = "its weight is computed at run time"
    WEIGHT_NOT_FINITE = "its weight holds NaN or infinity"
    WEIGHT_TRANSPOSED = "its weight is read through a Transpose"
    WEIGHT_RANK = "its weight has {axes} axes, not 2"
    WEIGHT_TOO_SMALL = "its weight is too small for 8 bits to save anything"
    WEIGHT_TOO_SMALL_FOR_BLOCKS = "its weight is too small for fewer bits to save anything"
    WEIGHT_TOO_SMALL_FOR_FILE = "its weight is too small for the file to shrink by it"
    WEIGHT_EXPOSED = (
        "weight '{tensor}' is an input or output of the graph; export the model with "
        "keep_initializers_as_inputs=False"
    )
    SHARED_WITH_INTEGER_NODE = "weight '{tensor}' is shared with a node that runs in integers"
    SHARED_WITH_FLOAT_NODE = "weight '{tensor}' is shared with node '{node}', which stays float"
    LEFT_OPERAND = "the constant is the left operand"

    # Dynamic quantization
    RUNS_AS = "runs as {kernel}"
    RUNS_AS_REQUESTED = "runs as {kernel} as asked for", ": {against}"
    RUNS_AS_MEASURED = "{how}", ": {because}"
    BOTH_DYNAMIC = "both operands are quantized as they come"
    STORED_8_BITS = "{because}; computed in float, its weight in 8 bits"
    IN_SUBGRAPH = "stands in a subgraph"
    SLOW_CONV_INTEGER = (
        "onnxruntime does not fuse a dynamic ConvInteger, which takes 2 to 4 times as long as float"
    )
    NO_DYNAMIC_KERNEL = "onnxruntime has no dynamic int8 kernel for it"
    SMALL_LAYER = "a {rows}x{columns} layer is faster in float"
    SMALL_TABLE = "its table is too small for an integer look-up to gain anything"
    ROWS_AS_INTEGERS = "only rows of a matrix are looked up as integers"
    LSTM_WEIGHT_COMPUTED = "one of its weights is computed at run time"
    LSTM_LAYOUT = "DynamicQuantizeLSTM knows no batch-first layout"
    ATTENTION_ATTRIBUTE = "QAttention does not support {attribute}"
    ATTENTION_SIZES = "QAttention needs query, key and value of one size"
    ATTENTION_INPUTS = "QAttention takes no attention bias and no past length"
    ATTENTION_WITHOUT_BIAS = "QAttention needs a bias"
    EMBED_COMPUTED = "one of its tables, or gamma or beta, is computed at run time"
    EMBED_FORM = "QEmbedLayerNormalization has neither position ids nor the embedding sum"

    # Weights in blocks
    BLOCKS_LOOKED_UP = "rows are looked up in {bits} bits in blocks of {block}"
    BLOCKS_DEQUANTIZED = "reads DequantizeLinear of {bits} bits in blocks of {block}"
    BLOCKS_FAST = "runs as MatMulNBits, {bits} bits in blocks of {block}, fast path{rounded}"
    BLOCKS_SLOW = (
        "runs as MatMulNBits, {bits} bits in blocks of {block}, slow path, as asked for",
        ": {against}{rounded}",
    )
    BLOCKS_CUSTOM = "{bits} bits in blocks of {block}, by customized_weight_config"
    BLOCKS_CUSTOM_SLOW = (
        "{bits} bits in blocks of {block}, by customized_weight_config, slow path, as asked for",
        ": {against}",
    )
    ACTIVATIONS_ROUNDED = ", activations rounded to 8 bits per block"
    BLOCKS_BECOME_FLOAT = "{because}; its weight becomes float at load"
    BLOCKS_SHARED = "weight '{tensor}' is shared with '{node}', which reads it as floats or along another axis; it becomes float at load"
    SLOW_LEVEL = (
        "MatMulNBits has no fast path for {bits} bits at accuracy_level {level}",
        ": only 4",
    )
    SLOW_TWO_BITS = (
        "MatMulNBits has no fast path for 2 bits in blocks of {block}",
        ": 32, 64 and 128 have one",
    )
    LOOKED_UP_IN_ONNX = "rows are looked up in plain ONNX"
    NO_BLOCK_KERNEL = "no kernel multiplies it by blocks"
    ROWS_IN_BLOCKS = "only rows of a matrix are looked up in blocks"
    TABLE_TRANSPOSED = "its table is read through a Transpose"
    TABLE_SMALL = "its table is small"
    BLOCKS_TRANSPOSED_INPUT = "MatMulNBits does not transpose its input"
    NO_BLOCK_TYPE = "DequantizeLinear has no type of {bits} bits"
    BLOCKS_IN_SUBGRAPH = "it is inside of a subgraph, where onnxruntime fails to fuse it"
    BLOCKS_NOT_FUSED = "its weight is shared, which keeps runtimes from fusing it"

    # Static quantization
    INTEGER_OUTPUT = "int8 in, int8 out"
    FLOAT_OUTPUT = "int8 in, float out"
    BETWEEN_INTEGERS = "between int8 nodes"
    CLIPPED_BY_RANGE = "the range of {node} ends where it clips"
    ONE_KERNEL = "one kernel with {node}"
    NO_KERNEL = "{target} has no integer kernel for {op_type}"
    NO_KERNEL_FOR_IT = "{target} has no integer kernel for it"
    FEEDS_EXCLUDED = (
        "it feeds excluded nodes only, for which an int8 kernel would round what it makes"
    )
    INPUT_TRANSPOSED = "its input is transposed (transA)"
    SMALL_GROUPS = "in groups of {channels} channels float is faster"
    BIAS_COMPUTED = "its bias '{tensor}' is computed"
    BIAS_NOT_VECTOR = "its bias '{tensor}' is not a vector"
    ALPHA_NOT_POSITIVE = "its factor alpha is not positive"
    INSIDE_GRAPH = "in a subgraph"
    NO_INTEGER_READER = "no layer in integers reads it"
    NO_INTEGER_CONSUMER = "nothing that reads it runs in integers"
    INPUT_CONSTANT = "its input is constant"
    INPUT_FLOAT = "its input is float"
    SLOPE_NOT_POSITIVE = "its slope is not positive"
    BEYOND_BOUNDS = "its result is to have integers beyond 0 and 1, where its kernel would not clip"
    COARSE_SOFTMAX = "of most of its values 8 bits would keep little ({db:.0f} dB)"
    DROWNED = "beside constant '{constant}' too few integers are left for '{tensor}'"
    RANGE_NOT_KNOWN = "the range of '{tensor}' is not known"
    PADS_OTHER_VALUES = "it pads with values that its input does not have"
    NOT_STANDARD = "not of the standard operators"
    INDICES_READ = "its indices are read"
    COMPARES_CONSTANT = "it compares with a constant, which would be rounded"
    RESIZE_CROPS = "its extrapolation_value would be taken for an integer"
    RESIZE_MODE = "Resize in mode {mode} has no integer kernel"
    POOL_COUNT = "with ceil_mode its kernel divides by a wrong count of padding"
    POOL_DILATED = "its kernel knows no dilations"
    JOINS_TYPES = "'{first}' and '{tensor}', which it joins, have different types"
    JOINS_FIXED = "the scale of '{tensor}' is fixed, and cannot hold all that it joins"
    JOINS_COARSE = "one scale for all that it joins leaves too few integers for '{tensor}', which others read as well"

    # Coverage "all"
    ALL_QUANTIZED = "all is quantized"
    GOES_WITH = "with {node}"
    COVER_SUBGRAPH = "inside If, Loop or Scan, which coverage all leaves in float"
    CONVERTS = "it converts or branches"
    TARGET_TAKES_FLOAT = "{target} does not take it in integers"
    NO_QLINEAR = "there is no QLinear operator for it"
    NO_QLINEAR_FLOAT_OUTPUT = "its result is to stay float, for which there is no QLinear operator"
    NO_QLINEAR_OWN_SCALE = (
        "integers that are moved keep their scale, and its result has one of its own"
    )
    NO_QLINEAR_FLOAT_INPUT = "what it reads is not quantized"
    NO_QLINEAR_CLIP = (
        "what makes its input does not clip alike, and there is no QLinear operator for it"
    )
    NO_QLINEAR_TWO_ACTIVATIONS = "of two activations there is no QLinear operator with a bias"
    NO_QLINEAR_BIAS = "its bias is no constant vector, which its QLinear operator takes"
    NO_FLOAT_TENSORS = "it has no float tensors"
    CHOOSES_FLOAT = "what it chooses from is not quantized"
    MOVES_FLOAT = "what it moves is not quantized"
    CLIPS_FLOAT = "what it clips is not quantized"
    ALREADY_QUANTIZED = "'{tensor}' is quantized already"

    # Ranges of tensors
    RANGE = "{source}", ": {low:.5g} to {high:.5g}"
    OBSERVED = "observed"
    ONLY_ZERO = "nothing but 0 observed"
    OVERFLOWS_BELOW = "its kernel overflows below"
    BOUNDED = "{op_type} cannot leave it"
    GIVEN = "given"
    CONSTANT = "constant"
    ASSUMED = "assumed"
    JOINED = "shared with all that is joined with it"
    NUMBERS_GIVEN = "scale and zero point given"
    SAME_AS = "as '{tensor}'"

    # What was measured
    SLOWER = "slower in int8", ": {alone}, {time} {around}"
    SLOWER_ALONE = "{time} alone"
    FASTER_ALONE = "{time} faster alone"
    WITH_CONVERSIONS = "with its conversions"
    WITH_NEIGHBOURS = "with conversions and {count} neighbours"
    SLOWER_THAN_FLOAT = "measured to be slower in integers than in float"
    SLOWER_IN_BLOCKS = "measured to be slower", ": {times}"
    WEIGHT_NOISE = "8 bits of its weight alone leave {db:.1f} dB of output '{output}'"
    TENSOR_NOISE = "8 bits of '{tensor}' alone leave {db:.1f} dB of output '{output}'"
    TOGETHER_NOISY = "in integers with what is around it the model would lose too much"
    FILE_GROWS = "in integers the file would grow"
    MODEL_LOSES = "in integers the model would lose too much"
    NEARLY_FREE = "nearly free in float, for less noise"
    MEASURED_BEFORE = "measured when it was made"
    TIMED = "timed"

    # float16
    HALF_FITS = "values fit"
    HALF_IN_FILE = "its weights have 16 bits in the file and become float32 when it is loaded"
    HALF_READERS = "only float16 nodes read it"
    HALF_AT_LOAD = "it becomes float32 at load"
    HALF_EXPOSED = "a weight is an input or output of its graph", ": '{tensor}'"
    HALF_ABSENT = "a weight is not there", ": '{tensor}'"
    HALF_NOT_FINITE = "a weight holds NaN or infinity", ": '{tensor}'"
    HALF_TOO_LARGE = (
        "onnxruntime does not turn a weight of this size into float32 at load",
        ": '{tensor}' takes {size}, its limit is {limit}",
    )
    HALF_OVERFLOWS = (
        "a weight has values beyond {limit:.0f}",
        ": '{tensor}' up to {most:.3g}",
    )
    HALF_DIVISOR = "a divisor would become 0", ": '{tensor}'"
    HALF_COARSE = "{dtype} keeps too little of a weight", ": '{tensor}' at {db:.1f} dB"
    HALF_VALUES_UNKNOWN = "its values are not known, as no sample computes them", ": '{tensor}'"
    HALF_VALUES_LARGE = (
        "values exceed {limit:.0f}, or come near it",
        ": '{tensor}' up to {most:.3g}",
    )
    HALF_VALUES_SMALL = (
        "all values are so small that float16 loses digits",
        ": '{tensor}' up to {most:.3g}",
    )
    HALF_BY_CONSTANT = (
        "it may hold values beyond {limit:.0f}, by a constant",
        ": '{tensor}'",
    )
    HALF_READS_FLOAT = "it reads float32, and makes no floats"
    HALF_FLOAT_WANTED = "what reads it wants float32"
    HALF_NO_PRODUCT = "nothing around it multiplies in float16"
    HALF_CRASHES = "onnxruntime crashes where it fuses this Transpose with a MatMul in float16"
    HALF_INSIDE = "it stands inside of {op_type}"
    HALF_HOLDS_GRAPH = "it holds a graph of its own"
    HALF_DOMAIN = "operators of {domain} stay float32"
    HALF_UNTYPED = "the type of what it reads or makes is not known"
    HALF_NO_INPUT = "ONNX has no float16 input for it"
    HALF_SQUARES = "squares inside of it exceed {limit:.0f}", ": it reads up to {most:.3g}"
    HALF_SUMS = (
        "sums inside of it exceed {limit:.0f}",
        ": {count} values make up to {most:.3g}",
    )
    HALF_VANISHES = "float16 may turn what it reads into 0", ": values from {least:.3g}"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a node or tensor is as it is: a code, and the facts that its sentence names; a fact of None is left out of it."""

    why: Why
    facts: Mapping[str, "Fact"] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        return (self.why.text + self.why.detail).format(**self._words(str))

    @property
    def head(self) -> str:
        """The sentence without the values of this case, by which views group reasons."""
        return self.why.text.format(**self._words(lambda inner: inner.head))

    @property
    def code(self) -> str:
        """What files call it."""
        return self.why.name.lower().replace("_", "-")

    def _words(self, render: Any) -> dict[str, Any]:
        return {
            name: render(fact) if isinstance(fact, Reason) else "" if fact is None else fact
            for name, fact in self.facts.items()
        }

    def to_json(self) -> dict[str, Any]:
        """Return sentence, code and facts; of `Why.OTHER` the sentence alone, as earlier versions wrote it."""
        return {"why": str(self), **({} if self.why is Why.OTHER else self._plain())}

    def _plain(self) -> dict[str, Any]:
        facts = {name: _plain_fact(fact) for name, fact in self.facts.items()}
        return {"code": self.code, **({"facts": facts} if facts else {})}

    @classmethod
    def from_json(
        cls, why: str, code: str = "other", facts: Mapping[str, Any] = MappingProxyType({})
    ) -> "Reason":
        """Read what `to_json` wrote; of what this version does not know the sentence is kept."""
        try:
            found = cls._from_plain(code, facts if code != "other" else {"text": why})
            str(found)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError):
            return because(Why.OTHER, text=why)
        return found

    @classmethod
    def _from_plain(cls, code: str, facts: Mapping[str, Any] = MappingProxyType({})) -> "Reason":
        inner = {n: cls._from_plain(**f) if isinstance(f, dict) else f for n, f in facts.items()}
        return cls(Why[code.upper().replace("-", "_")], inner)


Fact = str | int | float | Reason | None


def _plain_fact(fact: Fact) -> Any:
    if isinstance(fact, Reason):
        return fact._plain()  # noqa: SLF001 - its own
    return None if isinstance(fact, float) and not isfinite(fact) else fact  # JSON has no infinity


def because(why: Why, **facts: Fact) -> Reason:
    """Return a reason with its facts, which are named as in its sentence."""
    return Reason(why, facts)
