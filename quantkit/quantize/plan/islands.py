"""Which nodes run in integers: products, and between them what keeps the integers together.

A node between two integer products runs in integers if it has a kernel and all it reads is made in integers; then
no value is turned into float and back. Elsewhere wrapping it would cost time and accuracy and gain nothing:

    Conv -> Relu -> MaxPool -> Conv -+-> Add -> Conv            all integers
                                     +------^
    Conv -> Sub -> Conv                                         Sub in float, no kernel
    Conv -> Concat -> output                                    Concat in float: nobody needs its integers

Two passes over the nodes, back and forth: linear.

Then integers that nobody reads are taken back. Whether a node between products joins them is decided from front to back, when it is not yet known whether those behind
it will: of a matrix product of two activations one may come from a Softmax, which is float. This pass goes from back to
front and leaves no node in integers that only floats read.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from quantkit.model.ops.float_ops import activation_slots
from quantkit.model.ops.view import Node, View, Weight, clip_bounds, fills_in
from quantkit.quantize.plan.dynamic import exposed_why
from quantkit.quantize.plan.ranges import FEWEST_STEPS, Ranges, Sharing

__all__ = ["Islands", "Rules", "find_islands", "form_obstacle", "weight_obstacle"]

_SUMS = frozenset({"Add", "Where"})

# A Softmax over many values has few large ones, for which the steps are made, and whose mean is far below a step.
_COARSE = 25.0  # dB


@dataclass(frozen=True, slots=True)
class Rules:
    """What the user says about nodes, by index.

    Attributes:
        forced: They run in integers whatever their neighbours do.
        against: They stay float, and why; products are judged before.
    """

    forced: frozenset[int] = frozenset()
    against: Mapping[int, str] = field(default_factory=dict)


@dataclass(slots=True)
class Islands:
    """What was found, by index of the node.

    Attributes:
        static: The nodes that run in integers, and why.
        floats: The nodes that could have and do not, and why.
        absorbed: Relu and Clip right behind a node that may run in integers, and that node.
        made: Values that come out of an integer kernel as integers.
        results: The values that a node hands on, after absorption.
        quantized: Values that need a scale; in graph order.
        moved: A value that shares the numbers of others, which were moved into it.
        asked: Values whose range a decision depended on; in graph order.
    """

    static: dict[int, str] = field(default_factory=dict)
    floats: dict[int, str] = field(default_factory=dict)
    absorbed: dict[int, int] = field(default_factory=dict)
    results: dict[int, tuple[str, ...]] = field(default_factory=dict)
    quantized: dict[str, None] = field(default_factory=dict)
    moved: dict[str, tuple[str, ...]] = field(default_factory=dict)
    made: set[str] = field(default_factory=set)
    asked: dict[str, None] = field(default_factory=dict)


def find_islands(
    view: View,
    products: dict[int, str],
    rules: Rules,
    ranges: Ranges,
) -> Islands:
    """Decide which nodes run in integers, without integers that only floats read.

    Args:
        view: The graph.
        products: Every product with a constant weight by index, with the reason against it or "".
        rules: What the user says about single nodes.
        ranges: What is known of each tensor, and of the target.
    """
    found = _Finder(view, products, rules, ranges).find()
    _retract(found, view, products, rules.forced, ranges.options.runs_on.needs_output)
    return found


class _Finder:
    def __init__(
        self,
        view: View,
        products: dict[int, str],
        rules: Rules,
        ranges: Ranges,
    ) -> None:
        self.view = view
        self.products = products
        self.rules = rules
        self.ranges = ranges
        self.target = ranges.options.runs_on
        self.found = Islands()
        self.sharing = Sharing(ranges)

    def find(self) -> Islands:
        self._absorb()
        useful = self._useful()
        for index, node in enumerate(self.view.nodes):
            if index in self.found.absorbed:
                continue
            if index in self.products:
                self._product(index, node, useful)
            elif node.op_type in self.target.operators:
                self._between(index, node, useful)
        return self.found

    def _absorb(self) -> None:
        """Find each node's results, looking through Relu and Clip from 0."""
        # Only a clip from 0: a range that begins at 0 has its least integer there, so the quantization of the result
        # clips as well, and of two clips in a row the same node absorbs both. One that begins elsewhere stays a node.
        # Its input must have no other reader, who would see clipped values. From front to back, so that `absorbed` of
        # the maker is known.
        makers = self.target.products | self.target.computes
        for index, node in enumerate(self.view.nodes):
            self.found.results[index] = tuple(name for name in node.outputs if name)
            maker = self.view.producer.get(node.inputs[0]) if node.inputs else None
            if maker is None or self.view.nodes[maker].op_type not in makers:
                maker = None if maker is None else self.found.absorbed.get(maker)
            bounds = clip_bounds(node, self.view.constants)
            alone = bool(node.inputs) and self.view.only_reader(node.inputs[0]) == index
            if maker is None or bounds is None or bounds[0] != 0 or bounds[1] <= 0 or not alone:
                continue
            self.found.absorbed[index] = maker
            self.found.results[maker] = self.found.results[index]

    def _useful(self) -> set[int]:
        """Return the nodes whose integers reach a product, through nodes that have a kernel."""
        useful: set[int] = set(self.rules.forced)
        for index in range(len(self.view.nodes) - 1, -1, -1):
            node = self.view.nodes[index]
            if node.op_type not in self.target.operators or index in self.products:
                continue
            if index in self.rules.against:
                continue
            if any(
                self._wants(r, useful) for v in self.found.results[index] for r in self._readers(v)
            ):
                useful.add(index)
        return useful

    def _wants(self, reader: int, useful: set[int]) -> bool:
        return reader in useful or self.products.get(reader) == ""

    def _readers(self, value: str) -> tuple[int, ...]:
        return self.view.readers.get(value, ())

    def _product(self, index: int, node: Node, useful: set[int]) -> None:
        why = self.products[index] or self._unknown(node.inputs[:1])
        results = self.found.results[index]
        needs = node.op_type in self.target.needs_output
        readers = self._readers(results[0])
        wanted = bool(readers) and results[0] not in self.view.outputs
        wanted = wanted and all(self._wants(reader, useful) for reader in readers)
        if not why and needs:
            why = self._unknown(results)
        if why:
            self.found.floats[index] = why
            return
        quantized = needs or (wanted and not self._unknown(results))
        self._take(node.inputs[:1], results if quantized else ())
        self.found.static[index] = "int8 in, int8 out" if quantized else "int8 in, float out"

    def _between(self, index: int, node: Node, useful: set[int]) -> None:
        slots = activation_slots(node.op_type, len(node.inputs), product=False)
        inputs = tuple(node.inputs[slot] for slot in slots)
        why = self._why_float(index, node, inputs, useful)
        results = self.found.results[index]
        if why:
            # What has no range was never a float activation: shapes and indices are not listed.
            if any(self.ranges.of(v) is not None for v in (*inputs[:1], *results) if v):
                self.found.floats[index] = why
            return
        if node.op_type in self.target.moves:
            self.found.moved.update(dict.fromkeys(results, inputs))
            self.sharing.join(inputs, results)
        self._take(inputs, results)
        self.found.static[index] = "between int8 nodes"

    def _why_float(self, index: int, node: Node, inputs: tuple[str, ...], useful: set[int]) -> str:
        # In the order in which a user would ask: what he excluded; whether integers would be of any use; whether what
        # comes in is integer already (a QuantizeLinear for this node alone costs more than it saves, unless it was
        # forced); whether this form has a kernel; whether ranges are known; whether 8 bits are enough. What moves
        # data computes nothing: it needs one range, of its input, and results that nobody keeps float; `sharing` says
        # that its inputs cannot have one scale. The first reason is the one that is told.
        if index in self.rules.against:
            return self.rules.against[index]
        if index not in useful:
            return "no layer in integers reads it"
        constants = self.view.constants
        computed = [v for v in inputs if v not in constants]
        if not computed or not inputs[0]:
            return "its input is constant"
        if index not in self.rules.forced and not all(v in self.found.made for v in computed):
            return "its input is float"
        results = self.found.results[index]
        why = form_obstacle(node, self.view)
        if node.op_type in self.target.moves:
            why = why or self._unknown(inputs) or self._kept(results)
            return why or self.sharing.against(inputs)
        return (
            why
            or self._unknown((*inputs, *results))
            or self._drowned(node, inputs, results)
            or self._coarse(node, results[0])
            or self._unclipped(node, results[0])
        )

    def _unclipped(self, node: Node, result: str) -> str:
        """Say why an operator cannot be written as a sum: its slope, or integers of its result beyond its bounds."""
        if node.op_type not in self.target.written_as_sums:
            return ""
        if not float(node.attributes.get("alpha", 0.2)) > 0:  # type: ignore[arg-type]
            return "its slope is not positive"
        if self.ranges.clips(result, 0.0, 1.0):
            return ""
        return "its result is to have integers beyond 0 and 1, where its kernel would not clip"

    def _coarse(self, node: Node, result: str) -> str:
        """Say whether 8 bits are too few for the result of a Softmax."""
        found = self.ranges.sqnr(result) if node.op_type == "Softmax" else None
        if found is None or found >= _COARSE:
            return ""
        return f"of most of its values 8 bits would keep little ({found:.0f} dB)"

    def _drowned(self, node: Node, inputs: tuple[str, ...], results: tuple[str, ...]) -> str:
        """Say which constant leaves too few integers for what it is added to, as the mask of an attention does."""
        constants = [v for v in inputs if v in self.view.constants]
        result = self.ranges.plan(results[0])
        if node.op_type not in _SUMS or not constants or result is None:
            return ""
        for value in inputs:
            known = self.ranges.of(value)
            if value in constants or known is None:
                continue
            if known.high - known.low < FEWEST_STEPS * result.scale:
                return f"beside constant '{constants[0]}' too few integers are left for '{value}'"
        return ""

    def _unknown(self, values: tuple[str, ...]) -> str:
        # The one place where a range decides: what passes here is what must be observed.
        self.found.asked.update(dict.fromkeys(values))
        for value in values:
            if self.ranges.of(value) is None and not self.ranges.is_float(value):
                return f"the range of '{value}' is not known"
        return self._kept(values)

    def _kept(self, values: tuple[str, ...]) -> str:
        for value in values:
            if self.ranges.is_float(value):
                return f"tensor '{value}' is to stay float"
        return ""

    def _take(self, inputs: tuple[str, ...], results: tuple[str, ...]) -> None:
        self.found.quantized.update(dict.fromkeys((*inputs, *results)))
        self.found.made.update(results)


