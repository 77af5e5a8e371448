"""The float models that candidates are quantized from: the one that was given, and what steps make of it.

Each is made once, and stays in the folder of the search; what was observed of the first one stays until the search is over.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from quantkit.calibration.monitor import Monitor
from quantkit.errors import QuantkitError
from quantkit.pipeline.form import run_form
from quantkit.pipeline.forms import form_of
from quantkit.pipeline.prepare import prepare_model
from quantkit.pipeline.prepared import Job, Output, Prepared
from quantkit.pipeline.saved import load_prepared, save_prepared
from quantkit.pipeline.split import Split
from quantkit.pipeline.tune.folder import TuneFolder
from quantkit.pipeline.tune.job import TuneJob
from quantkit.settings import DistillSettings
from quantkit.settings.declare import Settings

_TOKENIZER = "tokenizer.json"


@dataclass(slots=True, kw_only=True)
class Bases:
    """The float models of a search.

    Attributes:
        job: What is searched for.
        split: Which samples did what.
        folder: Where models are kept.
        steps: The settings of each step, by name.
        monitor: Told what is done.
    """

    job: TuneJob
    split: Split
    folder: TuneFolder
    steps: Mapping[str, Settings]
    monitor: Monitor
    _prepared: Prepared | None = None

    def path(self, before: tuple[str, ...]) -> Path:
        """Return the file of a chain of steps; what is not there is made.

        Raises:
            QuantkitError: A step cannot be done, or gains nothing.
        """
        if not before:
            return self.job.source.absolute()
        found = self.folder.base(before)
        if not found.exists():
            source = self.path(before[:-1])
            found.parent.mkdir(parents=True, exist_ok=True)
            self._bring_tokenizer()
            self.monitor.stage(f"Making {' + '.join(before)}")
            job = self.job_for(source, self.steps[before[-1]])
            run_form(form_of(job, Output(path=found), self.monitor))
        return found

    def job_for(self, source: Path, options: Settings) -> Job[Any]:
        """Return what a form is asked for; a model is trained to answer as the float model does."""
        job = self.job.job_for(source, options, self.split)
        if isinstance(options, DistillSettings):
            return replace(job, source=self.job.source, student=source)
        return job

    def files(self, before: tuple[str, ...]) -> list[Path]:
        """Return the files that the steps of a chain made, in order."""
        return [self.folder.base(before[: n + 1]) for n in range(len(before))]

    def _bring_tokenizer(self) -> None:
        """Let texts find their tokenizer above the models of all steps, as they do beside or above the one that was given."""
        near, target = self.job.source.absolute().parent, self.folder.bases / _TOKENIZER
        for folder in (near, near.parent):
            if not target.exists() and (folder / _TOKENIZER).is_file():
                shutil.copyfile(folder / _TOKENIZER, target)

    def prepared(self) -> Prepared:
        """Return what static quantization of the float model begins with, of an earlier run if there is one."""
        if self._prepared is None:
            self._prepared = self._found() or self._new()
        return self._prepared

    def _found(self) -> Prepared | None:
        if not self.folder.prepared.exists() or self.job.again:
            return None
        try:
            found = load_prepared(self.folder.prepared, self.job.source)
            return replace(found, job=self.job.static_job(self.split))
        except QuantkitError:
            return None  # it is made again

    def _new(self) -> Prepared:
        job = self.job.static_job(self.split)
        # Samples for the empirical correction are kept: some candidates ask for it.
        recover = job.options.recover
        asked = replace(recover, empirical=True) if recover.empirical == "auto" else recover
        asked_job = replace(job, options=replace(job.options, recover=asked))
        prepared = prepare_model(asked_job, self.monitor)
        few = prepared.judged[: len(self.split.choosing)]
        return replace(prepared, job=job, judged=few)

    def save(self, *, must: bool) -> None:
        """Keep the preparation where workers, or another run, find it; `must`: there is no other way."""
        if self.folder.prepared.exists():
            return
        self.folder.prepared.parent.mkdir(exist_ok=True)
        try:
            save_prepared(self.prepared(), self.folder.prepared)
        except QuantkitError:  # no room, or too large: another run prepares it again
            if must:
                raise
