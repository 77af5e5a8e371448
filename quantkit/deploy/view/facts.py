"""What is drawn of a model: boxes with what is known of each. Frozen, plain, in the words that the page shows."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from quantkit.deploy.view.groups import Layout, Scope, Tree
from quantkit.result import Layer

Kind = Literal["int8", "dynamic", "blocks", "stored", "half", "float", "absorbed", "moves", "other"]

KINDS: Mapping[Kind, str] = MappingProxyType(
    {
        "int8": "int8",
        "dynamic": "dynamic int8",
        "blocks": "weights in blocks of few bits",
        "stored": "weights only: fewer bits in the file, float at run time",
        "half": "16-bit float",
        "float": "float",
        "absorbed": "fused into another layer, or folded",
        "moves": "moves data, computes nothing",
        "other": "indices, masks, sequences",
    }
)
"""How a box runs, and what people call it."""

Status = Literal["same", "changed", "removed", "added"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """A node of the file.

    Attributes:
        name: Its name.
        op_type: Its operator.
        fate: What stands for it in the other model; "": nobody asked.
    """

    name: str
    op_type: str
    fate: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """How often values were seen, in bins of equal width from `low` to `high`, as shares of the largest."""

    low: float
    high: float
    bins: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """What a box hands on.

    Attributes:
        name: As the float model calls it.
        dtype: Its type; "": not known.
        shape: Its shape, a dynamic extent by its name; None: not known.
        scale: One step of its integers; None: it is not quantized, or its range is taken at run time.
        zero_point: The integer that stands for 0.
        integers: The type of its integers; "" if it is not quantized.
        low: The smallest value that calibration gives it, or that its integers can stand for.
        high: The largest.
        histogram: What calibration saw.
    """

    name: str
    dtype: str = ""
    shape: tuple[int | str, ...] | None = None
    scale: float | None = None
    zero_point: int | None = None
    integers: str = ""
    low: float | None = None
    high: float | None = None
    histogram: Histogram | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """A constant that a box reads.

    Attributes:
        name: Its name.
        dtype: As it is in the file.
        shape: Its shape.
        nbytes: What it takes in the file; 0 for one that is counted where it is read first.
        low: Its smallest value, if it was looked at.
        high: Its largest.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """How onnxruntime runs a box: in what, by which kernel, why, and what would change it."""

    kind: Kind
    kernel: str = ""
    why: str = ""
    fix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What a plan does to it, and why."""

    kind: Kind
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """One layer, or an input or output of the model.

    Attributes:
        name: The node that it is named after, as the float model has it.
        role: Which of the three it is.
        op_type: Its operator; of inputs and outputs "".
        scope: The names of the scopes around it.
        reads: The boxes whose values it reads.
        operators: Its nodes, in order.
        attributes: Of the node that it is named after, as text.
        makes: What it hands on.
        weights: Constants that it reads.
        runs: How it runs; None: nobody asked onnxruntime.
        planned: What a plan does to it.
        seconds: Of one run; None: not timed.
        layer: Its part of the error at the output; None: not measured.
    """

    name: str
    role: Literal["layer", "input", "output"]
    op_type: str
    scope: Scope
    reads: tuple[int, ...]
    operators: tuple[Operator, ...] = ()
    attributes: tuple[tuple[str, str], ...] = ()
    makes: tuple[Tensor, ...] = ()
    weights: tuple[Weight, ...] = ()
    runs: Runs | None = None
    planned: Planned | None = None
    seconds: float | None = None
    layer: Layer | None = None

    @property
    def nbytes(self) -> int:
        """What its constants take in the file."""
        return sum(weight.nbytes for weight in self.weights)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A model as it is drawn.

    Attributes:
        name: What to call it.
        boxes: Each after those it reads.
        tree: Their groups.
        layouts: Of each group.
        nodes: How many nodes the file has.
        nbytes: What the file takes.
        notes: What is not known, and why.
    """

    name: str
    boxes: tuple[Box, ...]
    tree: Tree
    layouts: tuple[Layout, ...]
    nodes: int
    nbytes: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """What became of a box: the two by their numbers, None where there is none, and what differs."""

    a: int | None
    b: int | None
    status: Status
    changes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One model, or two beside each other with what became of each box."""

    title: str
    drawings: tuple[Drawing, ...]
    pairs: tuple[Pair, ...] = ()
    plan: str = ""
