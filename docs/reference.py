"""Writes docs/reference/: every command with its flags, every public name, every key of quantkit.toml, as the code has them.

    python docs/reference.py

The pages are committed, so that they can be read and linked to without building anything; a test says when they are no longer
what the code gives.
"""

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from enum import EnumType
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import typer

import quantkit
from quantkit.cli.app import app
from quantkit.settings import DataSettings
from quantkit.settings.declare import Declared, declared, tables
from quantkit.settings.toml import Recipe

FOLDER = Path(__file__).parent / "reference"
_MADE = "<!-- Made by docs/reference.py from the code: change the code, and run it again. -->"
_SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Yields):$", re.MULTILINE)
# Tables of quantkit.toml that say over [data] what one command reads.
_OVER_DATA = ("calibrate", "evaluate")


def pages() -> dict[Path, str]:
    """Return the text of each page of the reference by its path."""
    made = {"cli.md": _commands(), "python.md": _names(), "settings.md": _settings()}
    return {
        FOLDER / name: "\n".join([_MADE, "", *lines]).rstrip() + "\n"
        for name, lines in made.items()
    }


def _plain(text: str) -> str:
    """Return a text on one line, in which stars and tags are what they look like; code stays as it is."""
    parts = " ".join(text.replace("\\[", "[").split()).split("`")
    parts[::2] = [p.replace("*", "\\*").replace("<", "&lt;") for p in parts[::2]]
    return "`".join(parts)


def _cell(text: str) -> str:
    """Return a text as a cell of a table, which a pipe would end."""
    return _plain(text).replace("|", "\\|")


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [*(f"| {' | '.join(cells)} |" for cells in lines), ""] if rows else []


# Commands


def _commands() -> Iterator[str]:
    root: Any = typer.main.get_command(app)
    yield from ("# Every command", "")
    yield "`quantkit COMMAND --help` says the same in a terminal. Every command takes `--debug`, which shows a traceback if something goes wrong."
    yield ""
    leaves = list(_leaves(root, "quantkit"))
    yield from _table(
        ["command", "what it does"],
        [[f"[`{name}`](#{_slug(name)})", _cell(_first(one.help))] for name, one in leaves],
    )
    for name, one in leaves:
        yield from (f"## {name}", "", *_command(name, one))


