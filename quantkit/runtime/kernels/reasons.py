"""Why a product stays float, and what would change it.

Each check looks at the file for one thing that keeps onnxruntime from an integer kernel. A product that is known to stay
float is given the first that applies. `tests/runtime/kernels/test_kernel_reasons.py` proves each against the installed onnxruntime:
the product stays float with it, and runs in integers once it is mended.

`Site` holds what surrounds a product in the file, as far as onnxruntime's patterns look.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np
import onnx_ir as ir

from quantkit.model.graph.edit import const_of, optional, producer_of
from quantkit.model.ops import fact_of
from quantkit.model.ops.float_ops import CLIPS
from quantkit.model.ops.integer_ops import QUANTIZED_PRODUCTS
from quantkit.targets.registry import MOVED_THROUGH, RESTORES

_PASSED = CLIPS | {"BatchNormalization"}
_DEEP = 6  # nodes looked through
HALVES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})

NOTHING = "none"  # how a fix begins where there is none
STATIC = "`quantkit quantize static`"
_AGAIN = f"quantize again with {STATIC}, or with activation_type=QuantType.QUInt8 in onnxruntime.quantization"


@dataclass(frozen=True)
class Operand:
    """What a product reads in one slot."""

    value: ir.Value

    @cached_property
    def dequantizer(self) -> ir.Node | None:
        """The DequantizeLinear that it comes from, looking through data movement."""
        node = self.value.producer()
        for _ in range(_DEEP):
            if node is None or node.op_type not in MOVED_THROUGH or node.inputs[0] is None:
                break
            node = node.inputs[0].producer()
        return node if node is not None and node.op_type == "DequantizeLinear" else None

    @property
    def integers(self) -> ir.Value | None:
        """The integers that are dequantized to it."""
        return None if self.dequantizer is None else self.dequantizer.inputs[0]

    @property
    def dtype(self) -> ir.DataType | None:
        """The type of those integers; None: it is float."""
        return None if self.dequantizer is None else type_of(self.dequantizer)

    @cached_property
    def is_constant(self) -> bool:
        """Whether it is known when the model is loaded."""
        return _is_constant(self.value, _DEEP)

    @property
    def stored(self) -> ir.DataType | None:
        """The type of a constant that is restored to float at load; None: it is stored as float, or no constant."""
        return _stored_type(self.value) if self.is_constant else None

    def parameter(self, slot: int) -> ir.TensorProtocol | None:
        """Return scale (1) or zero point (2) of its DequantizeLinear, if it is there and constant."""
        if self.dequantizer is None or len(self.dequantizer.inputs) <= slot:
            return None
        value = self.dequantizer.inputs[slot]
        return const_of(value)


@dataclass(frozen=True, slots=True)
class Exit:
    """The way from a product to the QuantizeLinear behind it.

    Attributes:
        between: Relu, Clip and BatchNormalization on the way.
        quantizer: The QuantizeLinear; None if there is none.
        readers: What reads the last tensor of the way instead, in float.
        is_result: The way ends at an output of the model.
    """

    between: tuple[ir.Node, ...]
    quantizer: ir.Node | None
    readers: tuple[ir.Node, ...] = ()
    is_result: bool = False


class Readers:
    """Who reads quantized values. Each value is looked at once, however many products read it."""

    def __init__(self) -> None:
        self._known: dict[ir.Value, dict[ir.Node, int]] = {}

    def of(self, integers: ir.Value) -> Mapping[ir.Node, int]:
        """Return the nodes that read quantized values, and how often: of each DequantizeLinear, those behind it."""
        if integers not in self._known:
            self._known[integers] = Counter(_behind(integers))
        return self._known[integers]


@dataclass(frozen=True)
class Site:
    """A product of the file with what it reads and where its result goes; `readers` is shared by all sites."""

    node: ir.Node
    readers: Readers

    @cached_property
    def operands(self) -> tuple[Operand | None, ...]:
        """What it reads, None where an input is left out."""
        return tuple(None if v is None else Operand(v) for v in self.node.inputs)

    def operand(self, slot: int) -> Operand | None:
        """Return what it reads in a slot."""
        return self.operands[slot] if slot < len(self.operands) else None

    @cached_property
    def exit(self) -> Exit:
        """Where the product's result goes."""
        value = self.node.outputs[0]
        between: list[ir.Node] = []
        for _ in range(_DEEP):
            readers = _readers(value)
            if value.is_graph_output() or len(readers) != 1:
                break
            if readers[0].op_type == "QuantizeLinear":
                return Exit(tuple(between), readers[0])
            if readers[0].op_type not in _PASSED:
                break
            between.append(readers[0])
            value = readers[0].outputs[0]
        return Exit(tuple(between), None, _readers(value), value.is_graph_output())


