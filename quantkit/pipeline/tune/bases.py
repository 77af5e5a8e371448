"""The float models that candidates are quantized from: the one that was given, and what steps make of it.

Each is made once, and stays in the folder of the search; what was observed of it, for static quantization, stays until the search is over.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from quantkit.calibration.monitor import Monitor
from quantkit.errors import QuantkitError
from quantkit.pipeline.form import run_form
from quantkit.pipeline.forms import form_of
from quantkit.pipeline.prepare import prepare_model
from quantkit.pipeline.prepared import Output, Prepared
from quantkit.pipeline.saved import load_prepared, save_prepared
from quantkit.pipeline.split import Split
from quantkit.pipeline.tune.folder import TuneFolder
from quantkit.pipeline.tune.job import TuneJob
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
    _last: dict[tuple[str, ...], Prepared] = field(default_factory=dict)

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
            job = self.job.job_for(source, self.steps[before[-1]], self.split)
            run_form(form_of(job, Output(path=found), self.monitor))
        return found

    def files(self, before: tuple[str, ...]) -> list[Path]:
        """Return the files that the steps of a chain made, in order."""
        return [self.folder.base(before[: n + 1]) for n in range(len(before))]

    def _bring_tokenizer(self) -> None:
        """Let texts find their tokenizer above the models of all steps, as they do beside or above the one that was given."""
        near, target = self.job.source.absolute().parent, self.folder.bases / _TOKENIZER
        for folder in (near, near.parent):
            if not target.exists() and (folder / _TOKENIZER).is_file():
                shutil.copyfile(folder / _TOKENIZER, target)

    def prepared(self, before: tuple[str, ...] = ()) -> Prepared:
        """Return what static quantization of a model begins with, of an earlier run if there is one."""
        if before not in self._last:
            found = self._found(before) or self._new(before)
            self._last = {before: found}  # of one model at a time: moments are large
        return self._last[before]

    def _found(self, before: tuple[str, ...]) -> Prepared | None:
        place = self.folder.prepared(before)
        if not place.exists() or self.job.again:
            return None
        try:
            found = load_prepared(place, self.path(before))
            return replace(found, job=self.job.static_job(self.path(before), self.split))
        except QuantkitError:
            return None  # it is made again

    def _new(self, before: tuple[str, ...]) -> Prepared:
        job = self.job.static_job(self.path(before), self.split)
        # Samples for the empirical correction are kept: some candidates ask for it.
        recover = job.options.recover
        asked = replace(recover, empirical=True) if recover.empirical == "auto" else recover
        asked_job = replace(job, options=replace(job.options, recover=asked))
        prepared = prepare_model(asked_job, self.monitor)
        few = prepared.judged[: len(self.split.choosing)]
        return replace(prepared, job=job, judged=few)

    def save(self, before: tuple[str, ...] = (), *, must: bool = False) -> None:
        """Keep a preparation where workers, or another run, find it; `must`: there is no other way."""
        place = self.folder.prepared(before)
        if place.exists():
            return
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            save_prepared(self.prepared(before), place)
        except QuantkitError:  # no room, or too large: another run prepares it again
            if must:
                raise