def _leaves(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield name, command
        return
    for one in command.list_commands(None):
        yield from _leaves(inner[one], f"{name} {one}")


def _slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _first(text: str | None) -> str:
    return " ".join((text or "").strip().split("\n\n")[0].split())


def _command(name: str, command: Any) -> Iterator[str]:
    told = inspect.cleandoc(command.help or "").replace("\\[", "[")
    for paragraph in told.split("\n\n"):
        yield from (_plain(paragraph), "")
    taken = [p for p in command.params if p.param_type_name == "argument"]
    words = [p.metavar or p.name.upper() for p in taken]
    usage = [
        w if p.required or w.startswith("[") else f"[{w}]"
        for p, w in zip(taken, words, strict=True)
    ]
    yield from ("```text", " ".join([name, *usage, "[OPTIONS]"]), "```", "")
    rows = [[f"`{w}`", _cell(p.help or "")] for p, w in zip(taken, words, strict=True)]
    yield from _table(["argument", ""], rows)
    panels: dict[str, list[list[str]]] = {}
    for option in command.params:
        if option.param_type_name == "option" and option.name not in {"debug", "help"}:
            panel = option.rich_help_panel or "Options"
            panels.setdefault(panel, []).append([_spelled(option), _cell(option.help or "")])
    for panel, rows in panels.items():
        yield from _table([panel.lower(), ""], rows)


def _spelled(option: Any) -> str:
    """Return an option's names, and what its value is called."""
    value = f" {option.metavar}" if option.metavar and not option.is_flag else ""
    names = [f"{name}{value}" for name in option.opts[:1]] + option.opts[1:] + option.secondary_opts
    return ", ".join(f"`{name}`" for name in names)


# Python


def _names() -> Iterator[str]:
    found = {name: getattr(quantkit, name) for name in quantkit.__all__ if name != "__version__"}
    calls = {n: o for n, o in found.items() if inspect.isfunction(o)}
    settings = {n: o for n, o in found.items() if _is_settings(o)}
    types = {n: o for n, o in found.items() if inspect.isclass(o) and n not in settings}
    constants = {n: o for n, o in found.items() if n not in calls | settings | types}
    yield from ("# Every Python name", "")
    yield "All of them are names of `quantkit` itself, imported when they are first used. What goes wrong is a [`QuantkitError`](#quantkiterror) with one line that says what to do; nothing is printed."
    yield from (
        "",
        f"`quantkit.{'`, `quantkit.'.join(constants)}` are members of [`QuantType`](#quanttype).",
        "",
    )
    yield from ("Calls:", "")
    yield from _table(
        ["call", "what it does"],
        [[f"[`{n}`](#{_slug(n)})", _cell(_first(o.__doc__))] for n, o in calls.items()],
    )
    for title, group in (("call", calls), ("settings", settings), ("result", types)):
        for name, thing in group.items():
            yield from (f"## {name}", "", *_name(title, thing))


def _is_settings(thing: Any) -> bool:
    return inspect.isclass(thing) and is_dataclass(thing) and bool(declared(thing))


def _name(kind: str, thing: Any) -> Iterator[str]:
    if kind == "call":
        yield from ("```py", _signature(thing), "```", "")
    yield from _docstring("\n".join([inspect.getdoc(thing) or "", *_inherited(thing)]))
    if isinstance(thing, EnumType):
        yield from (f"Members: {', '.join(f'`{name}`' for name in thing.__members__)}.", "")
    if kind == "settings":
        yield from _fields(thing)
    elif kind == "result":
        yield from _members(thing)


def _inherited(thing: Any) -> Iterator[str]:
    """Yield the attributes that a result has from its base, which users never meet by name."""
    for base in getattr(thing, "__bases__", ()):
        if is_dataclass(base) and base.__module__ != "quantkit.settings.declare":
            yield (inspect.getdoc(base) or "").partition("Attributes:\n")[2]


def _fields(kind: Any) -> list[str]:
    """Return the fields of settings; other settings among them have a heading of their own."""
    known, hints, rows = declared(kind), get_type_hints(kind), []
    for field in fields(kind):
        hint = hints[field.name]
        inner = next((k for k in (hint, *get_args(hint)) if is_dataclass(k)), None)
        if field.name in known:
            one = known[field.name]
            rows.append([_cell(one.setting.text), _type(one), _default(field.default)])
        elif inner is not None:
            name = inner.__name__  # type: ignore[union-attr]
            many = "" if inner is hint else "a list of "
            rows.append(["", f"{many}[`{name}`](#{_slug(name)})", ""])
        else:
            continue
        rows[-1].insert(0, f"`{field.name}`")
    return _table(["field", "what it does", "takes", "default"], rows)


def _type(one: Declared) -> str:
    """Return the type of a setting in Python, with its bounds; texts that it is one of are listed."""
    if one.choices:
        listed = ", ".join(f"`{choice!r}`" for choice in one.choices)
        return listed if get_origin(one.type) is not tuple else f"a list of {listed}"
    several = get_origin(one.type) in {Union, UnionType}
    kinds = [_kind(kind) for kind in (get_args(one.type) if several else (one.type,))]
    kinds += ["None"] if one.optional else []
    return " or ".join(f"`{kind}`" for kind in kinds) + _bounds(one)


def _kind(hint: Any) -> str:
    """Return a type as a reader would write it, the same in every Python."""
    if get_origin(hint) is Annotated:
        return _kind(get_args(hint)[0])
    if get_origin(hint) is Literal:
        return ", ".join(map(repr, get_args(hint)))
    return str(hint) if get_args(hint) else hint.__name__


def _signature(function: Any) -> str:
    """Return a call as its source has it: annotations keep the names that a reader knows."""
    source = textwrap.dedent(inspect.getsource(inspect.unwrap(function)))
    tree = ast.parse(source).body[0]
    if not isinstance(tree, ast.FunctionDef):
        raise TypeError(f"{function} is no function")
    returned = f" -> {ast.unparse(tree.returns)}" if tree.returns else ""
    given = tree.args
    late = len(given.args) - len(given.defaults)
    parts = [
        _parameter(one, given.defaults[i - late] if i >= late else None)
        for i, one in enumerate(given.args)
    ]
    parts += ["*"] if given.kwonlyargs else []
    parts += map(_parameter, given.kwonlyargs, given.kw_defaults)
    return f"{tree.name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){returned}"


def _parameter(one: ast.arg, default: ast.expr | None) -> str:
    kind = f": {ast.unparse(one.annotation)}" if one.annotation else ""
    return f"{one.arg}{kind}" + (f" = {ast.unparse(default)}" if default is not None else "")


def _docstring(text: str) -> Iterator[str]:
    """Yield a docstring of Google's form as Markdown."""
    before, *rest = _SECTION.split(text.replace("``", "`"))
    for paragraph in before.strip().split("\n\n"):
        yield from (paragraph if paragraph.startswith("    ") else _plain(paragraph), "")
    for title, told in zip(rest[::2], rest[1::2], strict=True):
        body, _, after = told.strip("\n").partition("\n\n")
        whole = textwrap.dedent(body).strip()
        entries = [whole] if title == "Returns" else re.split(r"\n(?=\S)", whole)
        yield from (f"**{title}**", "")
        for entry in entries:
            name, _, said = entry.partition(": ")
            named = title != "Returns" and bool(said)
            yield f"- `{name}`: {_plain(said)}" if named else f"- {_plain(entry)}"
        yield from ("", *([textwrap.dedent(after), ""] if after.strip() else []))


def _members(thing: type) -> Iterator[str]:
    """Yield the methods and properties of a class that say what they do."""
    rows = [
        [f"`{name}{'' if isinstance(member, property) else '()'}`", _cell(_first(member.__doc__))]
        for kind in (*thing.__bases__, thing)
        for name, member in vars(kind).items()
        if kind.__module__.startswith("quantkit.") and not name.startswith("_")
        if isinstance(member, property) or inspect.isfunction(member)
    ]
    yield from _table(["member", ""], rows)


# quantkit.toml


def _settings() -> Iterator[str]:
    yield from ("# Every key of quantkit.toml", "")
    yield "What it is for, with an example: [quantkit.toml](../configuration.md). Paths are relative to the file; what a key takes is checked before anything is read or written."
    yield ""
    for title, kind in _tables("", Recipe):
        yield from (f"## `{title}`" if title else "## At the top", "")
        if kind is DataSettings and title != "[data]":
            yield from (
                "The keys of `[data]`, over it; how samples are prepared is said once, in `[data]`.",
                "",
            )
            continue
        if title:
            yield from (_first(kind.__doc__), "")
        yield from _keys(kind)


def _tables(name: str, kind: Any, *, several: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield the tables of quantkit.toml with their dataclasses: those within a table stand below it."""
    yield (f"[[{name}]]" if several else f"[{name}]") if name else "", kind
    for one in tables(kind):
        inner = f"{name}.{one.key}".lstrip(".")
        yield from _tables(inner, one.kind, several=one.several)
        if inner in _OVER_DATA:
            yield f"[{inner}.data]", DataSettings


def _keys(kind: Any) -> list[str]:
    """Return the keys of a table of quantkit.toml."""
    usual = {field.name: field.default for field in fields(kind)}
    rows = [
        [
            f"`{one.key}`",
            _cell(one.setting.text),
            _takes(one),
            _default(usual[one.name], json.dumps),
        ]
        for one in declared(kind).values()
    ]
    return _table(["key", "what it does", "takes", "default"], rows)


def _takes(one: Declared) -> str:
    """Return what a value may be, in the words of the message that refuses any other."""
    if one.choices:
        return ", ".join(f"`{choice}`" for choice in one.choices)
    return _cell(f"{one.spelling.takes}{_bounds(one)}")


def _bounds(one: Declared) -> str:
    return f"; {one.bounds.replace(' and', ',')}" if one.bounds else ""


def _default(value: object, form: Callable[[Any], str] = repr) -> str:
    """Return a default as Python has it, or in another form."""
    if value is MISSING:
        return "must be given"
    return "" if value in (None, ()) else f"`{form(value)}`"


def write() -> None:
    """Write the pages."""
    FOLDER.mkdir(exist_ok=True)
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
