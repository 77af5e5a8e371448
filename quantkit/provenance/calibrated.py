"""What a report says about calibration, from the candidate's own record."""

import re
from collections.abc import Iterator

from quantkit.provenance.record import DataOrigin, Provenance
from quantkit.result import Calibrated, DataSource

__all__ = ["calibrated_of"]

_APART = 4.0  # times as wide: hardly two parts of one data set are, and most changes of the pixels' range
_TOLD = re.compile(r" \(told from [^)]*\)")


def calibrated_of(
    provenance: Provenance | None, evaluated: DataSource | None = None, seen: int = 0
) -> Calibrated | None:
    """Return how a model's activation ranges came about; None if it says nothing about that.

    `shared` is True where the evaluated data is the calibrated data set, so that samples may have been seen
    before; False where its fingerprint is another; None where one of the two has none.

    Args:
        provenance: The model's own record.
        evaluated: What it is evaluated on.
        seen: How many of those samples are known to be calibrated with.
    """
    if provenance is None or provenance.data is None:
        return None
    data = provenance.data
    fingerprint = "" if evaluated is None else evaluated.fingerprint
    known = bool(fingerprint and data.fingerprint)
    return Calibrated(
        method=data.method,
        samples=data.samples,
        data=f"{data.name} ({data.kind})",
        fingerprint=data.fingerprint,
        warnings=data.warnings,
        shared=data.fingerprint == fingerprint if known else None,
        seen=seen,
        preprocessing=data.preprocessing,
        differs=() if evaluated is None else tuple(_differences(data, evaluated)),
    )


def _differences(data: DataOrigin, evaluated: DataSource) -> Iterator[str]:
    """Yield in what samples were prepared otherwise; where settings do not tell, by the values that came of them."""
    both = [key for key in data.settings if key in evaluated.settings]
    found = [
        (key, data.settings[key], evaluated.settings[key])
        for key in both
        if data.settings[key] != evaluated.settings[key]
    ]
    if not data.settings and data.kind == evaluated.kind == "image folder":  # of an older version
        before, now = ("; ".join(d.preprocessing) for d in (data, evaluated))
        if _TOLD.sub("", before) != _TOLD.sub("", now):
            found.append(("images", f"'{before}'", f"'{now}'"))
    for key, before, now in found:
        yield f"{key}: calibrated with {before}, evaluated with {now}"
    if not both and not found:
        yield from _other_values(data, evaluated)


def _other_values(data: DataOrigin, evaluated: DataSource) -> Iterator[str]:
    for name, (low, middle, high) in data.values.items():
        if name not in evaluated.values:
            continue
        bottom, centre, top = evaluated.values[name]
        widths = sorted((high - low, top - bottom))
        if widths[0] > 0 and (widths[1] > _APART * widths[0] or abs(centre - middle) > widths[1]):
            yield (
                f"values of '{name}': calibrated with {low:.3g} to {high:.3g}, evaluated with "
                f"{bottom:.3g} to {top:.3g}"
            )
