"""What makes the figures of an evaluation mean less than they seem to."""

import filecmp

from quantkit.evaluate.match.pair import NamedModel
from quantkit.evaluate.outputs import MeasuredOutputs
from quantkit.result import Changes, Result

__all__ = ["candidate_caveats", "result_caveats"]


def candidate_caveats(
    model: NamedModel, base: NamedModel, answered: MeasuredOutputs, changes: Changes | None
) -> list[str]:
    """Return what makes a candidate's figures mean less than they seem to.

    Args:
        model: The candidate.
        base: The float model.
        answered: What running both showed.
        changes: What differs between the two files; None: not looked at.
    """
    found = []
    if count := answered.calibrated.get(model.name, 0):
        found.append(
            f"{count:,} of {answered.data.samples:,} samples were also used to calibrate it, so its results are optimistic. "
            "Evaluate on other data, or with --hold-out."
        )
    if changes is not None and set(changes.weights) <= {"float32", "float64"}:
        same = filecmp.cmp(model.path, base.path, shallow=False)
        found.append(
            "It is the float model itself." if same else "It holds no weight in fewer than 32 bits."
        )
    drift = answered.drift.get(model.name)
    outputs = drift.outputs if drift is not None else ()
    found += [
        f"{o.not_finite} values of output '{o.output}' are NaN or infinite where float's are not."
        for o in outputs
        if o.not_finite
    ]
    return found


def _preprocessing_mismatch(result: Result) -> tuple[str, ...]:
    """Return in what the samples were prepared otherwise than for the candidates' calibration."""
    found: dict[tuple[str, ...], list[str]] = {}
    for model in result.candidates:
        if model.calibration is not None and model.calibration.differs:
            found.setdefault(model.calibration.differs, []).append(f"'{model.name}'")
    return tuple(
        f"Other preprocessing than in the calibration of {', '.join(names)}: {'; '.join(differs)}. No figure of it says "
        "anything about how it will do."
        for differs, names in found.items()
    )


def _models_look_swapped(result: Result) -> tuple[str, ...]:
    """Return a warning about the order of the arguments."""
    first = result.float_model
    quantized = first.runtime is not None and first.runtime.integer > 0
    if quantized or first.file.provenance.get("kind") in {
        "dynamic",
        "static",
        "weights",
        "float16",
    }:
        return (
            f"The first model, '{first.name}', is quantized: is it the float model, or are the arguments in the wrong order?",
        )
    return ()


def result_caveats(result: Result) -> tuple[str, ...]:
    """Return what a reader should know about all candidates."""
    return (*_preprocessing_mismatch(result), *_models_look_swapped(result))
