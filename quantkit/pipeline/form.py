"""The pipeline of every form of quantization: prepare -> plan -> [write -> check -> repair]* -> commit.

A form (`Form`) says what each step is, such as for static quantization; this module owns the order, the
staging folder, the comparison with float, the record of origin, and the result. Nothing takes its place on disk before all of it holds.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import onnx
import onnx_ir as ir

from quantkit._version import __version__
from quantkit.calibration.calibration import Calibration
from quantkit.calibration.monitor import Monitor, Silent
from quantkit.calibration.origin import calibration_origin, data_origin
from quantkit.errors import UsageError, VerifyError
from quantkit.files import scratch
from quantkit.model.graph.load import LoadedModel
from quantkit.model.graph.save import Stage, staged
from quantkit.model.provenance import ModelOrigin, Provenance, model_digest, write_model
from quantkit.pipeline.apart import compare_apart
from quantkit.pipeline.checks import (
    is_noise,
    noise,
    read_model,
    require_change,
    require_same,
    require_signal,
    require_smaller,
    warnings_of,
)
from quantkit.pipeline.ignored import ignored_requests
from quantkit.pipeline.prepared import (
    NOTHING_SEEN,
    FloatModel,
    Job,
    Output,
    Prepared,
    float_copy,
    with_opset,
)
from quantkit.pipeline.result import Draft, FormResult, PlanDraft, QuantizeResult
from quantkit.quantize.plan import Plan
from quantkit.runtime.check_result import Reference, Verification, run_float
from quantkit.runtime.session import readable_ir_version

# All that a form needs is imported from here.
__all__ = ["Attempt", "Draft", "FloatModel", "Form", "Job", "LoadedModel"]
__all__ += ["Monitor", "Output", "PlanDraft", "Prepared", "Provenance", "QuantizeResult"]
__all__ += [
    "FormResult",
    "Reference",
    "Repair",
    "float_copy",
    "ignored_requests",
    "is_noise",
    "noise",
    "plan_only",
]
__all__ += [
    "realize",
    "require_change",
    "require_signal",
    "require_smaller",
    "run_form",
    "with_opset",
]


P = TypeVar("P", bound=Prepared)
D = TypeVar("D", bound=Draft)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt(Generic[P, D]):
    """A draft that was written into the staging folder.

    Attributes:
        prepared: The float model.
        draft: What was written.
        path: The file in the staging folder.
        model: The quantized model.
        reference: What the float model computes; None: not compared.
        nbytes: Size of the file, external data included.
        checked: What the comparison found; None if it was switched off.
        error: Why the result is not valid, does not load or does not run.
    """

    prepared: P
    draft: D
    path: Path
    model: ir.Model
    reference: Reference | None
    nbytes: int = 0
    checked: Verification | None = None
    error: VerifyError | None = None

    @property
    def feeds(self) -> list[Any]:
        """The inputs that it was compared on."""
        return [] if self.reference is None else [feeds for feeds, _ in self.reference.runs]


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair(Generic[P, D]):
    """A change of a draft whose result misses something.

    Attributes:
        when: Whether to try it, asked of the best attempt so far.
        change: Returns another draft, made from the last attempt; that attempt, if there is only more to report; None: there is
            nothing to change.
        always: Take the result even if it misses more than the one before; such a repair starts from the best attempt.
        errors: It is for results that are not valid or do not run.
    """

    when: Callable[[Attempt[P, D]], bool]
    change: Callable[[Attempt[P, D]], D | Attempt[P, D] | None]
    always: bool = False
    errors: bool = False


class Form(ABC, Generic[P, D]):
    """One way to compress a model: what each step of the pipeline is.

    An instance is for one run.

    Attributes:
        job: What is asked for.
        output: Where the result goes.
        monitor: Told what is done.
        given: A plan to apply, instead of making one.
        files: Temporary folders that live until the result has its place.
        writes: Something will be written: then a plan that changes nothing is refused.
    """

    kind: ClassVar[str]  # in the record of origin
    steps: ClassVar[int] = 0  # that a monitor counts; 0: it only names them
    reports: ClassVar[type[FormResult]] = QuantizeResult
    takes_plan: ClassVar[bool] = False

    def __init__(
        self,
        job: Job[Any],
        output: Output,
        monitor: Monitor | None = None,
        *,
        plan: Plan | None = None,
    ) -> None:
        if plan is not None and not self.takes_plan:
            raise UsageError(f"A plan cannot be applied here: '{self.kind}' makes its own.")
        self.given = plan
        self.job = job
        self.output = output
        self.monitor = monitor or Silent()
        self.files = ExitStack()
        self.writes = True

    # --- what every form says

    @abstractmethod
    def prepare(self, source: LoadedModel) -> P:
        """Make a copy of the float model ready to be planned, and look at the data; the source stays as it is."""

    @abstractmethod
    def plan(self, prepared: P) -> D:
        """Decide what becomes of each node and weight.

        Raises:
            NothingToQuantizeError: Nothing would change.
        """

    @abstractmethod
    def emit(self, prepared: P, draft: D) -> ir.Model:
        """Return a copy of the float model, quantized as a draft says."""

    @abstractmethod
    def record(self, prepared: P, draft: D) -> dict[str, Any]:
        """Return all that decides about the bytes, for the record of origin."""

    # --- what some forms add

    def solve(self, prepared: P, draft: D) -> D:
        """Find the integers of weights, once, before the first draft is written; repairs use them too."""
        return draft

    def origin(self, prepared: P) -> Provenance:
        """Say what came in: the model, and the data or the calibration that decided something."""
        origin = Provenance(kind=self.kind, float=ModelOrigin(**model_digest(prepared.source)))
        seen = prepared.seen
        if seen is NOTHING_SEEN:
            return origin
        inputs = [value.name or "" for value in prepared.source.model.graph.inputs]
        given = isinstance(self.job.data, Calibration)
        calibration = calibration_origin(seen) if given else None
        return replace(origin, data=data_origin(seen, inputs), calibration=calibration)

    def reference(self, prepared: P, draft: D, reference: Reference) -> Reference:
        """Return what a draft's result is compared with."""
        return reference

    def repairs(self, draft: D) -> Sequence[Repair[P, D]]:
        """Return what to try with a result that misses something, in order."""
        return ()

    def faults(self, attempt: Attempt[P, D]) -> float:
        """Return by how much a result misses what is promised; 0: it keeps it."""
        return inf if attempt.error else 0.0

    def check(self, attempt: Attempt[P, D]) -> None:
        """Refuse a result that is noise, or gains nothing.

        Raises:
            QuantkitError: It does; nothing is written.
        """
        require_signal(attempt.checked)
        require_smaller(attempt.prepared.source, attempt.nbytes)

    def inspect(self, attempt: Attempt[P, D]) -> dict[str, Any]:
        """Look at what runs in the result; return the fields that `reports` adds to `FormResult`."""
        return {}

    def warnings(self, attempt: Attempt[P, D], common: list[str]) -> list[str]:
        """Return what the user should know; `common`: what is true of every form."""
        return [*attempt.draft.warnings, *common]

    def notes(self, attempt: Attempt[P, D]) -> list[str]:
        """Return what was done to the model."""
        return [*attempt.prepared.ready.notes, *attempt.draft.notes]

    def place(self, attempt: Attempt[P, D], path: Path) -> None:
        """Put what belongs to the result beside it, before it takes its place; most forms have nothing."""

    def wrote(self, done: int, of: int) -> None:
        """Be told how many weights of how many are written."""


