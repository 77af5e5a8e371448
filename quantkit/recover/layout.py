"""A weight as the matrix that its product multiplies by: rows are output channels, columns what is summed."""

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators import Window
from quantkit.analyze.network import Step
from quantkit.numerics.dtypes import IntType

__all__ = ["Layout", "layout_of", "window_of"]

_MATRIX = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a weight of `shape` becomes rows (groups, channels / groups, K).

    K is in the order in which kernels sum: for Conv (kh, kw, c), c fastest.
    """

    shape: tuple[int, ...]
    channel: int
    summed: tuple[int, ...]
    group: int = 1

    def rows(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return the matrix."""
        turned = array.transpose(self.channel, *self.summed)
        return turned.reshape(self.group, turned.shape[0] // self.group, -1)

    def back(self, rows: NDArray[Any], dtype: IntType) -> NDArray[Any]:
        """Undo `rows`, into an integer type."""
        order = (self.channel, *self.summed)
        turned = rows.reshape([self.shape[axis] for axis in order])
        return np.ascontiguousarray(turned.transpose(np.argsort(order)).astype(dtype.storage))

    @property
    def inputs(self) -> int:
        """K: how many products are summed."""
        return prod(self.shape[axis] for axis in self.summed)


def layout_of(step: Step, shape: tuple[int, ...], *, turned: bool) -> Layout:
    """Return the layout of a product's weight; `turned`: it is read through a Transpose."""
    if step.op_type == "Conv":
        group = step.attributes.get("group", 1)
        assert isinstance(group, int)  # noqa: S101 - by the standard
        return Layout(shape=shape, channel=0, summed=(*range(2, len(shape)), 1), group=group)
    channels_last = (step.op_type == "MatMul" or not step.attributes.get("transB")) != turned
    channel = 1 if channels_last else 0
    return Layout(shape=shape, channel=channel, summed=(1 - channel,))


def window_of(step: Step, shape: tuple[int, ...]) -> Window:
    """Return what a product reads of its input at once."""
    if step.op_type != "Conv":
        return Window()
    return Window.of_conv(shape[_MATRIX:], step.attributes)
