"""Markdown for a pull request: short enough for a comment on GitHub, safe with any name."""

from html import escape

from quantkit.report import numbers
from quantkit.report.verdicts import State, headline
from quantkit.result import Evaluated, Result
from quantkit.text import printable

__all__ = ["render_markdown"]

_LAYERS = 5
_MOST = 60_000  # bytes; GitHub refuses comments above 65,536 characters
_LONG = 160  # characters of a name
_PROSE = 400
_COMMAND = 4000
_MANY = 40  # rows of candidates
_SIGNS: dict[State, str] = {
    "pass": "✅",
    "fail": "❌",
    "undecided": "⚠️",
    "invalid": "🚫",
    "neutral": "ℹ️",  # noqa: RUF001 - a sign
}
# What Markdown would read as markup, and mentions, which would call people.
_SPECIAL = str.maketrans({c: f"&#{ord(c)};" for c in "|`*_[]@#~\\!"})


def render_markdown(result: Result) -> str:
    """Return the verdict, one table, what fails, the worst layers, advice, and where it comes from."""
    blocks = [_title(result), _table(result), _failing(result), _advice(result), _notes(result)]
    folded = [*_layers(result), _provenance(result)]
    while len("\n\n".join([*blocks, *folded]).encode()) > _MOST and (folded or len(blocks) > 1):
        # the worst layers of the first candidates go first; provenance stays as long as it can
        folded.pop(0) if folded else blocks.pop()
    return "\n\n".join(b for b in (*blocks, *folded) if b) + "\n"


def _safe(content: str, most: int = _LONG) -> str:
    """Return a text that Markdown, HTML and a table's cell take literally."""
    line = printable(" ".join(content.split()))
    if len(line) > most:
        line = f"{line[: most // 2]}…{line[-most // 2 :]}"
    return escape(line, quote=False).translate(_SPECIAL)


def _code(content: str, most: int = _LONG) -> str:
    return f"<code>{_safe(content, most)}</code>"


def _title(result: Result) -> str:
    found = headline(result)
    return f"## {_SIGNS[found.state]} {found.word.upper()}: {_safe(result.title)}\n\n{_safe(found.sentence, _PROSE)}"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _table(result: Result) -> str:
    metric = result.float_model.metric
    name = _safe(metric.name) if metric else ""
    heads = ["", "size"]
    heads += (
        [name, f"drop, {_safe(numbers.drop_unit(metric))}{_sureness(result)}"] if metric else []
    )
    heads += ["flips", "SQNR", "time", "int8"]
    signs = {v.candidate: _SIGNS[v.outcome] for v in result.verdicts}
    rows = [_row(*heads), _row("---", *("---:" for _ in heads[1:]))]
    for model in result.models[: _MANY + 1]:
        sign = signs.get(model.name, "")
        rows.append(_row(*_cells(model, sign, with_metric=metric is not None)))
    if len(result.models) > _MANY + 1:
        rows.append(_row(f"{len(result.models) - _MANY - 1} more", *("" for _ in heads[1:])))
    return "\n".join(rows)


def _sureness(result: Result) -> str:
    """Return the confidence of the drops' intervals."""
    ends = [m.metric.drop_interval for m in result.candidates if m.metric]
    found = next((end for end in ends if end is not None), None)
    return f" ({100 * found.confidence:g} %)" if found else ""


def _cells(model: Evaluated, sign: str, *, with_metric: bool) -> list[str]:
    timed = model.typical_latency
    decision = model.drift.decision if model.drift else None
    cells = [f"{sign} {_safe(model.name)}".strip()]
    share = "" if model.role == "float" else f" ({numbers.percent(model.size.ratio)})"
    cells.append(numbers.size(model.size.disk) + share)
    if with_metric:
        cells += [numbers.metric_value(model.metric), numbers.drop(model.metric)]
    cells.append(numbers.percent(decision.flip_rate, 2) if decision else numbers.ABSENT)
    cells.append(numbers.sqnr(model.worst_output))
    cells.append(numbers.ratio(timed.ratio) if timed else numbers.ABSENT)
    runtime = model.runtime if model.role == "candidate" else None
    cells.append(f"{runtime.integer} of {runtime.products}" if runtime else numbers.ABSENT)
    return cells


