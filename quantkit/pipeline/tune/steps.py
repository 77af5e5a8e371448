"""The table of steps: what changes a model beside quantizing it, which models it is for, what it can bring, and how long it takes."""

from quantkit.calibration.model_inputs import inputs_of
from quantkit.data.text import id_inputs
from quantkit.deploy.export.user_code import need_torch
from quantkit.errors import QuantkitError
from quantkit.model.graph.load import LoadedModel
from quantkit.pipeline.prepared import Job
from quantkit.pipeline.trim_texts import open_texts
from quantkit.pipeline.tune.choice import Goal
from quantkit.pipeline.tune.job import TuneJob
from quantkit.pipeline.tune.moves import TRAINING, Step
from quantkit.settings import DistillSettings, PruneSettings, TrimSettings

# Inputs must stay those of the float model, and a lack of coverage shows in what is lost, like any other.
_TRIM = TrimSettings(keep_tokenizer=True, min_coverage=0.0)
_SHARES = (0.85, 0.7, 0.6, 0.5)  # of float's time or size that pruning leaves
_MINUTES = 4.0  # of training


def _table(goal: Goal) -> list[Step]:
    """Return all steps in the order in which a recipe has them; of one kind those first that take away less."""
    pruned = [
        Step(
            name=f"prune-{100 * share:.0f}",
            kind="prune",
            # What it gains with int8 is measured here, and decides about stronger steps.
            settings=PruneSettings(speed=share, force=True)
            if goal == "speed"
            else PruneSettings(size=share, force=True),
            time=share if goal == "speed" else 1.0,
            size=share if goal == "size" else 1.0,
            minutes=2.0,
        )
        for share in _SHARES
    ]
    return [
        Step(name="trim", kind="trim", settings=_TRIM, size=0.7, minutes=0.5),
        *pruned,
        Step(
            name=TRAINING,
            kind=TRAINING,
            settings=DistillSettings(minutes=_MINUTES),
            minutes=_MINUTES + 1,
        ),
    ]


def steps_for(loaded: LoadedModel, job: TuneJob) -> tuple[tuple[Step, ...], tuple[str, ...]]:
    """Return the steps that a model can have, and why others are left out.

    Args:
        loaded: The float model.
        job: What is searched for, on which data.
    """
    steps = _table(job.limits.goal)
    obstacles = {kind: _obstacle(kind, loaded, job) for kind in {s.kind for s in steps}}
    left_out = tuple(text for text in obstacles.values() if text)
    return tuple(step for step in steps if obstacles[step.kind] == ""), left_out


def _obstacle(kind: str, loaded: LoadedModel, job: TuneJob) -> str | None:
    """Return why there are no steps of a kind: "" if there are; None if they mean nothing for such a model."""
    try:
        if kind == "trim":
            if not id_inputs(inputs_of(loaded)):
                return None
            open_texts(
                loaded, Job(source=job.source, data=job.data, options=_TRIM, settings=job.seeded)
            )
        if kind == TRAINING:
            need_torch("Distilling", "distill")
    except QuantkitError as e:
        return f"Recipes with '{kind}' were left out: {e}"
    return ""
