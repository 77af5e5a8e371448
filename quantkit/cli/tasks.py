"""The flags that say what to quantize and how, and the tasks that they and quantkit.toml describe."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quantkit.cli.flags import Flags
from quantkit.cli.options import DataFlags, data_in, model_of
from quantkit.cli.progress import stages, watching
from quantkit.errors import UsageError
from quantkit.settings import (
    CalibrateSettings,
    DynamicSettings,
    Float16Settings,
    PruneSettings,
    Recipe,
    RecoverSettings,
    StaticSettings,
    TensorRule,
    WeightsSettings,
    closest,
)

if TYPE_CHECKING:
    from quantkit.api.quantize import Task
    from quantkit.api.results import Plan, QuantizeResult


# What a plan that is given has already decided. It still takes the type: one of 16 bits needs a newer opset.
_PLANNED = (
    *("weight_type", "per_channel", "symmetric_activations", "op_types", "include", "exclude"),
    *("float_tensor", "range", "coverage", "measure"),
)


class MethodFlags(Flags):
    """How ranges are estimated."""

    kinds = (CalibrateSettings,)
    left_out = frozenset({"output", "workers"})

    def chosen(
        self, recipe: CalibrateSettings, first: str | None = None, *, calibrated: bool = False
    ) -> tuple[str | None, float | None]:
        """Return method and percentile: those of the flags, else the method `first`, else those of the recipe.

        Args:
            recipe: What quantkit.toml says under [calibrate].
            first: The method that goes before the recipe's; None: there is none.
            calibrated: Leave out the recipe's: a calibration has a method of its own.

        Raises:
            UsageError: There is no such method, or its setting makes no sense.
        """
        from calibrators import names

        found = self.given.get("method"), self.given.get("percentile")
        if found == (None, None):
            found = first, None
        if found == (None, None) and not calibrated:
            found = recipe.method, recipe.percentile
        method, percentile = found
        if method == "percentile" and percentile is None:
            percentile = recipe.percentile
        known = names()
        if method is not None and method not in known:
            raise UsageError(
                f"--method '{method}' is unknown{closest(method, known)}: use one of {', '.join(known)}."
            )
        if percentile is not None and method not in {None, "percentile"}:
            raise UsageError(f"--percentile is for --method percentile, not {method}.")
        return method, percentile


class WeightsFlags(Flags):
    """What is decided about weights and nodes."""

    kinds = (WeightsSettings,)


class PruneFlags(Flags):
    """How much is removed, and where. Not given: as quantkit.toml says."""

    kinds = (PruneSettings,)


class Float16Flags(Flags):
    """What has 16 bits. Not given: as quantkit.toml says."""

    kinds = (Float16Settings,)


@dataclass(frozen=True, kw_only=True)
class StaticFlags(Flags):
    """What is decided about nodes and tensors. Not given: as quantkit.toml says, else as the target runs it best."""

    kinds = (StaticSettings, RecoverSettings)

    calibration: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What quantkit calibrate wrote, instead of --data."),
    ] = None
    float_tensor: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TENSOR",
            rich_help_panel="Selection",
            help="Leave this activation in float (name or pattern). May be repeated.",
        ),
    ] = None
    range: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TENSOR=LOW,HIGH",
            rich_help_panel="Selection",
            help="Use this range for an activation, not the observed one. May be repeated.",
        ),
    ] = None

    def over_recipe(self, recipe: StaticSettings) -> StaticSettings:
        """Return the recipe's settings with the flags that were given in their place; rules are added to its own."""
        return replace(self.over(recipe), tensors=(*recipe.tensors, *self._rules()))

    def _rules(self) -> list[TensorRule]:
        floats = self.float_tensor or []
        rules = [TensorRule(tensor=tensor, keep_float=True) for tensor in floats]
        for text in self.range or ():
            tensor, low, high = _range(text)
            if tensor in floats:
                raise UsageError(
                    f"'{tensor}' is given to both --float-tensor and --range: remove one."
                )
            rules.append(TensorRule(tensor=tensor, range=(low, high)))
        return rules


def _range(text: str) -> tuple[str, float, float]:
    tensor, _, ends = text.rpartition("=")
    try:
        low, high = (float(end) for end in ends.split(","))
    except ValueError:
        tensor = ""
    if not tensor:
        raise UsageError(f"--range '{text}' is not TENSOR=LOW,HIGH, such as logits=-4,12.5.")
    return tensor, low, high


def task_of(model: Path | None, recipe: Recipe, samples: DataFlags, how: Any) -> "Task":
    """Return what to quantize; without a model, that of the recipe.

    Raises:
        UsageError: The recipe names no model either.
    """
    from quantkit.api.quantize import Task

    source, settings = model_of(model, recipe), samples.over_recipe(recipe.calibrated)
    skip = samples.skip_bad
    return Task(source=source, how=how, data=settings.path, samples=settings, skip_bad=skip)


def static_task(
    model: Path | None, recipe: Recipe, samples: DataFlags, how: MethodFlags, flags: StaticFlags
) -> "Task":
    """Return what to quantize statically; method and percentile are those of the flags, else of [static], else of [calibrate].

    Raises:
        UsageError: Model or data are missing, or flags contradict each other.
    """
    from quantkit import Calibration

    method, percentile = how.chosen(
        recipe.calibrate, recipe.static.method, calibrated=flags.calibration is not None
    )
    static = replace(flags.over_recipe(recipe.static), method=method)
    task = replace(task_of(model, recipe, samples, static), percentile=percentile)
    if flags.calibration is None:
        return replace(task, data=data_in(task.samples, "--data DIR or --calibration FILE"))
    if samples.used():
        raise UsageError(
            f"{samples.used()} is for data, and --calibration already knows: remove one of the two."
        )
    return replace(task, data=Calibration.load(flags.calibration))


def refuse_choices(flags: Flags, plan: Path | None) -> None:
    """Refuse flags that would decide what a given plan has decided."""
    used = flags.used(_PLANNED if isinstance(flags, StaticFlags) else ())
    if plan is not None and used:
        raise UsageError(
            f"{used} is for a plan to be made, and --plan gives one: edit that, or leave one out."
        )


def run_task(
    task: "Task",
    target: Path,
    *,
    quiet: bool,
    plan: "Plan | None" = None,
    verify: bool = True,
    external_data: bool = False,
) -> "QuantizeResult":
    """Quantize, and show the progress; see `quantkit.api.quantize.quantize`."""
    from quantkit.api.quantize import quantize

    counts = not isinstance(task.how, DynamicSettings)
    doing = "Solving" if isinstance(task.how, WeightsSettings) else "Observing"
    with watching(quiet=quiet, doing=doing) if counts else stages() as monitor:
        return quantize(
            task, target, plan=plan, verify=verify, external_data=external_data, monitor=monitor
        )
