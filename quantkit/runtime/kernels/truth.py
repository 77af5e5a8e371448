"""What a session really computes in integers, product by product of the file.

A model in QDQ form only asks for integer arithmetic. Whether a Conv between DequantizeLinear and
QuantizeLinear becomes a QLinearConv is decided when a session is made, and one that does not match
onnxruntime's patterns is computed in float, slower than before. So the session saves its optimized
graph to a temporary folder, and each kernel of that graph is given to the product of the file that it computes.
`Fusion` counts what was found; `Runtime` also says why.

onnxruntime keeps a product's name, or adds to it, or names the fused node after a tensor. So a node of the optimized graph is looked for
by its name, then by the constants it reads, which keep their names, then by the tensors it makes.

`half_kernels` counts what runs in float16: without a kernel for it onnxruntime computes in float32, between Casts of its own.
"""

import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

import onnx
import onnx_ir as ir

from quantkit.files import scratch
from quantkit.model.graph.edit import own_name
from quantkit.model.graph.load import load, read_structure
from quantkit.model.graph.protos import proto_graphs
from quantkit.model.ops.float_ops import FLOAT_PRODUCTS
from quantkit.model.ops.integer_ops import CONVERSIONS, INTEGER_OPS, INTEGER_PRODUCTS, is_quantized
from quantkit.result import NodeRuns, Runs, Runtime
from quantkit.runtime.kernels.reasons import NOTHING, STATIC, Readers, Reason, why_float
from quantkit.runtime.session import make_session

# Conv is both onnx's and that of the domain com.microsoft.nchwc.
PRODUCTS = INTEGER_PRODUCTS | FLOAT_PRODUCTS
# MatMulNBits multiplies in integers at this accuracy_level alone; at others weights become float for each product.
_INTEGER_LEVEL = 4

_FLOAT = onnx.TensorProto.FLOAT
_HALVES = frozenset({onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16})
# What they make is no float, whatever they read.
_OTHERS = frozenset({"And", "ArgMax", "ArgMin", "Equal", "Greater", "GreaterOrEqual", "IsInf"})
_OTHERS |= {"IsNaN", "Less", "LessOrEqual", "NonZero", "Not", "Or", "Shape", "Size"}


def optimized_model(model: Path) -> onnx.ModelProto:
    """Return the graph that a session as users make it would run, without its large weights.

    With them it is on disk, in a temporary folder, while it is read.

    Raises:
        An exception in `quantkit.runtime.session.RUNTIME_ERRORS`: onnxruntime does not load the model.
    """
    with scratch() as folder:
        saved = folder / "optimized.onnx"
        # Nothing is run: kernels need no copies of the weights. The graph is the same.
        make_session(str(model), prepack=False, optimized_path=saved)
        return onnx.load(saved, load_external_data=False)


def optimized_nodes(model: Path) -> tuple[onnx.NodeProto, ...]:
    """Return the nodes of `optimized_model`, subgraphs included."""
    return tuple(_nodes(optimized_model(model)))


def file_nodes(model: Path) -> tuple[onnx.NodeProto, ...]:
    """Return the nodes of the file as it is, subgraphs included, functions not."""
    return tuple(_nodes(read_structure(model)))


def _nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    return (node for graph in proto_graphs(model.graph) for node in graph.node)


def is_integer(node: onnx.NodeProto) -> bool:
    """Say whether a node computes on integers, product or not."""
    if node.op_type == "MatMulNBits":
        return any(a.name == "accuracy_level" and a.i == _INTEGER_LEVEL for a in node.attribute)
    row = INTEGER_OPS.get(node.op_type)
    return is_quantized(node.op_type) if row is None else row.in_integers


def dynamic_tensors(nodes: Iterable[onnx.NodeProto]) -> frozenset[str]:
    """Return what DynamicQuantizeLinear makes: integers whose range is taken at run time."""
    made = (node for node in nodes if node.op_type == "DynamicQuantizeLinear")
    return frozenset(name for node in made for name in node.output)


def kind_of(product: onnx.NodeProto, dynamic: frozenset[str]) -> Runs:
    """Say how a product of an optimized graph is computed; `dynamic`: see `dynamic_tensors`."""
    if not is_integer(product):
        return "float"
    taken = INTEGER_OPS[product.op_type].dynamic or not dynamic.isdisjoint(product.input)
    return "dynamic" if taken else "integer"


