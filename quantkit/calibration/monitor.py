"""What a caller is told while a calibration runs."""

from collections.abc import Callable
from typing import Protocol

from quantkit.data import Description


class Monitor(Protocol):
    """What a caller is told while it runs."""

    def step(self, number: int, of: int, text: str) -> None:
        """Say which of the main steps begins; what follows is part of it.

        Args:
            number: From 1.
            of: How many there are.
            text: What it does.
        """

    def name(self, text: str) -> None:
        """Say what is done when samples, or whatever is counted, move the bar."""

    def stage(self, text: str) -> None:
        """Say what begins."""

    def data_found(self, found: Description) -> None:
        """Say what the data is, before it is run."""

    def chosen(self, used: int | None, of: int | None) -> None:
        """Say how many samples calibrate (None: all), of how many (None: not known)."""

    def start(self, count: int | None, what: str = "samples") -> None:
        """Say how many samples, or of what else, there will be; None if nobody knows."""

    def resumed(self, samples: int) -> None:
        """Say that an earlier, interrupted run has done so many."""

    def tick(self, samples: int) -> None:
        """Say that so many more are done."""


class Silent(Monitor):
    """A monitor that says nothing."""

    def step(self, number: int, of: int, text: str) -> None:
        """Say nothing."""

    def name(self, text: str) -> None:
        """Say nothing."""

    def stage(self, text: str) -> None:
        """Say nothing."""

    def data_found(self, found: Description) -> None:
        """Say nothing."""

    def chosen(self, used: int | None, of: int | None) -> None:
        """Say nothing."""

    def start(self, count: int | None, what: str = "samples") -> None:
        """Say nothing."""

    def resumed(self, samples: int) -> None:
        """Say nothing."""

    def tick(self, samples: int) -> None:
        """Say nothing."""


class Stages(Silent):
    """A monitor that passes on what begins, and nothing else."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show

    def stage(self, text: str) -> None:
        """Pass on what begins."""
        self._show(text)