def type_of(conversion: ir.Node) -> ir.DataType | None:
    """Return the integer type of a QuantizeLinear or DequantizeLinear; None if the file does not say."""
    slots = (2, 0) if conversion.op_type == "DequantizeLinear" else (2,)
    for slot in slots:
        value = optional(conversion, slot)
        if value is None:
            continue
        tensor = ir.convenience.get_const_tensor(value)
        found = value.dtype if tensor is None else tensor.dtype
        if found is not None:
            return found
    if conversion.op_type == "QuantizeLinear":
        named = int_attribute(conversion, "output_dtype", 0)
        return ir.DataType(named) if named else ir.DataType.UINT8
    source = producer_of(conversion.inputs[0])
    return type_of(source) if source is not None and source.op_type == "QuantizeLinear" else None


def _behind(integers: ir.Value) -> Iterator[ir.Node]:
    for node in _readers(integers):
        out = node.outputs[0]
        behind = _readers(out) if node.op_type == "DequantizeLinear" else ()
        yield from behind
        if not behind or out.is_graph_output():
            yield node


def _readers(value: ir.Value) -> tuple[ir.Node, ...]:
    """Return who reads a value, once for each time."""
    return tuple(use.node for use in value.uses())


def int_attribute(node: ir.Node, name: str, default: int) -> int:
    """Return an attribute that is a whole number.

    Args:
        node: Whose attribute.
        name: The attribute.
        default: Where it is left out.
    """
    return int(node.attributes.get_int(name, default))


def _is_constant(value: ir.Value, deep: int) -> bool:
    if ir.convenience.get_const_tensor(value) is not None:
        return True
    node = value.producer()
    if node is None:
        return value.is_initializer()
    if not deep or node.op_type not in RESTORES:
        return False
    return all(v is None or _is_constant(v, deep - 1) for v in node.inputs)


def _stored_type(value: ir.Value) -> ir.DataType | None:
    """Return the type of the constant that a value is restored from; None if that is the float type that it is read in."""
    for deep in range(_DEEP):
        tensor = ir.convenience.get_const_tensor(value)
        if tensor is not None:
            kind = tensor.dtype
            return kind if kind.is_integer() or (deep and kind in HALVES) else None
        node = value.producer()
        if node is None or not node.inputs or node.inputs[0] is None:
            return None
        value = node.inputs[0]
    return None


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


_BIAS_FIX = f"quantize the bias to int32 with the scale x_scale * w_scale and zero point 0, as {STATIC} does"
_RELATIVE, _ABSOLUTE = 1e-2, 1e-6  # how far onnxruntime lets the scale of a bias be off


def _bias_fault(site: Site) -> Reason | None:
    """Kernels add the bias to their sums: it must be int32 in their scale."""
    bias = site.operand(2)
    if bias is None or site.node.op_type == "MatMul":
        return None
    if bias.dtype is None:
        what = "float" if bias.is_constant else "computed at run time"
        return Reason(f"the bias is {what}", _BIAS_FIX)
    if bias.dtype is not ir.DataType.INT32:
        return Reason(f"the bias is {bias.dtype.name.lower()}, not int32", _BIAS_FIX)
    zero = bias.parameter(2)
    if zero is not None and zero.numpy().any():
        return Reason("the bias has a zero point that is not 0", _BIAS_FIX)
    if site.node.op_type == "Conv" and not _fits(site, bias):
        return Reason("the scale of the bias is not x_scale * w_scale", _BIAS_FIX)
    return None


