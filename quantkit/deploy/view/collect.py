"""Boxes of a model with what its file says of each, and what others found out: sessions, plans, evaluations, calibrations."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite

import numpy as np
import onnx_ir as ir

from quantkit.calibration import Calibration
from quantkit.deploy.view.facts import Box, Histogram, Kind, Operator, Planned, Runs, Tensor, Weight
from quantkit.deploy.view.fold import Folded
from quantkit.deploy.view.groups import Scope
from quantkit.evaluate.match import base_name
from quantkit.evaluate.match.correspondence import Quantizer, quantizer_in
from quantkit.model.graph.edit import constant, owner_of
from quantkit.model.ops.float_ops import MOVES
from quantkit.model.ops.integer_ops import (
    BLOCKWISE,
    CONVERSIONS,
    INTEGER_OPS,
    is_quantized,
    scale_slots,
)
from quantkit.quantize.plan import Mode, NodePlan
from quantkit.result import Layer, NodeRuns

_BINS = 48
_SHOWN = 60  # letters of an attribute
_WHOLE_BYTES = frozenset({"int8", "uint8", "int16", "uint16"})
_LARGEST = 1 << 26  # values of a constant that is looked through for its range
_ANONYMOUS = ("onnx::", "val_", "_val_")
_INTEGERS = frozenset({"INT8", "UINT8", "INT4", "UINT4", "INT16", "UINT16", "INT2", "UINT2"})
_HALVES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
_FLOATS = _HALVES | {ir.DataType.FLOAT, ir.DataType.DOUBLE}
_PLANNED: Mapping[Mode, Kind] = {
    Mode.STATIC: "int8",
    Mode.ABSORBED: "absorbed",
    Mode.INTEGER: "dynamic",
    Mode.BLOCKS: "blocks",
    Mode.STORED: "stored",
    Mode.HALF: "half",
    Mode.FLOAT: "float",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of a model beside its file; all of it may be missing.

    Attributes:
        runs: What onnxruntime makes of products, by node.
        kernels: Operators that really run, by the name of a node or of a tensor that they make; None: nobody asked.
        seconds: Of one run, by node.
        layers: What was found of layers in an evaluation, by the float model's node.
        plan: What a plan does, by node.
        calibration: Ranges and distributions of tensors.
        names: The float model's name of a node, where it is another.
        scopes: Scopes of boxes by name, as another model has them.
    """

    runs: Mapping[str, NodeRuns] = field(default_factory=dict)
    kernels: Mapping[str, str] | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    layers: Mapping[str, Layer] = field(default_factory=dict)
    plan: Mapping[str, NodePlan] = field(default_factory=dict)
    calibration: Calibration | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    scopes: Mapping[str, Scope] = field(default_factory=dict)


def boxes_of(folded: Sequence[Folded], known: Known) -> tuple[Box, ...]:
    """Describe the boxes of a model.

    Args:
        folded: Which nodes are drawn together.
        known: What is known of them.
    """
    scopes = _scopes(folded, known)
    counted: set[ir.Value] = set()
    handed = _handed_on(folded)
    return tuple(
        _box(box, scopes[number], handed[number], known, counted)
        for number, box in enumerate(folded)
    )


def _box(
    box: Folded, scope: Scope, handed: Sequence[ir.Value], known: Known, counted: set[ir.Value]
) -> Box:
    plain = Box(
        name="",
        role="layer",
        op_type="",
        scope=scope,
        reads=tuple(box.reads),
        operators=tuple(_operator(node) for node in box.nodes),
        makes=_tensors(handed, known.calibration),
        weights=tuple(_weights(box.nodes, counted)),
    )
    return _end(box, plain, known) if box.head is None else _layer(box, box.head, plain, known)


def _end(box: Folded, plain: Box, known: Known) -> Box:
    """Describe an input or an output of the model."""
    assert box.value is not None  # noqa: S101 - a box without a head has one
    inputs = box.value.is_graph_input() and not box.reads
    return replace(
        plain,
        name=box.value.name or "",
        role="input" if inputs else "output",
        makes=plain.makes or _tensors([box.value], known.calibration),
    )


def _layer(box: Folded, head: ir.Node, plain: Box, known: Known) -> Box:
    names = [node.name or "" for node in box.nodes]
    floats = [known.names.get(name, name) for name in names]
    timed = [known.seconds[name] for name in names if name in known.seconds]
    return replace(
        plain,
        name=known.names.get(_head_name(box), _head_name(box)),
        op_type=head.op_type,
        attributes=tuple(_attributes(head)),
        runs=_runs(box, head, plain, known),
        planned=_planned(names, known),
        seconds=sum(timed) if timed else None,
        layer=next((known.layers[name] for name in floats if name in known.layers), None),
    )


