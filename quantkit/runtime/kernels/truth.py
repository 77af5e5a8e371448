"""What a session really computes in integers, product by product of the file."""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import onnx
import onnx_ir as ir

from quantkit.graph.load import load
from quantkit.ops.integer_ops import CONVERSIONS
from quantkit.result import NodeRuns, Runs, Runtime
from quantkit.runtime.kernels.counts import counted
from quantkit.runtime.kernels.optimized import (
    PRODUCTS,
    dynamic_tensors,
    file_nodes,
    kind_of,
    optimized_nodes,
)
from quantkit.runtime.kernels.origins import Origins, label
from quantkit.runtime.kernels.reason import NOTHING, STATIC, Reason
from quantkit.runtime.kernels.reasons import why_float
from quantkit.runtime.kernels.site import Readers

__all__ = ["runtime_of"]

# What quantkit decided itself is no fault of the file.
_DECIDED = (
    f"{NOTHING}: left in float when it was quantized; {STATIC} with --save-plan FILE says why"
)
_Kernels = dict[str, deque[onnx.NodeProto]]
_Judged = tuple[NodeRuns, Reason | None]


def runtime_of(path: Path) -> Runtime:
    """Make a session as users do and say of every product how it runs, and of those in float why.

    The file's products come in its order, then kernels that cannot be traced back to one of them. Linear in the number
    of nodes.

    Raises:
        An exception in `quantkit.runtime.session.RUNTIME_ERRORS`: onnxruntime does not load the model.
        ModelError: quantkit does not read it.
    """
    optimized = optimized_nodes(path)
    judged = list(_judged(path, optimized))
    nodes = tuple(node for node, _ in judged)
    integer = sum(node.runs in {"integer", "dynamic"} for node in nodes)
    products = sum(node.runs != "gone" for node in nodes)
    return Runtime(
        integer=integer,
        products=products,
        share=integer / products if products else 0.0,
        kernels=dict(counted(node.op_type for node in optimized)),
        conversions=sum(node.op_type in CONVERSIONS for node in optimized),
        nodes=nodes,
        advice=_advice(judged),
    )


def _judged(path: Path, optimized: Sequence[onnx.NodeProto]) -> Iterator[_Judged]:
    origins = Origins(file_nodes(path), optimized)
    kernels, rest = _assigned(origins, optimized)
    dynamic = dynamic_tensors(optimized)
    model = load(path).model
    sites = _sites(model)
    readers = Readers()
    by_us = model.metadata_props.get("quantkit", "").endswith(" static")
    for product in origins.products:
        found = kernels[label(product)]
        kernel = found.popleft() if found else None
        runs = "gone" if kernel is None else kind_of(kernel, dynamic)
        site = sites.get(product.output[0])
        reason = why_float(site, readers) if runs == "float" else None
        if reason is not None and by_us and STATIC in reason.fix:
            reason = replace(reason, fix=_DECIDED)
        yield _node(product, kernel, runs, reason)
    for kernel in (*(k for left in kernels.values() for k in left), *rest):
        runs = kind_of(kernel, dynamic)
        yield _node(kernel, kernel, runs, why_float(None, readers) if runs == "float" else None)


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
