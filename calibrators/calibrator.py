"""A sketch and the method that reads it, as one calibrator."""

import json
from dataclasses import asdict, is_dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from calibrators.protocol import Method, State
from calibrators.ranges import Range
from calibrators.sketch import Sketch

__all__ = ["SketchCalibrator"]


class SketchCalibrator:
    """Collects a sketch, and chooses the range by a method.

    The state has the method's name and settings, as the bytes of a JSON text; `from_state` finds it
    again by `calibrators.registry`, so only methods with a registered name come back.
    """

    ordered: ClassVar[bool] = False
    exact: ClassVar[bool] = True

    __slots__ = ("method", "sketch")

    def __init__(self, method: Method, *, axis: int | None = None, most: int | None = None) -> None:
        self.method = method
        self.sketch = Sketch(axis=axis, most=most)

    def observe(self, array: NDArray[Any]) -> None:
        """Take in one array."""
        self.sketch.observe(array)

    def merge(self, other: Self) -> None:
        """Take in what `other` saw.

        Raises:
            ValueError: The methods or the sketches' settings differ.
        """
        if self.method != other.method:
            raise ValueError(f"Cannot merge what {other.method} reads into {self.method}.")
        self.sketch.merge(other.sketch)

    def range(self) -> Range:
        """Return the range that the method chooses."""
        return self.method(self.sketch)

    def state(self) -> State:
        """Return what is known."""
        return {"method": _encode(self.method), **self.sketch.state()}

    @classmethod
    def from_state(cls, state: State) -> Self:
        """Build the calibrator that had this state.

        Raises:
            ValueError: The method has no registered name.
        """
        from calibrators import registry

        written: dict[str, Any] = json.loads(state["method"].tobytes())
        found = cls(registry.method(written.pop("name"), **written))
        found.sketch = Sketch.from_state(state)
        return found


def _encode(method: Method) -> NDArray[np.uint8]:
    chosen: dict[str, Any] = asdict(method) if is_dataclass(method) else {}
    text = json.dumps({**chosen, "name": method.name}, sort_keys=True)
    return np.frombuffer(text.encode(), np.uint8).copy()
