"""The same graph with fewer tokens: renumbered, or with the old ids and a table of their new places inside."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.errors import ModelError
from quantkit.model.graph.edit import Canvas, constant, discard, owner_of
from quantkit.model.graph.shapes import dims, dtype, infer
from quantkit.model.ops.integer_ops import BLOCKWISE
from quantkit.reduce.trim.rows import Rows
from quantkit.reduce.trim.uses import Head, Uses, find_uses
from quantkit.runtime.check_result import Reference

KEPT = "quantkit.kept_ids"
"""The entry in a model's metadata with the old ids of its rows, a JSON list; every rewriting of the model keeps it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Which tokens a model has.

    Attributes:
        ids: The old ids of its rows, in order.
        rows: How many rows there were.
        unknown: The old id that stands for removed ones.
        inputs: Those that take token ids.
        logits: Outputs with a value per token.
        same_ids: Inputs and outputs are as before.
    """

    ids: tuple[int, ...]
    rows: int
    unknown: int
    inputs: tuple[str, ...]
    logits: tuple[str, ...] = ()
    same_ids: bool = False

    @property
    def places(self) -> NDArray[np.int64]:
        """The row of each old id; that of the unknown token for removed ones."""
        found = np.full(self.rows, self.ids.index(self.unknown), np.int64)
        found[list(self.ids)] = np.arange(len(self.ids))
        return found

    def record(self) -> dict[str, Any]:
        """Return what translates inputs and outputs, without the ids themselves."""
        return {
            "rows": self.rows,
            "unknown": self.unknown,
            "inputs": list(self.inputs),
            "logits": list(self.logits),
            "same_ids": self.same_ids,
        }

    @classmethod
    def of(cls, record: Mapping[str, Any], metadata: Mapping[str, str]) -> "Tokens":
        """Read `record` and the model's metadata.

        Raises:
            KeyError, TypeError, ValueError: They are not of this version.
        """
        lists = {name: tuple(record[name]) for name in ("inputs", "logits")}
        return cls(ids=tuple(json.loads(metadata[KEPT])), **{**record, **lists})

    def translated(self, reference: Reference) -> Reference:
        """Return what the smaller model is expected to output, from runs of the full one."""
        if not reference.outputs:
            return reference
        places = self.places

        def fed(feeds: Mapping[str, Any]) -> dict[str, Any]:
            if self.same_ids:
                return dict(feeds)
            return {
                n: places[x].astype(x.dtype) if n in self.inputs else x for n, x in feeds.items()
            }

        runs = [(fed(feeds), self._expected(outputs)) for feeds, outputs in reference.runs]
        feeds, outputs = runs[0]
        return replace(reference, feeds=feeds, outputs=outputs, others=tuple(runs[1:]))

    def _expected(self, outputs: Mapping[str, Any]) -> dict[str, Any]:
        found = dict(outputs)
        for name in self.logits:
            columns = found[name][..., list(self.ids)]
            if self.same_ids:
                full = np.full_like(found[name], np.finfo(columns.dtype).min)
                full[..., list(self.ids)] = columns
                columns = full
            found[name] = columns
        return found


def token_uses(model: ir.Model, inputs: Sequence[str], *, same_ids: bool) -> Uses:
    """Return how a model uses token ids, after inferring shapes.

    Raises:
        ModelError: Ids are used in a way that new ids would change.
    """
    infer(model)
    uses = find_uses(model, inputs)
    if uses.others and not same_ids:
        node = uses.others[0]
        raise ModelError(
            f"Node '{node.name}' ({node.op_type}) computes with token ids, which new ids would change: --keep-tokenizer leaves them."
        )
    return uses


@dataclass(frozen=True, slots=True)
class Cut:
    """What a part of the file took and takes.

    Attributes:
        part: "table" or "head"; what both use counts as the table.
        constants: Names of the constants.
        before: Their bytes.
        after: What is left.
    """

    part: str
    constants: tuple[str, ...]
    before: int
    after: int


def trim_graph(model: ir.Model, kept: Tokens) -> tuple[Tokens, tuple[Cut, ...]]:
    """Leave only kept tokens in a model, in place; return them with the outputs that have a value per token, and what was cut.

    Raises:
        ModelError: A table is used in a way that cannot be cut.
    """
    uses = token_uses(model, kept.inputs, same_ids=kept.same_ids)
    logits = tuple(sorted({name for head in uses.heads for name in head.outputs}))
    rows = Rows(Canvas(model), np.asarray(kept.ids, np.int64), kept.rows)
    for part in (part for lookup in uses.lookups for part in lookup.parts):
        rows.take(part)
    tables = frozenset(rows.cut)
    for head in uses.heads:
        _cut_head(rows, head)
    if kept.same_ids:
        _remap(rows.canvas, uses, kept)
        for name in logits:
            _spread(rows.canvas, name, kept)
    else:
        _renumber(rows.canvas, uses, kept)
    parts = {"table": tables, "head": rows.cut.keys() - tables}
    found = [_cut(part, {v: rows.cut[v] for v in own}) for part, own in parts.items() if own]
    _discard_unused(model, rows.cut)
    model.metadata_props[KEPT] = json.dumps(kept.ids, separators=(",", ":"))
    return replace(kept, logits=logits), tuple(found)


def _cut_head(rows: Rows, head: Head) -> None:
    """Let a head compute the values of kept tokens alone."""
    for part in head.parts:
        rows.take(part)
    for part in head.shapes:
        rows.shorten(part)
    if head.node.op_type in BLOCKWISE:
        head.node.attributes["N"] = ir.AttrInt64("N", len(rows.kept))
    inner = (out for node in rows.canvas.model.graph.all_nodes() for out in node.outputs)
    for out in (out for out in inner if out.shape is not None and out.shape.rank()):
        if out.shape is not None and out.shape[-1] == rows.count:
            new = ir.Shape([*out.shape.dims[:-1], len(rows.kept)])
            out.shape = new if out.is_graph_output() else None


def _remap(canvas: Canvas, uses: Uses, kept: Tokens) -> None:
    """Let tables be looked up by the rows of old ids."""
    known: dict[ir.Value | None, ir.Value] = {}
    for lookup in uses.lookups:
        value = lookup.node.inputs[lookup.ids]
        if value not in known:
            places = kept.places.astype(np.int32)
            table = canvas.constant(owner_of(lookup.node), places, "row_of_id")
            names = [f"{lookup.node.name}_row"]
            (known[value],) = canvas.node(
                "Gather", [table, value], before=lookup.node, outputs=names
            )
        lookup.node.replace_input_with(lookup.ids, known[value])


def _spread(canvas: Canvas, name: str, kept: Tokens) -> None:
    """Let an output have a value for each old id again: the lowest number for those that were removed."""
    output = next(v for v in canvas.model.graph.outputs if v.name == name)
    kind, shape = dtype(output) or output.dtype, dims(output) or output.shape
    maker, graph = output.producer(), canvas.model.graph
    if kind is None or maker is None or shape is None or not kind.is_floating_point():
        raise ModelError(f"Output '{name}' has a value per token, and its type or rank is unknown.")
    places = np.full(kept.rows, len(kept.ids), np.int64)
    places[list(kept.ids)] = np.arange(len(kept.ids))
    lowest = np.asarray(np.finfo(kind.numpy()).min, kind.numpy())
    pads = np.eye(1, 2 * len(shape), 2 * len(shape) - 1, dtype=np.int64)[0]
    (wide,) = canvas.node(
        "Pad",
        [
            output,
            canvas.constant(graph, pads, "one_more"),
            canvas.constant(graph, lowest, "lowest"),
        ],
        after=maker,
        outputs=[f"{name}_wide"],
    )
    columns = canvas.constant(graph, places, "column_of_id")
    (full,) = canvas.node(
        "Gather",
        [wide, columns],
        after=wide.producer(),
        attributes={"axis": -1},
        outputs=[f"{name}_all"],
    )
    full.type = output.type
    full.shape = None if output.shape is None else ir.Shape([*output.shape.dims[:-1], kept.rows])
    graph.outputs[graph.outputs.index(output)] = full
    output.name, full.name, output.shape = canvas.name(f"{name}_kept"), name, None


def _renumber(canvas: Canvas, uses: Uses, kept: Tokens) -> None:
    """Let constants that ids are compared with be new ids; those that no id equals stay."""
    places = kept.places
    for part in uses.compared:
        tensor = constant(part.node.inputs[part.slot])
        assert tensor is not None  # noqa: S101 - constants are compared
        old = tensor.numpy()
        inside = (old >= 0) & (old < kept.rows)
        new = np.where(inside, places[np.where(inside, old, 0)], -1).astype(old.dtype)
        value = canvas.constant(owner_of(part.node), new, "kept_id")
        part.node.replace_input_with(part.slot, value)


def _cut(part: str, constants: Mapping[ir.Value, ir.Value]) -> Cut:
    names = tuple(sorted(value.name or "" for value in constants))
    before, after = (sum(map(_bytes, side)) for side in (constants, set(constants.values())))
    return Cut(part, names, before, after)


def _bytes(value: ir.Value) -> int:
    return 0 if value.const_value is None else value.const_value.nbytes


def _discard_unused(model: ir.Model, cut: Collection[ir.Value]) -> None:
    """Remove nodes and constants that nothing uses any more.

    Raises:
        ModelError: Something still uses a whole table.
    """
    for graph in model.graphs():
        for node in reversed(list(graph)):
            if not any(map(_is_used, node.outputs)):
                discard(node)
        for name, value in list(graph.initializers.items()):
            if not _is_used(value) and not value.is_graph_input():
                del graph.initializers[name]
    for value in cut:
        use = next(iter(value.uses()), None)
        if use is not None:
            raise ModelError(
                f"Node '{use.node.name}' ({use.node.op_type}) uses the whole table '{value.name}': it cannot be trimmed."
            )


def _is_used(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()
