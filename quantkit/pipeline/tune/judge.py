"""The final check: the frontier of a search is evaluated on samples that chose nothing, and the result is worded."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from quantkit.calibration.monitor import Monitor
from quantkit.errors import QuantkitError
from quantkit.evaluate.accuracy import NamedModel
from quantkit.evaluate.gate import judge, rules_of, with_verdicts
from quantkit.numerics.decibels import decibels
from quantkit.pipeline.evaluate import EvaluateOptions, evaluate
from quantkit.pipeline.split import Split
from quantkit.pipeline.tune.choice import Choice, Figures, best_of, frontier_of, keeps, limits
from quantkit.pipeline.tune.folder import MODEL, Candidate, TuneFolder
from quantkit.pipeline.tune.job import TuneJob
from quantkit.pipeline.tune.make import recipe_for
from quantkit.pipeline.view import write_evaluation
from quantkit.result import Evaluated, Latency, Result, Trial, Tuning, Verdict, load_result
from quantkit.settings import GateSettings, Percent
from quantkit.text import counted

JUDGED = 6  # files of the frontier that are judged
_KEPT = ("pass", "undecided")  # outcomes by which the estimate is within the budget
_LEFT_OUT = frozenset({"memory", "layers", "fidelity"})  # of the last evaluation
_ALL = 1 - 1e-9  # of the decisions: a gate takes less than all of them
_LEAST_DB = 1e-3


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


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalCheck:
    """The candidates of a search that is over, and all that judging them needs.

    Attributes:
        job: What was searched for.
        model: Name of the float model, for messages.
        split: Which samples did what.
        folder: Where everything is.
        candidates: All candidates by what makes them, in order.
        figures: The same as the search sees them.
        stopped: Time ran out before the border of the budget was found.
        left_out: Which steps were not tried, and why.
        monitor: Told what is done.
    """

    job: TuneJob
    model: str
    split: Split
    folder: TuneFolder
    candidates: Mapping[Choice, Candidate]
    figures: Mapping[Choice, Figures]
    stopped: bool
    left_out: tuple[str, ...]
    monitor: Monitor

    def judged(self) -> Tuned:
        """Judge the frontier on samples that chose nothing, write what came of it, and say it."""
        known = self.figures
        best = best_of(known, self.job.limits)
        if best is None:
            raise QuantkitError(self._nothing())
        front = list(dict.fromkeys([*frontier_of(known), best]))
        ranked = self._ranked(front, best)
        few = [one for one in front if ranked.index(one) < JUDGED]
        before, result = self._evaluated([self.candidates[one].name for one in few])
        measure = _Measure.of(result.candidates[0], self.job.budget.max_drop)
        rules = rules_of(self._rules(measure))
        verdicts = judge(result, rules)
        of = dict(zip(few, verdicts, strict=True))
        passing = [c for c in ranked if c in of and self._passes(c, of[c])]
        refuted = 0
        if (
            self.job.has_steps and passing
        ):  # many recipes are tried: the best by chance is not the best
            refuted = ranked.index(passing[0])
            best = passing[0]
            self._put(best)
        chosen, verdict, met = self.candidates[best], of[best], best in passing
        own = result.candidates[few.index(best)]
        sentence = self._sentence(best, measure, verdict)
        if refuted:
            sentence += f" {counted(refuted, 'recipe')} that seemed better exceeded the budget on held-out samples."
        if not met and (other := next((v for v in verdicts if v.outcome in _KEPT), None)):
            sentence += f" Candidate {other.candidate} keeps it by those samples."
        final = {model.name: model.typical_latency for model in result.candidates}
        made = tuple(_with_final_time(one, final.get(one.name)) for one in self.candidates.values())
        tuning = self._tuning(made, chosen.name, measure, sentence, met=met)
        result = with_verdicts(replace(result, tuning=tuning), rules)
        if result != before:
            write_evaluation(result, self.folder.path)
            self.folder.put_judged([self.candidates[one].name for one in few])
        return Tuned(
            folder=self.folder.path,
            candidates=made,
            chosen=chosen.name,
            frontier=tuple(self.candidates[one].name for one in front),
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

    def _ranked(self, front: Sequence[Choice], best: Choice) -> list[Choice]:
        """Return the frontier by the samples that chose: the best, others that keep the budget, the rest."""
        known, budget = self.figures, self.job.limits
        return sorted(
            front, key=lambda c: (c != best, not keeps(known[c], budget), budget.worth(known[c]))
        )

    def _passes(self, choice: Choice, verdict: Verdict) -> bool:
        """Say whether a candidate keeps the budget, by the samples that chose, and no less by those that judge."""
        return keeps(self.figures[choice], self.job.limits) and verdict.outcome in _KEPT

    def _put(self, best: Choice) -> None:
        recipe, path = self.job.recipe_of(self.split), self.folder.path
        text = recipe_for(recipe, best, path) if best.follows_plan else ""
        self.folder.put_best(self.candidates[best], text)

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
        reasons = dict.fromkeys(one.note for one in self.candidates.values() if one.note)
        return f"No candidate could be made of {self.model}: {'; '.join(reasons)}"

    def _evaluated(self, names: Sequence[str]) -> tuple[Result | None, Result]:
        """Return the evaluation of some candidates on the judging samples: what stands there, and that or a new one."""
        if self.folder.judged() == list(names):
            try:
                before = load_result(self.folder.path)
            except QuantkitError:
                pass  # it is made again
            else:
                return before, before
        models = [NamedModel(name="float", path=self.job.source)]
        models += [NamedModel(name=n, path=self.folder.place(n) / MODEL) for n in names]
        options = EvaluateOptions(
            accuracy=replace(self.job.accuracy, only=self.split.judging),
            skip=_LEFT_OUT if self.job.timed else _LEFT_OUT | {"latency"},
            title=f"{self.job.source.name}, {'compressed' if self.job.has_steps else 'tuned'}",
            command=self.job.command,
            recipe=self.job.recipe,
        )
        settings = replace(self.job.seeded, limit=None)
        result = evaluate(models, self.job.data, settings, options, self.monitor)
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
        known, budget = self.figures, self.job.limits
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
            better = "faster" if budget.goal == "speed" else "smaller"
            said = f"No {better} candidate was found, even ignoring accuracy."
        else:
            more, share = found
            what = "run time" if budget.goal == "speed" else "size"
            said = f"Allowing {measure.amount(more)} more would save {share:.0%} of the {what}."
        if self.job.has_steps and self.stopped:
            return (
                f"Time ended the search before all recipes were tried: {said[0].lower()}{said[1:]}"
            )
        return said

    def _unmet(self, measure: "_Measure") -> str:
        """Say which limits no candidate keeps, and what the best there is reaches."""
        known, budget = self.figures, self.job.limits
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
        for one in self.candidates.values():
            if one.note:
                yield f"Candidate {one.name} ({one.choice}) could not be made: {one.note}"
        yield from self.left_out
        if self.stopped:
            yield "Time limit reached; rerun with a larger --minutes to continue."


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
        if model.decision is not None:
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
