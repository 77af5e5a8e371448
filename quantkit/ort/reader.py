"""onnxruntime's base class for calibration data."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from numpy.typing import NDArray

__all__ = ["CalibrationDataReader"]


class CalibrationDataReader(ABC):
    """A stream of model inputs: subclass it and return a dict of arrays, or None at the end."""

    @abstractmethod
    def get_next(self) -> dict[str, NDArray[Any]] | None:
        """Return the next inputs by name, or None."""

    def __iter__(self) -> Iterator[dict[str, NDArray[Any]]]:
        return self

    def __next__(self) -> dict[str, NDArray[Any]]:
        found = self.get_next()
        if found is None:
            raise StopIteration
        return found

    def __len__(self) -> int:
        raise TypeError(f"{type(self).__name__} does not say how long it is.")

    def set_range(self, start_index: int, end_index: int) -> None:  # noqa: ARG002
        """Restrict the stream to a range of samples; a reader that can overrides this."""
        raise TypeError(f"{type(self).__name__} cannot be restricted to a range of samples.")
