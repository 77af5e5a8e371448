"""Markdown for a pull request: short enough for a comment on GitHub, safe with any name."""

import re
from html import escape

from quantkit.evaluate.report import numbers
from quantkit.evaluate.report.plots import judged_drop, lost_text, lost_unit
from quantkit.evaluate.report.verdicts import State, advice_of, headline
from quantkit.result import Evaluated, Result, Trial
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
# What Markdown would read as markup wherever it stands; an underline within a word is a letter.
_MARKUP = re.compile(r"[\\`*\[\]|~]|(?<![^\W_])_|_(?![^\W_])")
_AT_START = re.compile(r"^([-+>#=]|\d+(?=[.)]))")
_TAG = re.compile(r"<(?=[A-Za-z/!?])")
_ENTITY = re.compile(r"&(?=#?\w+;)")
_MENTION = re.compile(r"(?<!\w)@(?=\w)")  # it would call people
_BAR = r"\|"
_JOINER = "\N{WORD JOINER}"


def render_markdown(result: Result) -> str:
    """Return the verdict, one table, what fails, the worst layers, advice, and where it comes from."""
    blocks = [
        _title(result),
        _search(result),
        _table(result),
        _failing(result),
        _advice(result),
        _notes(result),
    ]
    folded = [*_layers(result), _provenance(result)]
    while len("\n\n".join([*blocks, *folded]).encode()) > _MOST and (folded or len(blocks) > 1):
        # the worst layers of the first candidates go first; provenance stays as long as it can
        folded.pop(0) if folded else blocks.pop()
    return "\n\n".join(b for b in (*blocks, *folded) if b) + "\n"


def _line(content: str, most: int) -> str:
    line = printable(" ".join(content.split()))
    return line if len(line) <= most else f"{line[: most // 2]}…{line[-most // 2 :]}"


def _safe(content: str, most: int = _LONG) -> str:
    """Return a text that Markdown, HTML and a table's cell take literally, and that people can read as it is."""
    line = _MARKUP.sub(r"\\\g<0>", _ENTITY.sub("&amp;", _line(content, most)))
    return _MENTION.sub(f"@{_JOINER}", _TAG.sub("&lt;", line))


def _begun(line: str) -> str:
    """Keep what begins a line from beginning a list, a quotation or a heading."""
    return _AT_START.sub(
        lambda sign: f"{sign[0]}{_JOINER}" if sign[0].isdigit() else f"\\{sign[0]}", line
    )


def _prose(sentence: str) -> str:
    """Return a sentence; what stands between backticks in it is code."""
    parts = _line(sentence, _PROSE).split("`")
    if len(parts) % 2 == 0:
        return _safe(sentence, _PROSE)
    return "".join(_code(p, _PROSE) if i % 2 else _kept_spaces(p) for i, p in enumerate(parts))


def _kept_spaces(part: str) -> str:
    """Return a part of a sentence, the spaces around it kept."""
    inner = part.strip()
    if not inner:
        return part
    before, after = part[: len(part) - len(part.lstrip())], part[len(part.rstrip()) :]
    return f"{before}{_safe(inner, _PROSE)}{after}"


def _code(content: str, most: int = _LONG, *, in_table: bool = False) -> str:
    line = _line(content, most)
    if not line:
        return ""
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", line)), default=0))
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    # In a table alone a bar within code is escaped.
    return f"{fence}{pad}{line.replace('|', _BAR) if in_table else line}{pad}{fence}"


def _title(result: Result) -> str:
    found = headline(result)
    return f"## {_SIGNS[found.state]} {found.word.upper()}: {_safe(result.title)}\n\n{_begun(_prose(found.sentence))}"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _table(result: Result) -> str:
    metric = result.float_model.metric
    name = _safe(metric.name) if metric else ""
    heads = ["", "size"]
    heads += (
        [name, f"drop, {_safe(numbers.drop_unit(metric))}{_sureness(result)}"] if metric else []
    )
    quantiles = any(m.worst_percentile for m in result.candidates)  # not in files of older versions
    heads += ["flips", "SQNR", *(["SQNR per sample"] if quantiles else []), "time", "int8"]
    signs = {v.candidate: _SIGNS[v.outcome] for v in result.verdicts}
    rows = [_row(*heads), _row("---", *("---:" for _ in heads[1:]))]
    for model in result.models[: _MANY + 1]:
        sign = signs.get(model.name, "")
        rows.append(_row(*_cells(model, sign, with_metric=metric is not None, quantiles=quantiles)))
    if len(result.models) > _MANY + 1:
        rows.append(_row(f"{len(result.models) - _MANY - 1} more", *("" for _ in heads[1:])))
    return "\n".join(rows)