# onnxruntime names a fused node after one of its parts, or after the tensor that it makes; what it computes in float32
# instead of float16 after the Cast that it would have needed. A number makes a name unique.
_BEHIND = re.compile(r"(_nchwc|_nhwc|/duplicated|/MatMul(Add|Scale)Fusion/?|_token_\d+)$")
_IN_FRONT = re.compile(r"^(fused |InsertedPrecisionFreeCast_)")
_LAYOUT = frozenset({"ReorderOutput", "Transpose"})
_FURTHEST = 8  # nodes between a product and the tensor that a fused node is named after
_NEAR = 5  # nodes between a constant and the product that it is the weight of


class Origins:
    """Finds the product of the given file that a node of the optimized graph stands for."""

    def __init__(
        self, given: Sequence[onnx.NodeProto], optimized: Iterable[onnx.NodeProto]
    ) -> None:
        """Look at both graphs once."""
        self.producers = {name: node for node in given for name in node.output if name}
        self.products = [node for node in given if node.op_type in PRODUCTS]
        self.names = {label(node) for node in self.products}
        self.transposed = {
            name: node.output[0]
            for node in optimized
            if node.op_type in _LAYOUT
            for name in node.input[:1]
        }
        self.owners = self._owners()

    def named(self, node: onnx.NodeProto) -> str | None:
        """Return the product that the node is named after."""
        return next((name for name in bare_names(node.name) if name in self.names), None)

    def traced(self, node: onnx.NodeProto) -> str | None:
        """Return the only product that reads one of its constants, else the one before what the node makes."""
        owned = (self.owners.get(name) for name in node.input)
        made = (self._before(name) for name in (*self._made(node), *bare_names(node.name)))
        return next((name for name in chain(owned, made) if name), None)

    def _made(self, node: onnx.NodeProto) -> Iterator[str]:
        """Yield the tensors that it makes, also in the layout of the file."""
        for name in node.output:
            yield name
            if name in self.transposed:
                yield self.transposed[name]

    def _before(self, tensor: str) -> str | None:
        """Return the nearest product before a tensor, or None if there is none near."""
        for _ in range(_FURTHEST):
            node = self.producers.get(tensor)
            if node is None:
                return None
            if node.op_type in PRODUCTS:
                return label(node)
            tensor = next((name for name in node.input if name in self.producers), "")
        return None

    def _owners(self) -> dict[str, str | None]:
        """Return, for each constant that products read, the product; None if there are several."""
        owners: dict[str, str | None] = {}
        for product in self.products:
            name = label(product)
            for tensor in filter(None, map(self._source, product.input)):
                owners[tensor] = name if owners.get(tensor, name) == name else None
        return owners

    def _source(self, tensor: str) -> str | None:
        """Return what a tensor is made from, if that is near and nobody computes it."""
        for _ in range(_NEAR):
            node = self.producers.get(tensor)
            if node is None:
                return tensor
            if node.op_type in PRODUCTS or not node.input:
                return None
            tensor = node.input[0]
        return None


def label(node: onnx.NodeProto) -> str:
    """Return a node's name; an unnamed one goes by its first output."""
    return str(node.name or node.output[0])


def bare_names(name: str) -> Iterator[str]:
    """Yield the name of a kernel, then what is left of it without each addition of onnxruntime.

    The last addition goes first: a model that was saved optimized has names with additions of its own.
    """
    while name:
        yield name
        shorter = _BEHIND.sub("", name)
        shorter = shorter if shorter != name else _IN_FRONT.sub("", name)
        name = shorter if shorter != name else ""


