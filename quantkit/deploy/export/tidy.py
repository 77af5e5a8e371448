"""Make an exporter's graph presentable: the user's names, no stack traces, no paths."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from quantkit._version import __version__
from quantkit.deploy.export.inputs import Inputs, InputSpec
from quantkit.errors import VerifyError

_SCOPES = "pkg.torch.onnx.name_scopes"
_WORD = re.compile(r"[A-Za-z_]\w*")


def layers_of(model: ir.Model, prefix: str) -> dict[str, str]:
    """Return the last tensor of every part of a traced module, by the part's name, in the order in which they end.

    Args:
        model: As torch's exporter wrote it.
        prefix: Of the names, which is left out.
    """
    found: dict[str, str] = {}
    for node in model.graph:
        for name in _parts(node, prefix):
            if node.outputs and node.outputs[0].name:
                found.pop(name, None)  # parts that end later stand later
                found[name] = node.outputs[0].name
    return found


def _parts(node: ir.Node, prefix: str) -> list[str]:
    """Return the names of the parts of a traced module that a node is in, the outermost first."""
    scopes = re.findall(r"'([^']*)'", node.metadata_props.get(_SCOPES, ""))[:-1]
    return [s.removeprefix(prefix) for s in scopes if s and s != prefix.rstrip(".")]


def _name_nodes(model: ir.Model, prefix: str) -> None:
    """Call nodes after the part of the module that they are in, as in ``/encoder/layers/0/MatMul``: views group by that."""
    seen = Counter[str]()
    for node in model.graph.all_nodes():
        if _SCOPES in node.metadata_props:
            inside = "".join(_parts(node, prefix)[-1:]).replace(".", "/")
            name = f"/{inside}/{node.op_type}" if inside else f"/{node.op_type}"
            node.name = f"{name}_{seen[name]}" if seen[name] else name
            seen[name] += 1


def tidy(model: ir.Model, inputs: Inputs, outputs: Sequence[str], prefix: str = "") -> None:
    """Give inputs, outputs and dynamic dimensions the names that the user knows, and strip what exporters leave behind.

    Args:
        model: Changed in place.
        inputs: What the model's inputs are, in its order.
        outputs: Names of its outputs, in its order.
        prefix: Of the names of weights, which is left out.

    Raises:
        VerifyError: It has other inputs or outputs, or a dynamic dimension became a number.
    """
    graph = model.graph
    _require_ports(graph, inputs, outputs)
    values = [v for node in graph.all_nodes() for v in node.outputs]
    weights = [v for g in model.graphs() for v in g.initializers.values()]
    symbols: dict[str, str] = {}
    ports = {*graph.inputs, *graph.outputs}
    taken = {spec.name for spec in inputs.specs} | set(outputs)
    for value in (v for v in (*values, *weights) if v not in ports):
        value.name = _free((value.name or "").removeprefix(prefix), taken, own=value.name)
        if value.producer() is not None:
            value.shape = None  # it is inferred anew, with the user's names
    for value, spec in zip(graph.inputs, inputs.specs, strict=True):
        _name_axes(value, spec, symbols)
        value.name = spec.name
    for value, name in zip(graph.outputs, outputs, strict=True):
        value.name = name
        _rename_axes(value, symbols)
    _name_nodes(model, prefix)
    _strip(model, (*values, *weights, *ports))


def _require_ports(graph: ir.Graph, inputs: Inputs, outputs: Sequence[str]) -> None:
    found = [value.name for value in graph.inputs]
    if len(found) != len(inputs.specs):
        raise VerifyError(
            f"The exporter left {len(found)} of {len(inputs.specs)} inputs ({', '.join(map(str, found)) or 'none'}): "
            "the others change nothing; leave them out of the model's forward()."
        )
    if len(graph.outputs) != len(outputs):
        raise VerifyError(
            f"The exporter gave {len(graph.outputs)} outputs where the model has {len(outputs)} ({', '.join(outputs)})."
        )


def _free(name: str, taken: set[str], own: str | None) -> str:
    """Return a name that is none of the taken ones; inner tensors make room for inputs and outputs."""
    if name not in taken:
        return name
    return own if own is not None and own not in taken else f"{name}.inner"


def _name_axes(value: ir.Value, spec: InputSpec, symbols: dict[str, str]) -> None:
    """Call the dynamic dimensions of an input as the user does; note what the exporter called them."""
    dims: list[Any] = [None] * len(spec.dims) if value.shape is None else list(value.shape.dims)
    for axis, (found, wanted) in enumerate(zip(dims, spec.dims, strict=False)):
        if isinstance(wanted, str) and isinstance(found, int):
            raise VerifyError(
                f"Dimension '{wanted}' of input '{spec.name}' (axis {axis}) was frozen at {found} by the exporter; nothing "
                "was written. Take sizes from x.shape in forward(), or write the number in --input."
            )
        if isinstance(found, ir.SymbolicDim) and found.value and isinstance(wanted, str):
            symbols[found.value] = wanted
    value.shape = ir.Shape([ir.SymbolicDim(d) if isinstance(d, str) else d for d in spec.dims])


def _rename_axes(value: ir.Value, symbols: dict[str, str]) -> None:
    if value.shape is None:
        return
    dims: list[Any] = []
    for dim in value.shape.dims:
        text = None if isinstance(dim, int) else dim.value
        if text is None:
            dims.append(dim)
        else:
            dims.append(ir.SymbolicDim(_WORD.sub(lambda m: symbols.get(m[0], m[0]), text)))
    value.shape = ir.Shape(dims)


def _strip(model: ir.Model, values: Sequence[ir.Value]) -> None:
    """Take out stack traces with local paths, and whatever else exporters note down."""
    model.metadata_props.clear()
    model.doc_string = None
    model.producer_name, model.producer_version = "quantkit", __version__
    for graph in model.graphs():
        graph.metadata_props.clear()
        graph.doc_string = None
        for node in graph:
            node.metadata_props.clear()
            node.doc_string = None
    for value in values:
        value.metadata_props.clear()
        value.doc_string = None
    model.graph.name = "model"
