"""A model of a framework: run, also in more digits, and written as ONNX."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from quantkit.deploy.export.inputs import Inputs
from quantkit.deploy.export.user_code import Line
from quantkit.errors import UsageError

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
    limits: Mapping[str, Limit] = field(default_factory=dict)
    layers: Mapping[str, str] = field(default_factory=dict)
    second: str = ""
    doubt: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework(ABC):
    """A model that can be exported.

    Attributes:
        name: Of the framework.
        version: Of the framework.
        inputs: What the model takes.
        outputs: Names of its outputs.
        weights: SHA-256 of its weights, or of what stands for them.
        nbytes: Of its weights; 0 where that is not known.
        prefix: Of the names of weights in the exported file, which is left out.
        notes: What was done to it, for people.
    """

    name: str
    version: str
    inputs: Inputs
    outputs: tuple[str, ...]
    weights: str
    nbytes: int = 0
    prefix: str = ""
    notes: tuple[str, ...] = ()

    @abstractmethod
    def run(self, feeds: Feeds) -> Outputs:
        """Run the model as it is."""

    def run_wide(self, feeds: Feeds) -> Outputs | None:  # noqa: ARG002 - of those that can
        """Run it in float64; None where its types are fixed."""
        return None

    def inner(self, feeds: Feeds) -> Outputs:  # noqa: ARG002 - of those that have any
        """Run it; return the outputs of its parts by their names; none where parts have no names."""
        return {}

    @abstractmethod
    def export(self, folder: Path, opset: int) -> Exported:
        """Write it as ONNX into a folder."""


def output_names(found: Sequence[str], asked: Sequence[str], inputs: Inputs) -> tuple[str, ...]:
    """Return the names of outputs: those that were asked for, else those found, all different.

    Raises:
        UsageError: There are more or fewer outputs than names, or two have one name.
    """
    given = {spec.name for spec in inputs.specs}
    if asked:
        if len(asked) != len(found):
            raise UsageError(
                f"--output names {len(asked)} outputs, and the model has {len(found)}: {', '.join(found)}."
            )
        twice = next((n for i, n in enumerate(asked) if n in asked[:i] or n in given), None)
        if twice is not None:
            raise UsageError(f"--output '{twice}' is the name of another output or of an input.")
        return tuple(asked)
    names: list[str] = []
    for name in found:
        free = name
        while free in {*given, *names}:
            free += "_output"
        names.append(free)
    return tuple(names)
