"""The job of static quantization that a command line and quantkit.toml describe."""

from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from quantkit.cli.data_options import DataFlags, MethodFlags, calibrator, data_settings
from quantkit.cli.static_options import StaticFlags, static_settings
from quantkit.errors import UsageError

if TYPE_CHECKING:
    from quantkit.plan import Format, Plan
    from quantkit.settings import Recipe
    from quantkit.workflows.record import StaticJob

__all__ = ["job_of"]

# What a plan that is given has already decided. It still takes the type: one of 16 bits needs a newer opset.
_PLANNED = frozenset(
    {"weight_type", "per_tensor", "symmetric_activations", "op_types"}
    | {"include", "exclude", "float_tensor", "ranges"}
)


def job_of(
    model: Path | None,
    recipe: "Recipe",
    samples: DataFlags,
    how: MethodFlags,
    flags: StaticFlags,
    *,
    plan: "Plan | None" = None,
) -> tuple["StaticJob", "Format | None"]:
    """Return what is to be quantized and how, and the format that is asked for; `plan`: decides about nodes and tensors.

    Raises:
        UsageError: Model or data are missing, or flags contradict each other.
    """
    from quantkit.api.static import for_plan, format_of, static_job
    from quantkit.workflows.calibrate import CalibrateOptions

    source = model or recipe.model
    if source is None:
        raise UsageError("Which model? Give its path, or model in quantkit.toml.")
    if plan is not None:
        _refuse_planned(flags)
    given = for_plan(static_settings(recipe.static, flags), plan)
    settings = data_settings(recipe.calibrated, samples)
    method, percentile = _method(how, recipe, calibrated=flags.calibration is not None)
    job = static_job(
        source,
        _data(samples, flags, settings.path),
        replace(given, method=method),
        settings,
        percentile=percentile,
        calibrate=CalibrateOptions(skip_bad=samples.skip_bad),
    )
    return job, format_of(given)


def _refuse_planned(flags: StaticFlags) -> None:
    for name in (f.name for f in fields(flags) if f.name in _PLANNED):
        if getattr(flags, name) not in (None, []):
            flag = "range" if name == "ranges" else name.replace("_", "-")
            raise UsageError(
                f"--{flag} is for a plan to be made, and --plan gives one: edit that, or leave one out."
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
    from quantkit.observe import Calibration

    return Calibration.load(flags.calibration)


def _method(
    how: MethodFlags, recipe: "Recipe", *, calibrated: bool
) -> tuple[str | None, float | None]:
    """Return method and percentile: of the flags, else of [static], else, for data, of [calibrate].

    A calibration has a method of its own, which only flags and [static] override.
    """
    method, percentile = how.method, how.percentile
    if method is None and percentile is None:
        method = recipe.static.method
        if method is None and not calibrated:
            method, percentile = recipe.calibrate.method, recipe.calibrate.percentile
    if method == "percentile" and percentile is None:
        percentile = recipe.calibrate.percentile
    if method is not None or percentile is not None:
        calibrator(method, percentile)  # refuses what makes no sense, with the flag's name
    return method, percentile