def _listed(title: str, lines: list[str]) -> str:
    """Return a list under a title, "" for an empty one."""
    if not lines:
        return ""
    rest = [f"- {len(lines) - _MANY} more in result.json"] if len(lines) > _MANY else []
    return "\n".join([f"**{title}**", "", *lines[:_MANY], *rest])


def _failing(result: Result) -> str:
    lines = [
        f"- {_SIGNS[rule.outcome]} **{_safe(verdict.candidate)}**: {_safe(rule.sentence, _PROSE)}"
        for verdict in result.verdicts
        for rule in verdict.rules
        if rule.outcome != "pass"
    ]
    proofless = [
        f"- {_SIGNS['invalid']} **{_safe(verdict.candidate)}**{' (allowed)' if o.allowed else ''}: "
        f"{_safe(o.sentence, _PROSE)}"
        for verdict in result.verdicts
        for o in verdict.objections
    ]
    blocks = (
        _listed("Why these figures prove nothing", proofless),
        _listed("Rules not kept", lines),
    )
    return "\n\n".join(b for b in blocks if b)


def _advice(result: Result) -> str:
    lines = [
        f"- **{_safe(model.name)}**: {_safe(advice, _PROSE)}"
        for model in result.candidates
        for advice in (model.runtime.advice if model.runtime else ())
    ]
    return _listed("What would help", lines)


def _notes(result: Result) -> str:
    lines = [f"- {_safe(note, _PROSE)}" for note in result.notes]
    lines += [
        f"- **{_safe(m.name)}**: {_safe(w, _PROSE)}" for m in result.models for w in m.warnings
    ]
    lines += [
        f"- **{_safe(m.name)}**: {_safe(m.drift.sentence, _PROSE)}"
        for m in result.candidates
        if m.drift is not None and m.drift.sentence
    ]
    return _listed("Please note", lines)


def _layers(result: Result) -> list[str]:
    return [
        _details(f"Worst layers of {_safe(model.name)}", _layer_table(model))
        for model in result.candidates
        if model.layers is not None and model.layers.layers
    ]


def _layer_table(model: Evaluated) -> str:
    rows = [_row("layer", "operator", "alone", "share", "what would help")]
    rows.append(_row("---", "---", "---:", "---:", "---"))
    for layer in (model.layers.layers if model.layers else ())[:_LAYERS]:
        alone = numbers.decibel(layer.alone_db, "no error")
        share = numbers.percent(layer.share)
        rows.append(
            _row(_code(layer.node), _safe(layer.op_type), alone, share, _safe(layer.fix, _PROSE))
        )
    return "\n".join(rows)


def _details(summary: str, content: str) -> str:
    return f"<details><summary>{summary}</summary>\n\n{content}\n\n</details>"


def _provenance(result: Result) -> str:
    origin, data = result.origin, result.data
    lines = [f"- {_code(origin.command, _COMMAND)}"]
    lines += [
        f"- {_safe(m.name)}: {_code(m.file.path)}, sha256 {_code(m.file.sha256)}"
        for m in result.models
    ]
    lines += [
        f"- data: {data.samples} samples of {_code(data.location)} ({_safe(data.kind)}), {_safe(data.order)}"
    ]
    lines += [f"- fingerprint {_code(data.fingerprint)}"] if data.fingerprint else []
    software = ", ".join(f"{name} {version}" for name, version in origin.software.items())
    lines += [f"- {_safe(software)}, Python {_safe(origin.python)}, {_safe(origin.system)}"]
    lines += [f"- {_safe(origin.cpu)}, {origin.cores} cores, {_safe(origin.created)}"]
    return _details("How to reproduce it", "\n".join(lines))
