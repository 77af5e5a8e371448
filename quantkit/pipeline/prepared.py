"""A request, and the float model that was made ready for it with what was observed. Nothing here changes after preparation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from calibrators import Peaks, Sketch
from quantkit.calibration.calibration import Calibration
from quantkit.calibration.collect import DEFAULT, CalibrateOptions
from quantkit.calibration.opened import OpenedData
from quantkit.calibration.requests import Observations, PeaksOf, Request
from quantkit.model.graph.channel_factors import Divisors
from quantkit.model.graph.half import half_type, widen, widened_note
from quantkit.model.graph.load import LoadedModel
from quantkit.model.graph.normalize import fix_defaults
from quantkit.model.graph.opset import opset_of, raise_opset
from quantkit.model.graph.products import Product, products_of
from quantkit.model.graph.save import copy_of
from quantkit.model.graph.view import view_of
from quantkit.model.ops.view import View
from quantkit.quantize.plan import Kept
from quantkit.quantize.plan.measured import Costs
from quantkit.runtime.check_result import MADE_UP
from quantkit.settings import DataSettings

Options = TypeVar("Options")
_FLOAT = 4  # bytes
Feeds = Sequence[Mapping[str, NDArray[Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(Generic[Options]):
    """What to quantize, and how; `Options` is the settings class of the form.

    Attributes:
        source: The float model; for distillation the teacher.
        options: What the user chose.
        data: Samples, or a calibration; None: there are none.
        settings: How samples are prepared.
        calibrate: How samples are read, and ranges estimated.
        kept: Nodes that measuring left in float when the same file was written before; None: nothing was measured yet.
        bits: Likewise, the bits of each weight in the file.
        student: For distillation, the model to train.
        widths: Likewise, what pruning left of groups and blocks.
    """

    source: str | Path | onnx.ModelProto
    options: Options
    data: object = None
    settings: DataSettings = field(default_factory=DataSettings)
    calibrate: CalibrateOptions = field(default_factory=CalibrateOptions)
    kept: Mapping[str, Kept] | None = None
    bits: Mapping[str, int] | None = None
    student: Path | None = None
    widths: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Where a result goes.

    Attributes:
        path: The file to write; None: none, only the result is wanted.
        verify: Load and run the result, and compare it with float, before it is written.
        external_data: Write weights to a ``.data`` file beside the model.
    """

    path: Path | None
    verify: bool = True
    external_data: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatModel:
    """A float model ready to be planned, its description, and what was done to it.

    Attributes:
        model: The graph; nobody changes it.
        view: The same for planners.
        notes: What was done to it.
        name: Of the file, for messages.
        known: Nodes that rules may name: also those that simplifying removed.
        factors_id: Names the factors by which channels were equalized or smoothed; "" if they were not.
        divided: These factors.
        renamed: Of a model in halves: tensors by what they were called.
    """

    model: ir.Model
    view: View
    notes: tuple[str, ...] = ()
    name: str = "model.onnx"
    known: frozenset[str] = frozenset()
    factors_id: str = ""
    divided: tuple[Divisors, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, model: ir.Model, **about: Any) -> "FloatModel":
        """Describe a model as it is now; `about`: the other attributes."""
        view, known = view_of(model), about.get("known", frozenset())
        return cls(model=model, view=replace(view, names=view.names | known), **about)

    @property
    def products(self) -> tuple[Product, ...]:
        """Its Conv, Gemm and MatMul with constant weights."""
        return products_of(self.view)

    @property
    def nbytes(self) -> int:
        """Bytes of its weights in float32."""
        return sum(weight.size for weight in self.view.weights.values()) * _FLOAT

    @property
    def tensors(self) -> dict[str, ir.TensorProtocol]:
        """The contents of its constants."""
        values = ((n, v) for g in self.model.graphs() for n, v in g.initializers.items())
        return {name: v.const_value for name, v in values if v.const_value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """The moments of the inputs of linear operators, in groups that fit into memory.

    The first group is observed together with the ranges. Where its answers are not in memory, the data is run again.

    Attributes:
        groups: What is asked, by group; the answers of one group are in memory at a time.
        held: The answers of the first group, where they stay in memory for every plan.
    """

    groups: tuple[tuple[Request, ...], ...] = ()
    held: Calibration | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """Ranges of activations that were fitted without some of the samples.

    Attributes:
        first: The first of the judged samples that calibrates, too.
        numbers: Scales and zero points by tensor, one mapping per part of these samples; sample n belongs to part n modulo their number.
    """

    first: int
    numbers: tuple[Mapping[str, tuple[float, int]], ...]


NOTHING_SEEN = Calibration(
    seen=Observations(answers={}, extremes={}), method=DEFAULT, header={"warnings": ()}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A float model with all that planning and writing need. A form may add to it in a subclass.

    Attributes:
        job: What was asked for.
        source: The float model as it was read.
        ready: The float model to plan.
        seen: What was observed of it; moments are apart.
        moments: What rounding reads.
        warnings: What the user should know.
        judged: Samples that results are judged on.
        on: What these are.
        samples: Some that it was calibrated with, for empirical bias correction.
        data: The data; None where there is none, or a calibration was given.
        fitted: Ranges of activations of 8 bits with the least expected noise, instead of those of the range method.
        turns: Ranges for judged samples that calibrate as well; None: no sample does both, or nothing was fitted.
        costs: Times of its nodes on this machine, by the types that they were measured with, or why they are unknown.
    """

    job: Job[Any]
    source: LoadedModel
    ready: FloatModel
    seen: Calibration = NOTHING_SEEN
    moments: Moments = field(default_factory=Moments)
    warnings: tuple[str, ...] = ()
    judged: Feeds = ()
    on: str = MADE_UP
    samples: Feeds = ()
    data: OpenedData | None = None
    fitted: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    turns: Turns | None = None
    costs: Mapping[str, Costs | str] = field(default_factory=dict)

    @property
    def settings(self) -> DataSettings:
        """How samples are chosen and ordered, and the limit of the memory."""
        settings: DataSettings = self.job.settings if self.data is None else self.data.settings
        return settings

    def observed(self, tensor: str) -> tuple[Sketch, Peaks] | None:
        """Return the values and the peaks of a tensor; None if they were not observed."""
        if tensor not in self.seen.seen.answers:
            return None
        sketch, peaks = self.seen.sketch(tensor), self.seen.answer(tensor, PeaksOf)
        return (sketch, peaks) if sketch is not None and isinstance(peaks, Peaks) else None

    @property
    def input_ranges(self) -> dict[str, tuple[float, float]]:
        """The observed ranges of the model's inputs: made-up ones must lie within them."""
        names = {value.name or "" for value in self.source.model.graph.inputs}
        found = {name: self.seen.range(name) for name in names & set(self.seen.tensors)}
        return {name: (float(r.low[0]), float(r.high[0])) for name, r in found.items()}


def float_copy(
    source: ir.Model, *, keep_inputs: bool, wide: bool = True
) -> tuple[ir.Model, list[str], dict[str, str]]:
    """Return a copy of a model, notes about it, and its renamed tensors by what they were called.

    Args:
        source: The model; it stays as it is.
        keep_inputs: Inputs with a value in the file stay inputs; else they become constants.
        wide: A model in float16 or bfloat16 computes in float32.
    """
    model, notes, renamed = copy_of(source), list[str](), dict[str, str]()
    if fixed := fix_defaults(model, keep=keep_inputs):
        notes.append(fixed)
    if wide and (half := half_type(model)):
        renamed = widen(model)
        notes.append(widened_note(half))
    return model, notes, renamed


def with_opset(model: ir.Model, minimum: int) -> tuple[ir.Model, list[str]]:
    """Return the model in an opset of at least `minimum`, and a note if that is another one.

    Raises:
        ModelError: It cannot be converted.
    """
    before = opset_of(model)
    model = raise_opset(model, minimum)
    after = opset_of(model)
    return model, [f"Opset raised from {before} to {after}."] if after > before else []