def _fits(site: Site, bias: Operand) -> bool:
    """Whether the scale of the bias is that of the sums, or cannot be looked at."""
    operands = site.operand(0), site.operand(1), bias
    tensors = [None if o is None else o.parameter(1) for o in operands]
    x, w, b = (None if t is None else t.numpy() for t in tensors)
    if x is None or w is None or b is None or x.size != 1:
        return True
    return bool(np.allclose(b, x * w, rtol=_RELATIVE, atol=_ABSOLUTE))


def _gemm_fault(site: Site) -> Reason | None:
    """QGemm has no place for some of what Gemm and DequantizeLinear can say."""
    if site.node.op_type != "Gemm":
        return None
    missing = [o for o in site.operands[:2] if o is None or o.parameter(2) is None]
    if missing:
        return Reason(
            "QGemm needs explicit zero points, and a DequantizeLinear before it has none",
            f"write the zero point even where it is 0, as {STATIC} does",
        )
    factors = [site.node.attributes.get_float(name, 1.0) for name in ("alpha", "beta")]
    if site.operand(2) is not None and factors != [1.0, 1.0]:
        return Reason(
            "Gemm with alpha or beta other than 1 and a bias has no kernel",
            "multiply alpha into the weight and beta into the bias, then quantize",
        )
    return None


def _axis_fault(site: Site) -> Reason | None:
    """Scales by channel must be by output channel."""
    weight = site.operand(1)
    scale = None if weight is None else weight.parameter(1)
    if weight is None or weight.dequantizer is None or scale is None or scale.size == 1:
        return None
    fix = f"quantize the weight by output channel, or with one scale: {STATIC} does"
    if len(scale.shape) > 1 or int_attribute(weight.dequantizer, "block_size", 0):
        return Reason("the weight has scales by block", fix)
    rank = len(weight.value.shape) if weight.value.shape is not None else None
    fact = fact_of(site.node.domain, site.node.op_type)
    wanted = -1 if fact is None else fact.channel_axis
    wanted = 0 if int_attribute(site.node, "transB", 0) else wanted
    axis = int_attribute(weight.dequantizer, "axis", 1)
    same = axis == wanted if rank is None else axis % rank == wanted % rank
    return None if same else Reason("the weight has scales along an axis that is summed over", fix)


_WIDE = frozenset({ir.DataType.INT16, ir.DataType.UINT16})
_BYTES = frozenset({ir.DataType.INT8, ir.DataType.UINT8})
_QUANTIZED = QUANTIZED_PRODUCTS | {"FusedConv", "FusedGemm", "FusedMatMul"}
_ATTENTIONS = frozenset({"Attention", "MultiHeadAttention"})
_SHOWN = 3  # names
_DYNAMIC = "`quantkit quantize dynamic`"
_FOLD = "fold it first: `quantkit quantize static` does, or onnxruntime.quantization.shape_inference.quant_pre_process"


def why_float(node: ir.Node | None, readers: Readers) -> Reason:
    """Return why a product of the file stays float; None: one that the file does not name.

    `readers` is one for all products of a file.
    """
    if node is None:
        return Reason("onnxruntime made it while it optimized the graph, in float", "none known")
    site = Site(node, readers)
    if node.op_type not in _QUANTIZED:
        return _other(site)
    found = (check(site) for check in (*_CHECKS, _unknown))
    return next(reason for reason in found if reason is not None)


def _other(site: Site) -> Reason:
    """Operators whose static patterns onnxruntime does not have."""
    op = site.node.op_type
    if op == "MatMulNBits":
        return Reason(
            "MatMulNBits turns its weights back into float unless accuracy_level is 4",
            "set the attribute accuracy_level to 4, and check the outputs",
        )
    stored = _integers_in_file_only(site)
    if stored is not None:
        return stored
    if op == "LSTM" or op in _ATTENTIONS:
        return Reason(
            f"{op} runs in integers only with ranges taken at run time",
            f"{_DYNAMIC} uses the kernel for it where it fits",
        )
    return Reason(f"onnxruntime's CPU provider has no integer kernel for {op}", "none on this CPU")


