"""What a user should know about a calibration: refusals, warnings, names of samples."""

from collections.abc import Sequence

from calibrators import Sketch, Statistic
from quantkit.calibration.audit import CLIPPED_HARD, Audit
from quantkit.calibration.job import Job
from quantkit.calibration.observations import Observations
from quantkit.calibration.points import Points
from quantkit.calibration.requests import RunningMinMax
from quantkit.data import Description
from quantkit.errors import DataError


def without_unseen(seen: Observations) -> tuple[Observations, tuple[str, ...]]:
    """Return what was seen without the tensors that had no value in any sample, and the names of those."""
    never = tuple(t for t, kinds in seen.answers.items() if any(map(_saw_nothing, kinds.values())))
    return seen.select(lambda request: request.tensor not in never), never


def _saw_nothing(statistic: Statistic) -> bool:
    """Say whether no value at all came: the tensor was always empty, or stands in a branch that no sample takes."""
    match statistic:
        case Sketch():
            return bool(statistic.empty and not statistic.nan.any() and not statistic.inf.any())
        case RunningMinMax():
            return statistic.empty and not statistic.strange
        case _:
            return False


def require_values(seen: Observations) -> None:
    """Refuse ranges of nothing."""
    if not seen.samples:
        raise DataError("No sample could be read; there is nothing to learn ranges from.")
    for tensor, answers in seen.answers.items():
        if any(getattr(a, "empty", False) for a in answers.values()):
            raise DataError(
                f"Tensor '{tensor}' held no finite value in any of {len(seen.samples)} samples, only "
                "NaN or infinity: check the preprocessing, or the model itself."
            )


def names_of(job: Job, audit: Audit) -> dict[str, str]:
    """Return what the samples are called that the audit mentions by their place."""
    if job.samples is None:
        return {}
    copies = [place for group in audit.duplicates[:3] for place in group[:3]]
    places = sorted({*copies, *(place for place, _ in audit.outliers)})
    order = job.order()
    return {str(place): job.samples[int(order[place])].name for place in places}


def warnings_of(
    points: Points, seen: Observations, audit: Audit, found: Description, never: Sequence[str] = ()
) -> list[str]:
    """Say what may make the ranges worse than they need be.

    Args:
        points: What is observed, and what is not.
        seen: The answers.
        audit: What was made of them.
        found: The data, with warnings of its own.
        never: Tensors of which no sample had a value.
    """
    # Each warning is something that a range cannot show by itself: a tensor that nobody looked at, samples that are
    # not in it, values that are not in it, energy that the method cuts off on purpose, copies that make few samples
    # look like many.
    warnings = list(found.warnings)
    if points.hidden:
        warnings.append(
            f"{points.hidden} tensors in subgraphs of other operators than If, Loop and Scan are not observed; they "
            "stay float."
        )
    if never:
        warnings.append(
            f"{len(never)} tensors had no value in any sample (the first: '{never[0]}'): no sample takes their branch of "
            "an If, or they are always empty. What reads them is not calibrated; add samples that compute them."
        )
    if seen.bad:
        first = next(iter(sorted(seen.bad)))
        warnings.append(
            f"{len(seen.bad):,} of {len(seen.bad) + len(seen.samples):,} samples could not be read and were "
            f"left out; the first: "
            f"{seen.bad[first]}"
        )
    strange = [t for t in audit.tensors if t.nan or t.inf]
    if strange:
        worst = max(strange, key=lambda t: t.nan + t.inf)
        warnings.append(
            f"{len(strange)} tensors hold NaN or infinity, which ranges leave out; most in "
            f"'{worst.tensor}': {worst.nan} NaN, {worst.inf} infinite of {worst.seen}."
        )
    # Sketches count NaN and infinity apart, and the audit has them; what was reduced to minimum and maximum inside
    # the graph only knows that there was some (a count of arrays), so there is a second, poorer sentence for it.
    spans = [
        s
        for answers in seen.answers.values()
        for s in answers.values()
        if isinstance(s, RunningMinMax)
    ]
    if any(span.strange for span in spans):
        warnings.append(
            f"{sum(span.strange > 0 for span in spans)} tensors hold NaN or infinity, which ranges leave "
            "out."
        )
    hard = [t for t in audit.tensors if t.lost > CLIPPED_HARD]
    if hard:
        worst = max(hard, key=lambda t: t.lost)
        warnings.append(
            f"{audit.method} clips {len(hard)} tensors hard (over {CLIPPED_HARD:.0%} of their energy); "
            f"most '{worst.tensor}': {worst.lost:.1%}."
        )
    if audit.duplicates:
        copies = sum(len(group) - 1 for group in audit.duplicates)
        warnings.append(f"{copies:,} of {audit.samples:,} samples are copies of others.")
    return warnings
