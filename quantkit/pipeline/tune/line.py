"""The best plan of a model within a budget: prepared once, made and run as files, chosen on some samples and judged on others.

    load -> split the samples -> prepare -> [what next? -> make -> run -> record] ... -> judge -> write

What is made next is decided by what is recorded (`quantkit.pipeline.tune.search`), so that a search that was killed goes on
where it was, and comes to the same answer.
"""

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import count, islice
from pathlib import Path
from typing import Any

import msgspec

from quantkit.calibration.distributed import cluster, run_each, workers_of
from quantkit.calibration.monitor import Monitor, Silent
from quantkit.errors import QuantkitError, UsageError
from quantkit.evaluate.gate import judge, rules_of, with_verdicts
from quantkit.evaluate.latency import Lab, measure_latency
from quantkit.evaluate.outputs import AccuracyOptions, NamedModel
from quantkit.files import check_folder
from quantkit.model.graph.load import LoadedModel
from quantkit.model.provenance import model_digest, software
from quantkit.numerics.decibels import decibels
from quantkit.pipeline.calibrate import CalibrateOptions
from quantkit.pipeline.evaluate import EvaluateOptions, evaluate
from quantkit.pipeline.evaluation_folder import WRITTEN, write_evaluation
from quantkit.pipeline.measure import SWITCH
from quantkit.pipeline.only_run import only_run
from quantkit.pipeline.pipeline import prepare_model
from quantkit.pipeline.prepare import Prepared
from quantkit.pipeline.record import StaticJob
from quantkit.pipeline.saved import load_prepared, save_prepared
from quantkit.pipeline.tune.family import first_of_family, whole_family
from quantkit.pipeline.tune.folder import MODEL, PLAN, Candidate, Family, TuneFolder
from quantkit.pipeline.tune.samples import Split, divide
from quantkit.pipeline.tune.search import (
    Budget,
    Choice,
    Figures,
    best_of,
    frontier_of,
    keeps,
    limits,
    moves_on,
    next_choices,
)
from quantkit.pipeline.tune.trial import (
    CandidateJob,
    make_candidate,
    make_saved,
    recipe_for,
    write_candidate,
)
from quantkit.result import Evaluated, Latency, Result, Trial, Tuning, Verdict, load_result
from quantkit.runtime.session import load_model
from quantkit.settings import (
    RECIPE_NAME,
    DataSettings,
    GateSettings,
    Percent,
    Recipe,
    StaticSettings,
    TuneSettings,
)
from quantkit.settings.record import to_record

__all__ = ["Candidate", "Split", "TuneJob", "Tuned", "tune"]