def _operator(node: ir.Node) -> Operator:
    return Operator(name=node.name or "", op_type=node.op_type)


def _handed_on(folded: Sequence[Folded]) -> list[list[ir.Value]]:
    """Return what each box makes that others read, or that the model hands out; weights that it restores for others last."""
    home = {node: number for number, box in enumerate(folded) for node in box.nodes}
    found = []
    for number, box in enumerate(folded):
        start = 0 if box.head is None else box.nodes.index(box.head)
        nodes = (*box.nodes[start:], *box.nodes[:start])
        values = [out for node in nodes for out in node.outputs]
        if box.value is not None and box.value.is_graph_input():
            values.insert(0, box.value)
        found.append(
            [
                v
                for v in values
                if v.is_graph_output() or any(home.get(use.node) != number for use in v.uses())
            ]
        )
    return found


# --- scopes

_Held = Mapping[ir.Graph, tuple[ir.Node, str]]


def _scopes(folded: Sequence[Folded], known: Known) -> list[Scope]:
    """Return the scope of each box: its own, else that of its neighbours."""
    held = _held(folded)
    found: list[Scope | None] = []
    for box in folded:
        name = _head_name(box)
        shared = known.scopes.get(known.names.get(name, name))
        found.append(() if box.head is None else shared or _own_scope(box, held))
    ahead = _ahead(folded, found)
    for number, box in enumerate(folded):
        if found[number] is None:
            before = [scope for s in sorted(box.reads) if (scope := found[s]) is not None]
            found[number] = _between(before, ahead[number])
    return [scope or () for scope in found]


def _head_name(box: Folded) -> str:
    return "" if box.head is None else box.head.name or ""


def _between(before: Sequence[Scope], after: Scope | None) -> Scope:
    """Return the scope of a box without one, by those that it reads and what lies behind it."""
    latest = before[-1] if before else ()
    if len(before) < 2:
        return latest if after is None else _common([latest, after])
    # What joins lines ends the module that the latest comes from, or the one around that, if the others are in it.
    around = [s for s in before if s and len(s) < len(latest) and latest[: len(s)] == s]
    return max(around, key=len, default=latest)


def _ahead(folded: Sequence[Folded], own: Sequence[Scope | None]) -> list[Scope | None]:
    """Return of each box what the nearest scopes behind it have in common; None: nothing is behind it."""
    found: list[Scope | None] = [None] * len(folded)
    for number in reversed(range(len(folded))):
        scope = own[number] if own[number] is not None else found[number]
        if scope is None:
            continue
        for source in folded[number].reads:
            before = found[source]
            found[source] = scope if before is None else _common([before, scope])
    return found


def _common(scopes: Sequence[Scope]) -> Scope:
    shared = 0
    for parts in zip(*scopes, strict=False):
        if len(set(parts)) > 1:
            break
        shared += 1
    return scopes[0][:shared]


def _own_scope(box: Folded, held: _Held) -> Scope | None:
    """Return the scope that a layer's names tell: those of its node, else of its largest weight; None if they tell none."""
    head = box.head
    assert head is not None  # noqa: S101 - the caller knows
    around, prefix = _around(head, held)
    parts = _parts(head)[:-1]
    if parts or any(_graphs(attribute) for attribute in head.attributes.values()):
        return (*around, *_without(parts, prefix))
    inside = _weight_scope(box)
    return (*around, *inside) if inside is not None else around or None


def _weight_scope(box: Folded) -> Scope | None:
    """Return the scope that the name of a box's largest matrix tells; None if it tells none."""
    matrices = [
        (value.const_value.size, value.name or "")
        for node in box.nodes
        for value in node.inputs
        if value is not None and value.is_initializer() and value.const_value is not None
        if len(value.const_value.shape) > 1
    ]
    _, name = max(matrices, default=(0, ""))
    path = [part for part in base_name(name).split("/" if "/" in name else ".") if part]
    return tuple(path[:-2]) if len(path) > 1 and not name.startswith(_ANONYMOUS) else None


def _parts(node: ir.Node) -> Scope:
    return tuple(part for part in (node.name or node.op_type).split("/") if part)


def _without(parts: Scope, prefix: Scope) -> Scope:
    return parts[len(prefix) :] if parts[: len(prefix)] == prefix else parts


def _held(folded: Sequence[Folded]) -> dict[ir.Graph, tuple[ir.Node, str]]:
    """Return the node that holds each subgraph, and the attribute that it is."""
    return {
        graph: (node, attribute.name)
        for box in folded
        for node in box.nodes
        for attribute in node.attributes.values()
        for graph in _graphs(attribute)
    }


