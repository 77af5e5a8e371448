"""What a terminal shows while a command runs: its stages, or a bar of samples."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from quantkit.cli.console import errors, line, print_notes
from quantkit.errors import UsageError
from quantkit.text import printable

if TYPE_CHECKING:
    from rich.progress import Progress

    from quantkit.api.quantize import Stages
    from quantkit.api.results import Description


# Seconds: of a run without lines about its progress, and between two lines of one stage.
_SHORT, _SILENCE = 3, 15
_WHICH_PRESET = (
    "How are these images prepared? A wrong guess spoils the ranges, so nothing was run. Add --preset imagenet (mean and "
    "std of ImageNet), symmetric (-1..1), unit (0..1) or raw (0..255), or --mean and --std; in quantkit.toml under "
    "[data.image]."
)


@contextmanager
def progress() -> Iterator["Callable[[str], None]"]:
    """Show the stage that is running, with the time it takes; what takes long is also printed where there is no terminal.

    A text may have a part behind a colon that counts: of it a line comes now and then.
    """
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    console = errors()
    live = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    task = live.add_task("Starting", total=None)
    started = last = time.monotonic()
    shown = ""

    def show(text: str) -> None:
        nonlocal last, shown
        live.start()  # not before: what is printed until then stays above it
        live.update(task, description=printable(text))
        now, stage = time.monotonic(), text.partition(":")[0]
        due = now - last >= _SILENCE or (stage != shown and now - started >= _SHORT)
        if due and not console.is_terminal:
            console.print(f"[{now - started:.0f} s] {text}", markup=False, highlight=False)
            last, shown = now, stage

    try:
        yield show
    finally:
        live.stop()


@contextmanager
def stages() -> Iterator["Stages"]:
    """Show the stages of what counts no samples; see `progress`."""
    from quantkit.api.quantize import Stages

    with progress() as show:
        yield Stages(show)


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
        self._progress.update(self._task, description=printable(f"{self._step}{text}"))

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
        if self._calibrates and found.guessed:
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
        errors().print(f"continuing after {samples:,} {self._what} that an earlier run has done")
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