_JUDGED = 6  # files of the frontier that are judged
_TIMING = 4.0  # seconds that timing a model takes at the end
_KEPT = ("pass", "undecided")  # outcomes by which the estimate is within the budget
_LEFT_OUT = frozenset({"memory", "layers", "fidelity"})  # of the last evaluation


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneJob:
    """What is searched for, and where it goes.

    Attributes:
        source: The float model.
        data: Samples: a path, or a Python object with random access.
        output: The folder that is written.
        budget: What must be kept, and how long to search.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """What a search found.

    Attributes:
        folder: Where everything was written.
        candidates: All that were made, in order.
        chosen: The name of the best; None where none could be made.
        frontier: Names of those that no other beats in what it loses, its time and its size, the fastest first.
        met: Whether the chosen one keeps the budget, by the samples that chose, and no less by those that judge.
        outcome: Of the judgement: "pass", "undecided", "fail", "invalid".
        result: The evaluation of the frontier on the judging samples; its candidates are called as here.
        split: Which samples did what.
        measure: What is lost, in words: "top-1", "decisions that differ from float's", ...
        sentence: What limits the chosen one, or why the budget cannot be met.
        notes: What a reader should know.
        stopped: Whether time ran out before the border of the budget was found.
        seconds: That making and running candidates took, earlier runs included.
    """

    folder: Path
    candidates: tuple[Candidate, ...]
    chosen: str | None
    frontier: tuple[str, ...]
    met: bool
    outcome: str
    result: Result | None
    split: Split
    measure: str
    sentence: str
    notes: tuple[str, ...] = ()
    stopped: bool = False
    seconds: float = 0.0

    def __str__(self) -> str:
        """Say what counts, in a few lines."""
        met = "meets the budget" if self.met else "does not meet the budget"
        first = f"candidate {self.chosen} {met} ({self.outcome})" if self.chosen else "no candidate"
        made = f"{len(self.candidates)} candidates in {self.seconds / 60:.1f} minutes"
        return "\n".join([f"{first}; {made}", str(self.split), self.sentence])

    def __repr__(self) -> str:
        return f"<Tuned: {len(self.candidates)} candidates, chosen {self.chosen}>"

    @property
    def best(self) -> Candidate | None:
        """The chosen candidate."""
        return next((c for c in self.candidates if c.name == self.chosen), None)


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
    check_folder(job.output, (MODEL, PLAN, RECIPE_NAME, "tune.json", *WRITTEN), read)
    monitor.stage("Looking at the samples")
    divided, contents = divide(loaded, job.data, _samples(job), job.accuracy, monitor)
    folder = TuneFolder(path=job.output, identity=_identity(job, loaded, contents))
    folder.check(again=job.again)
    search = _Search(
        job=job,
        loaded=loaded,
        split=divided,
        folder=folder,
        watch=_Watch(monitor, started + 60 * job.budget.minutes),
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


def _samples(job: TuneJob) -> DataSettings:
    return replace(job.samples, seed=job.budget.seed)


def _identity(job: TuneJob, loaded: LoadedModel, contents: str) -> dict[str, Any]:
    """Return what tells this search from others. How long it may take, and who works, does not."""
    budget = replace(job.budget, minutes=10.0, output=None, candidates=None)
    settings = {
        "budget": to_record(budget),
        "samples": to_record(replace(job.samples, path=None, memory=None)),
        "static": msgspec.to_builtins(job.static, enc_hook=str),
        "accuracy": to_record(replace(job.accuracy, only=None)),
        "timed": job.timed,
    }
    return {
        "model": model_digest(loaded)["sha256"],
        "data": contents,
        "budget or setting": json.loads(json.dumps(settings)),
        "version": dict(software()),
    }


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
    made: dict[Choice, Candidate] = field(default_factory=dict)
    family: Family = field(default_factory=lambda: Family(kept=(), noises=()))
    stopped: bool = False
    _prepared: Prepared | None = None

    def run(self) -> Tuned:
        """Search until the border of the budget is found or time is over, then judge."""
        if self.job.again or not self.job.output.exists():
            self.prepared()  # what is wrong with the data is said before anything is written
        self.folder.begin(again=self.job.again)
        self.made = {c.choice: c for c in self.folder.candidates()}
        self.family = self.folder.family() or self._fastest()
        self._share(must=self.job.scheduler is not None)
        for choice, one in self.made.items():
            if one.path is not None and one.latency is None:  # killed before it was timed
                self.made[choice] = self._timed(one)
        with self._workers() as client:
            while choices := self._next(client):
                if self._is_late():
                    self.stopped = True
                    break
                for made in self._make(choices, client):
                    self.made[made.choice] = self._timed(made)
                    self._put_best()
        return self._judged()

    def prepared(self) -> Prepared:
        """Return the preparation, of an earlier run if there is one."""
        if self._prepared is None:
            self._prepared = self._found_prepared() or self._new_prepared()
        return self._prepared

    def _found_prepared(self) -> Prepared | None:
        if not self.folder.prepared.exists() or self.job.again:
            return None
        try:
            found = load_prepared(self.folder.prepared, self.job.source)
            return replace(found, job=self.static_job)
        except QuantkitError:
            return None  # it is made again

    def _new_prepared(self) -> Prepared:
        self.watch.about = "Preparing"
        job = self.static_job
        # Samples for the empirical correction are kept: some candidates ask for it.
        recover = job.options.recover
        asked = replace(recover, empirical=True) if recover.empirical == "auto" else recover
        prepared = prepare_model(
            replace(job, options=replace(job.options, recover=asked)), self.watch, moments="often"
        )
        self.watch.about = ""
        few = prepared.judged[: len(self.split.choosing)]
        return replace(prepared, job=job, judged=few)

    @property
    def static_job(self) -> StaticJob:
        """What every candidate is asked for."""
        return StaticJob(
            source=self.job.source,
            data=self.job.data,
            options=self.job.static,
            calibrate=CalibrateOptions(skip_bad=self.job.accuracy.skip_bad),
            settings=self._calibrated,
        )

    @property
    def _calibrated(self) -> DataSettings:
        return replace(_samples(self.job), limit=len(self.split.calibration))

    @property
    def recipe(self) -> Recipe:
        """What quantkit.toml of every candidate says."""
        path = Path(self.job.data).absolute() if isinstance(self.job.data, str | Path) else None
        data = replace(_samples(self.job), path=path)
        return Recipe(
            model=self.job.source.absolute(),
            data=data,
            calibrated=replace(self._calibrated, path=path),
            static=self.job.static,
        )

    @property
    def budget(self) -> Budget:
        """What must be kept, in units of what is lost."""
        given = self.job.budget
        drop = None if given.max_drop is None else float(given.max_drop)
        return Budget(
            drop=drop, latency=given.max_latency, size=given.max_size, most=given.candidates
        )

    def _next(self, client: Any) -> tuple[Choice, ...]:
        known = self.figures()
        together = 1 if client is None else max(1, len(workers_of(client)))
        if not self.family.whole and moves_on(known, self.budget):
            self._find_family()
        return next_choices(
            known, self.family.noises, self.budget, together, dynamic=self.family.dynamic
        )

    def _fastest(self) -> Family:
        """Return the family with its first plan alone, and keep it."""
        found = first_of_family(self.prepared())
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
        self.family = whole_family(self.family, self.prepared())
        self.watch.about = ""
        self.folder.put_family(self.family)

    def _is_late(self) -> bool:
        """Say whether another candidate would leave no time to judge, as long as the others took; the first always is made."""
        ran = [one for one in self.made.values() if one.path is not None]
        if not ran:
            return False
        took = sum(one.seconds for one in ran) / len(ran)
        a_sample = sum(one.running for one in ran) / max(1, sum(one.samples for one in ran))
        models = min(_JUDGED, len(ran)) + 1
        # Running counted float and one candidate; of the models that are judged each runs once.
        judging = models * (
            a_sample * len(self.split.judging) / 2 + (_TIMING if self.job.timed else 0)
        )
        return self.watch.left < took + min(judging, 30 * self.job.budget.minutes)

    def _workers(self) -> AbstractContextManager[Any]:
        if self.job.scheduler is None:
            return nullcontext()
        if not isinstance(self.job.data, str | Path):
            raise UsageError("Workers of a cluster read the samples themselves: give their path.")
        return cluster(self.job.scheduler, self.watch.stage)

    def _make(self, choices: Sequence[Choice], client: Any) -> Iterator[Candidate]:
        jobs = [self._candidate_job(choice, number) for number, choice in enumerate(choices)]
        if client is None:
            for one in jobs:
                self.watch.about = f"Candidate {one.name} ({one.choice})"
                yield make_candidate(one, self.prepared(), self.watch)
        else:
            self.watch.stage(f"{len(jobs)} candidates on {self.job.scheduler}")
            # One after the other when all are there: time is measured while nobody works.
            yield from sorted(run_each(client, make_saved, jobs), key=lambda made: made.name)
        self.watch.about = ""

    def _share(self, *, must: bool) -> None:
        """Keep the preparation where workers, or another run, find it; `must`: there is no other way."""
        if self.folder.prepared.exists() or self._is_over():
            return
        self.folder.prepared.parent.mkdir(exist_ok=True)
        try:
            save_prepared(self.prepared(), self.folder.prepared)
        except QuantkitError:  # no room, or too large: another run prepares it again
            if must:
                raise

    def _is_over(self) -> bool:
        """Say whether an earlier run has judged what it found: then nothing needs to be prepared, unless more is made."""
        return self.folder.judged() is not None and bool(self.made)

    def _candidate_job(self, choice: Choice, number: int) -> CandidateJob:
        taken = {one.name for one in self.made.values()}
        free = (name for n in count(1) if (name := f"{n:02}") not in taken)
        return CandidateJob(
            name=next(islice(free, number, None)),
            choice=choice,
            kept=self.family.kept[choice.point] if choice.form == "static" else {},
            predicted=self.family.seconds[choice.point] if choice.form == "static" else None,
            source=self.job.source.absolute(),
            data=self.recipe.data.path or self.job.data,
            samples=_samples(self.job),
            accuracy=replace(self.job.accuracy, only=self.split.choosing),
            limit=self.job.budget.max_drop,
            alpha=1 - self.job.budget.confidence,
            folder=replace(self.folder, path=self.folder.path.absolute()),
            recipe=self.recipe,
        )

    def _timed(self, one: Candidate) -> Candidate:
        """Time a candidate beside float, here and alone, and record it."""
        feeds = self.prepared().judged if self.job.timed and one.path is not None else ()
        if one.path is None or not feeds:
            return one
        self.watch.about, begun = f"Candidate {one.name}", time.monotonic()
        models = [("float", self.job.source), (one.name, one.path)]
        timed = measure_latency(models, feeds, progress=self.watch.stage, lab=self.job.lab)
        self.watch.about = ""
        found = next(iter(timed.latency.get(one.name, ())), None)
        if found is None:
            return one
        took = round(one.seconds + time.monotonic() - begun, 3)
        one = replace(one, latency=found.ratio, latency_interval=found.ratio_interval, seconds=took)
        write_candidate(one, self.folder.place(one.name))
        return one

    def _put_best(self) -> None:
        best = best_of(self.figures(), self.budget)
        if best is not None:
            one = self.made[best]
            self.folder.put_best(one, recipe_for(self.recipe, best, self.folder.path))

    def _judged(self) -> Tuned:
        """Judge the frontier on samples that chose nothing, write what came of it, and say it."""
        known = self.figures()
        best = best_of(known, self.budget)
        if best is None:
            raise QuantkitError(self._nothing())
        front = [self.made[choice] for choice in frontier_of(known)]
        chosen = self.made[best]
        if chosen not in front:
            front.append(chosen)
        few = [one for one in front if one is chosen or front.index(one) < _JUDGED]
        before, result = self._evaluated([one.name for one in few])
        number = next(n for n, m in enumerate(result.candidates) if m.name == chosen.name)
        own = result.candidates[number]
        measure = _Measure.of(own, self.job.budget.max_drop)
        rules = rules_of(self._rules(measure))
        verdicts = judge(result, rules)
        verdict = verdicts[number]
        met = keeps(known[best], self.budget) and verdict.outcome in _KEPT
        sentence = self._sentence(best, measure, verdict)
        if not met and (other := next((v for v in verdicts if v.outcome in _KEPT), None)):
            sentence += f" Candidate {other.candidate} keeps it by those samples."
        final = {model.name: model.typical_latency for model in result.candidates}
        made = tuple(_with_final_time(one, final.get(one.name)) for one in self.made.values())
        tuning = self._tuning(made, chosen.name, measure, sentence, met=met)
        result = with_verdicts(replace(result, tuning=tuning), rules)
        if result != before:
            write_evaluation(result, self.folder.path)
            self.folder.put_judged([one.name for one in few])
        return Tuned(
            folder=self.folder.path,
            candidates=made,
            chosen=chosen.name,
            frontier=tuple(one.name for one in front),
            met=met,
            outcome=verdict.outcome,
            result=result,
            split=self.split,
            measure=measure.words,
            sentence=sentence,
            notes=tuple(self._notes(own, verdict)),
            stopped=self.stopped,
            seconds=tuning.seconds,
        )

    def _tuning(
        self,
        made: Sequence[Candidate],
        chosen: str,
        measure: "_Measure",
        sentence: str,
        *,
        met: bool,
    ) -> Tuning:
        """Return the search as the result holds it."""
        given, parts = self.job.budget, self.split
        return Tuning(
            measure=measure.words,
            is_fraction=bool(measure.unit),
            trials=tuple(map(_trial, made)),
            chosen=chosen,
            met=met,
            sentence=sentence,
            calibration=len(parts.calibration),
            choosing=len(parts.choosing),
            judging=len(parts.judging),
            max_drop=None if given.max_drop is None else float(given.max_drop),
            max_latency=given.max_latency,
            max_size=given.max_size,
            seed=given.seed,
            confidence=given.confidence,
            seconds=round(sum(one.seconds for one in made), 1),
            stopped=self.stopped,
        )

    def _nothing(self) -> str:
        reasons = dict.fromkeys(one.note for one in self.made.values() if one.note)
        return f"No candidate could be made of {self.loaded.name}: {'; '.join(reasons)}"

    def _evaluated(self, names: Sequence[str]) -> tuple[Result | None, Result]:
        """Return the evaluation of some candidates on the judging samples: what stands there, and that or a new one."""
        if self.folder.judged() == list(names):
            try:
                before = load_result(self.folder.path)
            except QuantkitError:
                pass  # it is made again
            else:
                return before, before
        self.watch.about = "Judging"
        models = [NamedModel(name="float", path=self.job.source)]
        models += [NamedModel(name=n, path=self.folder.place(n) / MODEL) for n in names]
        options = EvaluateOptions(
            accuracy=replace(self.job.accuracy, only=self.split.judging),
            skip=_LEFT_OUT if self.job.timed else _LEFT_OUT | {"latency"},
            title=f"{self.job.source.name}, tuned",
            command=self.job.command,
            recipe=self.job.recipe,
        )
        settings = replace(_samples(self.job), limit=None)
        result = evaluate(models, self.job.data, settings, options, self.watch)
        self.watch.about = ""
        return None, replace(result, notes=(f"{self.split}.", *result.notes))

    def _rules(self, measure: "_Measure") -> GateSettings:
        """Return the budget as rules of a gate, by what there is to tell."""
        rules, drop = self.job.budget.rules(GateSettings()), self.job.budget.max_drop
        if drop is None or measure.kind == "metric":
            return rules
        if measure.kind == "flips":
            return replace(rules, max_drop=None, max_flips=min(float(drop), _ALL))
        return replace(rules, max_drop=None, min_sqnr_db=max(-decibels(float(drop)), _LEAST_DB))

    def _sentence(self, best: Choice, measure: "_Measure", verdict: Verdict) -> str:
        """Say what limits the chosen one, or why the budget cannot be met."""
        known, budget = self.figures(), self.budget
        own = known[best]
        if not keeps(own, budget):
            return self._unmet(measure)
        if verdict.outcome == "invalid":
            doubts = "; ".join(o.sentence for o in verdict.objections if not o.allowed)
            return f"The check on held-out samples is invalid: {doubts}."
        if verdict.outcome == "fail":
            broken = "; ".join(r.sentence for r in verdict.rules if r.outcome == "fail")
            return f"The budget is not met on held-out samples: {broken}."
        found = limits(known, best, budget)
        if found is None:
            return "No faster candidate was found, even ignoring accuracy."
        more, share = found
        return f"Allowing {measure.amount(more)} more would save {share:.0%} of the run time."

    def _unmet(self, measure: "_Measure") -> str:
        """Say which limits no candidate keeps, and what the best there is reaches."""
        known, budget = self.figures(), self.budget
        made = [f for f in known.values() if f.verdict != "failed"]
        said = []
        if not any(f.verdict == "in" for f in made) and budget.drop is not None:
            least = min(f.drop for f in made if f.drop is not None)
            said.append(
                f"the least that is lost is {measure.amount(least)}, not {measure.amount(budget.drop)}"
            )
        if budget.latency is not None and not any(f.cost <= budget.latency for f in made):
            said.append(
                f"the fastest takes {min(f.cost for f in made):.2f} of float's time, not {budget.latency:.2f}"
            )
        if budget.size is not None and not any(f.size <= budget.size for f in made):
            said.append(
                f"the smallest has {min(f.size for f in made):.1%} of float's size, not {budget.size:.1%}"
            )
        reason = "; ".join(said) or "each limit is kept by some candidate, and all of them by none"
        if self.stopped:
            return f"The budget was not met in the time there was: {reason}."
        return f"The budget cannot be met: {reason}."

    def _notes(self, own: Evaluated, verdict: Verdict) -> Iterator[str]:
        yield f"{self.split}."
        measure = _Measure.of(own, self.job.budget.max_drop)
        if measure.kind != "metric" and self.job.budget.max_drop is not None:
            yield f"No labels: what counts is {measure.words}, at most {measure.amount(float(self.job.budget.max_drop))}."
        if own.drift is not None and own.drift.sentence:
            yield own.drift.sentence
        for judged in verdict.rules:
            if judged.outcome == "undecided":
                yield f"{judged.rule.key}: {judged.sentence}."
        for one in self.made.values():
            if one.note:
                yield f"Candidate {one.name} ({one.choice}) could not be made: {one.note}"
        if self.stopped:
            yield "Time limit reached; rerun with a larger --minutes to continue."


_ALL = 1 - 1e-9  # of the decisions: a gate takes less than all of them
_LEAST_DB = 1e-3


def _with_final_time(one: Candidate, final: Latency | None) -> Candidate:
    """Return a candidate with the time of the final evaluation, so that it is reported with one time only."""
    if final is None:
        return one
    return replace(one, latency=final.ratio, latency_interval=final.ratio_interval)


def _trial(one: Candidate) -> Trial:
    verdict: Any = one.verdict
    return Trial(
        name=one.name,
        made=str(one.choice),
        verdict=verdict,
        drop=one.drop,
        drop_interval=one.drop_interval,
        size=None if one.path is None else one.size,
        latency=one.latency,
        latency_interval=one.latency_interval,
        samples=one.samples,
        modes=one.modes,
        seconds=one.seconds,
        note=one.note,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measure:
    """What is lost, and how it is said."""

    kind: str
    words: str
    unit: str  # "points", or what it is a share of; "": it is told as it is

    @classmethod
    def of(cls, model: Evaluated, limit: float | None) -> "_Measure":
        """Return what there is to tell of a candidate, as `quantkit.pipeline.tune.trial.lost` does."""
        metric = model.metric
        if metric is not None and isinstance(limit, Percent) and not metric.is_fraction:
            return cls(
                kind="metric",
                words=f"{metric.name} in parts of float's",
                unit=f"of float's {metric.name}",
            )
        if metric is not None:
            unit = "points" if metric.is_fraction else ""
            return cls(kind="metric", words=metric.name, unit=unit)
        if model.drift is not None and model.drift.decision is not None:
            return cls(
                kind="flips", words="decisions that differ from float's", unit="of the decisions"
            )
        words = "noise, as a share of the outputs' power"
        return cls(kind="noise", words=words, unit="of the outputs' power")

    def amount(self, value: float) -> str:
        """Return a figure with its unit."""
        if not self.unit:
            return f"{value:.3g} of {self.words}"
        return (
            f"{100 * value:.2g} points"
            if self.unit == "points"
            else f"{100 * value:.2g} % {self.unit}"
        )
