"""The file of one candidate: made by a plan of a prepared model, or by the settings of a form."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from quantkit.calibration.monitor import Monitor
from quantkit.calibration.requests import CalibratorOf
from quantkit.evaluate.accuracy import AccuracyOptions
from quantkit.files import digest_of, replace_text
from quantkit.pipeline.chain import write_chain
from quantkit.pipeline.form import run_form
from quantkit.pipeline.forms import form_of
from quantkit.pipeline.forms.static import realize_prepared
from quantkit.pipeline.plan_prepared import format_of, plan_of
from quantkit.pipeline.prepared import Job, Output, Prepared
from quantkit.pipeline.tune.choice import WHOLE, Choice
from quantkit.pipeline.tune.folder import MODEL, PLAN, Candidate, TuneFolder
from quantkit.quantize.plan import Format, Plan, plan_dynamic, write_plan
from quantkit.quantize.plan.model import Kept
from quantkit.settings import (
    RECIPE_NAME,
    DataSettings,
    DynamicSettings,
    Float16Settings,
    Recipe,
    RecoverSettings,
    StaticSettings,
    WeightsSettings,
    recipe_text,
)
from quantkit.settings.declare import Settings
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
        files: That steps made, in order.
        data: The samples.
        form: What a form is asked for that makes it by settings; None: a plan makes it.
        samples: How they are prepared.
        accuracy: What is measured, on which of them.
        nbytes: The size of the float model.
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
    files: tuple[Path, ...] = ()
    data: object
    form: Job[Any] | None = None
    samples: DataSettings
    accuracy: AccuracyOptions
    nbytes: int
    limit: float | None
    alpha: float
    folder: TuneFolder
    recipe: Recipe


def make_file(
    job: CandidateJob, prepared: Callable[[], Prepared], place: Path, monitor: Monitor
) -> Candidate:
    """Plan, make and verify the file of a candidate, and write beside it what makes it again.

    Args:
        job: What is to be made.
        prepared: Returns the preparation of the float model.
        place: The folder that it is made in.
        monitor: Told what is done.
    """
    choice, path = job.choice, place / MODEL
    if job.form is not None:
        result = run_form(form_of(job.form, Output(path=path), monitor))
    else:
        chosen = _choosing(prepared(), choice)
        plan = plan_for(chosen, choice, job.kept)
        result = realize_prepared(chosen, plan, path, from_file=True, monitor=monitor)
        write_plan(plan, place / PLAN)
        home = job.folder.place(job.name)
        replace_text(place / RECIPE_NAME, recipe_for(job.recipe, choice, home))
    write_chain(place, [*job.files, path], None if job.form else PLAN)
    nodes = getattr(result.plan, "nodes", ())  # other forms plan no nodes
    modes = Counter(node.mode.value for node in nodes)
    return Candidate(
        name=job.name,
        choice=job.choice,
        path=path,
        sha256=digest_of(path),
        modes=dict(sorted(modes.items())),
        size=result.output_bytes / job.nbytes,
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
    if choice.bits < WHOLE:
        options = replace(options, weight_bits=choice.bits)
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


def settings_for(choice: Choice) -> Settings:
    """Return what a form other than "static" is asked for."""
    if choice.form == "float16":
        return Float16Settings()
    if choice.form == "weights":
        return WeightsSettings(bits=choice.bits)
    return DynamicSettings(integer=choice.form == "dynamic")


def plan_for(prepared: Prepared, choice: Choice, kept: Mapping[str, Kept]) -> Plan:
    """Return the plan of a candidate.

    Args:
        prepared: The model, with the choices of the candidate.
        choice: Names the form.
        kept: What stays out of calibrated integers, of the form that has them.
    """
    output_format = format_of(prepared.job.options)
    plan = _PLANS[choice.form](prepared, output_format, kept)
    return replace(
        plan,
        target=prepared.job.options.runs_on.name,
        output_format=output_format,
        factors_id=prepared.ready.factors_id,
    )


def _static_form(prepared: Prepared, output_format: Format, kept: Mapping[str, Kept]) -> Plan:
    return plan_of(prepared, output_format, kept)


def _weights_form(integer: bool) -> "Planner":  # noqa: FBT001 - of two forms
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


Planner = Callable[[Prepared, Format, Mapping[str, Kept]], Plan]
_PLANS: Mapping[str, Planner] = {
    "static": _static_form,
    "dynamic": _weights_form(integer=True),
    "stored": _weights_form(integer=False),
}
