"""What the proof needs of a framework: run a model, also in more digits, and write it as ONNX."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from quantkit.deploy.export.blame import Line

__all__ = ["Exported", "Feeds", "Framework", "Limit", "Outputs"]

Feeds = Mapping[str, NDArray[Any]]
Outputs = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What tracing found of a dynamic dimension: it holds for these sizes, because of a line of code.

    Attributes:
        least: The least size; 1 if it holds for all.
        most: The greatest; None if there is none.
        line: Where the size is compared with something; None if that is not known.
    """

    least: int = 1
    most: int | None = None
    line: Line | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A model as an exporter wrote it.

    Attributes:
        path: The file, in a folder for what is not finished.
        exporter: What wrote it, for people.
        sizes: Of dynamic dimensions, that it was traced at.
        limits: Of the sizes that it was traced for, by dynamic dimension.
        layers: Parts of the model by name, in the order in which they run, each with the tensor that it gives in the file.
        second: Why it is not the first choice of exporter; "" if it is.
        doubt: What to do if it differs; "": nothing is known.
    """

    path: Path
    exporter: str
    sizes: Mapping[str, int]
    limits: Mapping[str, Limit]
    layers: Mapping[str, str]
    second: str = ""
    doubt: str = ""


class Framework(Protocol):
    """A model that can be exported."""

    @property
    def name(self) -> str:
        """The framework's name."""

    @property
    def version(self) -> str:
        """The framework's version."""

    @property
    def weights(self) -> str:
        """SHA-256 of the model's weights."""

    @property
    def nbytes(self) -> int:
        """Bytes of its weights."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of its outputs."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What was done to it, for people."""

    def run(self, feeds: Feeds) -> Outputs:
        """Run the model as it is."""

    def run_wide(self, feeds: Feeds) -> Outputs | None:
        """Run it in float64, None where that cannot be done."""

    def inner(self, feeds: Feeds) -> Outputs:
        """Run it; return what its parts give, by their names."""

    def export(self, folder: Path, opset: int) -> Exported:
        """Write it as ONNX into a folder."""
