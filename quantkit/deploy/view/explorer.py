"""A drawing as files for Google's Model Explorer: the graph, and overlays of it, keyed by the names of nodes.

A graph: ``{"label", "graphs": [{"id", "nodes": [{"id", "label", "namespace", "attrs", "incomingEdges", "outputsMetadata"}]}]}``.
Overlays: ``{graph id: {"results": {node id: {"value"}}, "thresholds" or "gradient"}}``.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

from quantkit.deploy.view import shown_name
from quantkit.deploy.view.facts import KINDS, Box, Drawing, Kind, Page
from quantkit.evaluate.report.palette import TOKENS

_COLOURS: dict[Kind, str] = {
    "int8": TOKENS["light"]["s2"],
    "dynamic": TOKENS["light"]["s5"],
    "blocks": TOKENS["light"]["s3"],
    "stored": TOKENS["light"]["s4"],
    "half": TOKENS["light"]["s0"],
    "float": TOKENS["light"]["s1"],
}
_GRADIENT = [
    {"stop": 0, "bgColor": "#ffffff"},
    {"stop": 1, "bgColor": TOKENS["light"]["s1"]},
]


def explorer_files(page: Page) -> dict[str, str]:
    """Return the contents of files by their names: graphs, and one overlay for each thing that is known."""
    ids = [f"{number}-{drawing.name}" for number, drawing in enumerate(page.drawings, 1)]
    found: dict[str, Any] = {}
    for name, drawing in zip(_graph_names(page), page.drawings, strict=True):
        graph = {"id": ids[len(found)], "nodes": list(_nodes(drawing))}
        found[name] = {"label": drawing.name, "graphs": [graph]}
    overlays: dict[str, Callable[[Drawing], dict[str, Any]]] = {
        "int8.json": _kinds,
        "drift.json": lambda d: _values(d, lambda box: box.layer.share if box.layer else 0),
        "latency.json": lambda d: _values(d, lambda box: (box.seconds or 0) * 1e3),
        "size.json": lambda d: _values(d, lambda box: box.nbytes),
    }
    for name, overlay in overlays.items():
        shown = {
            number: data
            for number, drawing in zip(ids, page.drawings, strict=True)
            if (data := overlay(drawing))["results"]
        }
        if shown:
            found[name] = shown
    return {name: json.dumps(plain, indent=1, allow_nan=False) for name, plain in found.items()}


def _graph_names(page: Page) -> list[str]:
    return ["graph.json"] if len(page.drawings) == 1 else ["graph_float.json", "graph_other.json"]


def _node_ids(drawing: Drawing) -> list[str]:
    """Return a name for each box that no other has: of an input and an output of one name the latter gets an addition."""
    taken: set[str] = set()
    found = []
    for box in drawing.boxes:
        name = box.name or box.op_type
        while name in taken:
            name += f" ({box.role})"
        taken.add(name)
        found.append(name)
    return found


def _nodes(drawing: Drawing) -> Iterator[dict[str, Any]]:
    ids = _node_ids(drawing)
    for name, box in zip(ids, drawing.boxes, strict=True):
        label = (
            box.role
            if box.role != "layer"
            else f"{box.op_type} {shown_name(box, '/'.join(box.scope))}"
        )
        yield {
            "id": name,
            "label": label,
            "namespace": "/".join(part.replace("/", "_") for part in box.scope),
            "attrs": [{"key": key, "value": value} for key, value in _attributes(box)],
            "incomingEdges": [
                {
                    "sourceNodeId": ids[source],
                    "sourceNodeOutputId": "0",
                    "targetNodeInputId": str(i),
                }
                for i, source in enumerate(box.reads)
            ],
            "outputsMetadata": [
                {"id": str(i), "attrs": [{"key": k, "value": v} for k, v in _outputs(box, i)]}
                for i in range(len(box.makes))
            ],
        }


def _attributes(box: Box) -> Iterator[tuple[str, str]]:
    yield "nodes", ", ".join(f"{o.op_type} {o.name}" for o in box.operators)
    if box.runs is not None:
        yield "runs", KINDS[box.runs.kind]
        yield from ((k, v) for k, v in (("why", box.runs.why), ("fix", box.runs.fix)) if v)
    if box.planned is not None:
        yield "plan", f"{KINDS[box.planned.kind]}: {box.planned.why}"
    for weight in box.weights:
        yield weight.name, f"{weight.dtype} {list(weight.shape)}, {weight.nbytes} bytes"
    yield from box.attributes


def _outputs(box: Box, number: int) -> Iterator[tuple[str, str]]:
    tensor = box.makes[number]
    yield "tensor_name", tensor.name
    if tensor.shape is not None:
        yield "tensor_shape", f"{tensor.dtype}[{','.join(str(n) for n in tensor.shape)}]"
    if tensor.scale is not None:
        yield (
            "quantized",
            f"{tensor.integers}, scale {tensor.scale:.6g}, zero point {tensor.zero_point}",
        )
    if tensor.low is not None:
        yield "range", f"{tensor.low:.6g} to {tensor.high:.6g}"


def _kinds(drawing: Drawing) -> dict[str, Any]:
    results = {}
    for name, box in zip(_node_ids(drawing), drawing.boxes, strict=True):
        if box.runs is None:
            continue
        shown: dict[str, Any] = {"value": KINDS[box.runs.kind]}
        if box.runs.kind in _COLOURS:
            shown |= {"bgColor": _COLOURS[box.runs.kind], "textColor": "#ffffff"}
        results[name] = shown
    return {"results": results}


def _values(drawing: Drawing, value: Callable[[Box], float]) -> dict[str, Any]:
    ids = _node_ids(drawing)
    found = {name: value(box) for name, box in zip(ids, drawing.boxes, strict=True)}
    results = {name: {"value": number} for name, number in found.items() if number}
    return {"results": results, "gradient": _GRADIENT}
