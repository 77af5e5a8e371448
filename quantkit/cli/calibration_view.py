"""How a calibration looks in a terminal: ranges and audit."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from quantkit.cli.console import escape, line, marked, output, print_notes, write_json
from quantkit.cli.tables import Column, fitted_table
from quantkit.numbers import human

if TYPE_CHECKING:
    from rich.table import Table

    from quantkit.api.results import Calibration


_ROWS = 12  # tensors in the table, unless all are asked for
_METHODS = {"percentile": "perc.", "entropy": "entr.", "mse": "mse"}  # min-max clips nothing


def present(
    found: "Calibration",
    path: Path,
    *,
    export: Path | None,
    all_tensors: bool,
    as_json: bool,
    said: Collection[str] = (),
) -> None:
    """Print a calibration, and where it was exported to; `said` are warnings that the user has read."""
    if as_json:
        ranges = {t: list(ends) for t, ends in found.ranges().items()}
        method = {"name": found.method.name, **dict(found.method.settings)}
        write_json({"file": str(path), "method": method, "ranges": ranges, **found.header})
        return
    audit = found.header["audit"]
    output().print(_table(found, all_tensors=all_tensors))
    for fact in _facts(found):
        line(fact)
    style = "green" if audit["enough"] is not None else "yellow"
    marked(f"[{style}]audit[/]    {escape(audit['verdict'])}")
    for name, file in (("file", path), ("exported", export)):
        if file is not None:
            line(f"{name:8} {file} ({human(file.stat().st_size)})")
    print_notes(w for w in found.header["warnings"] if w not in said)


def _facts(found: "Calibration") -> Iterator[str]:
    audit = found.header["audit"]
    names = found.header["names"]
    seen = sum(t["seen"] for t in audit["tensors"])
    counted = sum(t["counted"] for t in audit["tensors"])
    if seen:
        share = "" if counted == seen else f", {counted / seen:.0%} of them counted in histograms"
        yield f"observed {audit['samples']} samples, {seen:.3g} values{share}; min and max of all"
    if audit["outliers"]:
        outliers = ((names.get(str(s), s), n) for s, n in audit["outliers"])
        listed = ", ".join(f"{name} ({n} tensor{'s' * (n != 1)})" for name, n in outliers)
        yield f"samples that set the most extremes: {listed}"
    if audit["duplicates"]:
        first = [names.get(str(s), s) for s in audit["duplicates"][0]]
        yield f"copies   {len(audit['duplicates'])} groups of equal samples, the first: {first}"


def _table(found: "Calibration", *, all_tensors: bool) -> "Table":
    audit = found.header["audit"]
    tensors = audit["tensors"]
    rows = tensors if all_tensors else sorted(tensors, key=lambda t: -t["split_half"])[:_ROWS]
    title = f"Ranges of {len(found.tensors)} tensors by {found.method.name}"
    if found.method.name != audit["method"]:
        title += f" (halves by {audit['method']})"
    if len(rows) < len(tensors):
        title += f"; the {len(rows)} least stable (--all for all)"
    ranges = found.ranges()
    ends = [Column(title="tensor"), Column(title="min .. max", drop=1), Column(title="range")]
    if not tensors:  # only spans were taken
        spans = list(ranges.items())[: None if all_tensors else _ROWS]
        return fitted_table(title, ends, [(t, _ends(*e), _ends(*e)) for t, e in spans])
    methods = [name for name in _METHODS if name in tensors[0]["clipped"]]
    clips = [Column(title=f"{_METHODS[name]}\nclips", drop=2) for name in methods]
    cells = [
        (
            row["tensor"],
            _ends(row["low"], row["high"]),
            _ends(*ranges[row["tensor"]]),
            *(_percent(row["clipped"][name]) for name in methods),
            f"{row['split_half']:.1%}",
        )
        for row in rows
    ]
    return fitted_table(title, [*ends, *clips, Column(title="halves\ndiffer")], cells)


def _ends(low: float, high: float) -> str:
    return f"{low:.3g} .. {high:.3g}"


def _percent(share: float) -> str:
    return "-" if not share else f"{share:.2%}"
