"""Runs batches and hands out activations, in memory that is used again for the next batch."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantkit.runtime.session import RUNTIME_ERRORS

__all__ = ["Runner"]

Arrays = list[NDArray[Any]]


class Runner:
    """One thread's way to run a session; several threads share the session.

    The second batch of the same shapes is written into the arrays of the first: an image of MobileNetV2
    has 28 MB of activations, and asking the system for them each time costs as much as reading them.
    An array is valid until the next run.
    """

    def __init__(self, session: Any, outputs: Sequence[str]) -> None:
        self._session = session
        self._outputs = list(outputs)
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._arrays: Arrays = []
        self._binding: Any = None

    def run(self, feeds: Mapping[str, NDArray[Any]]) -> Arrays:
        """Return the values of the outputs, in their order."""
        if not self._outputs:
            return []  # onnxruntime would give all there are
        shapes = {name: array.shape for name, array in feeds.items()}
        if shapes != self._shapes or not self._bindable():
            return self._run_anew(feeds, shapes)
        if self._binding is None:
            self._binding = self._bind()
        for name, array in feeds.items():
            self._binding.bind_cpu_input(name, np.ascontiguousarray(array))
        try:
            self._session.run_with_iobinding(self._binding)
        except RUNTIME_ERRORS:  # an output's shape depends on values, not on shapes
            return self._run_anew(feeds, shapes)
        return self._arrays

    def _run_anew(
        self, feeds: Mapping[str, NDArray[Any]], shapes: dict[str, tuple[int, ...]]
    ) -> Arrays:
        self._binding = None
        self._shapes = shapes
        self._arrays = self._session.run(self._outputs, dict(feeds))
        return self._arrays

    def _bindable(self) -> bool:
        return all(a.dtype == np.float32 and a.size for a in self._arrays)

    def _bind(self) -> Any:
        binding = self._session.io_binding()
        for name, array in zip(self._outputs, self._arrays, strict=True):
            binding.bind_output(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)
        return binding
