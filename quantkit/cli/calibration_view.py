"""How a calibration looks in a terminal: the data before the run, progress, ranges and audit after it."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from quantkit.cli.console import (
    Column,
    errors,
    escape,
    fitted_table,
    human,
    line,
    marked,
    output,
    print_notes,
    write_json,
)
from quantkit.errors import UsageError
from quantkit.text import printable

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.table import Table

    from quantkit.calibration import Calibration
    from quantkit.data import Description

__all__ = ["present", "watching"]

_WHICH_PRESET = (
    "How are these images prepared? A wrong guess spoils the ranges, so nothing was run. Add --preset imagenet (mean and "
    "std of ImageNet), symmetric (-1..1), unit (0..1) or raw (0..255), or --mean and --std; in quantkit.toml under "
    "[data.image]."
)
_ROWS = 12  # tensors in the table, unless all are asked for
_METHODS = {"percentile": "perc.", "entropy": "entr.", "mse": "mse"}  # min-max clips nothing


@contextmanager
def watching(
    *, quiet: bool, doing: str = "Observing", calibrates: bool = True
) -> Iterator["Watch"]:
    """Show progress while the block runs, on a terminal.

    Args:
        quiet: Do not print what the data is.
        doing: What moves the bar.
        calibrates: Refuse images whose preprocessing is not known before anything runs on them.
    """
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    console = errors()
    # Without a thread of its own: workers can be forked while it is shown.
    progress = Progress(
        *columns,
        console=console,
        transient=True,
        auto_refresh=False,
        disable=not console.is_terminal,
    )
    try:
        yield Watch(progress, quiet=quiet, doing=doing, calibrates=calibrates)
    finally:
        progress.stop()


class Watch:
    """A `Monitor`. The bar starts with the first samples: what is printed before stays above it."""

    def __init__(self, progress: "Progress", *, quiet: bool, doing: str, calibrates: bool) -> None:
        self._progress = progress
        self._quiet = quiet
        self._calibrates = calibrates
        self._chosen = ""
        self._doing = doing
        self._step = ""
        self._what = "samples"
        self._task = progress.add_task("", total=None, rate="")

    def step(self, number: int, of: int, text: str) -> None:
        """Begin one of the main steps."""
        self._step = f"{number} of {of}  "
        self.name(text)
        self.stage(text)

    def name(self, text: str) -> None:
        """Name what moves the bar."""
        self._doing = text

    def stage(self, text: str) -> None:
        """Name the stage; what it counts, if anything, is not known yet."""
        described = printable(f"{self._step}{text}")
        self._progress.reset(self._task, description=described, total=None, rate="")
        self._progress.refresh()

    def data_found(self, found: "Description") -> None:
        """Print what the data is, before it is run.

        Raises:
            UsageError: Images would calibrate with a preprocessing that is a guess.
        """
        from quantkit.data.preprocessing import UNSET

        if self._calibrates and any(w.startswith(UNSET) for w in found.warnings):
            raise UsageError(_WHICH_PRESET)
        if not self._quiet:
            _print_description(found, self._chosen)
        self._quiet = True  # data that is run twice is described once

    def chosen(self, used: int | None, of: int | None) -> None:
        """Note how many samples calibrate, to be printed with the data."""
        if used is None or (of is not None and used >= of):
            self._chosen = ""
        elif of is None:
            self._chosen = f"calibrating with at most {used:,} samples (--limit changes that)"
        else:
            self._chosen = f"calibrating with {used:,} of {of:,} samples (--limit changes that); {of - used:,} remain to judge with"

    def start(self, count: int | None, what: str = "samples") -> None:
        """Begin a bar of that length; data that is run twice has two."""
        self._what = what
        described = f"{self._step}{self._doing}"
        self._progress.reset(self._task, description=described, total=count, rate="")
        self._progress.start()
        self._progress.refresh()

    def resumed(self, samples: int) -> None:
        """Say where an interrupted run is taken up."""
        errors().print(f"continuing after {samples:,} samples that an earlier run has done")
        self._progress.update(self._task, completed=samples)

    def tick(self, samples: int) -> None:
        """Move the bar."""
        self._progress.start()
        self._progress.update(self._task, advance=samples)
        speed = self._progress.tasks[0].speed
        rate = f"{speed:.1f} {self._what}/s" if speed else ""
        self._progress.update(self._task, rate=rate, refresh=True)


def _print_description(found: "Description", chosen: str) -> None:
    count = "samples" if found.samples is None else f"{found.samples:,} samples"
    if found.division:
        count = f"{count} ({found.division})"
    rows = [("data", f"{found.location}: {found.kind}, {count}, labels: {found.labels}")]
    rows += [("input", line) for line in found.inputs]
    rows += [("prepared", line) for line in found.preprocessing]
    rows += [("used", chosen)] if chosen else []
    for name, text in rows:
        line(f"{name:9} {text}")
    print_notes(found.warnings)


def present(
    found: "Calibration",
    path: Path,
    *,
    export: Path | None,
    all_tensors: bool,
    as_json: bool,
    said: Collection[str] = (),
) -> None:
    """Print a calibration, and export it if asked; `said` are warnings that the user has read."""
    if export is not None:
        from quantkit.calibration import onnxruntime_table
        from quantkit.files import replace_text

        replace_text(export, onnxruntime_table(found))
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
