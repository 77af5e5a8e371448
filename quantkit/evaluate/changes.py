"""What differs between the float file and a candidate's: operators, types of weights, versions, ports."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import onnx
import onnx_ir as ir

from quantkit.evaluate.diff.models import typed_shape
from quantkit.evaluate.diff.nodes import operator_changes
from quantkit.evaluate.match import ModelPair
from quantkit.model.graph.protos import proto_graphs
from quantkit.model.graph.size import WEIGHTS, Accounts
from quantkit.result import Changes

_FLOATS = frozenset({"bfloat16", "float16", "float32", "float64"})
_FOLDED = "BatchNormalization"


def changes_of(pair: ModelPair) -> Changes:
    """Compare a candidate's file with the float model's.

    Raises:
        ModelError: One of them is no ONNX model.
    """
    accounts = (pair.a.accounts, pair.b.accounts)
    before, after = pair.a.proto, pair.b.proto
    graphs = pair.a.model.graph, pair.b.model.graph
    had, has = _operators(before), _operators(after)
    held, weights = _weights(accounts[0]), _weights(accounts[1])
    return Changes(
        nodes_before=had.total(),
        nodes_after=has.total(),
        operators=operator_changes(had, has),
        weights=weights,
        kept=sum(n for dtype, n in weights.items() if dtype in _FLOATS & held.keys()),
        notes=(
            *_versions(before, after),
            *_ports("input", graphs[0].inputs, graphs[1].inputs),
            *_ports("output", graphs[0].outputs, graphs[1].outputs),
            *_rewritten(before, after, had, has),
            *_files(*accounts),
        ),
    )


def _operators(model: onnx.ModelProto) -> Counter[str]:
    """Count nodes as written: subgraphs included, and the body of a function once."""
    bodies = (onnx.GraphProto(node=function.node) for function in model.functions)
    graphs = chain.from_iterable(proto_graphs(graph) for graph in (model.graph, *bodies))
    return Counter(_operator(node) for graph in graphs for node in graph.node)


def _operator(node: onnx.NodeProto) -> str:
    return node.op_type if node.domain in {"", "ai.onnx"} else f"{node.domain}.{node.op_type}"


def _weights(found: Accounts) -> dict[str, int]:
    """Return bytes of weights by type, the largest first; scales, shapes and what is dead are none."""
    nbytes: Counter[str] = Counter()
    for tensor in found.tensors:
        if tensor.cause.startswith(WEIGHTS) or tensor.cause == "duplicates":
            nbytes[tensor.dtype] += tensor.nbytes
    return {dtype: n for dtype, n in nbytes.most_common() if n}


def _versions(before: onnx.ModelProto, after: onnx.ModelProto) -> Iterator[str]:
    old, new = _opsets(before), _opsets(after)
    for domain in sorted({*old, *new}):
        what = f"opset of {domain}" if domain else "opset"
        if domain not in old:
            yield f"{what}: {new[domain]}, new"
        elif domain not in new:
            yield f"{what}: gone"
        elif old[domain] != new[domain]:
            yield f"{what} {old[domain]} -> {new[domain]}"
    if before.ir_version != after.ir_version:
        yield f"IR version {before.ir_version} -> {after.ir_version}"


def _opsets(model: onnx.ModelProto) -> dict[str, int]:
    return {("" if o.domain == "ai.onnx" else o.domain): o.version for o in model.opset_import}


def _ports(kind: str, before: Sequence[ir.Value], after: Sequence[ir.Value]) -> Iterator[str]:
    """Yield what became of inputs or outputs; old models list their initializers among the inputs."""
    old, new = ([v for v in values if not v.is_initializer()] for values in (before, after))
    if len(old) != len(new):
        yield f"{kind}s {len(old)} -> {len(new)}"
        return
    for was, now in zip(old, new, strict=True):
        if was.name != now.name:
            yield f"{kind} '{was.name}' is called '{now.name}'"
        if typed_shape(was) != typed_shape(now):
            yield f"{kind} '{now.name}': {typed_shape(was)} -> {typed_shape(now)}"


def _rewritten(
    before: onnx.ModelProto, after: onnx.ModelProto, had: Mapping[str, int], has: Mapping[str, int]
) -> Iterator[str]:
    folded = had.get(_FOLDED, 0) - has.get(_FOLDED, 0)
    if folded > 0:
        yield f"{folded} {_FOLDED} folded"
    if len(after.functions) < len(before.functions):
        yield f"functions inlined ({len(before.functions)} -> {len(after.functions)})"


def _files(before: Accounts, after: Accounts) -> Iterator[str]:
    if (len(before.files) > 1) != (len(after.files) > 1):
        yield (
            "weights in the model file" if len(after.files) == 1 else "weights in a file beside it"
        )