def run_form(form: Form[P, D]) -> Any:
    """Read the model that a form is for, prepare it, write the result, and return what the form `reports`.

    Raises:
        QuantkitError: Says what is wrong and what to do. Nothing is written then.
    """
    started = time.perf_counter()
    if form.steps:
        form.monitor.step(1, form.steps, "Reading the model")
    else:
        form.monitor.stage("Reading the model")
    source = read_model(form.job.source, form.output.path, form.job.data)
    with form.files, source.watched():
        result = realize(form, form.prepare(source))
    return replace(result, seconds=time.perf_counter() - started)


def plan_only(form: Form[P, D]) -> Any:
    """Return the plan of a form, and write nothing."""
    form.writes = False
    source = read_model(form.job.source)
    with form.files, source.watched():
        return form.plan(form.prepare(source)).plan


def realize(form: Form[P, D], prepared: P) -> Any:
    """Plan a prepared model, write it, repair what misses something, and put the result in its place."""
    started, source, output = time.perf_counter(), prepared.source, form.output
    draft = form.solve(prepared, form.plan(prepared))
    with source.watched(), _staged(output.path, source) as stage:
        writer = _Writer(form, prepared, stage)
        found = writer.settle(draft)
        form.check(found)
        inside = form.inspect(found)
        common = warnings_of(found.draft.plan, source, found.nbytes, found.checked)
        warnings, notes = form.warnings(found, common), form.notes(found)
        require_same(source, writer.origin)
        external = stage.data_path is not None
        if output.path is not None:
            form.place(found, output.path)
            external = stage.commit() is not None
    return form.reports(
        plan=found.draft.plan,
        input_bytes=source.nbytes,
        output_bytes=found.nbytes,
        external_data=external,
        verification=found.checked,
        warnings=tuple(warnings),
        notes=tuple(notes),
        seconds=time.perf_counter() - started,
        **inside,
    )


