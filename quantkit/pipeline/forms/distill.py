"""Distillation: the weights of a student are trained on the outputs of its teacher, without labels.

A run that was killed resumes: its weights and losses lie in ``<output>.partial`` until the file is written.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from quantkit._version import __version__
from quantkit.calibration.collect import CalibrateOptions
from quantkit.calibration.opened import opened_for
from quantkit.calibration.origin import samples_origin
from quantkit.data import Samples, order
from quantkit.deploy.export.user_code import need_torch
from quantkit.errors import DataError, UsageError
from quantkit.files import check_outputs
from quantkit.model.graph.save import copy_of
from quantkit.model.provenance import DataOrigin, model_digest, software
from quantkit.pipeline.distilled import DistillPlan, DistillResult, Trained
from quantkit.pipeline.form import (
    Attempt,
    Draft,
    FloatModel,
    Form,
    Job,
    LoadedModel,
    Prepared,
    Provenance,
)
from quantkit.pipeline.partial import partial_folder
from quantkit.runtime.session import load_model
from quantkit.settings import DistillSettings
from quantkit.settings.record import settings_record

if TYPE_CHECKING:
    from pathlib import Path

    from quantkit.reduce.distill.batches import Batches
    from quantkit.reduce.distill.training import Training

_ENOUGH = 40  # samples
_SHARE, _FEWEST, _MOST = 10, 10, 256  # one sample in ten is held out, within these bounds
_NAMED = 4096  # training samples that the record may name
_LARGE_BYTES, _LARGE, _TEXTS, _SMALL = 64 << 10, 16, 24, 128  # of a sample; samples in a step


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared(Prepared):
    """With the student, and the samples.

    Attributes:
        student: The model to train.
        batches: The training samples and the held-out ones.
    """

    student: LoadedModel
    batches: "Batches"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft(Draft):
    """With the training, and how it went.

    Attributes:
        training: Holds the weights.
        options: The settings, with what was chosen where they leave it open.
        trained: How it went; None: it has not run.
    """

    plan: DistillPlan
    training: "Training"
    options: DistillSettings
    trained: Trained | None = None


class DistillForm(Form[_Prepared, _Draft]):
    """Trains a student; the source of the job is the teacher."""

    kind = "distill"
    reports = DistillResult
    job: Job[DistillSettings]

    # --- prepare

    def prepare(self, source: LoadedModel) -> _Prepared:
        """Load the student, open the data, and hold samples out."""
        need_torch("Distilling", "distill")
        student = self._student()
        data = opened_for(source, self.job.data, self.job.settings, CalibrateOptions(most=None))
        samples, chosen = data.require(), self.job.settings
        self.monitor.data_found(samples.description)
        if not isinstance(samples, Samples):
            raise UsageError(
                "Distilling reads samples several times, in any order: give a folder, a file or a sequence, not an iterator."
            )
        mixed = order(len(samples), limit=chosen.limit, shuffle=chosen.shuffle, seed=chosen.seed)
        if len(mixed) < _ENOUGH:
            raise DataError(
                f"Distilling needs at least {_ENOUGH} samples, some of which are held out; '{samples.description.location}' gives {len(mixed)}: add more."
            )
        held_out = max(_FEWEST, min(_MOST, len(mixed) // _SHARE))
        places, unseen = mixed[:-held_out].tolist(), tuple(mixed[-held_out:].tolist())
        data = replace(data, unseen=unseen, settings=replace(data.settings, limit=len(places)))
        judged, _ = data.judged(source)
        return _Prepared(
            job=self.job,
            source=source,
            ready=FloatModel.of(student.model),
            data=data,
            judged=judged,
            on="held-out samples",
            student=student,
            batches=self._batches(samples, places, unseen),
        )

    def _student(self) -> LoadedModel:
        if self.job.student is None:
            raise UsageError("Which student? Distilling takes a teacher and a student.")
        found = load_model(self.job.student)
        found.require_weights()
        check_outputs([self.output.path], found.files)
        return found

    def _batches(self, samples: Samples, places: list[int], held_out: tuple[int, ...]) -> "Batches":
        from quantkit.reduce.distill.batches import Batches

        settings, options = self.job.settings, self.job.options
        first = samples[held_out[0]]
        nbytes = sum(array.nbytes for array in first.feeds.values())
        usual = _LARGE if nbytes > _LARGE_BYTES else _SMALL if first.padding is None else _TEXTS
        found = Batches(
            samples=samples,
            places=places,
            held_out=held_out,
            size=settings.batch or usual,
            seed=settings.seed,
            skip_bad=self.job.calibrate.skip_bad,
            memory=settings.memory_limit,
        )
        found.augment = found.has_images() if options.augment is None else options.augment
        return found

    # --- train

    def plan(self, prepared: _Prepared) -> _Draft:
        """Set up the training: what is compared, and which weights are trained."""
        from quantkit.reduce.distill.lesson import Lesson

        self.monitor.stage("Comparing student and teacher")
        options, precision = self.job.options, self.job.options.precision
        training = Lesson(
            teacher=prepared.source,
            student=prepared.student,
            batches=prepared.batches,
            rate=options.rate,
            embeddings=options.embeddings,
            freeze=options.freeze or "",
            half=None if precision is None else precision == "bfloat16",
            folder=self._folder(prepared),
            tell=self._tell,
            threads=options.threads,
        ).training()
        precision = "bfloat16" if training.half else "float32"
        objective = training.objective
        plan = DistillPlan(
            weights=tuple(w.stored for w in training.weights),
            outputs={name: kind.value for name, kind in objective.outputs.items()},
            inner=tuple(objective.inner),
            measure=objective.measure,
            samples=len(prepared.batches.places),
            held_out=len(prepared.batches.held_out),
            batch=prepared.batches.size,
            precision=precision,
            threads=training.threads,
        )
        used = replace(options, threads=training.threads, precision=precision)
        return _Draft(plan=plan, training=training, options=used)

    def solve(self, prepared: _Prepared, draft: _Draft) -> _Draft:
        """Train."""
        training, measure = draft.training, draft.plan.measure
        self._shown, self._measure = (-1, 0.0), measure
        options = self.job.options
        state = training.run(steps=options.steps or 0, minutes=options.minutes)
        trained = Trained(
            measure=measure,
            curve=tuple(state.curve),
            losses=tuple(state.losses),
            steps=state.steps,
            best_step=state.best_step if state.is_better else 0,
            restarts=state.restarts,
        )
        return replace(draft, trained=trained, options=replace(draft.options, steps=state.steps))

    def _folder(self, prepared: _Prepared) -> "Path":
        """Return the folder for the state of the training; it is found again by all that the weights depend on."""
        assert prepared.data is not None  # noqa: S101 - opened in `prepare`
        samples = prepared.data.require()
        key = {
            "teacher": model_digest(prepared.source)["sha256"],
            "student": model_digest(prepared.student)["sha256"],
            "data": samples.fingerprint() if isinstance(samples, Samples) else "",
            "options": settings_record(self.job.options, self.job.settings),
            "software": software("torch"),
            "quantkit": __version__,
        }
        return self.files.enter_context(partial_folder(self.output.path, key)).folder

    def _tell(self, step: int, steps: int, loss: float) -> None:
        """Move the bar, and name the held-out loss where it is new."""
        before, shown = self._shown
        if step != before + 1:  # begun, resumed or restarted
            self.monitor.start(steps, "steps")
            if step > 1:
                self.monitor.resumed(step - 1)
        if loss != shown:
            self.monitor.name(f"Training, held-out {self._measure} {loss:.4g}")
        self.monitor.tick(1)
        self._shown = step, loss

    # --- write

    def emit(self, prepared: _Prepared, draft: _Draft) -> ir.Model:
        """Return the student with its trained weights."""
        self.monitor.stage("Writing and verifying")
        model = copy_of(prepared.student.model)
        for weight in draft.training.weights:
            for name, array in weight.arrays():
                model.graph.initializers[name].const_value = ir.Tensor(array, name=name)
        return model

    def origin(self, prepared: _Prepared) -> Provenance:
        """Name teacher and data, and the version of torch."""
        found = super().origin(prepared)
        return replace(found, data=self._data_origin(prepared), software=software("torch"))

    def _data_origin(self, prepared: _Prepared) -> DataOrigin:
        assert prepared.data is not None  # noqa: S101 - opened in `prepare`
        samples, chosen, batches = prepared.data.require(), prepared.settings, prepared.batches
        assert isinstance(samples, Samples)  # noqa: S101 - checked in `prepare`
        found = samples_origin(
            samples.description,
            samples.fingerprint(),
            batches.digests([*batches.held_out, *batches.places[:_NAMED]]),
            {"limit": chosen.limit, "shuffle": chosen.shuffle, "seed": chosen.seed},
            "distill",
        )
        return replace(found, samples=len(batches.places))

    def record(self, prepared: _Prepared, draft: _Draft) -> dict[str, Any]:
        """Return the settings as they were used, and the digest of the student."""
        return {
            **settings_record(draft.options, self.job.settings),
            "student": model_digest(prepared.student),
            "verify": self.output.verify,
            "external_data": self.output.external_data,
            "skip_bad": self.job.calibrate.skip_bad,
        }

    # --- report

    def check(self, attempt: Attempt[_Prepared, _Draft]) -> None:
        """Accept any student that runs: one that is far from its teacher was so before, and warnings say so."""

    def inspect(self, attempt: Attempt[_Prepared, _Draft]) -> dict[str, Any]:
        """Return how the training went."""
        return {"trained": attempt.draft.trained}

    def notes(self, attempt: Attempt[_Prepared, _Draft]) -> list[str]:
        """Return by how much the student improved."""
        trained = attempt.draft.trained
        return [f"{trained}."] if trained is not None and trained.improved else []

    def warnings(self, attempt: Attempt[_Prepared, _Draft], common: list[str]) -> list[str]:
        """Return that the student is unchanged where training did not help, and what is true of every form."""
        trained = attempt.draft.trained
        return common if trained is None or trained.improved else [str(trained), *common]