def _two_activations(site: Site) -> Reason | None:
    x, w = site.operand(0), site.operand(1)
    if x is None or w is None or x.is_constant or w.is_constant:
        return None
    if x.dtype is not None and w.dtype is not None:
        return None
    return Reason(
        "a MatMul of two activations, of which not both are quantized",
        "none as a rule: there is no weight to shrink; onnxruntime.quantization.quantize_static quantizes both, so measure "
        "what that costs",
    )


def _integers_in_file_only(site: Site) -> Reason | None:
    """Weights that are integers in the file alone."""
    x, w = site.operand(0), site.operand(1)
    if x is None or w is None or x.dtype is not None or w.stored is None:
        return None
    bits = w.stored.bitwidth
    return Reason(
        f"the weight has {bits} bits in the file and becomes float when it is loaded, which saves space, not time",
        f"{STATIC}, with samples to calibrate on, runs it in integers"
        if site.node.op_type in _QUANTIZED
        else "none on this CPU",
    )


def _halves(site: Site) -> Reason | None:
    """Arithmetic in 16 bits, of which x86 has none."""
    kinds = {o.value.dtype for o in site.operands[:2] if o is not None and o.dtype is None}
    half = next((kind.name.lower() for kind in HALVES if kind in kinds), None)
    if half is None:
        return None
    return Reason(
        f"it is {half} in the file, which onnxruntime turns into float32 where it has no such kernel",
        f"{STATIC} runs it in integers",
    )


def _plain(site: Site) -> Reason | None:
    x, w = site.operand(0), site.operand(1)
    if x is None or w is None or (x.dtype is not None and w.dtype is not None):
        return None
    if x.dtype is None and w.dtype is None:
        what = "weight and input are float in the file"
    else:
        what = f"the {'input' if x.dtype is None else 'weight'} is float in the file"
    return Reason(what, f"{STATIC}, unless it was left in float on purpose")


def _wide(site: Site) -> Reason | None:
    made = _made_type(site)
    types = [o.dtype for o in site.operands[:2] if o is not None]
    if _WIDE.isdisjoint([*types, made]):
        return None
    return Reason("16-bit integers: onnxruntime's CPU provider multiplies only 8-bit ones", _AGAIN)


def _narrow(site: Site) -> Reason | None:
    types = {o.dtype for o in site.operands[:2] if o is not None} - {None}
    other = sorted(t.name.lower() for t in types - _BYTES if t is not None)
    if not other:
        return None
    return Reason(f"{other[0]} beside 8-bit integers has no kernel", _AGAIN)


def _outside(site: Site) -> Reason | None:
    """Patterns end at the graph that a node stands in."""
    makers = [o.dequantizer for o in site.operands[:2] if o is not None]
    if all(m is None or m.graph is site.node.graph for m in makers):
        return None
    return Reason(
        "DequantizeLinear stands outside of the If, Loop or Scan with the layer",
        f"{STATIC} puts it inside",
    )


def _shared_int8(site: Site) -> Reason | None:
    """The rule of int8 activations on x86.

    Kernels for x86 take uint8. Before patterns are matched, each pair of QuantizeLinear and DequantizeLinear in int8 is
    rewritten to uint8, but only if the QuantizeLinear has one reader, once each reader has a DequantizeLinear of its
    own. Where a tensor has several (a residual connection; query, key and value), it stays int8, and so every product
    that reads or makes it stays float: int8 matches no pattern, and input and output must have one type.
    """
    # Both ends of the product are asked, its own input and what it makes, as one int8 tensor that stays int8 is
    # enough. A node that reads a tensor twice (a square) counts like two readers: the rewrite looks at edges, not at
    # nodes. An int8 input of the model has no QuantizeLinear that could be rewritten, however many read it.
    x, quantizer = site.operand(0), site.exit.quantizer
    read = x.integers if x is not None and x.dtype is ir.DataType.INT8 else None
    made = None if quantizer is None else quantizer.outputs[0]
    if quantizer is not None and type_of(quantizer) is not ir.DataType.INT8:
        made = None
    for verb, also, value in (("reads", "read too", read), ("makes", "read", made)):
        readers = {} if value is None else site.readers.of(value)
        if value is not None and (len(readers) > 1 or max(readers.values(), default=0) > 1):
            others = _names(readers, site.node)
            how = f", which {others} {also}" if others else " more than once"
            return Reason(
                "int8 activations that several nodes read: kernels for x86 take uint8, and onnxruntime turns int8 into "
                "uint8 only where one node reads it",
                _AGAIN,
                detail=f"it {verb} '{_float_name(value)}'{how}",
            )
    if read is not None and read.producer() is None:
        return Reason("int8 inputs that no QuantizeLinear makes", _AGAIN)
    return None


