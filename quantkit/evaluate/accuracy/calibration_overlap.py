"""Which of the samples a candidate was calibrated with: figures on these are too good."""

from pathlib import Path

from quantkit.data import order
from quantkit.errors import ModelError
from quantkit.provenance import DataOrigin, read_provenance

__all__ = ["calibrated_samples", "recorded_digests"]


def calibrated_samples(path: Path, fingerprint: str, available: int | None) -> frozenset[int]:
    """Return the places, in the evaluated data, of the samples that a model's own record says it was calibrated with.

    None are known where the data is another (told by its fingerprint), or the model has no record.
    """
    data = _recorded(path)
    if data is None or not fingerprint or available is None:
        return frozenset()
    if data.fingerprint != fingerprint or not {"limit", "shuffle", "seed"} <= set(data.order):
        return frozenset()
    how = data.order
    chosen = order(available, limit=how["limit"], shuffle=how["shuffle"], seed=how["seed"])
    return frozenset(chosen.tolist())


def recorded_digests(path: Path) -> str:
    """Return the names of the samples that a model was calibrated with, as its record holds them; "" if it has none."""
    data = _recorded(path)
    return "" if data is None else data.digests


def _recorded(path: Path) -> DataOrigin | None:
    try:
        made = read_provenance(path)
    except ModelError:  # a damaged record tells nothing
        return None
    return None if made is None else made.data
