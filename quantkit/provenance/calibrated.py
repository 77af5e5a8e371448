"""What a report says about calibration, from the candidate's own record."""

from quantkit.provenance.record import Provenance
from quantkit.result import Calibrated

__all__ = ["calibrated_of"]


def calibrated_of(
    provenance: Provenance | None, evaluated_fingerprint: str = "", seen: int = 0
) -> Calibrated | None:
    """Return how a model's activation ranges came about; None if it says nothing about that.

    `seen` is how many of the evaluated samples are known to be calibrated with.

    `shared` is True where the evaluated data is the calibrated data set, so that samples may have been seen
    before; False where its fingerprint is another; None where one of the two has none.
    """
    if provenance is None or provenance.data is None:
        return None
    data = provenance.data
    known = bool(evaluated_fingerprint and data.fingerprint)
    return Calibrated(
        method=data.method,
        samples=data.samples,
        data=f"{data.name} ({data.kind})",
        fingerprint=data.fingerprint,
        warnings=data.warnings,
        shared=data.fingerprint == evaluated_fingerprint if known else None,
        seen=seen,
        preprocessing=data.preprocessing,
    )