def _around(node: ir.Node, held: _Held) -> tuple[Scope, Scope]:
    """Return the scope of the subgraph that a node is in, and what of the names in it says where that is."""
    chain = []
    graph = owner_of(node)
    while graph in held:
        chain.append(held[graph])
        graph = owner_of(held[graph][0])
    scope: Scope = ()
    prefix: Scope = ()
    for holder, branch in reversed(chain):
        parts = _parts(holder)
        scope = (*scope, *_without(parts[:-1], prefix), *parts[-1:], branch)
        prefix = parts[:-1]
    return scope, prefix


def _graphs(attribute: ir.Attr) -> Sequence[ir.Graph]:
    if attribute.type is ir.AttributeType.GRAPH:
        return (attribute.as_graph(),)
    return tuple(attribute.as_graphs()) if attribute.type is ir.AttributeType.GRAPHS else ()


# --- tensors


def _tensors(values: Sequence[ir.Value], calibration: Calibration | None) -> tuple[Tensor, ...]:
    found: dict[str, Tensor] = {}
    for value in values:
        tensor = _tensor(value, calibration)
        if tensor.name not in found or tensor.integers:
            found[tensor.name] = tensor
    return tuple(found.values())


def _tensor(value: ir.Value, calibration: Calibration | None) -> Tensor:
    name = base_name(value.name or "")
    found, integers = _quantized(value)
    low = high = None
    if found is not None and found.scale is not None:
        low, high = ((end - found.zero_point) * found.scale for end in found.ends)
    histogram = None
    if calibration is not None and name in calibration.seen.answers:
        low, high, histogram = _seen(calibration, name, (low, high))
    return Tensor(
        name=name,
        dtype="" if value.dtype is None else value.dtype.name.lower(),
        shape=_shape(value),
        scale=None if found is None else found.scale,
        zero_point=None if found is None else found.zero_point,
        integers=integers,
        low=low,
        high=high,
        histogram=histogram,
    )


def _shape(value: ir.Value) -> tuple[int | str, ...] | None:
    if value.shape is None:
        return None
    return tuple(n if isinstance(n, int) else (n.value or "?") for n in value.shape.dims)


def _quantized(value: ir.Value) -> tuple[Quantizer | None, str]:
    """Return how the integers are quantized that a value is, or comes from, and their type; "" if it is no such value."""
    node = value.producer()
    if node is not None and node.op_type == "DynamicQuantizeLinear":
        return None, "uint8"
    slots = None if node is None else _result_slots(node)
    if node is None or slots is None:
        return None, ""
    found = quantizer_in(node, slots)
    if found is not None:
        return found, found.dtype if found.dtype in _WHOLE_BYTES else "int8"
    return None, "" if constant(node.inputs[slots[0]]) is None else "int8"


def _result_slots(node: ir.Node) -> tuple[int, int | None] | None:
    """Return where scale and zero point of what a node makes, or restores, stand among its inputs; None: nowhere."""
    row = INTEGER_OPS.get(node.op_type)
    if row is None:
        return None
    restores = row.op_type == "DequantizeLinear"
    scale, zero = (
        (row.reads[0].scale, row.reads[0].zero_point) if restores else row.result or (None, None)
    )
    return None if scale is None or scale >= len(node.inputs) else (scale, zero)


_Ends = tuple[float | None, float | None]


def _seen(
    calibration: Calibration, name: str, ends: _Ends
) -> tuple[float | None, float | None, Histogram | None]:
    """Return the range that calibration gives a tensor, and what it saw of it."""
    if name not in calibration.tensors:
        return (*ends, None)
    found = calibration.range(name)
    low, high = float(found.low[0]), float(found.high[0])
    sketch = calibration.sketch(name)
    if sketch is None or sketch.empty:
        return low, high, None
    bins = sketch.histogram()
    first, last = float(bins.lower[0]), float(bins.upper[-1])
    if not last > first:
        return low, high, None
    at = np.clip((bins.center - first) / (last - first) * _BINS, 0, _BINS - 1).astype(int)
    counts = np.bincount(at, weights=bins.count, minlength=_BINS)
    shares = tuple(float(c) for c in np.round(counts / counts.max(), 4))
    return low, high, Histogram(low=first, high=last, bins=shares)


# --- weights


