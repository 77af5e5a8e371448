"""Which of the samples a candidate was calibrated with: figures on these are too good."""

from pathlib import Path

from quantkit.data import order
from quantkit.errors import ModelError
from quantkit.provenance import read_provenance

__all__ = ["calibrated_samples"]


def calibrated_samples(path: Path, fingerprint: str, available: int | None) -> frozenset[int]:
    """Return the places, in the evaluated data, of the samples that a model's own record says it was calibrated with.

    None are known where the data is another (told by its fingerprint), or the model has no record.
    """
    try:
        made = read_provenance(path)
    except ModelError:  # a damaged record tells nothing
        return frozenset()
    if made is None or made.data is None or not fingerprint or available is None:
        return frozenset()
    if made.data.fingerprint != fingerprint or not {"limit", "shuffle", "seed"} <= set(
        made.data.order
    ):
        return frozenset()
    how = made.data.order
    chosen = order(available, limit=how["limit"], shuffle=how["shuffle"], seed=how["seed"])
    return frozenset(chosen.tolist())
