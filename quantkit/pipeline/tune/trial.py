"""One candidate of a search: its file made of a prepared model, and run beside float until it is clear whether it loses too much.

A form makes a plan of a prepared model (`_FORMS`); everything else is the same for all of them, so that another one (weights of
fewer bits, float16, pruned) is a function more.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from quantkit.calibration.monitor import Monitor, Silent
from quantkit.calibration.requests import CalibratorOf
from quantkit.errors import DataError, QuantkitError, UsageError
from quantkit.evaluate.accuracy import AccuracyOptions, MeasuredOutputs, NamedModel, measure_outputs
from quantkit.evaluate.accuracy.measuring import Measuring
from quantkit.evaluate.accuracy.scorer import Mean
from quantkit.files import replace_text
from quantkit.numerics.sequential import decide
from quantkit.pipeline.forms.static import realize_prepared
from quantkit.pipeline.plan_prepared import format_of, plan_of
from quantkit.pipeline.prepared import Job, Prepared
from quantkit.pipeline.saved import load_prepared
from quantkit.pipeline.tune.folder import CANDIDATE, MODEL, PLAN, Candidate, TuneFolder, digest_of
from quantkit.pipeline.tune.search import Choice
from quantkit.quantize.plan import Format, Plan, plan_dynamic, write_plan
from quantkit.quantize.plan.model import Kept
from quantkit.result import Interval, Metric
from quantkit.settings import (
    RECIPE_NAME,
    DataSettings,
    DynamicSettings,
    Percent,
    Recipe,
    RecoverSettings,
    StaticSettings,
    recipe_text,
)
from quantkit.targets import DEFAULT

_THOROUGH = {"empirical": True, "adaptive": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateJob:
    """What is to be made and run; paths, no models, so that it can be sent.

    Attributes:
        name: Of the candidate.
        choice: What makes it.
        kept: What stays out of calibrated integers.
        predicted: Its time as a multiple of float's, by the costs of its nodes; None: not known.
        source: The float model.
        data: The samples.
        samples: How they are prepared.
        accuracy: What is measured, on which of them.
        limit: How much may be lost; None: there is no such limit.
        alpha: The chance of a wrong answer before all samples are seen.
        folder: Where it is recorded.
        recipe: What quantkit.toml says of all candidates.
    """

    name: str
    choice: Choice
    kept: Mapping[str, Kept] = field(default_factory=dict)
    predicted: float | None = None
    source: Path
    data: object
    samples: DataSettings
    accuracy: AccuracyOptions
    limit: float | None
    alpha: float
    folder: TuneFolder
    recipe: Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """How much a candidate loses against float, by what there is to tell.

    Attributes:
        drop: How much.
        interval: Of it; None: not known.
        limit: How much may be, in the same units; None: there is no limit.
    """

    drop: float
    interval: Interval | None
    limit: float | None


def make_saved(job: CandidateJob) -> Candidate:
    """Make and run a candidate of a preparation that was saved: what workers do."""
    return make_candidate(job, load_prepared(job.folder.prepared, job.source))


def make_candidate(
    job: CandidateJob, prepared: Prepared, monitor: Monitor | None = None
) -> Candidate:
    """Make a candidate, run it, and record it; one that cannot be made is recorded with the reason.

    Args:
        job: What is to be made.
        prepared: Of the float model; it stays as it is.
        monitor: Told what is done.

    Raises:
        QuantkitError: The samples cannot be run or compared: no candidate could be.
    """
    started, monitor = time.monotonic(), monitor or Silent()
    with job.folder.new_candidate(job.name) as place:
        try:
            made = _made(job, prepared, place, monitor)
        except DataError:
            raise
        except QuantkitError as e:
            made = Candidate(name=job.name, choice=job.choice, note=str(e))
        if made.path is not None:
            begun = time.monotonic()
            found = _run(job, made.path, monitor)
            made = replace(
                made,
                drop=found.lost.drop,
                drop_interval=found.lost.interval,
                samples=found.samples,
                verdict=found.verdict,
                sqnr_db=found.sqnr_db,
                running=round(time.monotonic() - begun, 3),
                path=Path(MODEL),
            )
        made = replace(made, seconds=round(time.monotonic() - started, 3))
        write_candidate(made, place)
    return made if made.path is None else replace(made, path=job.folder.place(made.name) / MODEL)


def write_candidate(candidate: Candidate, place: Path) -> None:
    """Write what is known of a candidate into its folder."""
    plain = msgspec.to_builtins(candidate, enc_hook=str)
    if candidate.path is not None:
        plain["path"] = MODEL
    replace_text(place / CANDIDATE, json.dumps(plain, indent=1) + "\n")


def _made(job: CandidateJob, prepared: Prepared, place: Path, monitor: Monitor) -> Candidate:
    """Plan, make and verify the file, and write beside it what makes it again."""
    chosen = _choosing(prepared, job.choice)
    plan = plan_for(chosen, job.choice, job.kept)
    path = place / MODEL
    result = realize_prepared(chosen, plan, path, from_file=True, monitor=monitor)
    write_plan(plan, place / PLAN)
    home = job.folder.place(job.name)
    replace_text(place / RECIPE_NAME, recipe_for(job.recipe, job.choice, home))
    modes = Counter(node.mode.value for node in plan.nodes)
    return Candidate(
        name=job.name,
        choice=job.choice,
        path=path,
        sha256=digest_of(path),
        modes=dict(sorted(modes.items())),
        size=result.output_bytes / result.input_bytes,
        predicted=job.predicted,
    )


def _choosing(prepared: Prepared, choice: Choice) -> Prepared:
    """Return the preparation with what a candidate chooses; everything that was observed serves all of them."""
    job = job_of(prepared.job, choice)
    method = job.calibrate.method
    seen = prepared.seen if method == prepared.seen.method else prepared.seen.by(method)
    return replace(prepared, job=job, seen=seen)


def job_of(job: Job[StaticSettings], choice: Choice) -> Job[StaticSettings]:
    """Return what `quantize_static` would be asked for to make a candidate; `job`: without its choices."""
    options, calibrate = job.options, job.calibrate
    recover = _recovery(options.recover, choice)
    if choice.method:
        options = replace(options, method=choice.method)
        calibrate = replace(calibrate, method=CalibratorOf(name=choice.method))
    return replace(job, options=replace(options, recover=recover), calibrate=calibrate)


def _recovery(recover: RecoverSettings, choice: Choice) -> RecoverSettings:
    if choice.recovery == "usual":
        return recover
    auto = {k: v for k, v in _THOROUGH.items() if getattr(recover, k) == "auto"}
    return replace(recover, **auto)


def recipe_for(recipe: Recipe, choice: Choice, folder: Path) -> str:
    """Return quantkit.toml that makes a candidate again, for a folder that holds its plan."""
    static = replace(recipe.static, recover=_recovery(recipe.static.recover, choice))
    if choice.method:
        static = replace(static, method=choice.method)
    text = recipe_text(replace(recipe, static=static), folder)
    model = next(iter(text.splitlines()), "").removeprefix("model = ").strip('"')
    how = f"quantkit quantize static {model} again.onnx --plan {PLAN}"
    return f"# In this folder `{how}` makes the bytes of {MODEL} again.\n{text}"


def plan_for(prepared: Prepared, choice: Choice, kept: Mapping[str, Kept]) -> Plan:
    """Return the plan of a candidate.

    Args:
        prepared: The model, with the choices of the candidate.
        choice: Names the form.
        kept: What stays out of calibrated integers, of the form that has them.
    """
    output_format = format_of(prepared.job.options)
    plan = _FORMS[choice.form](prepared, output_format, kept)
    return replace(
        plan,
        target=prepared.job.options.runs_on.name,
        output_format=output_format,
        factors_id=prepared.ready.factors_id,
    )


def _static_form(prepared: Prepared, output_format: Format, kept: Mapping[str, Kept]) -> Plan:
    return plan_of(prepared, output_format, kept)


def _weights_form(integer: bool) -> "Form":  # noqa: FBT001 - of two forms
    def plan(prepared: Prepared, _: Format, __: Mapping[str, Kept]) -> Plan:
        options = prepared.job.options
        # uint8 loses least; what runs elsewhere takes the types of its target alone.
        own = options.runs_on.name != DEFAULT.name or options.weight_type is not None
        settings = DynamicSettings(
            weight_type="int8" if own and options.weight.name == "int8" else "uint8",
            per_channel=options.channelwise and options.runs_on.per_channel,
            integer=integer,
            exclude=options.excluded,
            pair_safe=options.runs_on.saturates,
        )
        return plan_dynamic(prepared.ready.view, settings)

    return plan


Form = Callable[[Prepared, Format, Mapping[str, Kept]], Plan]
_FORMS: Mapping[str, Form] = {
    "static": _static_form,
    "dynamic": _weights_form(integer=True),
    "stored": _weights_form(integer=False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ran:
    """What came of running a candidate on the choosing samples."""

    lost: Lost
    samples: int
    verdict: str
    sqnr_db: float | None


def _run(job: CandidateJob, path: Path, monitor: Monitor) -> _Ran:
    """Run float and a candidate until it is clear whether it loses too much, at most on all choosing samples."""
    models = (
        NamedModel(name="float", path=job.source),
        NamedModel(name=job.name, path=path),
    )
    clear: list[str] = []

    def enough(measuring: Measuring) -> bool:
        verdict = _verdict_so_far(job, measuring)
        clear[:] = [verdict]
        return verdict != "open"

    samples = replace(job.samples, limit=None)
    answered = measure_outputs(models, job.data, samples, job.accuracy, monitor, enough)
    found = lost(answered, job.name, job.limit)
    verdict = clear[-1] if clear and clear[-1] != "open" else _within(found)
    drift = answered.drift[job.name]
    worst = min((output.db for output in drift.outputs), default=inf)
    sqnr = None if worst in {inf, -inf} else worst
    return _Ran(lost=found, samples=answered.data.samples, verdict=verdict, sqnr_db=sqnr)


def _within(found: Lost) -> str:
    # A drop of 0.912 - 0.902 is more than 0.01 in binary.
    return "in" if found.limit is None or found.drop <= found.limit + 1e-9 else "out"


def _verdict_so_far(job: CandidateJob, measuring: Measuring) -> str:
    """Return "in" or "out" as soon as the samples so far leave no doubt, at most so often in error as was asked."""
    values = sample_losses(measuring)
    if values is None or job.limit is None or job.accuracy.only is None:
        return "open"
    share = bool(values.min(initial=0) >= -1 and values.max(initial=0) <= 1)
    population = len(job.accuracy.only)
    if not share or len(values) > population:
        return "open"
    return decide(values, job.limit, alpha=job.alpha, population=population).verdict


def sample_losses(measuring: Measuring) -> NDArray[np.float64] | None:
    """Return what each sample loses; None where the figure is no mean of them, or where nobody knows how much one can lose."""
    if measuring.scorer is not None:
        name = measuring.scorer.main
        figure = next((f for f in measuring.scorer.figures() if f.name == name), None)
        if not isinstance(figure, Mean) or not _is_share(figure):
            return None
        return figure.contributions(1)
    if measuring.decisions is not None:
        differs = measuring.decisions.of(0) != measuring.decisions.of(1)
        return np.asarray(differs, np.float64)
    return None


def _is_share(figure: Mean) -> bool:
    # By its name: that no sample so far lost more than 1 of a squared error says nothing of the next.
    return Metric(name=figure.name, value=0.0).is_fraction


def lost(answered: MeasuredOutputs, name: str, limit: float | None) -> Lost:
    """Return what a candidate loses: of the metric, else of float's decisions, else of the outputs' power.

    Args:
        answered: What float and the candidate answered.
        name: The candidate.
        limit: What may be lost, as the user gave it.
    """
    metric = next((m for m in answered.metrics.get(name, ()) if m.main), None)
    plain = None if limit is None else float(limit)
    if metric is not None and metric.drop is not None:
        if metric.is_fraction and limit is not None and limit >= 1:
            raise UsageError(
                f"max_drop = {limit:g} allows everything: a drop of {metric.name} cannot be larger than 1. 0.01 is one point."
            )
        scale = 1.0
        if isinstance(limit, Percent) and not metric.is_fraction:
            scale = abs(next(m for m in answered.metrics["float"] if m.main).value)
            if not scale:
                raise UsageError(
                    f"float's {metric.name} is 0, and nothing is a percentage of it: give max_drop in units of {metric.name}."
                )
        bounds = metric.drop_interval
        if bounds is not None:
            bounds = replace(bounds, low=bounds.low / scale, high=bounds.high / scale)
        return Lost(drop=metric.drop / scale, interval=bounds, limit=plain)
    drift = answered.drift[name]
    if drift.decision is not None:
        return Lost(drop=drift.decision.flip_rate, interval=drift.decision.interval, limit=plain)
    worst = min(drift.outputs, key=lambda output: output.db, default=None)
    noise = (
        0.0 if worst is None or worst.db == inf else inf if worst.db == -inf else _power(worst.db)
    )
    bounds = None if worst is None else worst.sqnr_interval
    interval = None
    if bounds is not None:
        interval = Interval(
            low=_power(bounds.high), high=_power(bounds.low), confidence=bounds.confidence
        )
    return Lost(drop=noise, interval=interval, limit=plain)


def _power(db: float) -> float:
    return float(10 ** (-db / 10))
