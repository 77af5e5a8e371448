"""What a search is asked for, and what every candidate of it shares."""

import json
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from quantkit.calibration.collect import MOST_SAMPLES, CalibrateOptions
from quantkit.evaluate.accuracy import AccuracyOptions
from quantkit.evaluate.latency import Lab
from quantkit.model.graph.load import LoadedModel
from quantkit.model.provenance import model_digest, software
from quantkit.pipeline.measure import SWITCH
from quantkit.pipeline.prepared import Job
from quantkit.pipeline.split import Split
from quantkit.pipeline.tune.choice import Budget
from quantkit.settings import CompressSettings, DataSettings, Recipe, StaticSettings, TuneSettings
from quantkit.settings.record import to_record

_FITTED = 10_000  # samples


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneJob:
    """What is searched for, and where it goes.

    Attributes:
        source: The float model.
        data: Samples: a path, or a Python object with random access.
        output: The folder that is written.
        budget: What must be kept, and how long to search; its class says whether there are steps.
        samples: Which samples, and how they are prepared; the seed is the budget's.
        static: What holds for every candidate.
        accuracy: Metric, pairs, answer, and whether samples that cannot be read are left out.
        scheduler: Address of a dask scheduler whose workers make candidates; None: this process does.
        again: Start anew where another search stands.
        command: How it was asked for.
        recipe: The text of quantkit.toml.
        lab: What time is measured with.
    """

    source: Path
    data: object
    output: Path
    budget: TuneSettings
    samples: DataSettings = field(default_factory=DataSettings)
    static: StaticSettings = field(default_factory=StaticSettings)
    accuracy: AccuracyOptions = field(default_factory=AccuracyOptions)
    scheduler: str | None = None
    again: bool = False
    command: str = ""
    recipe: str = ""
    lab: Lab | None = None

    @property
    def timed(self) -> bool:
        """Whether time is measured while searching: not where it is forbidden, nor where the target is another machine."""
        here = self.static.runs_on.has_qlinear
        asked = self.static.measure
        return here and (os.environ.get(SWITCH) != "0" if asked is None else asked)

    @property
    def seeded(self) -> DataSettings:
        """How samples are prepared, in the order of the budget's seed."""
        return replace(self.samples, seed=self.budget.seed)

    @property
    def limits(self) -> Budget:
        """The budget in units of the metric."""
        given = self.budget
        drop = None if given.max_drop is None else float(given.max_drop)
        return Budget(
            drop=drop,
            latency=given.max_latency,
            size=given.max_size,
            most=given.candidates,
            goal=given.goal if isinstance(given, CompressSettings) else "speed",
        )

    @property
    def has_steps(self) -> bool:
        """Whether the float model may be changed before it is quantized, and weights have fewer bits: `compress`, not `tune`."""
        return isinstance(self.budget, CompressSettings)

    @property
    def most_fitted(self) -> int:
        """How many samples may be fitted to: steps have use for more than ranges."""
        return _FITTED if self.has_steps else MOST_SAMPLES

    def job_for(self, source: Path, options: Any, split: Split) -> Job[Any]:
        """Return what a form is asked for.

        Args:
            source: The model that it is for.
            options: The settings of the form.
            split: Which samples it may use.
        """
        few = isinstance(options, StaticSettings)
        return Job(
            source=source,
            data=self.data,
            options=options,
            calibrate=CalibrateOptions(skip_bad=self.accuracy.skip_bad),
            settings=self._calibrated(split) if few else self._fitted(split),
        )

    def static_job(self, split: Split) -> Job[StaticSettings]:
        """Return the static quantization that every candidate of a plan begins with."""
        return self.job_for(self.source, self.static, split)

    def recipe_of(self, split: Split) -> Recipe:
        """Return the quantkit.toml of every candidate."""
        path = Path(self.data).absolute() if isinstance(self.data, str | Path) else None
        return Recipe(
            model=self.source.absolute(),
            data=replace(self.seeded, path=path),
            calibrated=replace(self._calibrated(split), path=path),
            static=self.static,
        )

    def _calibrated(self, split: Split) -> DataSettings:
        return replace(self._fitted(split), limit=min(MOST_SAMPLES, len(split.calibration)))

    def _fitted(self, split: Split) -> DataSettings:
        return replace(self.seeded, limit=len(split.calibration))

    def identity(self, loaded: LoadedModel, contents: str) -> dict[str, Any]:
        """Return what distinguishes this search from others; not its time limit, nor who works.

        Args:
            loaded: The float model.
            contents: Names the samples and their labels.
        """
        budget = replace(self.budget, minutes=10.0, output=None, candidates=None)
        settings = {
            "budget": to_record(budget),
            "samples": to_record(replace(self.samples, path=None, memory=None)),
            "static": msgspec.to_builtins(self.static, enc_hook=str),
            "accuracy": to_record(replace(self.accuracy, only=None)),
            "timed": self.timed,
        }
        return {
            "model": model_digest(loaded)["sha256"],
            "data": contents,
            "budget or setting": json.loads(json.dumps(settings)),
            "version": dict(software()),
        }