def _search(result: Result) -> str:
    """Return what a search tried, the frontier first; "" where there was none."""
    tuning = result.tuning
    if tuning is None:
        return ""
    what = lost_unit(result) or _safe(tuning.measure)
    rows = [_row("trial", f"drop, {what}", "final check", "time", "size", "samples", "form")]
    rows.append(_row("---", "---:", "---:", "---:", "---:", "---:", "---"))
    names = [m.name for m in result.candidates]
    for trial in sorted(tuning.trials, key=lambda t: t.name not in names)[:_MANY]:
        name = _safe(trial.name)
        rows.append(
            _row(
                f"**{name}**, chosen" if trial.name == tuning.chosen else name,
                lost_text(trial.drop, tuning),
                _judged(result, trial),
                numbers.ABSENT if trial.latency is None else numbers.ratio(trial.latency),
                numbers.ABSENT if trial.size is None else numbers.percent(trial.size),
                numbers.integer(trial.samples),
                ": ".join(_safe(said, _PROSE) for said in (trial.made, trial.note) if said),
            )
        )
    said = (
        f"{len(tuning.trials)} files, equal to {tuning.evaluations:.1f} runs over the {tuning.choosing:,} selection samples, in "
        f"{numbers.seconds(tuning.seconds)}; {tuning.judging:,} other samples for the final check."
    )
    return "\n".join([f"{_begun(_prose(tuning.sentence))} {said}", "", *rows])


def _judged(result: Result, trial: Trial) -> str:
    found, tuning = judged_drop(result, trial.name), result.tuning
    if found is None or tuning is None:
        return numbers.ABSENT
    value, low, high = (lost_text(end, tuning) for end in found)
    return f"{value} ({low} to {high})"


def _sureness(result: Result) -> str:
    """Return the confidence of the drops' intervals."""
    ends = [m.metric.drop_interval for m in result.candidates if m.metric]
    found = next((end for end in ends if end is not None), None)
    return f" ({100 * found.confidence:g} %)" if found else ""


def _cells(model: Evaluated, sign: str, *, with_metric: bool, quantiles: bool) -> list[str]:
    timed = model.typical_latency
    decision = model.drift.decision if model.drift else None
    cells = [f"{sign} {_safe(model.name)}".strip()]
    share = "" if model.role == "float" else f" ({numbers.percent(model.size.ratio)})"
    cells.append(numbers.size(model.size.disk) + share)
    if with_metric:
        cells += [numbers.metric_value(model.metric), numbers.drop(model.metric)]
    cells.append(numbers.percent(decision.flip_rate, 2) if decision else numbers.ABSENT)
    cells.append(numbers.sqnr(model.worst_output))
    cells += [_per_sample(model)] if quantiles else []
    cells.append(numbers.ratio(timed.ratio) if timed else numbers.ABSENT)
    runtime = model.runtime if model.role == "candidate" else None
    cells.append(f"{runtime.integer} of {runtime.products}" if runtime else numbers.ABSENT)
    return cells


def _per_sample(model: Evaluated) -> str:
    """Return the quantiles of the output that has the lowest 1st percentile, named where there are several."""
    if model.drift is None or model.worst_percentile is None:
        return numbers.ABSENT
    output, found = model.worst_percentile
    of = f"{_safe(output.output)}: " if len(model.drift.outputs) > 1 else ""
    return f"{of}{numbers.per_sample(found)}"


def _titled_list(title: str, lines: list[str]) -> str:
    """Return a list under a title, "" for an empty one."""
    if not lines:
        return ""
    rest = [f"- {len(lines) - _MANY} more in result.json"] if len(lines) > _MANY else []
    return "\n".join([f"**{title}**", "", *lines[:_MANY], *rest])


