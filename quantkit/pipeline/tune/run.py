"""The best plan of a model within a budget: prepared once, made and run as files, chosen on some samples and judged on others.

    load -> split the samples -> prepare -> [what next? -> make -> run -> record] ... -> judge -> write

What is made next is decided by what is recorded (`quantkit.pipeline.tune.search`), so that a search that was killed goes on
where it was, and comes to the same answer.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import count, islice
from pathlib import Path
from typing import Any

from quantkit.calibration.distributed import cluster, run_each, workers_of
from quantkit.calibration.monitor import Monitor, Silent
from quantkit.errors import QuantkitError, UsageError
from quantkit.model.graph.load import LoadedModel
from quantkit.pipeline.partial import only_run
from quantkit.pipeline.prepared import Job
from quantkit.pipeline.split import Split, divide
from quantkit.pipeline.tune.bases import Bases
from quantkit.pipeline.tune.choice import Choice, Figures, best_of
from quantkit.pipeline.tune.family import first_of_family, whole_family
from quantkit.pipeline.tune.folder import Candidate, Family, TuneFolder, check_place
from quantkit.pipeline.tune.job import TuneJob
from quantkit.pipeline.tune.judge import JUDGED, FinalCheck, Tuned
from quantkit.pipeline.tune.make import CandidateJob, job_of, recipe_for, settings_for
from quantkit.pipeline.tune.moves import Step
from quantkit.pipeline.tune.search import moves_on, next_choices
from quantkit.pipeline.tune.steps import steps_for
from quantkit.pipeline.tune.trial import make_candidate, make_saved, timed, write_candidate
from quantkit.runtime.session import load_model

_TIMING = 4.0  # seconds that timing a model takes at the end


def tune(job: TuneJob, monitor: Monitor | None = None) -> Tuned:
    """Search for the fastest file that keeps a budget; see `quantkit.tune`.

    Args:
        job: What is searched for, and where it goes.
        monitor: Told what is done.

    Raises:
        QuantkitError: Model, data or settings cannot be used; nothing is written then.
    """
    if not job.budget.has_budget:
        raise UsageError("Which budget? Add --max-drop 0.5%, --max-latency 0.7 or --max-size 30%.")
    if job.budget.max_latency is not None and not job.timed:
        raise UsageError(
            "--max-latency needs time to be measured, which is switched off, or is for another machine: leave it out."
        )
    if job.static.covers_all:
        raise UsageError(
            "Coverage 'all' leaves nothing to choose: leave it out, or quantize static."
        )
    monitor = monitor or Silent()
    started = time.monotonic()
    monitor.stage("Reading the model")
    loaded = load_model(job.source)
    loaded.require_weights()
    read = [*loaded.files, *([Path(job.data)] if isinstance(job.data, str | Path) else [])]
    if any(path.exists() and job.output.exists() and path.samefile(job.output) for path in read):
        raise UsageError(f"'{job.output}' is what is read: choose another folder to write to.")
    check_place(job.output, read)
    monitor.stage("Looking at the samples")
    divided, contents = divide(
        loaded, job.data, job.seeded, job.accuracy, monitor, most=job.most_fitted
    )
    folder = TuneFolder(path=job.output, identity=job.identity(loaded, contents))
    folder.check(again=job.again)
    watch = _Watch(monitor, started + 60 * job.budget.minutes)
    steps, left_out = steps_for(loaded, job) if job.has_steps else ((), ())
    search = _Search(
        job=job,
        loaded=loaded,
        split=divided,
        folder=folder,
        watch=watch,
        steps=steps,
        left_out=left_out,
        bases=Bases(
            job=job,
            split=divided,
            folder=folder,
            steps={one.name: one.settings for one in steps},
            monitor=watch,
        ),
    )
    was_there = job.output.exists()
    job.output.parent.mkdir(parents=True, exist_ok=True)
    with only_run(job.output):
        try:
            return search.run()
        except QuantkitError:
            if job.output.exists():
                folder.give_up(made=not was_there)
            raise


class _Watch(Silent):
    """Passes on what is done, with the candidate and the time that is left."""

    def __init__(self, monitor: Monitor, until: float) -> None:
        self.monitor = monitor
        self.until = until
        self.about = ""

    @property
    def left(self) -> float:
        """Seconds."""
        return self.until - time.monotonic()

    def stage(self, text: str) -> None:
        """Name the stage."""
        minutes = max(0.0, self.left) / 60
        about = f"{self.about}: " if self.about else ""
        self.monitor.stage(f"{minutes:.0f} min left  {about}{text}")

    def step(self, number: int, of: int, text: str) -> None:  # noqa: ARG002 - a step of something larger here
        """Name a step of making one file."""
        self.monitor.name(f"{self.about}: {text}" if self.about else text)
        self.stage(text)

    def start(self, count: int | None, what: str = "samples") -> None:
        """Begin a bar."""
        self.monitor.start(count, what)

    def tick(self, samples: int) -> None:
        """Move it."""
        self.monitor.tick(samples)


@dataclass(slots=True, kw_only=True)
class _Search:
    """One search, from what stands in its folder to what is written there at last."""

    job: TuneJob
    loaded: LoadedModel
    split: Split
    folder: TuneFolder
    watch: "_Watch"
    bases: Bases
    steps: tuple[Step, ...] = ()
    left_out: tuple[str, ...] = ()
    made: dict[Choice, Candidate] = field(default_factory=dict)
    family: Family = field(default_factory=lambda: Family(kept=(), noises=()))
    stopped: bool = False

    def run(self) -> Tuned:
        """Search until the border of the budget is found or time is over, then judge."""
        if self.job.again or not self.job.output.exists():
            self._prepare()  # what is wrong with the data is said before anything is written
        self.folder.begin(again=self.job.again)
        self.made = {c.choice: c for c in self.folder.candidates()}
        self.family = self.folder.family() or self._fastest()
        if not self._is_over():
            self.bases.save(must=self.job.scheduler is not None)
        for choice, one in self.made.items():
            if one.path is not None and one.latency is None:  # killed before it was timed
                self.made[choice] = self._timed(one)
        with self._workers() as client:
            while choices := self._next(client):
                if self._is_late(choices):
                    self.stopped = True
                    break
                for made in self._make(choices, client):
                    self.made[made.choice] = self._timed(made)
                    self._put_best()
        self.watch.about = "Judging"
        return FinalCheck(
            job=self.job,
            model=self.loaded.name,
            split=self.split,
            folder=self.folder,
            candidates=self.made,
            figures=self.figures(),
            stopped=self.stopped,
            left_out=self.left_out,
            monitor=self.watch,
        ).judged()

    def _prepare(self) -> None:
        self.watch.about = "Preparing"
        self.bases.prepared()
        self.watch.about = ""

    def _next(self, client: Any) -> tuple[Choice, ...]:
        known = self.figures()
        together = 1 if client is None else max(1, len(workers_of(client)))
        if not self.family.whole and moves_on(known, self.job.limits):
            self._find_family()
        budget, steps = self.job.limits, self.steps if self.job.has_steps else None
        return next_choices(
            known, self.family.noises, budget, together, dynamic=self.family.dynamic, steps=steps
        )

    def _fastest(self) -> Family:
        """Return the family with its first plan alone, and keep it."""
        self._prepare()
        found = first_of_family(self.bases.prepared())
        self.folder.put_family(found)
        return found

    def figures(self) -> dict[Choice, Figures]:
        """Return what is decided by: the records, in the order in which they were made."""
        return {choice: self._figures(one) for choice, one in self.made.items()}

    def _figures(self, one: Candidate) -> Figures:
        cost = one.latency if one.latency is not None else one.predicted
        verdict: Any = one.verdict
        return Figures(
            drop=one.drop, verdict=verdict, cost=1.0 if cost is None else cost, size=one.size
        )

    def _find_family(self) -> None:
        """Measure what each rounding does to the outputs, and keep the plans that follow from it and from the costs."""
        self.watch.about = "What each layer loses"
        self.watch.stage("Measuring")
        self.family = whole_family(self.family, self.bases.prepared())
        self.watch.about = ""
        self.folder.put_family(self.family)

    def _is_late(self, choices: Sequence[Choice]) -> bool:
        """Say whether others would leave no time to judge, as long as those before took; the first always is made."""
        ran = [one for one in self.made.values() if one.path is not None]
        if not ran:
            return False
        took = sum(one.seconds for one in ran) / len(ran)
        a_sample = sum(one.running for one in ran) / max(1, sum(one.samples for one in ran))
        models = min(JUDGED, len(ran)) + 1
        # Running counted float and one candidate; of the models that are judged each runs once.
        judging = models * (
            a_sample * len(self.split.judging) / 2 + (_TIMING if self.job.timed else 0)
        )
        took = max(took, *(60 * self._minutes(choice) for choice in choices))
        return self.watch.left < took + min(judging, 30 * self.job.budget.minutes)

    def _minutes(self, choice: Choice) -> float:
        """Return how long the steps of a recipe take that are not there yet."""
        names = {
            self.folder.base(choice.before[: n + 1]): name for n, name in enumerate(choice.before)
        }
        minutes = {step.name: step.minutes for step in self.steps}
        return sum(minutes[name] for file, name in names.items() if not file.exists())

    def _workers(self) -> AbstractContextManager[Any]:
        if self.job.scheduler is None:
            return nullcontext()
        if not isinstance(self.job.data, str | Path):
            raise UsageError("Workers of a cluster read the samples themselves: give their path.")
        return cluster(self.job.scheduler, self.watch.stage)

    def _make(self, choices: Sequence[Choice], client: Any) -> Iterator[Candidate]:
        if client is None:
            for choice in choices:
                yield self._make_here(choice)
        else:
            jobs = [self._candidate_job(choice, number) for number, choice in enumerate(choices)]
            self.watch.stage(f"{len(jobs)} candidates on {self.job.scheduler}")
            # One after the other when all are there: time is measured while nobody works.
            yield from sorted(run_each(client, make_saved, jobs), key=lambda made: made.name)
        self.watch.about = ""

    def _is_over(self) -> bool:
        """Say whether an earlier run has judged what it found: then nothing needs to be prepared, unless more is made."""
        return self.folder.judged() is not None and bool(self.made)

    def _make_here(self, choice: Choice) -> Candidate:
        """Make a candidate in this process, and what it is quantized from; where a step fails, so does the candidate."""
        name, started = self._free_name(0), time.monotonic()
        self.watch.about = f"Candidate {name} ({choice})"
        try:
            self.bases.path(choice.before)
        except QuantkitError as e:
            took = round(time.monotonic() - started, 3)
            one = Candidate(name=name, choice=choice, note=str(e), seconds=took)
            with self.folder.new_candidate(name) as place:
                write_candidate(one, place)
            return one
        made = make_candidate(self._candidate_job(choice, 0), self.bases.prepared, self.watch)
        if choice.before:  # with what its steps took
            made = replace(made, seconds=round(time.monotonic() - started, 3))
            write_candidate(made, self.folder.place(name))
        return made

    def _free_name(self, number: int) -> str:
        taken = {one.name for one in self.made.values()}
        free = (name for n in count(1) if (name := f"{n:02}") not in taken)
        return next(islice(free, number, None))

    def _candidate_job(self, choice: Choice, number: int) -> CandidateJob:
        in_family = choice.form == "static" and choice.follows_plan
        recipe, files = self.job.recipe_of(self.split), self.bases.files(choice.before)
        student = self.made[replace(choice, after=())].path if choice.after else None
        if student is not None:
            files = [*files, student]
        return CandidateJob(
            name=self._free_name(number),
            choice=choice,
            kept=self.family.kept[choice.point] if in_family else {},
            predicted=self.family.seconds[choice.point] if in_family else None,
            source=self.job.source.absolute(),
            files=tuple(files),
            form=None if choice.follows_plan else self._form(choice, student),
            data=recipe.data.path or self.job.data,
            samples=self.job.seeded,
            accuracy=replace(self.job.accuracy, only=self.split.choosing),
            nbytes=self.loaded.nbytes,
            limit=self.job.budget.max_drop,
            alpha=1 - self.job.budget.confidence,
            folder=replace(self.folder, path=self.folder.path.absolute()),
            recipe=recipe,
        )

    def _form(self, choice: Choice, student: Path | None) -> Job[Any]:
        """Return what a form is asked for that makes a candidate by settings."""
        if student is not None:
            return self.bases.job_for(student, self.bases.steps[choice.after[-1]])
        base = self.bases.path(choice.before)
        if choice.form == "static":
            return job_of(self.bases.job_for(base, self.job.static), choice)
        return self.bases.job_for(base, settings_for(choice))

    def _timed(self, one: Candidate) -> Candidate:
        """Time a candidate beside float, here and alone, and record it."""
        if one.path is None or not self.job.timed:
            return one
        self.watch.about, feeds = f"Candidate {one.name}", self.bases.prepared().judged
        found = timed(one, one.path, self.job, feeds, self.folder, self.watch)
        self.watch.about = ""
        return found

    def _put_best(self) -> None:
        best = best_of(self.figures(), self.job.limits)
        if best is not None:
            one = self.made[best]
            recipe = self.job.recipe_of(self.split)
            text = recipe_for(recipe, best, self.folder.path) if best.follows_plan else ""
            self.folder.put_best(one, text)
