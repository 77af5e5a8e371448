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

from quantkit.model.ops.float_ops import MASKED, activation_slots
from quantkit.model.ops.view import Node, View, Weight, clip_bounds, fills_in
from quantkit.quantize.plan.ranges import FEWEST_STEPS, Ranges
from quantkit.quantize.plan.sharing import Sharing
from quantkit.reasons import Reason, Why, because

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
    against: Mapping[int, Reason] = field(default_factory=dict)


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

    static: dict[int, Reason] = field(default_factory=dict)
    floats: dict[int, Reason] = field(default_factory=dict)
    absorbed: dict[int, int] = field(default_factory=dict)
    results: dict[int, tuple[str, ...]] = field(default_factory=dict)
    quantized: dict[str, None] = field(default_factory=dict)
    moved: dict[str, tuple[str, ...]] = field(default_factory=dict)
    made: set[str] = field(default_factory=set)
    asked: dict[str, None] = field(default_factory=dict)


def find_islands(
    view: View,
    products: dict[int, Reason | None],
    rules: Rules,
    ranges: Ranges,
) -> Islands:
    """Decide which nodes run in integers, without integers that only floats read.

    Args:
        view: The graph.
        products: Every product with a constant weight by index, with the reason against it or None.
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
        products: dict[int, Reason | None],
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
        return reader in useful or (reader in self.products and self.products[reader] is None)

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
        self.found.static[index] = because(Why.INTEGER_OUTPUT if quantized else Why.FLOAT_OUTPUT)

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
        self.found.static[index] = because(Why.BETWEEN_INTEGERS)

    def _why_float(
        self, index: int, node: Node, inputs: tuple[str, ...], useful: set[int]
    ) -> Reason | None:
        # In the order in which a user would ask: what he excluded; whether integers would be of any use; whether what
        # comes in is integer already (a QuantizeLinear for this node alone costs more than it saves, unless it was
        # forced); whether this form has a kernel; whether ranges are known; whether 8 bits are enough. What moves
        # data computes nothing: it needs one range, of its input, and results that nobody keeps float; `sharing` says
        # that its inputs cannot have one scale. The first reason is the one that is told.
        if index in self.rules.against:
            return self.rules.against[index]
        if index not in useful:
            return because(Why.NO_INTEGER_READER)
        constants = self.view.constants
        computed = [v for v in inputs if v not in constants]
        if not computed or not inputs[0]:
            return because(Why.INPUT_CONSTANT)
        if index not in self.rules.forced and not all(v in self.found.made for v in computed):
            return because(Why.INPUT_FLOAT)
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

    def _unclipped(self, node: Node, result: str) -> Reason | None:
        """Say why an operator cannot be written as a sum: its slope, or integers of its result beyond its bounds."""
        if node.op_type not in self.target.written_as_sums:
            return None
        if not float(node.attributes.get("alpha", 0.2)) > 0:  # type: ignore[arg-type]
            return because(Why.SLOPE_NOT_POSITIVE)
        return None if self.ranges.clips(result, 0.0, 1.0) else because(Why.BEYOND_BOUNDS)

    def _coarse(self, node: Node, result: str) -> Reason | None:
        """Say whether 8 bits are too few for the result of a Softmax."""
        found = self.ranges.sqnr(result) if node.op_type == "Softmax" else None
        if found is None or found >= _COARSE:
            return None
        return because(Why.COARSE_SOFTMAX, db=found)

    def _drowned(
        self, node: Node, inputs: tuple[str, ...], results: tuple[str, ...]
    ) -> Reason | None:
        """Say which constant leaves too few integers for what it is added to, as the mask of an attention does."""
        constants = [v for v in inputs if v in self.view.constants]
        result = self.ranges.plan(results[0])
        if node.op_type not in MASKED or not constants or result is None:
            return None
        for value in inputs:
            known = self.ranges.of(value)
            if value in constants or known is None:
                continue
            if known.high - known.low < FEWEST_STEPS * result.scale:
                return because(Why.DROWNED, constant=constants[0], tensor=value)
        return None

    def _unknown(self, values: tuple[str, ...]) -> Reason | None:
        # The one place where a range decides: what passes here is what must be observed.
        self.found.asked.update(dict.fromkeys(values))
        for value in values:
            if self.ranges.of(value) is None and not self.ranges.is_float(value):
                return because(Why.RANGE_NOT_KNOWN, tensor=value)
        return self._kept(values)

    def _kept(self, values: tuple[str, ...]) -> Reason | None:
        for value in values:
            if self.ranges.is_float(value):
                return because(Why.TENSOR_STAYS_FLOAT, tensor=value)
        return None

    def _take(self, inputs: tuple[str, ...], results: tuple[str, ...]) -> None:
        self.found.quantized.update(dict.fromkeys((*inputs, *results)))
        self.found.made.update(results)


def weight_obstacle(node: Node, weight: Weight) -> Reason | None:
    """Say what keeps a product from having this weight in integers, whoever else reads it.

    Args:
        node: The product.
        weight: What it multiplies by.
    """
    if node.op_type == "Gemm" and not float(node.attributes.get("alpha", 1.0)) > 0:  # type: ignore[arg-type]
        return because(Why.ALPHA_NOT_POSITIVE)  # it goes into the scale
    if node.transposes(1) and node.op_type != "MatMul":
        return because(Why.WEIGHT_TRANSPOSED)
    if not weight.finite:
        return because(Why.WEIGHT_NOT_FINITE)
    return because(Why.WEIGHT_EXPOSED, tensor=weight.tensor) if weight.exposed else None


def form_obstacle(node: Node, view: View) -> Reason | None:
    """Say which form of an operator has no integer kernel, or one that computes something else.

    Args:
        node: The operator.
        view: The graph.
    """
    match node.op_type:
        case "AveragePool" | "Resize":
            return _window_form(node)
        case "Pad" if fills_in(node, view.constants):
            return because(Why.PADS_OTHER_VALUES)
        case "Max" | "Min" | "MaxPool":
            return _maximum_form(node, view)
        case _:
            return because(Why.NOT_STANDARD) if node.domain else None


def _maximum_form(node: Node, view: View) -> Reason | None:
    """Say the same of what compares values."""
    if node.op_type == "MaxPool":
        return because(Why.INDICES_READ) if len([o for o in node.outputs if o]) > 1 else None
    compares = any(name in view.constants for name in node.inputs)
    return because(Why.COMPARES_CONSTANT) if compares else None


def _window_form(node: Node) -> Reason | None:
    """Say the same of an AveragePool or Resize, by its attributes."""
    given = node.attributes
    if node.op_type == "Resize":
        mode = given.get("mode", "nearest")
        if given.get("coordinate_transformation_mode") == "tf_crop_and_resize":
            return because(Why.RESIZE_CROPS)
        return None if mode == "nearest" else because(Why.RESIZE_MODE, mode=str(mode))
    if given.get("ceil_mode") and given.get("count_include_pad"):
        return because(Why.POOL_COUNT)
    dilations = given.get("dilations")
    dilated = isinstance(dilations, tuple) and any(n != 1 for n in dilations)
    return because(Why.POOL_DILATED) if dilated else None


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
                found.floats[index] = because(Why.NO_INTEGER_CONSUMER)
                found.made.difference_update(results)
        elif results[0] in found.made and view.nodes[index].op_type not in needs_output:
            between = any(r not in products for r in integer)
            if len(integer) < len(readers) and not between:
                found.static[index] = because(Why.FLOAT_OUTPUT)
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