def _failing(result: Result) -> str:
    proofless = [
        f"- {_SIGNS['invalid']} **{_safe(verdict.candidate)}**{' (allowed)' if o.allowed else ''}: "
        f"{_prose(o.sentence)}"
        for verdict in result.verdicts
        for o in verdict.objections
    ]
    blocks = (
        _titled_list("Why these figures prove nothing", proofless),
        _gate(result),
    )
    return "\n\n".join(b for b in blocks if b)


def _gate(result: Result) -> str:
    """Return every rule of the gate with its outcome, rules that do not pass first; "" without rules."""
    rules = [(verdict, rule) for verdict in result.verdicts for rule in verdict.rules]
    rows = [
        _row(
            f"{_SIGNS[rule.outcome]} {rule.outcome}",
            _safe(verdict.candidate),
            _code(f"{rule.rule.key} = {rule.rule.limit:g}", in_table=True),
            _safe(rule.sentence, _PROSE),
        )
        for verdict, rule in sorted(rules, key=lambda pair: pair[1].outcome == "pass")
    ]
    if not rows:
        return ""
    rest = [_row(f"{len(rows) - _MANY} more", "", "", "")] if len(rows) > _MANY else []
    heads = [_row("gate", "candidate", "rule", "result"), _row("---", "---", "---", "---")]
    return "\n".join([*heads, *rows[:_MANY], *rest])


def _advice(result: Result) -> str:
    lines = [
        f"- {', '.join(f'**{_safe(name)}**' for name in names)}: {_prose(advice)}"
        for advice, names in advice_of(result)
    ]
    return _titled_list("What would help", lines)


def _notes(result: Result) -> str:
    lines = [f"- {_begun(_prose(note))}" for note in result.notes]
    lines += [
        f"- **{_safe(m.name)}**: {_prose(w)}"
        for m in result.models
        for w in (m.slowness, *m.warnings)
        if w
    ]
    lines += [
        f"- **{_safe(m.name)}**: {_prose(m.drift.sentence)}"
        for m in result.candidates
        if m.drift is not None and m.drift.sentence
    ]
    return _titled_list("Please note", lines)


def _layers(result: Result) -> list[str]:
    return [
        _details(f"Worst layers of {_line(model.name, _LONG)}", _layer_table(model))
        for model in result.candidates
        if model.layers is not None and model.layers.layers
    ]


def _layer_table(model: Evaluated) -> str:
    rows = [_row("layer", "operator", "alone", "share", "what would help")]
    rows.append(_row("---", "---", "---:", "---:", "---"))
    for layer in (model.layers.layers if model.layers else ())[:_LAYERS]:
        alone = numbers.decibel(layer.alone_db, "no error")
        share = numbers.percent(layer.share)
        node = _code(layer.node, in_table=True)
        rows.append(_row(node, _safe(layer.op_type), alone, share, _prose(layer.fix)))
    return "\n".join(rows)


def _details(summary: str, content: str) -> str:
    # The title is HTML: there Markdown is not read.
    title = _MENTION.sub(f"@{_JOINER}", escape(summary, quote=False))
    return f"<details><summary>{title}</summary>\n\n{content}\n\n</details>"


def _provenance(result: Result) -> str:
    origin, data = result.origin, result.data
    lines = [f"- {_code(origin.command, _COMMAND)}"]
    lines += [
        f"- {_safe(m.name)}: {_code(m.file.path)}, sha256 {_code(m.file.sha256)}"
        for m in result.models
    ]
    lines += [
        f"- data: {data.samples:,} samples of {_code(data.location)} ({_safe(data.kind)}), {_safe(data.order)}"
    ]
    lines += [f"- fingerprint {_code(data.fingerprint)}"] if data.fingerprint else []
    software = ", ".join(f"{name} {version}" for name, version in origin.software.items())
    lines += [f"- {_safe(software)}, Python {_safe(origin.python)}, {_safe(origin.system)}"]
    lines += [f"- {_safe(origin.cpu)}, {origin.cores} cores, {_safe(origin.created)}"]
    return _details("How to reproduce it", "\n".join(lines))
