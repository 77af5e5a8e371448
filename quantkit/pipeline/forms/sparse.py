"""Zeros in weights, or matrices of low rank: the other forms of fewer weights, from second moments of the float model alone."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from calibrators import PatchMoments
from quantkit.calibration.collect import CalibrateOptions
from quantkit.calibration.opened import opened_for
from quantkit.errors import NothingToPruneError, UsageError
from quantkit.files import scratch
from quantkit.model.graph.products import Product
from quantkit.model.graph.save import copy_of
from quantkit.pipeline.form import (
    Attempt,
    Draft,
    Form,
    FormResult,
    LoadedModel,
    float_copy,
    require_signal,
)
from quantkit.pipeline.measure import file_of
from quantkit.pipeline.prepare import memory_left, observe_again
from quantkit.pipeline.prepared import FloatModel, Job, Prepared
from quantkit.pipeline.static_model import runnable
from quantkit.quantize.rewrite.simplify import simplify
from quantkit.quantize.solve.weights import in_groups, moment_request, moment_requests
from quantkit.reduce.prune.sparse import SparseWeight, Sparsity, sparsified, zipped_bytes
from quantkit.reduce.prune.surroundings import bias_of, is_alone
from quantkit.settings import PruneSettings
from quantkit.settings.record import settings_record
from quantkit.text import human

_INSTEAD = "ask for fewer zeros (--sparsity), or give more samples"
_NO_TIME = (
    "onnxruntime on a CPU gains no time from zeros: they are for runtimes that use them, and for compressed files. For a small "
    "file, `quantkit quantize static --weight-bits 4` loses less."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparsePlan:
    """Which weights get zeros, and what that loses.

    Attributes:
        sparsity: How many.
        weights: Of each weight, what became of it.
        dense: How many weights of linear operators stay as they are.
    """

    sparsity: Sparsity
    weights: tuple[SparseWeight, ...]
    dense: int

    @property
    def changes(self) -> bool:
        """Whether any weight gets zeros."""
        return bool(self.weights)

    def __str__(self) -> str:
        return f"{self.sparsity} in {len(self.weights)} weights; {self.dense} stay dense"

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        rows = [
            {
                "tensor": w.tensor,
                "zeros": round(w.zeros, 4),
                "error": w.error,
                "plain_error": w.plain,
            }
            for w in self.weights
        ]
        return {"sparsity": str(self.sparsity), "weights": rows, "dense": self.dense}


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseDraft(Draft):
    """Weights with zeros, and the biases that keep the means."""

    plan: SparsePlan
    tensors: Mapping[str, NDArray[Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SparseResult(FormResult):
    """A file whose weights have zeros.

    Attributes:
        zipped: Its bytes in a zip archive (deflate); None: it is in several files.
        zipped_float: The same of the float model.
    """

    plan: SparsePlan
    zipped: int | None = None
    zipped_float: int | None = None

    def _runs(self) -> list[str]:
        return self.measured[1:-1]

    @property
    def measured(self) -> list[str]:
        """What was measured, line by line."""
        if self.zipped is None:
            return [str(self.plan), self._checked()]
        of = f" (float's: {human(self.zipped_float)})" if self.zipped_float else ""
        plain = f"plain: {human(self.output_bytes)}"
        return [str(self.plan), f"zipped: {human(self.zipped)}{of}; {plain}", self._checked()]

    def _inside(self) -> dict[str, Any]:
        inside = super(SparseResult, self)._inside()
        return {**inside, "zipped": self.zipped, "zipped_float": self.zipped_float}


_Attempt = Attempt[Prepared, SparseDraft]
D = TypeVar("D", bound=Draft)


class ObservedForm(Form[Prepared, D]):
    """A form that rewrites linear operators by the moments of what they consume."""

    kind = "prune"
    job: Job[PruneSettings]

    def prepare(self, source: LoadedModel) -> Prepared:
        """Make a copy ready, and observe what linear operators consume."""
        if self.job.data is None:
            raise UsageError(
                "Pruning needs samples: add --data DIR (images, texts or arrays; no labels needed)."
            )
        self.monitor.stage("Simplifying")
        model, notes, _ = float_copy(source.model, keep_inputs=False)
        simplify(model)
        ready = FloatModel.of(model, notes=tuple(notes))
        # Sums over samples that several processes add up differ in their last digits from run to run, and so would the file.
        job = replace(self.job, calibrate=replace(self.job.calibrate, workers=1))
        data = opened_for(source, job.data, job.settings, CalibrateOptions())
        judged, on = data.judged(source)
        found = Prepared(job=job, source=source, ready=ready, judged=judged, on=on, data=data)
        room = memory_left(ready, data.settings)
        groups = in_groups(moment_requests(self.products(found)), room)
        self.monitor.stage("Observing what linear operators consume")
        with runnable(ready) as written:
            seen = observe_again(found, written, groups[0] if groups else (), self.monitor)
        return replace(found, seen=seen)

    def products(self, prepared: Prepared) -> list[Product]:
        """Return the linear operators that may be rewritten: each has its weight alone."""
        view, patterns = prepared.ready.view, self.job.options.exclude
        return [
            p
            for p in prepared.ready.products
            if is_alone(view, p)
            and not p.inside
            and not any(fnmatchcase(p.node, pattern) for pattern in patterns)
        ]

    def record(self, prepared: Prepared, draft: D) -> dict[str, Any]:
        """Return the options."""
        return {
            **settings_record(self.job.options, self.job.settings),
            "verify": self.output.verify,
            "external_data": self.output.external_data,
            "skip_bad": self.job.calibrate.skip_bad,
        }

    def warnings(self, attempt: Attempt[Prepared, D], common: list[str]) -> list[str]:
        """Return what the user should know: doubts about noise are for files that keep all weights."""
        unverified = "Not verified: the result was neither loaded nor compared with float."
        return [*attempt.draft.warnings, *([unverified] if attempt.checked is None else [])]


class SparseForm(ObservedForm[SparseDraft]):
    """Sets weights to zero, a share of each row or n of every m neighbours, and lets the others make up for them."""

    reports: ClassVar[type[FormResult]] = SparseResult

    def plan(self, prepared: Prepared) -> SparseDraft:
        """Find zeros, and the weights that make up for them."""
        self.monitor.stage("Setting weights to zero")
        view, sparsity = prepared.ready.view, _sparsity(self.job.options)
        found, report = sparsified(
            self.products(prepared),
            lambda product: bias_of(view, product),
            _Arrays(prepared.ready.tensors),
            moments_of(prepared),
            sparsity,
        )
        dense = len({p.weight for p in prepared.ready.products}) - len(report)
        plan = SparsePlan(sparsity=sparsity, weights=tuple(report), dense=dense)
        if self.writes and not plan.changes:
            raise NothingToPruneError(
                f"No weight takes {plan.sparsity}: each has fewer than 32 inputs, channels that are no whole groups, or was not observed."
            )
        return SparseDraft(plan=plan, tensors=found)

    def emit(self, prepared: Prepared, draft: SparseDraft) -> ir.Model:
        """Return a copy with these weights."""
        self.monitor.stage("Writing and verifying")
        model = copy_of(prepared.ready.model)
        for name, value in model.graph.initializers.items():
            if name in draft.tensors:
                value.const_value = ir.Tensor(draft.tensors[name], name=name)
        return model

    def check(self, attempt: _Attempt) -> None:
        """Refuse noise; the file is as large as float's."""
        require_signal(attempt.checked, _INSTEAD)

    def inspect(self, attempt: _Attempt) -> dict[str, Any]:
        """Compress the file as a zip archive would."""
        with scratch() as folder:
            source = attempt.prepared.source
            pairs = ((attempt.path, attempt.nbytes), (file_of(source, folder), source.nbytes))
            zipped, before = (_zipped(path, nbytes) for path, nbytes in pairs)
        return {"zipped": zipped, "zipped_float": before}

    def notes(self, attempt: _Attempt) -> list[str]:
        """Return what was done, and what gains from it."""
        return [*super().notes(attempt), _NO_TIME]


def _sparsity(options: PruneSettings) -> Sparsity:
    if options.pattern is None:
        assert options.sparsity is not None  # noqa: S101 - one of the two is given
        return Sparsity(share=options.sparsity)
    dense, group = map(int, options.pattern.split(":"))
    return Sparsity(share=1 - dense / group, group=group)


def _zipped(path: Path, nbytes: int) -> int | None:
    """Return the zipped size of a model; None if it is in more files than this."""
    return zipped_bytes(path) if path.stat().st_size == nbytes else None


@dataclass(frozen=True, slots=True)
class _Arrays(Mapping[str, NDArray[Any]]):
    """The contents of constants, read when they are asked for."""

    tensors: Mapping[str, ir.TensorProtocol]

    def __getitem__(self, name: str) -> NDArray[Any]:
        return np.asarray(self.tensors[name].numpy())

    def __iter__(self) -> Any:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)


def moments_of(prepared: Prepared) -> Callable[[Product], PatchMoments | None]:
    """Return a function that returns what was observed of the input of an operator."""

    def found(product: Product) -> PatchMoments | None:
        own = prepared.seen.seen.answers.get(product.reads, {})
        seen = own.get(moment_request(product).statistic)
        return seen if isinstance(seen, PatchMoments) else None

    return found
