"""The page: everything in one file, from the result alone.

Of long tables the first rows are HTML, all rows data that the page sorts and searches. Five candidates of two
thousand layers make a hundred thousand cells. Each distinct text is stored once, a row is a list of places in that
store, and there is a bound on the whole, so that the page stays small.
"""

import json
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files
from itertools import groupby
from types import MappingProxyType
from typing import Any

from jinja2 import Environment
from markupsafe import Markup, escape

from quantkit.evaluate.report import numbers
from quantkit.evaluate.report.accuracy_size import accuracy_chart
from quantkit.evaluate.report.frontier import frontier_chart
from quantkit.evaluate.report.numbers import environment_with
from quantkit.evaluate.report.palette import look, themes
from quantkit.evaluate.report.rows import causes, forest, latency, runs, samples, size_bars
from quantkit.evaluate.report.scatter import Chart, chart_svg
from quantkit.evaluate.report.svg import key
from quantkit.evaluate.report.verdicts import advice_of, cards, gists, headline
from quantkit.result import Evaluated, Layer, Result, Runtime, legible

_FIRST = 12  # rows to be seen without asking for more
_BOUND = 3_000_000  # bytes of data in the page; a page may weigh 5 MB
_LONGEST = 400  # characters of a cell


@dataclass(frozen=True, slots=True)
class _Column:
    """A heading: its words, what they mean, and how cells are set ("num", "node", "text", "prose")."""

    words: str
    kind: str
    meaning: str = ""


