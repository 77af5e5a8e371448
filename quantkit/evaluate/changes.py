"""What differs between the float file and a candidate's: operators, types of weights, versions, ports."""

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain

import onnx
import onnx_ir as ir

from quantkit.evaluate.match.pair import ModelPair
from quantkit.model.graph.protos import proto_graphs
from quantkit.model.graph.size import WEIGHTS, Accounts
from quantkit.result import Changes, OperatorChange

_FLOATS = frozenset({"bfloat16", "float16", "float32", "float64"})
_FOLDED = "BatchNormalization"


def changes_of(pair: ModelPair) -> Changes:
    """Compare a candidate's file with the float model's.

    Raises:
        ModelError: One of them is no ONNX model.
    """
    accounts = (pair.a.accounts, pair.b.accounts)
    before, after = pair.a.proto, pair.b.proto
    had, has = _operators(before), _operators(after)
    held, weights = _weights(accounts[0]), _weights(accounts[1])
    return Changes(
        nodes_before=had.total(),
        nodes_after=has.total(),
        operators=_changed_operators(had, has),
        weights=weights,
        kept=sum(n for dtype, n in weights.items() if dtype in _FLOATS & held.keys()),
        notes=(
            *_versions(before, after),
            *_ports("input", before.graph, after.graph),
            *_ports("output", before.graph, after.graph),
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


def _changed_operators(
    had: Mapping[str, int], has: Mapping[str, int]
) -> tuple[OperatorChange, ...]:
    """Return the operators whose number changed, the largest change first."""
    changes = [
        OperatorChange(op_type=op, before=had.get(op, 0), after=has.get(op, 0))
        for op in {*had, *has}
        if had.get(op, 0) != has.get(op, 0)
    ]
    return tuple(sorted(changes, key=lambda c: (-abs(c.after - c.before), c.op_type)))


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


def _ports(kind: str, before: onnx.GraphProto, after: onnx.GraphProto) -> Iterator[str]:
    old, new = _listed(kind, before), _listed(kind, after)
    if len(old) != len(new):
        yield f"{kind}s {len(old)} -> {len(new)}"
        return
    for was, now in zip(old, new, strict=True):
        if was.name != now.name:
            yield f"{kind} '{was.name}' is called '{now.name}'"
        if _port_text(was) != _port_text(now):
            yield f"{kind} '{now.name}': {_port_text(was)} -> {_port_text(now)}"


def _listed(kind: str, graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """Return inputs or outputs; old models list their initializers among the inputs."""
    weights = {tensor.name for tensor in graph.initializer}
    ports = graph.output if kind == "output" else graph.input
    return [port for port in ports if kind == "output" or port.name not in weights]


def _port_text(port: onnx.ValueInfoProto) -> str:
    if not port.type.HasField("tensor_type"):
        return str(port.type.WhichOneof("value"))
    tensor = port.type.tensor_type
    known = tensor.elem_type in set(ir.DataType)
    dtype = ir.DataType(tensor.elem_type).name.lower() if known else f"type {tensor.elem_type}"
    if not tensor.HasField("shape"):
        return dtype
    dims = (
        str(d.dim_value) if d.HasField("dim_value") else d.dim_param or "?"
        for d in tensor.shape.dim
    )
    return f"{dtype}[{', '.join(dims)}]"


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