# What quantkit decided itself is no fault of the file.
_DECIDED = (
    f"{NOTHING}: left in float when it was quantized; {STATIC} with --save-plan FILE says why"
)
_Kernels = dict[str, deque[onnx.NodeProto]]
_Judged = tuple[NodeRuns, Reason | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """The kernels of an optimized graph, subgraphs included.

    Attributes:
        integer: Nodes that compute on integers, by operator; products and all others.
        float: Products that are computed in float, by operator.
        conversions: QuantizeLinear and DequantizeLinear that are left and run every time.
        float_products: The names, in the given model, of the products that are computed in float
            (an unnamed one goes by its first output; one that cannot be traced back goes by
            onnxruntime's name for it).
    """

    integer: Mapping[str, int]
    float: Mapping[str, int]
    conversions: Mapping[str, int]
    float_products: tuple[str, ...]

    @property
    def integer_products(self) -> dict[str, int]:
        """Products that are computed in integers, by operator."""
        return {op: n for op, n in self.integer.items() if op in INTEGER_PRODUCTS}

    @property
    def integer_count(self) -> int:
        """How many products are computed in integers."""
        return sum(self.integer_products.values())

    @property
    def product_count(self) -> int:
        """How many products the model has, in whatever type."""
        return self.integer_count + sum(self.float.values())

    def to_json(self) -> dict[str, object]:
        """Return plain data."""
        return {
            "integer": dict(self.integer),
            "float": dict(self.float),
            "conversions": dict(self.conversions),
            "float_products": list(self.float_products),
        }


def fusion_of(path: Path) -> Fusion:
    """Make a session as users do and count what it runs.

    Raises:
        An exception in `quantkit.runtime.session.RUNTIME_ERRORS`: onnxruntime does not load the model.
    """
    ran = _ran(path, optimized_nodes(path))
    names = {
        id(kernel): label(product) for product, kernel, runs in ran.products if runs == "float"
    }
    left = [node for node in ran.optimized if id(node) in names]  # in the order in which they run
    return Fusion(
        integer=_counted(node.op_type for node in ran.optimized if is_integer(node)),
        float=_counted(node.op_type for node in left),
        conversions=_counted(n.op_type for n in ran.optimized if n.op_type in CONVERSIONS),
        float_products=tuple(names[id(node)] for node in left),
    )


def runtime_of(
    path: Path,
    model: ir.Model | None = None,
    optimized: Sequence[onnx.NodeProto] | None = None,
) -> Runtime:
    """Make a session as users do and say of every product how it runs, and of those in float why.

    The file's products come in its order, then kernels that cannot be traced back to one of them. Linear in the number
    of nodes.

    Args:
        path: The file.
        model: What was loaded from it; None: it is loaded here.
        optimized: The result of `optimized_nodes` for it; None: a session is made here.

    Raises:
        An exception in `quantkit.runtime.session.RUNTIME_ERRORS`: onnxruntime does not load the model.
        ModelError: quantkit does not read it.
    """
    ran = _ran(path, optimized_nodes(path) if optimized is None else optimized)
    judged = list(_judged(load(path).model if model is None else model, ran))
    nodes = tuple(node for node, _ in judged)
    integer = sum(node.runs in {"integer", "dynamic"} for node in nodes)
    products = sum(node.runs != "gone" for node in nodes)
    return Runtime(
        integer=integer,
        products=products,
        share=integer / products if products else 0.0,
        kernels=dict(_counted(node.op_type for node in ran.optimized)),
        conversions=sum(node.op_type in CONVERSIONS for node in ran.optimized),
        nodes=nodes,
        advice=_advice(judged),
    )


@dataclass(frozen=True, slots=True)
class _Ran:
    """What a session runs.

    Attributes:
        optimized: Every kernel.
        products: Each product of the file in its order, with its kernel, None if it is gone, and how that computes; then
            each kernel that multiplies and belongs to no product, as a product of its own.
    """

    optimized: Sequence[onnx.NodeProto]
    products: tuple[tuple[onnx.NodeProto, onnx.NodeProto | None, Runs], ...]


def _ran(path: Path, optimized: Sequence[onnx.NodeProto]) -> _Ran:
    origins = Origins(file_nodes(path), optimized)
    kernels, rest = _assigned(origins, optimized)
    dynamic = dynamic_tensors(optimized)
    found: list[tuple[onnx.NodeProto, onnx.NodeProto | None, Runs]] = []
    for product in origins.products:
        own = kernels[label(product)]
        kernel = own.popleft() if own else None
        found.append((product, kernel, "gone" if kernel is None else kind_of(kernel, dynamic)))
    alone = (*(kernel for left in kernels.values() for kernel in left), *rest)
    found += [(kernel, kernel, kind_of(kernel, dynamic)) for kernel in alone]
    return _Ran(optimized, tuple(found))


def _judged(model: ir.Model, ran: _Ran) -> Iterator[_Judged]:
    """Say of each product why it is float, if it is: only the file, with its weights, tells."""
    sites = _sites(model)
    readers = Readers()
    by_us = model.metadata_props.get("quantkit", "").endswith(" static")
    for product, kernel, runs in ran.products:
        site = None if product is kernel else sites.get(product.output[0])
        reason = why_float(site, readers) if runs == "float" else None
        if reason is not None and site is not None and by_us and STATIC in reason.fix:
            reason = replace(reason, fix=_DECIDED)
        yield _node(product, kernel, runs, reason)


def _assigned(
    origins: Origins, optimized: Iterable[onnx.NodeProto]
) -> tuple[_Kernels, list[onnx.NodeProto]]:
    """Return the kernels of each product by its name, and those that belong to none.

    Names count most: who is only traced to a product takes it if nobody is named after it.
    """
    kernels: _Kernels = defaultdict(deque)
    unnamed = []
    for node in (n for n in optimized if n.op_type in PRODUCTS):
        name = origins.named(node)
        if name is None:
            unnamed.append(node)
        else:
            kernels[name].append(node)
    rest = []
    for node in unnamed:
        name = origins.traced(node)
        if name is None or kernels.get(name):
            rest.append(node)
        else:
            kernels[name].append(node)
    return kernels, rest


def _sites(model: ir.Model) -> dict[str, ir.Node]:
    """Return the file's products by their first output."""
    nodes = (node for node in model.graph.all_nodes() if node.op_type in PRODUCTS)
    return {own_name(node.outputs[0]): node for node in nodes}


def _node(
    product: onnx.NodeProto, kernel: onnx.NodeProto | None, runs: Runs, reason: Reason | None
) -> _Judged:
    found = NodeRuns(
        node=label(product),
        op_type=product.op_type,
        runs=runs,
        kernel="" if kernel is None else kernel.op_type,
        why="" if reason is None else reason.why,
        fix="" if reason is None else reason.fix,
    )
    return found, reason


def _advice(judged: Iterable[_Judged]) -> tuple[str, ...]:
    """Return a sentence for each cause that something can be done about, that of most products first."""
    causes: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for node, reason in judged:
        if reason is not None and not reason.fix.startswith(NOTHING):
            causes[reason.cause, reason.fix][node.op_type] += 1
    return tuple(
        f"{_counts_text(ops)} {'stays' if ops.total() == 1 else 'stay'} float: {cause}; fix: {fix}."
        for (cause, fix), ops in sorted(causes.items(), key=lambda item: -item[1].total())
    )


def _counts_text(ops: Counter[str]) -> str:
    """Return "3 Conv and 2 Gemm"."""
    return " and ".join(f"{n} {op}" for op, n in ops.most_common())


def _counted(op_types: Iterable[str]) -> Mapping[str, int]:
    """Return how often each occurs, by name."""
    return MappingProxyType(dict(sorted(Counter(op_types).items())))


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfKernels:
    """What a session runs.

    Attributes:
        casts: Casts between float32 and 16 bits that run every time; those of constants were computed once, at load.
        products: Nodes that multiply.
        half_products: Those of them that do it in 16 bits.
    """

    casts: int
    products: int
    half_products: int

    def __str__(self) -> str:
        count = f"{self.casts} {'Cast' if self.casts == 1 else 'Casts'} between float16 and float32"
        if self.half_products:
            ran = f"{self.half_products} of {self.products} layers (Conv, Gemm, MatMul, ...) in float16"
            return f"onnxruntime computes {ran} on this CPU, with {count}"
        return (
            f"onnxruntime computes all {self.products} layers (Conv, Gemm, MatMul, ...) in float32 on this CPU, with {count}: float16 arithmetic gains "
            "no speed here; without it (no --compute) the file is as small, as fast as float and no less exact"
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


def half_kernels(path: Path) -> HalfKernels:
    """Make a session as users do and look at the types that it computes in.

    Raises:
        An exception in `quantkit.runtime.session.RUNTIME_ERRORS`: onnxruntime does not load the model.
    """
    # onnxruntime writes no types of inner values. They are followed from inputs, constants and Casts: whatever else
    # makes floats makes them of the type that it reads.
    products = half_products = casts = 0
    known: dict[str, int] = {}
    for graph in proto_graphs(optimized_model(path).graph):
        known |= {value.name: value.type.tensor_type.elem_type for value in graph.input}
        known |= {tensor.name: tensor.data_type for tensor in graph.initializer}
        for node in graph.node:
            read, made = _floats_of(node, known)
            known |= dict.fromkeys(node.output, made)
            casts += node.op_type == "Cast" and {read, made} in _CASTS
            products += node.op_type in PRODUCTS
            half_products += node.op_type in PRODUCTS and read in _HALVES
    return HalfKernels(casts=casts, products=products, half_products=half_products)


_CASTS = tuple({half, _FLOAT} for half in _HALVES)


def _floats_of(node: onnx.NodeProto, known: Mapping[str, int]) -> tuple[int, int]:
    """Return the float type that a node reads and the one that it makes; 0 for none."""
    kinds = (known.get(name, 0) for name in node.input)
    read = next((kind for kind in kinds if kind in _HALVES or kind == _FLOAT), 0)
    if node.op_type == "Cast":
        return read, next(int(a.i) for a in node.attribute if a.name == "to")
    if node.op_type in {"Constant", "ConstantOfShape"}:
        return 0, next((a.t.data_type for a in node.attribute if a.t.data_type), _FLOAT)
    return read, 0 if node.op_type in _OTHERS else read
