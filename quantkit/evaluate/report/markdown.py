"""Markdown for a pull request: short enough for a comment on GitHub, safe with any name."""

import re
from collections.abc import Callable
from functools import cache
from html import escape
from typing import Any

from jinja2 import Template

from quantkit.evaluate.report import numbers
from quantkit.evaluate.report.numbers import environment_with
from quantkit.evaluate.report.verdicts import State, advice_of, headline
from quantkit.result import Evaluated, Interval, Result
from quantkit.text import printable

_MOST = 60_000  # bytes; GitHub refuses comments above 65,536 characters
_LONG = 160  # characters of a name
_PROSE = 400
_MANY = 40  # rows of a table or list
_SIGNS: dict[State, str] = {
    "pass": "✅",
    "fail": "❌",
    "undecided": "⚠️",
    "invalid": "🚫",
    "neutral": "ℹ️",  # noqa: RUF001 - a sign
}
# What Markdown would read as markup wherever it stands; an underline within a word is a letter.
_MARKUP = re.compile(r"[\\`*\[\]|~]|(?<![^\W_])_|_(?![^\W_])")
_AT_START = re.compile(r"^([-+>#=]|\d+(?=[.)]))")
_TAG = re.compile(r"<(?=[A-Za-z/!?])")
_ENTITY = re.compile(r"&(?=#?\w+;)")
_MENTION = re.compile(r"(?<!\w)@(?=\w)")  # it would call people
_BAR = r"\|"
_JOINER = "\N{WORD JOINER}"
_BLOCKS = ("title", "search", "table", "objections", "gate", "advice", "notes")


def render_markdown(result: Result) -> str:
    """Return the verdict, one table, what fails, the worst layers, advice, and where it comes from."""
    template, values = _template(), _values(result)

    def rendered(block: str, model: Evaluated | None = None) -> str:
        context = template.new_context(values | {"model": model})
        return "".join(template.blocks[block](context)).strip("\n")

    blocks = [rendered(name) for name in _BLOCKS]
    folded = [rendered("layers", m) for m in result.candidates if m.ranking]
    folded.append(rendered("provenance"))
    while len("\n\n".join([*blocks, *folded]).encode()) > _MOST and (folded or len(blocks) > 1):
        # the worst layers of the first candidates go first; provenance stays as long as it can
        folded.pop(0) if folded else blocks.pop()
    return "\n\n".join(b for b in (*blocks, *folded) if b) + "\n"


def _values(result: Result) -> dict[str, Any]:
    """Return what the template is filled with."""
    tried = result.tuning.trials if result.tuning else ()
    frontier = {model.name for model in result.candidates}
    rules = [(verdict.candidate, rule) for verdict in result.verdicts for rule in verdict.rules]
    return {
        "result": result,
        "headline": headline(result),
        "advice": advice_of(result),
        "outcomes": {v.candidate: _SIGNS[v.outcome] for v in result.verdicts},
        "rules": sorted(rules, key=lambda pair: pair[1].outcome == "pass"),
        "trials": sorted(tried, key=lambda trial: trial.name not in frontier),
        "sureness": _sureness([m.metric.drop_interval for m in result.candidates if m.metric]),
    }


@cache
def _template() -> Template:
    filters = {"plain": _plain, "prose": _prose, "inline": _inline, "code": _code, "line": _line}
    names = {"signs": _SIGNS, "most": _MANY, "row": _row, "listed": _listed, "folded": _folded}
    names |= {"samples_of": _samples_of}
    return environment_with(filters, names, html=False).get_template("report.md.jinja")


def _line(content: str, most: int) -> str:
    line = printable(" ".join(content.split()))
    return line if len(line) <= most else f"{line[: most // 2]}…{line[-most // 2 :]}"


def _plain(content: str, most: int = _LONG) -> str:
    """Return a text that Markdown, HTML and a table's cell take literally, and that people can read as it is."""
    line = _MARKUP.sub(r"\\\g<0>", _ENTITY.sub("&amp;", _line(content, most)))
    return _MENTION.sub(f"@{_JOINER}", _TAG.sub("&lt;", line))


def _inline(line: str) -> str:
    """Keep what begins a line from beginning a list, a quotation or a heading."""
    return _AT_START.sub(
        lambda sign: f"{sign[0]}{_JOINER}" if sign[0].isdigit() else f"\\{sign[0]}", line
    )


def _prose(sentence: str) -> str:
    """Return a sentence; what stands between backticks in it is code."""
    parts = _line(sentence, _PROSE).split("`")
    if len(parts) % 2 == 0:
        return _plain(sentence, _PROSE)
    return "".join(_code(p, _PROSE) if i % 2 else _kept_spaces(p) for i, p in enumerate(parts))


def _kept_spaces(part: str) -> str:
    """Return a part of a sentence, the spaces around it kept."""
    inner = part.strip()
    if not inner:
        return part
    before, after = part[: len(part) - len(part.lstrip())], part[len(part.rstrip()) :]
    return f"{before}{_plain(inner, _PROSE)}{after}"


def _code(content: str, most: int = _LONG, *, in_table: bool = False) -> str:
    line = _line(content, most)
    if not line:
        return ""
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", line)), default=0))
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    # In a table alone a bar within code is escaped.
    return f"{fence}{pad}{line.replace('|', _BAR) if in_table else line}{pad}{fence}"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _sureness(ends: list[Interval | None]) -> str:
    """Return the confidence of the drops' intervals."""
    found = next((end for end in ends if end is not None), None)
    return f" ({100 * found.confidence:g} %)" if found else ""


def _samples_of(model: Evaluated) -> str:
    """Return the quantiles of the output that has the lowest 1st percentile, named where there are several."""
    if model.worst_percentile is None:
        return numbers.ABSENT
    output, found = model.worst_percentile
    of = f"{_plain(output.output)}: " if len(model.outputs) > 1 else ""
    return f"{of}{numbers.per_sample(found)}"


def _listed(title: str, caller: Callable[[], str]) -> str:
    """Return a list under a title, "" for an empty one."""
    lines = caller().splitlines()
    if not lines:
        return ""
    rest = [f"- {len(lines) - _MANY} more in result.json"] if len(lines) > _MANY else []
    return "\n".join([f"**{title}**", "", *lines[:_MANY], *rest])


def _folded(summary: str, caller: Callable[[], str]) -> str:
    # The title is HTML: there Markdown is not read.
    title = _MENTION.sub(f"@{_JOINER}", escape(summary, quote=False))
    return f"<details><summary>{title}</summary>\n\n{caller().rstrip()}\n\n</details>"