def _weights(nodes: Sequence[ir.Node], counted: set[ir.Value]) -> Iterator[Weight]:
    """Yield the constants that nodes read, scales and zero points as one; those that were counted before weigh nothing."""
    seen: set[ir.Value] = set()
    small = 0
    for node in nodes:
        scales = scale_slots(node.op_type, len(node.inputs))
        for slot, value in enumerate(node.inputs):
            if value is None or value in seen or not value.is_initializer():
                continue
            seen.add(value)
            tensor = value.const_value
            if tensor is None:
                continue
            nbytes = 0 if value in counted else tensor.nbytes
            counted.add(value)
            if slot in scales or tensor.size <= 1:
                small += nbytes
                continue
            low, high = _ends(tensor)
            yield Weight(
                name=value.name or "",
                dtype=tensor.dtype.name.lower(),
                shape=tuple(int(n) for n in tensor.shape.numpy()),
                nbytes=nbytes,
                low=low,
                high=high,
            )
    if small:
        yield Weight(name="scales, zero points, single numbers", dtype="", shape=(), nbytes=small)


def _ends(tensor: ir.TensorProtocol) -> _Ends:
    if isinstance(tensor, ir.ExternalTensor) or not 0 < tensor.size <= _LARGEST:
        return None, None
    if tensor.dtype not in _FLOATS and tensor.dtype.name not in _INTEGERS:
        return None, None
    array = tensor.numpy()
    low, high = float(array.min()), float(array.max())
    return (low, high) if isfinite(low) and isfinite(high) else (None, None)


def _attributes(node: ir.Node) -> Iterator[tuple[str, str]]:
    for attribute in node.attributes.values():
        if attribute.is_ref() or any(True for _ in _graphs(attribute)):
            continue
        value = attribute.value
        if attribute.type is ir.AttributeType.TENSOR:
            value = f"tensor of {attribute.as_tensor().size} values"
        text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        yield attribute.name, text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


# --- how it runs


def _runs(box: Folded, head: ir.Node, plain: Box, known: Known) -> Runs | None:
    if known.kernels is None:
        return None
    said = _product(box, known.runs)
    if any(node.op_type in BLOCKWISE | {"MatMulBnb4"} for node in box.nodes):
        return Runs(kind="blocks", kernel=head.op_type if said is None else said.kernel)
    if said is not None:
        kind = _KINDS.get(said.runs) or _float_kind(plain.makes, plain.weights)
        return Runs(kind=kind, kernel=said.kernel, why=said.why, fix=said.fix)
    return _other_runs(box, head, plain.makes, known.kernels)


_KINDS: Mapping[str, Kind] = {"integer": "int8", "dynamic": "dynamic", "gone": "absorbed"}


def _other_runs(
    box: Folded, head: ir.Node, makes: Sequence[Tensor], kernels: Mapping[str, str]
) -> Runs:
    """Say how a box without a product runs, by the kernels that bear its names or make its tensors."""
    names = [name for node in box.nodes for name in (node.name, *(o.name for o in node.outputs))]
    found = dict.fromkeys(kernels[n] for n in names if n and n in kernels)
    own = [op for op in found if op not in CONVERSIONS]
    shown = ", ".join(own or found)
    if any(is_quantized(op) for op in own):
        return Runs(kind="int8", kernel=shown)
    if not found:
        return Runs(kind="absorbed", why="onnxruntime fused or folded it when it loaded the model")
    kind: Kind = "moves" if head.op_type in MOVES else _float_kind(makes, ())
    return Runs(kind=kind, kernel=shown)


def _product(box: Folded, runs: Mapping[str, NodeRuns]) -> NodeRuns | None:
    for node in box.nodes:
        for name in (node.name, *(out.name for out in node.outputs[:1])):
            if name and name in runs:
                return runs[name]
    return None


def _float_kind(makes: Sequence[Tensor], weights: Sequence[Weight]) -> Kind:
    """Tell float arithmetic by its types: of weights in the file, and of results."""
    types = {tensor.dtype for tensor in makes} - {""}
    if types and types.isdisjoint({t.name.lower() for t in _FLOATS}) and not _narrow(types):
        return "other"
    if types & {t.name.lower() for t in _HALVES}:
        return "half"
    stored = {weight.dtype for weight in weights if len(weight.shape) > 1}
    if _narrow(stored) or stored & {t.name.lower() for t in _HALVES}:
        return "stored"
    return "float"


def _narrow(types: set[str]) -> bool:
    return any(t.upper() in _INTEGERS for t in types)


def _planned(names: Sequence[str], known: Known) -> Planned | None:
    found = [known.plan[name] for name in names if name in known.plan]
    # Of a product and the Relu that is fused into it the product tells.
    found.sort(key=lambda node: node.mode is Mode.ABSORBED)
    if not found:
        return None
    return Planned(kind=_PLANNED[found[0].mode], why=found[0].why)
