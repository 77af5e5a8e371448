"""What a session really computes in integers, product by product of the file.

A model in QDQ form only asks for integer arithmetic. Whether a Conv between DequantizeLinear and
QuantizeLinear becomes a QLinearConv is decided when a session is made, and one that does not match
onnxruntime's patterns is computed in float, slower than before. So the session saves its optimized
graph to a temporary folder, and each kernel of that graph is given to the product of the file that it computes.
`Fusion` counts what was found; `Runtime` also says why.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import onnx
import onnx_ir as ir

from quantkit.graph.load import load
from quantkit.ops.integer_ops import CONVERSIONS, INTEGER_PRODUCTS
from quantkit.result import NodeRuns, Runs, Runtime
from quantkit.runtime.kernels.optimized import (
    PRODUCTS,
    dynamic_tensors,
    file_nodes,
    is_integer,
    kind_of,
    optimized_nodes,
)
from quantkit.runtime.kernels.origins import Origins, label
from quantkit.runtime.kernels.reasons import NOTHING, STATIC, Reason, why_float
from quantkit.runtime.kernels.site import Readers

__all__ = ["Fusion", "fusion_of", "runtime_of"]

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
    ran = _ran(path)
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


def runtime_of(path: Path) -> Runtime:
    """Make a session as users do and say of every product how it runs, and of those in float why.

    The file's products come in its order, then kernels that cannot be traced back to one of them. Linear in the number
    of nodes.

    Raises:
        An exception in `quantkit.runtime.session.RUNTIME_ERRORS`: onnxruntime does not load the model.
        ModelError: quantkit does not read it.
    """
    ran = _ran(path)
    judged = list(_judged(path, ran))
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

    optimized: tuple[onnx.NodeProto, ...]
    products: tuple[tuple[onnx.NodeProto, onnx.NodeProto | None, Runs], ...]


def _ran(path: Path) -> _Ran:
    optimized = optimized_nodes(path)
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


def _judged(path: Path, ran: _Ran) -> Iterator[_Judged]:
    """Say of each product why it is float, if it is: only the file, with its weights, tells."""
    model = load(path).model
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
    return {node.outputs[0].name or "": node for node in nodes}


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
