"""Long tables: the first rows as HTML, all rows as data that the page sorts and searches.

Five candidates of two thousand layers make a hundred thousand cells. Each distinct text is stored once, a row is a list of
places in that store, and there is a bound on the whole, so that the page stays small.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from quantkit.report import numbers
from quantkit.result import Layers, Result, Runtime

__all__ = ["Column", "Table", "embedded", "layer_table", "node_table", "tables_of"]

_FIRST = 12  # rows to be seen without asking for more
_BOUND = 3_000_000  # bytes of data in the page; a page may weigh 5 MB
_LONGEST = 400  # characters of a cell


@dataclass(frozen=True, slots=True)
class Column:
    """A heading: its words, what they mean, and how cells are set ("num", "node", "text", "prose")."""

    words: str
    kind: str
    meaning: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of texts as they are shown."""

    what: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def first(self) -> tuple[tuple[str, ...], ...]:
        """The rows to be seen without asking for more."""
        return self.rows[:_FIRST]


_LAYER_COLUMNS = (
    Column("#", "num", "rank by noise alone"),
    Column("layer", "node"),
    Column("operator", "text"),
    Column("alone, dB", "num", "signal to noise at the output if this layer alone is quantized"),
    Column("share, %", "num", "of the noise of all layers alone"),
    Column("local, dB", "num", "signal to noise of what it makes, fed with float's values"),
    Column("accumulated, dB", "num", "signal to noise of what it makes in the quantized model"),
    Column("weights, dB", "num", "signal to noise of what it makes, by its weights alone"),
    Column(
        "input, dB", "num", "signal to noise of what it makes, by the quantization of what it reads"
    ),
    Column("clipped, %", "num", "of the values that it reads"),
    Column("what would help", "prose"),
)
_NODE_COLUMNS = (
    Column("node", "node"),
    Column("operator", "text"),
    Column("runs", "text"),
    Column("kernel", "text"),
    Column("why", "prose"),
    Column("what would change it", "prose"),
)
_RUNS = {"integer": "int8", "dynamic": "int8, dynamic", "float": "float", "gone": "fused or folded"}


def _short(content: str) -> str:
    return (
        content
        if len(content) <= _LONGEST
        else content[: _LONGEST // 2] + "…" + content[-_LONGEST // 2 :]
    )


def _db(value: float | None, absent: str = numbers.ABSENT) -> str:
    return absent if value is None else numbers.decimals(value, 1)


def layer_table(found: Layers) -> Table:
    """Return the ranking of layers."""
    rows = tuple(
        (
            str(rank),
            _short(layer.node),
            layer.op_type,
            _db(layer.alone_db, "no error"),
            numbers.decimals(layer.share * 100, 2),
            _db(layer.local_db),
            _db(layer.accumulated_db),
            _db(layer.weight_db),
            _db(layer.input_db),
            numbers.decimals(layer.clipped * 100, 2),
            _short(layer.fix),
        )
        for rank, layer in enumerate(found.layers, 1)
    )
    return Table("layers", _LAYER_COLUMNS, rows)


def node_table(runtime: Runtime) -> Table:
    """Return the products, those in float first."""
    ranked = sorted(runtime.nodes, key=lambda node: node.runs != "float")
    rows = tuple(
        (_short(n.node), n.op_type, _RUNS[n.runs], n.kernel, _short(n.why), _short(n.fix))
        for n in ranked
    )
    return Table("nodes", _NODE_COLUMNS, rows)


def tables_of(result: Result) -> dict[str, Table]:
    """Return all long tables, by the id that they have in the page."""
    found = {}
    for place, model in enumerate(result.models):
        if model.layers is not None and model.layers.layers:
            found[f"layers-{place}"] = layer_table(model.layers)
        if place and model.runtime is not None and model.runtime.nodes:
            found[f"nodes-{place}"] = node_table(model.runtime)
    return found


def embedded(tables: Mapping[str, Table]) -> tuple[str, int | None]:
    """Return all rows as JSON that may stand inside a script, and how many rows a table keeps at most (None: all)."""
    most: int | None = None
    while True:
        content = _json(tables, most)
        if len(content.encode()) <= _BOUND:
            return content, most
        longest = max(len(t.rows) for t in tables.values())
        most = max(_FIRST, (most or longest) // 2)
        if most == _FIRST:
            return _json(tables, most), most


def _json(tables: Mapping[str, Table], most: int | None) -> str:
    store: dict[str, int] = {}
    rows = {
        name: [[store.setdefault(cell, len(store)) for cell in row] for row in table.rows[:most]]
        for name, table in tables.items()
    }
    plain = json.dumps(
        {"texts": list(store), "rows": rows}, ensure_ascii=False, separators=(",", ":")
    )
    # `</script>` and `<!--` in a name would end the element
    return plain.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
