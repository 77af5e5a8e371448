"""What a written model says, in parts that change for different reasons, each as text and as a digest.

    plan      what happens to each node and why, which tensors have integers; no numbers
    graph     nodes, names, attributes, interfaces, and the names, types and shapes of constants
    record    the options, the input and the data that the model says it comes from
    values    every byte of every constant, and attributes in full
    warnings  of the call, without numbers

Ranges that onnxruntime observes differ in the last bit from CPU to CPU: `values` and `warnings` are compared only where
the CPU and the versions are those that they were recorded with, the others everywhere.
"""

import json
import re
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import onnx
from onnx import helper, numpy_helper

ANYWHERE = ("plan", "graph", "record")
HERE = ("values", "warnings")
_RECORD = "quantkit.provenance"
_NUMBER = re.compile(r"\d[\d.,]*(e[+-]?\d+)?")


def digest(text: str | bytes) -> str:
    raw = text.encode() if isinstance(text, str) else text
    return sha256(raw).hexdigest()[:10]


def described(path: Path, result: Any) -> dict[str, str]:
    """Each part of a written model as text, a line per fact; `result`: what the call returned."""
    written = onnx.load(path)
    record = {p.key: p.value for p in written.metadata_props}.get(_RECORD, "{}")
    values = [f"{p.key}: {p.value}" for p in written.metadata_props if p.key != _RECORD]
    return {
        "plan": "\n".join(plan_lines(result.plan)) if hasattr(result, "plan") else "",
        "graph": "\n".join(_model(written)),
        "record": _recorded(json.loads(record)),
        "values": "\n".join([*values, *_values(written.graph)]),
        "warnings": without_numbers("\n".join(getattr(result, "warnings", ()))),
    }


def environment(path: Path) -> dict[str, str]:
    """What values depend on, as a written model states it."""
    found = {p.key: p.value for p in onnx.load(path).metadata_props}
    record = json.loads(found[_RECORD])
    versions = {k: v for k, v in record["software"].items() if k != "quantkit"}
    return {"cpu": record["cpu"], **versions}


def without_numbers(text: str) -> str:
    return _NUMBER.sub("#", text)


# What older versions did not know, where nothing is said of it.
_NOTHING_SAID = ", whole=False, least=0.0, scales=(), zero_points=(), pinned=False"


def plan_lines(plan: Any) -> Iterator[str]:
    for n in plan.nodes:
        yield f"{n.node} {n.op_type} {n.mode} float_output={n.float_output}: {without_numbers(n.why)}"
    for w in plan.weights:
        yield f"{w.tensor} {w.spec} transposed={w.transposed}".replace(_NOTHING_SAID, "")
    for h in plan.halves:
        yield f"{h.tensor} {h.dtype}: {h.why}"
    for a in plan.activations:
        yield f"{a.tensor} {a.dtype.name}: {without_numbers(a.why)}"
    yield f"opset {plan.min_opset}"


def _recorded(record: dict[str, Any]) -> str:
    """The record without what depends on the machine, on versions, or on the values."""
    for key in ("software", "cpu", "quantkit", "content", "seal"):
        record.pop(key, None)
    (record.get("data") or {}).pop("warnings", None)
    (record.get("calibration") or {}).clear()
    return json.dumps(record, indent=1, sort_keys=True)


def _model(proto: onnx.ModelProto) -> Iterator[str]:
    yield f"ir {proto.ir_version}, producer {proto.producer_name}, doc {proto.doc_string!r}"
    yield from (f"opset {i.domain!r} {i.version}" for i in proto.opset_import)
    yield from (f"metadata {p.key}" for p in proto.metadata_props)
    yield from _graph(proto.graph)
    for function in proto.functions:
        yield f"function {function.domain}.{function.name} {[*function.input]} {[*function.output]}"
        yield from _nodes(function.node, "  ")


def _graph(graph: onnx.GraphProto, indent: str = "") -> Iterator[str]:
    yield f"{indent}graph {graph.name!r}"
    for kind, infos in (("in", graph.input), ("out", graph.output), ("value", graph.value_info)):
        yield from (f"{indent}{kind} {i.name}: {_type(i.type)}" for i in infos)
    yield from (f"{indent}constant {_tensor(t)}" for t in graph.initializer)
    yield from _nodes(graph.node, indent)


def _nodes(nodes: Sequence[onnx.NodeProto], indent: str) -> Iterator[str]:
    for n in nodes:
        said = f"{indent}{n.domain}:{n.op_type} {n.name!r} {[*n.input]} -> {[*n.output]}"
        attributes = sorted(n.attribute, key=lambda a: a.name)
        facts = [f"{a.name}={_attribute(a)}" for a in attributes]
        facts += [f"metadata {p.key}" for p in n.metadata_props]
        yield " ".join([said, *facts])
        for a in attributes:
            for inner in _graphs(a):
                yield from _graph(inner, indent + "  ")


def _graphs(attribute: onnx.AttributeProto) -> list[onnx.GraphProto]:
    alone = [attribute.g] if attribute.HasField("g") else []
    return [*alone, *attribute.graphs]


def _attribute(attribute: onnx.AttributeProto) -> str:
    if _graphs(attribute):
        return "graph"
    value = helper.get_attribute_value(attribute)
    if isinstance(value, onnx.TensorProto):
        return _tensor(value)
    if isinstance(value, float):
        return f"{value:.5g}"
    return repr(
        list(value) if isinstance(value, Sequence) and not isinstance(value, bytes) else value
    )


def _tensor(tensor: onnx.TensorProto) -> str:
    return f"{tensor.name} {onnx.TensorProto.DataType.Name(tensor.data_type)} {[*tensor.dims]}"


def _type(kind: onnx.TypeProto) -> str:
    if not kind.HasField("tensor_type"):
        return str(kind).replace("\n", " ")
    tensor = kind.tensor_type
    dims = [
        d.dim_param or (d.dim_value if d.HasField("dim_value") else None) for d in tensor.shape.dim
    ]
    shape = f"{dims}" if tensor.HasField("shape") else "of any shape"
    return f"{onnx.TensorProto.DataType.Name(tensor.elem_type)} {shape}"


def _values(graph: onnx.GraphProto) -> Iterator[str]:
    for tensor in graph.initializer:
        yield f"{tensor.name}: {digest(_bytes(tensor))}"
    for n in graph.node:
        yield from (f"{n.name} {p.key}: {p.value}" for p in n.metadata_props)
        for a in n.attribute:
            if a.HasField("t"):
                yield f"{n.name} {a.name}: {digest(_bytes(a.t))}"
            elif not _graphs(a):
                yield f"{n.name} {a.name}: {digest(a.SerializeToString(deterministic=True))}"
            for inner in _graphs(a):
                yield from _values(inner)


def _bytes(tensor: onnx.TensorProto) -> bytes:
    if tensor.data_type == onnx.TensorProto.STRING:
        return b"\0".join(tensor.string_data)
    return numpy_helper.to_array(tensor).tobytes()
