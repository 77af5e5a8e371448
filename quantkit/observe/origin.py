"""What a calibration adds to the provenance of a model: which data, by which method."""

import re
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from quantkit.observe.calibration import Calibration
from quantkit.observe.requests import CalibratorAsk
from quantkit.provenance import CalibrationOrigin, DataOrigin

__all__ = ["calibration_digest", "calibration_origin", "data_origin"]


def data_origin(seen: Calibration) -> DataOrigin | None:
    """Return what activations were calibrated with; None if the calibration does not say.

    A folder differs from machine to machine; none goes in.
    """
    data = seen.header.get("data")
    if data is None:
        return None
    location = Path(data["location"])
    return DataOrigin(
        kind=data["kind"],
        name=location.name or location.resolve().name,
        samples=len(seen.seen.samples),
        fingerprint=data["fingerprint"],
        method=_method(seen.method),
        order=dict(seen.header.get("order", {})),
        preprocessing=_without_folders(data["preprocessing"], location),
        warnings=_without_folders(seen.header.get("warnings", ()), location),
    )


def calibration_origin(seen: Calibration) -> CalibrationOrigin:
    """Return what names a calibration that was given."""
    return CalibrationOrigin(
        sha256=calibration_digest(seen),
        model=seen.header.get("model", {}).get("sha256", ""),
        software=dict(seen.header.get("software", {})),
        cpu=seen.header.get("cpu", ""),
    )


def calibration_digest(seen: Calibration) -> str:
    """Return the SHA-256 of what a calibration saw; the method, which may be chosen again, does not go in."""
    digest = sha256()
    for name, array in sorted(seen.seen.to_arrays().items()):
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
    for request in sorted(map(str, seen.seen.requests)):
        digest.update(f"{request}\n".encode())
    return digest.hexdigest()


def _method(ask: CalibratorAsk) -> str:
    settings = ", ".join(f"{name} {value}" for name, value in ask.settings)
    return f"{ask.name} ({settings})" if settings else ask.name


def _without_folders(lines: Sequence[str], location: Path) -> tuple[str, ...]:
    """Return lines in which paths are relative to the data."""
    places = (location, location.absolute(), location.resolve())
    folders = {f"{p}/" for place in places for p in (place, place.parent) if p.name}
    # The longest first: what is left of a path is relative to the data.
    pattern = re.compile("|".join(map(re.escape, sorted(folders, key=len, reverse=True))))
    return tuple(pattern.sub("", line) for line in lines)