@dataclass(frozen=True, slots=True)
class _Table:
    """A table of texts as they are shown."""

    what: str
    columns: tuple[_Column, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def first(self) -> tuple[tuple[str, ...], ...]:
        """The rows to be seen without asking for more."""
        return self.rows[:_FIRST]


_LAYER_COLUMNS = (
    _Column("#", "num", "rank by noise alone"),
    _Column("layer", "node"),
    _Column("operator", "text"),
    _Column("alone, dB", "num", "output SQNR when this layer alone is quantized"),
    _Column("share, %", "num", "of the noise of all layers alone"),
    _Column("local, dB", "num", "SQNR of its output when its inputs are float's"),
    _Column("accumulated, dB", "num", "SQNR of its output in the quantized model"),
    _Column("weights, dB", "num", "SQNR of its output when only its weights are quantized"),
    _Column("input, dB", "num", "output SQNR when only the inputs are quantized"),
    _Column("clipped, %", "num", "of its input values"),
    _Column("what would help", "prose"),
)
_NODE_COLUMNS = (
    _Column("node", "node"),
    _Column("operator", "text"),
    _Column("runs", "text"),
    _Column("kernel", "text"),
    _Column("why", "prose"),
    _Column("what would change it", "prose"),
)
_RUNS = {"integer": "int8", "dynamic": "int8, dynamic", "float": "float", "gone": "fused or folded"}


def _short(content: str) -> str:
    if len(content) <= _LONGEST:
        return content
    return content[: _LONGEST // 2] + "…" + content[-_LONGEST // 2 :]


def _db(value: float | None, absent: str = numbers.ABSENT) -> str:
    return absent if value is None else numbers.decimals(value, 1)


def _layer_table(found: Sequence[Layer]) -> _Table:
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
        for rank, layer in enumerate(found, 1)
    )
    return _Table("layers", _LAYER_COLUMNS, rows)


def _node_table(runtime: Runtime) -> _Table:
    """Return the products, those in float first."""
    ranked = sorted(runtime.nodes, key=lambda node: node.runs != "float")
    rows = tuple(
        (_short(n.node), n.op_type, _RUNS[n.runs], n.kernel, _short(n.why), _short(n.fix))
        for n in ranked
    )
    return _Table("nodes", _NODE_COLUMNS, rows)


def _tables_of(result: Result) -> dict[str, _Table]:
    """Return all long tables, by the id that they have in the page."""
    found = {}
    for place, model in enumerate(result.models):
        if model.ranking:
            found[f"layers-{place}"] = _layer_table(model.ranking)
        if place and model.runtime is not None and model.runtime.nodes:
            found[f"nodes-{place}"] = _node_table(model.runtime)
    return found


def embedded_rows(tables: Mapping[str, _Table]) -> tuple[str, int | None]:
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


def _json(tables: Mapping[str, _Table], most: int | None) -> str:
    store: dict[str, int] = {}
    rows = {
        name: [[store.setdefault(cell, len(store)) for cell in row] for row in table.rows[:most]]
        for name, table in tables.items()
    }
    return script_json({"texts": list(store), "rows": rows})


def script_json(plain: object) -> str:
    """Return JSON that may stand inside a script."""
    text = json.dumps(plain, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    # `</script>` and `<!--` in a name would end the element
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


_WIDE, _NARROW = 880, 350  # widths that pictures are drawn for; the page shows the one that fits
_OPTION = re.compile(r"(--[a-z][a-z-]*)")
_NOISE = 0.8  # "so many layers bring 80 % of the noise"


def render_html(result: Result, graphs: Mapping[int, str] = MappingProxyType({})) -> str:
    """Return the page: no network, no other file, the same text for the same result.

    Args:
        result: What is shown.
        graphs: Pages beside it with the graphs of candidates, by their places in the result; layers link to them.
    """
    result = legible(result)
    style, script = _style(), _asset("page.js")
    tables = _tables_of(result)
    data, most = embedded_rows(tables)
    return (
        _environment()
        .get_template("page.html.jinja")
        .render(
            result=result,
            headline=headline(result),
            cards=cards(result),
            style=Markup(style),  # noqa: S704 - our own file
            script=Markup(script),  # noqa: S704 - our own file
            policy=policy(style, script),
            tables=tables,
            data=Markup(data),  # noqa: S704 - escaped by `embedded_rows`
            most=most,
            causes=causes(result),
            places=_places(result),
            places_of={model.name: place for place, model in enumerate(result.models)},
            graphs=graphs,
            gists=gists(result),
            advice=advice_of(result),
        )
    )


def _places(result: Result) -> dict[str, list[tuple[int, Evaluated]]]:
    """Return the candidates that have a part, with their places, by part."""
    parts = ("drift", "layers", "runtime", "changes")
    numbered = [(place, model) for place, model in enumerate(result.models) if place]
    return {part: [(i, m) for i, m in numbered if getattr(m, part) is not None] for part in parts}


def _spoken(sentence: str) -> Markup:
    """Return a sentence with what stands between backticks set as code, and options in one piece."""
    parts = sentence.split("`")
    if len(parts) % 2 == 0:  # one that is not closed is a letter like any other
        return _unbroken(sentence)
    found = (
        Markup("<code>{}</code>").format(p) if i % 2 else _unbroken(p) for i, p in enumerate(parts)
    )
    return Markup().join(found)


def _unbroken(text: str) -> Markup:
    """Return a text in which an option such as --exclude is not broken after its hyphens."""
    pieces = enumerate(_OPTION.split(text))
    found = (
        Markup('<span class="nobr">{}</span>').format(p) if i % 2 else escape(p) for i, p in pieces
    )
    return Markup().join(found)


def _indented(plain: Mapping[str, Any]) -> str:
    return json.dumps(plain, indent=2, ensure_ascii=False, default=str)


def _asset(name: str) -> str:
    return (files("quantkit.evaluate.report") / "templates" / name).read_text(encoding="utf-8")


def _style() -> str:
    """Return the style sheet: tokens for both themes, then what uses them."""
    return themes() + _asset("plot.css") + _asset("style.css")


def policy(style: str, script: str) -> str:
    """Allow exactly this style and this script, and nothing from anywhere."""

    def hashed(content: str) -> str:
        return f"'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'"

    allowed = f"style-src {hashed(style)}; script-src {hashed(script)}; img-src data:"
    return f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"


@cache
def _environment() -> Environment:
    names = {
        "accuracy_size": lambda result: _both(accuracy_chart(result)),
        "forest": forest,
        "frontier_plot": lambda result: _both(frontier_chart(result)),
        "size_bars": size_bars,
        "latency_plot": latency,
        "runs_plot": runs,
        "samples_plot": samples,
        "sign": lambda look: Markup(key(look)),  # noqa: S704 - escaped by the plots
        "key": lambda place: Markup(key(look(place))),  # noqa: S704 - escaped by the plots
        "few_layers": few_layers,
        "float_groups": float_groups,
    }
    return environment_with({"indented": _indented, "spoken": _spoken}, names, html=True)


def _both(chart: Chart | None) -> Markup:
    """Draw twice, for wide and for narrow screens; words keep their size on both."""
    if chart is None:
        return Markup()
    wide, narrow = (chart_svg(chart, width=width) for width in (_WIDE, _NARROW))
    return Markup(f'<div class="wide">{wide}</div><div class="narrow">{narrow}</div>')  # noqa: S704 - plots escape


def few_layers(model: Evaluated) -> int:
    """Return how many of the worst layers bring 80 % of the noise."""
    total = 0.0
    for count, layer in enumerate(model.ranking, 1):
        total += layer.share
        if total >= _NOISE:
            return count
    return 0


def float_groups(model: Evaluated) -> list[tuple[str, str, str, list[str]]]:
    """Return nodes that stay float by operator, reason and fix, the most frequent first."""
    nodes = [n for n in (model.runtime.nodes if model.runtime else ()) if n.runs == "float"]
    ranked = sorted(nodes, key=lambda n: (n.op_type, n.why, n.fix))
    found = [
        (*reason, [n.node for n in group])
        for reason, group in groupby(ranked, key=lambda n: (n.op_type, n.why, n.fix))
    ]
    return sorted(found, key=lambda group: -len(group[3]))