def weight_obstacle(node: Node, weight: Weight) -> str:
    """Say what keeps a product from having this weight in integers, whoever else reads it.

    Args:
        node: The product.
        weight: What it multiplies by.
    """
    if node.op_type == "Gemm" and not float(node.attributes.get("alpha", 1.0)) > 0:  # type: ignore[arg-type]
        return "its factor alpha is not positive"  # it goes into the scale
    if node.transposes(1) and node.op_type != "MatMul":
        return "its weight is read through a Transpose"
    if not weight.finite:
        return "its weight holds NaN or infinity"
    return exposed_why(weight) if weight.exposed else ""


def form_obstacle(node: Node, view: View) -> str:
    """Say which form of an operator has no integer kernel, or one that computes something else.

    Args:
        node: The operator.
        view: The graph.
    """
    match node.op_type:
        case "AveragePool" | "Resize":
            return _window_form(node)
        case "Pad" if fills_in(node, view.constants):
            return "it pads with values that its input does not have"
        case "Max" | "Min" | "MaxPool":
            return _maximum_form(node, view)
        case _ if node.domain:
            return "not of the standard operators"
        case _:
            return ""


def _maximum_form(node: Node, view: View) -> str:
    """Say the same of what compares values."""
    if node.op_type == "MaxPool":
        return "its indices are read" if len([o for o in node.outputs if o]) > 1 else ""
    compares = any(name in view.constants for name in node.inputs)
    return "it compares with a constant, which would be rounded" if compares else ""