def _mixed(site: Site) -> Reason | None:
    x, w, made = site.operand(0), site.operand(1), _made_type(site)
    if x is None or w is None or x.dtype is None or w.dtype is None:
        return None
    if made is not None and made is not x.dtype:
        return Reason(
            f"the input is {x.dtype.name.lower()} and the output {made.name.lower()}: kernels need one type for both",
            _AGAIN,
        )
    if x.dtype is ir.DataType.INT8 and w.dtype is ir.DataType.UINT8:
        return Reason("int8 activations with uint8 weights have no kernel", _AGAIN)
    return None


def _way_out(site: Site) -> Reason | None:
    """Conv needs QuantizeLinear behind it, and what stands between must vanish."""
    way = site.exit
    batch = next((n for n in way.between if n.op_type == "BatchNormalization"), None)
    if batch is not None:
        return Reason("BatchNormalization stands between the layer and QuantizeLinear", _FOLD)
    if way.quantizer is not None:
        return _bounds(site)
    if site.node.op_type != "Conv" and not _quantized_too(site):
        return None
    if way.is_result:
        what, detail = "the output is not quantized: it is an output of the model", ""
    else:
        what = "the output is not quantized, or not for all that read it"
        detail = f"read by {_names(dict.fromkeys(way.readers), site.node)}"
    return Reason(what, f"quantize the output too: {STATIC} does", detail=detail)


def _quantized_too(site: Site) -> bool:
    """Whether the output goes to QuantizeLinear and elsewhere."""
    return any(node.op_type == "QuantizeLinear" for node in site.exit.readers)


def _bounds(site: Site) -> Reason | None:
    """Relu or Clip vanishes only if QuantizeLinear clips as much: its lowest integer must mean the lower bound."""
    if not site.exit.between:
        return None
    op = site.exit.between[0].op_type
    return Reason(
        f"{op} between the layer and QuantizeLinear cannot be dropped: the quantized range goes beyond its bounds",
        f"{STATIC} quantizes within the bounds; with onnxruntime.quantization leave ActivationSymmetric off and use "
        "activation_type=QuantType.QUInt8",
    )


def _made_type(site: Site) -> ir.DataType | None:
    return None if site.exit.quantizer is None else type_of(site.exit.quantizer)


def _float_name(integers: ir.Value) -> str:
    """Return the name of the tensor before it was quantized."""
    maker = integers.producer()
    source = None if maker is None else maker.inputs[0]
    return (source.name if source is not None else integers.name) or ""


def _names(nodes: Collection[ir.Node], own: ir.Node) -> str:
    """Return the first of the nodes by name, and how many others there are beside `own`."""
    others = (node for node in nodes if node is not own)
    found = [node.name or node.op_type for node in islice(others, _SHOWN)]
    more = len(nodes) - (own in nodes) - len(found)
    return ", ".join(found) + (f" and {more} more" if more else "")


def _unknown(site: Site) -> Reason:
    """Say honestly that no rule is known, with what there is to see."""
    makers = [v.producer() for v in site.node.inputs if v is not None]
    before = ", ".join("a constant" if m is None else m.op_type for m in makers)
    readers = sorted({use.node.op_type for use in site.node.outputs[0].uses()})
    return Reason(
        "onnxruntime's patterns do not match",
        f"not known; {STATIC} writes patterns that it knows",
        detail=f"it reads {before}; {', '.join(readers) or 'nothing'} reads it",
    )


_CHECKS: tuple[Callable[[Site], Reason | None], ...] = (
    _two_activations,
    _integers_in_file_only,
    _halves,
    _plain,
    _wide,
    _narrow,
    _outside,
    _shared_int8,
    _mixed,
    _way_out,
    _bias_fault,
    _gemm_fault,
    _axis_fault,
)