class _Writer(Generic[P, D]):
    """Writes drafts into the staging folder, compares the results with float, and repairs what misses something."""

    def __init__(self, form: Form[P, D], prepared: P, stage: Stage) -> None:
        self.form, self.prepared, self.stage = form, prepared, stage
        stage.wrote = form.wrote
        self.origin = form.origin(prepared)
        self.expected = self._float_outputs() if form.output.verify else None

    def settle(self, draft: D) -> Attempt[P, D]:
        """Write a draft, and others in its place as long as something is missed and a repair is left."""
        last = best = self.write(draft)
        for repair in self.form.repairs(draft):
            if repair.always:
                last = best = self._restored(best, last)
            if not repair.when(best) or (other := repair.change(last)) is None:
                continue
            if isinstance(other, Attempt):
                last = best = other
                continue
            last = self.write(other)
            if repair.always or self.form.faults(last) <= self.form.faults(best):
                best = last
        found = self._restored(best, last)
        if found.error is not None:
            raise found.error
        return found

    def _restored(self, best: Attempt[P, D], last: Attempt[P, D]) -> Attempt[P, D]:
        """Return the best attempt, written again if it is not what the staging folder holds."""
        return best if best is last else self.write(best.draft)

    def write(self, draft: D) -> Attempt[P, D]:
        """Emit a draft, write it, and compare it with float."""
        model = self.form.emit(self.prepared, draft)
        reference = self.expected and self.form.reference(self.prepared, draft, self.expected)
        found = Attempt(
            prepared=self.prepared,
            draft=draft,
            path=self.stage.model_path,
            model=model,
            reference=reference,
        )
        origin = replace(self.origin, options=self.form.record(self.prepared, draft))
        try:
            nbytes, checked = _write_checked(self.stage, model, reference, origin)
        except VerifyError as e:
            if not any(repair.errors for repair in self.form.repairs(draft)):
                raise
            return replace(found, error=e)
        return replace(found, nbytes=nbytes, checked=checked)

    def _float_outputs(self) -> Reference:
        """Run the float model as it was given, on the samples that results are judged on."""
        self.form.monitor.stage("Running the float model")
        prepared = self.prepared
        first = next(iter(prepared.judged), None)
        more = prepared.judged[1:]
        return run_float(prepared.source, first, prepared.input_ranges, more=more, on=prepared.on)


@contextmanager
def _staged(output: Path | None, source: LoadedModel) -> Iterator[Stage]:
    """Make a staging folder: beside the output, or, where nothing is to be written, anywhere."""
    if output is not None:
        with staged(output) as stage:
            yield stage
        return
    with scratch() as folder:
        yield Stage(folder / (source.path.name if source.path else "model.onnx"), folder)


def _write_checked(
    stage: Stage, model: ir.Model, reference: Reference | None, origin: Provenance
) -> tuple[int, Verification | None]:
    """Write a quantized model with its record into the staging folder, and compare it with float.

    Args:
        stage: The staging folder.
        model: The quantized model.
        reference: What the float model computes; None: do not compare.
        origin: What the model was made from.

    Raises:
        VerifyError: It is not valid, does not load, or does not run.
    """
    model.ir_version = readable_ir_version(model.ir_version or 0)
    model.metadata_props["quantkit"] = f"{__version__} {origin.kind}"
    try:
        nbytes = write_model(stage, model, origin, external=origin.options["external_data"])
    except onnx.checker.ValidationError as e:
        reason = str(e).strip().splitlines()[0]
        raise VerifyError(f"The quantized model is not valid ONNX: {reason}") from e
    if reference is None:
        return nbytes, None
    return nbytes, compare_apart(stage.model_path, reference, nbytes=nbytes)