def _window_form(node: Node) -> str:
    """Say the same of an AveragePool or Resize, by its attributes."""
    given = node.attributes
    if node.op_type == "Resize":
        mode = given.get("mode", "nearest")
        if given.get("coordinate_transformation_mode") == "tf_crop_and_resize":
            return "its extrapolation_value would be taken for an integer"
        return "" if mode == "nearest" else f"Resize in mode {mode} has no integer kernel"
    if given.get("ceil_mode") and given.get("count_include_pad"):
        return "with ceil_mode its kernel divides by a wrong count of padding"
    dilations = given.get("dilations")
    dilated = isinstance(dilations, tuple) and any(n != 1 for n in dilations)
    return "its kernel knows no dilations" if dilated else ""


def _retract(
    found: Islands,
    view: View,
    products: Collection[int],
    forced: Collection[int],
    needs_output: Collection[str],
) -> None:
    """Change `found` in place. `forced` nodes stay, and products whose kernel needs a quantized output.

    Args:
        found: What runs in integers; it is changed.
        view: The graph.
        products: Places of the products.
        forced: Places of the nodes that stay.
        needs_output: Operators whose kernels have no float result.
    """
    # Two kinds of nodes. Between products: without an integer reader it goes back to float, and since readers come
    # later in the order, those were decided before. A product stays, as its own inputs are worth it, but hands on
    # floats if some reader is float and no integer reader stands between products: quantizing for products alone is
    # then done by each of them, and the float reader gets exact values. Kernels that need a quantized output
    # (`needs_output`) have no such form.
    for index in sorted(found.static, reverse=True):
        results = found.results[index]
        readers = [r for value in results for r in view.readers.get(value, ())]
        integer = [r for r in readers if r in found.static]
        if index not in products:
            if not integer and index not in forced:
                del found.static[index]
                found.floats[index] = "nothing that reads it runs in integers"
                found.made.difference_update(results)
        elif results[0] in found.made and view.nodes[index].op_type not in needs_output:
            between = any(r not in products for r in integer)
            if len(integer) < len(readers) and not between:
                found.static[index] = "int8 in, float out"
                found.made.difference_update(results)
    _count_again(found, view, products)


def _count_again(found: Islands, view: View, products: Collection[int]) -> None:
    """Find the values that need a scale now."""
    found.quantized.clear()
    for index in sorted(found.static):
        node = view.nodes[index]
        slots = activation_slots(node.op_type, len(node.inputs), product=index in products)
        values = [node.inputs[slot] for slot in slots]
        values += [value for value in found.results[index] if value in found.made]
        found.quantized.update(dict.fromkeys(values))
    for value in [v for v in found.moved if v not in found.made]:
        del found.moved[value]
