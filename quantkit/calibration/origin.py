"""The origin of ranges: what a calibration adds to the record of a model. Reading a calibration file does not import this."""

import re
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from calibrators import Sketch
from quantkit.calibration.calibration import Calibration
from quantkit.calibration.requests import CalibratorOf, stored_key
from quantkit.data import Description
from quantkit.model.provenance import CalibrationOrigin, DataOrigin

_TYPICAL = (0.01, 0.5, 0.99)
_MANY = 1000  # values
_NAMED = 512  # samples in a record, 8 bytes each


def data_origin(seen: Calibration, inputs: Sequence[str]) -> DataOrigin | None:
    """Return what activations were calibrated with; None if the calibration does not say.

    A folder differs from machine to machine; none goes in. `inputs` are the model's.
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
        settings=data.get("settings", {}),
        values=typical_values(
            {
                name: sketch
                for name in inputs
                if name in seen.seen.answers and (sketch := seen.sketch(name))
            }
        ),
        digests=digests_text(seen.seen.digests),
        warnings=_without_folders(seen.header.get("warnings", ()), location),
    )


def samples_origin(
    found: Description,
    fingerprint: str,
    digests: Sequence[int],
    order: Mapping[str, Any],
    method: str,
) -> DataOrigin:
    """Return what weights were fitted to, where no ranges were observed.

    Args:
        found: What the data is.
        fingerprint: Of what the samples are made of; "" for a Python iterable.
        digests: Of the samples that were run.
        order: Which they were.
        method: What was done with them.
    """
    location = Path(found.location)
    return DataOrigin(
        kind=found.kind,
        name=location.name or location.resolve().name,
        samples=len(digests),
        fingerprint=fingerprint,
        method=method,
        order=dict(order),
        preprocessing=_without_folders(found.preprocessing, location),
        settings=found.settings,
        digests=digests_text(digests),
        warnings=_without_folders(found.warnings, location),
    )


def typical_values(sketches: Mapping[str, Sketch]) -> dict[str, tuple[float, float, float]]:
    """Return what 1, 50 and 99 of 100 values are below, to the width of a bin; nothing of a handful of values."""
    found = {}
    for name, sketch in sketches.items():
        bins = None if sketch.empty else sketch.histogram()
        below = np.zeros(1) if bins is None else np.cumsum(bins.count)
        if bins is not None and below[-1] >= _MANY:
            places = np.searchsorted(below, np.array(_TYPICAL) * below[-1])
            low, middle, high = bins.center[places].tolist()
            found[name] = (low, middle, high)
    return found


def digests_text(digests: Iterable[int]) -> str:
    """Return the names of samples as a record holds them."""
    short = sorted({digest & 0xFFFFFFFF for digest in digests})
    return "".join(f"{digest:08x}" for digest in short[:_NAMED])


def known_share(digests: Sequence[int], record: str) -> float:
    """Return about how large a share of the samples a record names: exactly, unless it holds the least of many."""
    names = {int(record[at : at + 8], 16) for at in range(0, len(record), 8)}
    short = [digest & 0xFFFFFFFF for digest in digests]
    if len(names) >= _NAMED:
        short = [digest for digest in short if digest <= max(names)]
    return sum(digest in names for digest in short) / len(short) if short else 0.0


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
    # As text of an earlier version: records hold this digest, and what a class is called must not change it.
    requests = (
        f"Request(tensor={request.tensor!r}, what={stored_key(request.statistic)})"
        for request in seen.seen.requests
    )
    for request in sorted(requests):
        digest.update(f"{request}\n".encode())
    return digest.hexdigest()


def _method(ask: CalibratorOf) -> str:
    settings = ", ".join(f"{name} {value}" for name, value in ask.settings)
    return f"{ask.name} ({settings})" if settings else ask.name


def _without_folders(lines: Sequence[str], location: Path) -> tuple[str, ...]:
    """Return lines in which paths are relative to the data."""
    places = (location, location.absolute(), location.resolve())
    folders = {f"{p}/" for place in places for p in (place, place.parent) if p.name}
    # The longest first: what is left of a path is relative to the data.
    pattern = re.compile("|".join(map(re.escape, sorted(folders, key=len, reverse=True))))
    return tuple(pattern.sub("", line) for line in lines)
