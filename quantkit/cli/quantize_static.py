"""`quantkit quantize static IN OUT --data dir/`, its flags, and the job that they and quantkit.toml describe."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quantkit.cli.data_options import (
    DataFlags,
    MethodFlags,
    calibrator,
    data_settings,
    model_of,
    read_by,
)
from quantkit.cli.flags import Flags, expanded
from quantkit.cli.options import (
    ExternalDataOption,
    JsonOption,
    OutputOption,
    PlanOption,
    SavePlanOption,
    SourceArgument,
    VerifyOption,
    one_output,
)
from quantkit.cli.progress import watching
from quantkit.cli.result_view import print_result
from quantkit.errors import UsageError
from quantkit.settings import Recipe, RecoverSettings, StaticSettings, TensorRule

if TYPE_CHECKING:
    from quantkit.pipeline.record import StaticJob
    from quantkit.quantize.plan import Plan

__all__ = ["StaticFlags", "job_of", "static"]

# What a plan that is given has already decided. It still takes the type: one of 16 bits needs a newer opset.
_PLANNED = (
    *("weight_type", "per_channel", "symmetric_activations", "op_types", "include", "exclude"),
    *("float_tensor", "range", "coverage", "measure"),
)


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


def job_of(
    model: Path | None,
    recipe: Recipe,
    samples: DataFlags,
    how: MethodFlags,
    flags: StaticFlags,
    *,
    plan: "Plan | None" = None,
) -> "StaticJob":
    """Return what is to be quantized and how; `plan`: decides about nodes and tensors.

    Raises:
        UsageError: Model or data are missing, or flags contradict each other.
    """
    from quantkit.api.static import for_plan, static_job
    from quantkit.pipeline.calibrate import CalibrateOptions

    source = model_of(model, recipe)
    if plan is not None and flags.used(_PLANNED):
        raise UsageError(
            f"{flags.used(_PLANNED)} is for a plan to be made, and --plan gives one: edit that, or leave one out."
        )
    given = for_plan(flags.over_recipe(recipe.static), plan)
    settings = data_settings(recipe.calibrated, samples)
    method, percentile = _method(how, recipe, calibrated=flags.calibration is not None)
    return static_job(
        source,
        _data(samples, flags, settings.path),
        replace(given, method=method),
        settings,
        percentile=percentile,
        calibrate=CalibrateOptions(skip_bad=samples.skip_bad),
    )


def _data(samples: DataFlags, flags: StaticFlags, path: Path | None) -> object:
    """Return the calibration, or where the data is."""
    if flags.calibration is None:
        if path is None:
            raise UsageError(
                "Which data? Add --data DIR or --calibration FILE, or path under [data] in quantkit.toml."
            )
        return path
    if samples.used():
        raise UsageError(
            f"{samples.used()} is for data, and --calibration already knows: remove one of the two."
        )
    from quantkit.calibration import Calibration

    return Calibration.load(flags.calibration)


def _method(
    how: MethodFlags, recipe: Recipe, *, calibrated: bool
) -> tuple[str | None, float | None]:
    """Return method and percentile: of the flags, else of [static], else, for data, of [calibrate].

    A calibration has a method of its own, which only flags and [static] override.
    """
    method, percentile = how.chosen
    if method is None and percentile is None:
        method = recipe.static.method
        if method is None and not calibrated:
            method, percentile = recipe.calibrate.method, recipe.calibrate.percentile
    if method == "percentile" and percentile is None:
        percentile = recipe.calibrate.percentile
    if method is not None or percentile is not None:
        calibrator(method, percentile)  # refuses what makes no sense, with the flag's name
    return method, percentile


_STEPS = frozenset({"Add", "HardSigmoid", "Mul"})  # whose kernels round otherwise on ARM


@expanded
def static(  # noqa: PLR0913 - one parameter a flag
    *,
    model: SourceArgument = None,
    output: Annotated[
        Path | None,
        typer.Argument(help="Where to write. Default: <model>.int8.onnx here.", metavar="OUT"),
    ] = None,
    named: OutputOption = None,
    samples: DataFlags,
    how: MethodFlags,
    flags: StaticFlags,
    plan: PlanOption = None,
    save_plan: SavePlanOption = None,
    external_data: ExternalDataOption = False,
    verify: VerifyOption = True,
    as_json: JsonOption = False,
) -> None:
    """Quantize weights and activations to int8, with ranges calibrated on real data (--data or --calibration)."""
    from quantkit.files import check_outputs
    from quantkit.pipeline.pipeline import static as pipeline
    from quantkit.quantize.plan import read_plan
    from quantkit.settings import load_recipe

    recipe = load_recipe()
    given = None if plan is None else read_plan(plan)
    job = job_of(model, recipe, samples, how, flags, plan=given)
    target = one_output(output, named) or Path(f"{Path(str(job.source)).stem}.int8.onnx")
    read = read_by(job.settings, Path(str(job.source)))
    check_outputs([target, save_plan], [*read, plan, flags.calibration, recipe.file])
    with watching(quiet=as_json) as monitor:
        result = pipeline(
            job,
            target,
            plan=given,
            verify=verify,
            external_data=external_data,
            monitor=monitor,
        )
    print_result(
        result,
        job.source,
        target,
        promise="" if given else _promise(job, result.plan),
        save_plan=save_plan,
        as_json=as_json,
    )


def _promise(job: "StaticJob", plan: "Plan") -> str:
    """Say what holds for the result: on the default target, whose weights are pair-safe, for every CPU."""
    options = job.options
    if options.runs_on.name != "cpu":
        return f"target {options.runs_on.name}: {options.runs_on.title}"
    wide = options.activation.bits > 8  # runs in float
    sums = any(node.op_type in _STEPS and node.mode.value == "static" for node in plan.nodes)
    more = "; Add and Mul may differ by one step on ARM" if sums else ""
    return "" if wide else f"layers give the same integers on AVX2, VNNI and ARM CPUs{more}"
