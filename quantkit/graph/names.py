"""Names that are new: amortized constant time, also when thousands share a stem."""

from collections import Counter
from collections.abc import Iterable

__all__ = ["Names"]


class Names:
    """A set of names in use, with multiplicity: a name is free when nobody holds it any more."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._held = Counter(taken)
        self._next: Counter[str] = Counter()

    def hold(self, names: Iterable[str]) -> None:
        """Mark names as in use."""
        self._held.update(list(names))  # a list: Counter would add up the values of a mapping

    def renew(self, name: str) -> str:
        """Give up one use of a name and return one that is free: the same, if nobody else has it."""
        self._held[name] -= 1
        return self.fresh(name)

    def fresh(self, wanted: str) -> str:
        """Return `wanted` if it is free, else `wanted` with a number; it is in use from now on."""
        chosen = wanted
        while self._held[chosen] > 0:
            self._next[wanted] += 1
            chosen = f"{wanted}_{self._next[wanted]}"
        self._held[chosen] += 1
        return chosen
