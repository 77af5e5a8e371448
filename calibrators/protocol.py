"""What every statistic, calibrator and range method promises.

Arrays are atoms: within one `observe` call numpy computes float64 sums, and these are added exactly to
what was there. So the grouping, merging and order of arrays never changes a bit of an exact statistic.
`calibrators.testing.check_calibrator` proves the laws below for any implementation.
"""

from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from calibrators.ranges import Range

if TYPE_CHECKING:
    from calibrators.sketch import Sketch


State = dict[str, NDArray[Any]]
"""Plain numeric arrays by name: what a statistic knows, ready for `np.savez`."""


class Statistic(Protocol):
    """Something learned from a stream of arrays.

    Laws:
        - NaN and infinities are not values: they never change what is known of the others;
        - `merge` is associative, and leaves `other` unchanged;
        - not `ordered`: `merge` is commutative, and merged shards equal the whole;
        - `exact`: the laws hold bit for bit, else to rounding;
        - equal knowledge <=> equal `state()`, bit for bit, and `from_state` brings all of it back;
        - `observe` neither changes nor keeps the array.
    """

    ordered: ClassVar[bool]
    """True if the order of the arrays matters."""

    exact: ClassVar[bool]
    """True if grouping and merging never change a bit."""

    def observe(self, array: NDArray[Any], /) -> None:
        """Take in one array of real numbers, of any shape and dtype."""

    def merge(self, other: Self, /) -> None:
        """Take in all that `other` saw; where order matters, it saw the later arrays."""

    def state(self) -> State:
        """Return what is known, settings included."""

    @classmethod
    def from_state(cls, state: State, /) -> Self:
        """Build the statistic that had this state."""


class Calibrator(Statistic, Protocol):
    """A statistic that knows what range of values the integers should cover."""

    def range(self) -> Range:
        """Return a finite range, low <= 0 <= high, inside the observed values and zero.

        Its arrays have shape (1,) per tensor and (channels,) per channel. Without values they are zero.
        """


class Method(Protocol):
    """A way of choosing ranges from a sketch. Pure, so the method may be chosen after the data is run."""

    name: ClassVar[str]

    def __call__(self, sketch: "Sketch", /) -> Range:
        """Return a range for each channel, inside the exact [min(low, 0), max(high, 0)]."""


def settings(*values: int | None) -> NDArray[np.int64]:
    """Encode optional integers for a state, two numbers each: is it given, and its value."""
    return np.array([(v is not None, v or 0) for v in values], np.int64)


def read_settings(encoded: NDArray[Any]) -> list[int | None]:
    """Decode what `settings` encoded."""
    return [int(value) if given else None for given, value in encoded]
