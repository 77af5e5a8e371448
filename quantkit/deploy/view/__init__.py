"""A model as a picture: layers as boxes, groups by name scope, with what is known of each.

This module renders the page, one file that opens from disk; `explorer` writes overlays for Model Explorer instead.
"""

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from quantkit._version import __version__
from quantkit.deploy.view.facts import KINDS, Box, Drawing, Page, Tensor
from quantkit.deploy.view.groups import Tree
from quantkit.evaluate.report.html import policy, script_json
from quantkit.evaluate.report.palette import themes
from quantkit.model.ops.float_ops import ACTIVATIONS
from quantkit.model.ops.integer_ops import stands_for
from quantkit.text import counted, human, printable

_STATUS = {"same": "the same", "changed": "changed", "removed": "removed", "added": "added"}
_SHORT = {"int8": "int8", "dynamic": "dynamic", "blocks": "blocks", "stored": "stored"}
_SHORT |= {"half": "half", "float": "float", "absorbed": "fused", "moves": "", "other": ""}
_SHORT |= {"same": "", "changed": "changed", "removed": "removed", "added": "added"}
_ADDED = re.compile(r" \(\d+\)$")
_PIECE = re.compile(r"^part \d+ of \d+$")
_LONGEST = 4000  # letters of a name that is shown


def render_page(page: Page) -> str:
    """Return the page: no network, no other file, the same text for the same facts."""
    style, script = themes() + _asset("graph.css"), _asset("graph.js")
    return (
        _environment()
        .get_template("graph.html.jinja")
        .render(
            page={
                "title": printable(page.title),
                "drawings": [
                    {
                        "name": printable(d.name),
                        "facts": _facts(d),
                        "notes": [_text(note) for note in d.notes],
                    }
                    for d in page.drawings
                ],
            },
            version=__version__,
            style=Markup(style),  # noqa: S704 - our own file
            script=Markup(script),  # noqa: S704 - our own file
            policy=policy(style, script),
            data=Markup(script_json(_data(page))),  # noqa: S704 - escaped by `script_json`
        )
    )


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("quantkit.deploy.view", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _asset(name: str) -> str:
    return (files("quantkit.deploy.view") / "templates" / name).read_text(encoding="utf-8")


def _facts(drawing: Drawing) -> str:
    layers = sum(box.role == "layer" for box in drawing.boxes)
    return f"{drawing.nodes} nodes in {layers} boxes, {human(drawing.nbytes)}"


def _data(page: Page) -> dict[str, Any]:
    return {
        "kinds": dict(KINDS) | _STATUS,
        "short": _SHORT,
        "plan": page.plan,
        "graphs": [_graph(drawing) for drawing in page.drawings],
        "pairs": [_shown(pair) for pair in page.pairs],
    }


def _graph(drawing: Drawing) -> dict[str, Any]:
    paths = _paths(drawing.tree)
    groups = zip(drawing.tree.groups, drawing.layouts, paths, _counts(drawing), strict=True)
    return {
        "name": _text(drawing.name),
        "nbytes": drawing.nbytes,
        "notes": [_text(note) for note in drawing.notes],
        "boxes": [
            _box(box, paths[drawing.tree.home[number]]) for number, box in enumerate(drawing.boxes)
        ],
        "groups": [
            {**_shown(group), **_shown(layout), "path": _text(path), "sub": sub}
            for group, layout, path, sub in groups
        ],
    }


def _text(name: str) -> str:
    return printable(name)[:_LONGEST]


def _paths(tree: Tree) -> list[str]:
    found: list[str] = []
    for group in tree.groups:
        around = found[group.parent] if group.parent >= 0 else ""
        found.append("/".join(filter(None, (around, group.label))))
    return found


def _counts(drawing: Drawing) -> list[str]:
    """Return what a closed group says of itself."""
    layers = [0] * len(drawing.tree.groups)
    nbytes = [0] * len(drawing.tree.groups)
    for number, box in enumerate(drawing.boxes):
        for group in drawing.tree.above(number):
            layers[group] += box.role == "layer"
            nbytes[group] += box.nbytes
    return [
        f"{counted(n, 'layer')}" + (f", {human(size)}" if size else "")
        for n, size in zip(layers, nbytes, strict=True)
    ]


def shown_name(box: Box, path: str) -> str:
    """Return the name of a box as it is written inside of its group: without what the group or the operator says."""
    parts = [part for part in box.name.split("/") if part]
    around = [_ADDED.sub("", part) for part in path.split("/")]
    around = [part for part in around if part and not _PIECE.match(part)]
    shared = range(min(len(around), len(parts) - 1), 0, -1)
    parts = parts[next((n for n in shared if around[-n:] == parts[:n]), 0) :]
    own = re.escape(stands_for(box.op_type))
    if len(parts) > 1 and re.fullmatch(rf"{own}(_\d+)?", parts[-1]):
        parts = parts[:-1]
    return "/".join(parts) or box.name or box.op_type


def _box(box: Box, path: str) -> dict[str, Any]:
    """Return all facts of a box, and how it is written."""
    what = _what(box) if box.role == "layer" else box.role
    return {
        **_shown(box),
        "role": "" if box.role == "layer" else box.role,
        "label": _text(shown_name(box, path)),
        "what": _what(box),
        "sub": " ".join(filter(None, (what, _dims(box.makes[0]) if box.makes else ""))),
        "nbytes": box.nbytes,
    }


def _shown(facts: object) -> dict[str, Any]:
    """Return facts as plain data."""
    plain: dict[str, Any] = _texts(msgspec.to_builtins(facts))
    return plain


def _texts(plain: Any) -> Any:
    """Return plain data with strings as they are shown, and without what is not known."""
    if isinstance(plain, str):
        return _text(plain)
    if isinstance(plain, Mapping):
        return {name: _texts(value) for name, value in plain.items() if value is not None}
    return [_texts(value) for value in plain] if isinstance(plain, list | tuple) else plain


def _what(box: Box) -> str:
    """Return the operator, with the activation function that is folded into its box."""
    ops = [operator.op_type for operator in box.operators]
    tails = [stands_for(op) for op in ops if stands_for(op) in ACTIVATIONS and op != box.op_type]
    if tails == ["Sigmoid"] and "Mul" in {stands_for(op) for op in ops}:
        tails = ["SiLU"]
    return " + ".join([stands_for(box.op_type), *dict.fromkeys(tails)])


def _dims(tensor: Tensor) -> str:
    if not tensor.shape:
        return ""
    return "\u00d7".join(_text(str(n)) for n in tensor.shape)
