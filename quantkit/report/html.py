"""The page: everything in one file, from the result alone."""

import json
import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files
from itertools import groupby
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from quantkit.report import numbers, plots
from quantkit.report.palette import look, variables
from quantkit.report.plots.bars import causes
from quantkit.report.tables import embedded, tables_of
from quantkit.report.verdicts import advice_of, cards, gists, headline
from quantkit.result import Evaluated, Result, legible

__all__ = ["render_html"]

_WIDE, _NARROW = 880, 350  # widths that pictures are drawn for; the page shows the one that fits
_OPTION = re.compile(r"(--[a-z][a-z-]*)")
_NOISE = 0.8  # "so many layers bring 80 % of the noise"


def render_html(result: Result) -> str:
    """Return the page: no network, no other file, the same text for the same result."""
    result = legible(result)
    style, script = _style(), _asset("page.js")
    tables = tables_of(result)
    data, most = embedded(tables)
    return (
        _environment()
        .get_template("page.html.jinja")
        .render(
            result=result,
            headline=headline(result),
            cards=cards(result),
            style=Markup(style),  # noqa: S704 - our own file
            script=Markup(script),  # noqa: S704 - our own file
            policy=_policy(style, script),
            tables=tables,
            data=Markup(data),  # noqa: S704 - escaped by `embedded`
            most=most,
            causes=causes(result),
            places=_places(result),
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
    return (files("quantkit.report") / "templates" / name).read_text(encoding="utf-8")


def _style() -> str:
    """Return the style sheet: tokens for both themes, then what uses them."""
    light, dark = variables("light"), variables("dark")
    themes = (
        f":root{{color-scheme:light;{light}}}\n"
        f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{color-scheme:dark;{dark}}}}}\n"
        f":root[data-theme=dark]{{color-scheme:dark;{dark}}}\n"
        f"@media print{{:root:root:root{{color-scheme:light;{light}}}}}\n"
    )
    return themes + _asset("plot.css") + _asset("style.css")


def _policy(style: str, script: str) -> str:
    """Allow exactly this style and this script, and nothing from anywhere."""

    def hashed(content: str) -> str:
        return f"'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'"

    allowed = f"style-src {hashed(style)}; script-src {hashed(script)}; img-src data:"
    return f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("quantkit.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    names = set(numbers.__all__) - {"ABSENT", "MINUS"}
    environment.filters |= {name: getattr(numbers, name) for name in names}
    environment.filters["indented"] = _indented
    environment.filters["spoken"] = _spoken
    environment.globals |= {
        "accuracy_size": _both(_accuracy_size),
        "forest": _both(plots.forest),
        "size_bars": _both(plots.size_bars),
        "latency_plot": _both(plots.latency),
        "layers_plot": _both(plots.layers),
        "runs_plot": _both(plots.runs),
        "operators_plot": _both(plots.operators),
        "look": look,
        "key": lambda place: Markup(plots.key(look(place))),  # noqa: S704 - escaped by the plots
        "few_layers": few_layers,
        "float_groups": float_groups,
        "ABSENT": numbers.ABSENT,
    }
    return environment


def _accuracy_size(result: Result, *, width: int) -> str:
    return plots.accuracy_size_svg(result, width=width, standalone=False)


def _both(draw: Callable[..., str]) -> Callable[..., Markup]:
    """Draw twice, for wide and for narrow screens; words keep their size on both."""

    def drawn(*arguments: Any) -> Markup:
        wide = draw(*arguments, width=_WIDE)
        if not wide:
            return Markup()
        narrow = draw(*arguments, width=_NARROW)
        return Markup(f'<div class="wide">{wide}</div><div class="narrow">{narrow}</div>')  # noqa: S704 - plots escape

    return drawn


def few_layers(model: Evaluated) -> int:
    """Return how many of the worst layers bring 80 % of the noise."""
    total = 0.0
    for count, layer in enumerate(model.layers.layers if model.layers else (), 1):
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
