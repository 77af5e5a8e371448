"""The weights of a student that are trained: floats, integers on the scales of the file, and codes of few bits.

A quantized weight has a latent value in units of its own steps. The network reads it rounded, and gradients pass as if it was not rounded
(straight through). What the network reads is what the file will hold.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray
from torch import Tensor

from quantkit.errors import NothingToQuantizeError
from quantkit.model.graph.edit import constant, is_op
from quantkit.model.ops.integer_ops import UNPACKS
from quantkit.numerics.packing import planes
from quantkit.numerics.pairs import PAIR_LIMIT, is_pair_safe
from quantkit.reduce.distill.network import Network, as_tensor
from quantkit.runtime.saturation import IntegerProduct, integer_products

_CODES, _PLANE = "_codes", "_plane"
_LEAST = 1e-3  # size of a tensor, at least
_HALF = 64  # a peak within which every pair is safe
_ENDS = {"int8": (-127, 127), "uint8": (0, 255), "int32": (-(1 << 31) + 1, (1 << 31) - 1)}


@dataclass(frozen=True, slots=True)
class Pairs:
    """Which integers a kernel sums in 16 bits: the sums of a file that cannot saturate must stay within the limit.

    Attributes:
        order: Of the axes; it brings the integers that are summed to the last ones.
        inputs: How many are summed for one output.
    """

    order: tuple[int, ...]
    inputs: int

    def separate(self, whole: Tensor) -> None:
        """Bring the sums of neighbours of one sign within the limit, in place: both give up half of the excess."""
        view = whole.permute(self.order)
        flat = view.reshape(-1, self.inputs)
        even, odd = flat[:, : self.inputs // 2 * 2 : 2], flat[:, 1::2]
        total = even + odd
        over = (total.abs() - PAIR_LIMIT).clamp(min=0)
        if not bool(over.any()):
            return
        sign, half = total.sign(), torch.div(over, 2, rounding_mode="floor")
        larger = even.abs() >= odd.abs()
        even -= sign * torch.where(larger, over - half, half)
        odd -= sign * torch.where(larger, half, over - half)
        if flat.data_ptr() != view.data_ptr():
            view.copy_(flat.reshape(view.shape))


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Which integers a weight may have.

    Attributes:
        low: The smallest.
        high: The largest.
        dtype: Of the initializer.
        pairs: Neighbours whose sums are limited; None: no limit.
        bits: Of codes that are stored in planes of bits; 0: each integer is stored on its own.
    """

    low: int
    high: int
    dtype: np.dtype[Any]
    pairs: Pairs | None = None
    bits: int = 0

    def rounded(self, latent: Tensor) -> Tensor:
        """Return the integers of a latent weight."""
        with torch.no_grad():
            whole = torch.round(latent).clamp(self.low, self.high)
            if self.pairs is not None:
                self.pairs.separate(whole)
            return whole

    def stored(self, name: str, whole: Tensor) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield the initializers that hold integers, by name."""
        array = whole.numpy().astype(self.dtype)
        if not self.bits:
            yield name, array
            return
        for number, plane in enumerate(planes(array, self.bits)):
            yield f"{name}{_PLANE}{number}", plane.content.reshape(1, -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """A weight that is trained.

    Attributes:
        value: The name of the value that the network reads.
        stored: The name of its initializer, or the start of the names of several.
        latent: Its values; of integers in units of their steps.
        size: Its root mean square, which the rate is relative to.
        grid: The integers that it may have; None: it is a float weight.
    """

    value: str
    stored: str
    latent: Tensor
    size: float
    grid: Grid | None = None

    def read(self) -> Tensor:
        """Return the value that the network reads, with the gradient of the latent value."""
        if self.grid is None:
            return self.latent
        return self.grid.rounded(self.latent) + (
            self.latent - self.latent.detach()
        )  # exact, plus 0

    def arrays(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield the initializers of the file, by name."""
        if self.grid is None:
            yield self.stored, self.latent.detach().numpy()
        else:
            yield from self.grid.stored(self.stored, self.grid.rounded(self.latent.detach()))


def weights_of(model: ir.Model, name: str, seed: int = 0) -> tuple[Weight, ...]:
    """Return the weights of a student that can be trained.

    These are the constants of linear operators, sums and normalizations; not the tables of Gather, scales, or statistics.

    Args:
        model: The student.
        name: What to call it in a message.
        seed: Of the latent values of integers, which start anywhere within half a step.

    Raises:
        NothingToQuantizeError: It has none.
    """
    draw = np.random.default_rng(seed)
    safe = {id(p.weight): p for p in integer_products(model)}
    found: list[Weight] = []
    for key, value in model.graph.initializers.items():
        tensor = constant(value)
        if tensor is None or tensor.size < 2 or value.is_graph_output():
            continue
        if key.endswith((_CODES, f"{_CODES}{_PLANE}0")):
            found += _codes(model, value, draw)
        elif tensor.dtype is ir.DataType.FLOAT and _is_trained(value):
            latent = as_tensor(tensor.numpy())
            found.append(_weight(key, key, latent, latent))
        elif _is_integer(value):
            product = safe.get(id(tensor))
            found.append(_integers(key, tensor.numpy(), product, draw))
    if not found:
        raise NothingToQuantizeError(
            f"{name} has no weights that can be trained: it has no Conv, Gemm, MatMul, Add or Mul with constants"
        )
    return tuple(found)


def _weight(
    value: str, stored: str, latent: Tensor, sized: Tensor, grid: Grid | None = None
) -> Weight:
    size = max(float(sized.float().square().mean().sqrt()), _LEAST)
    return Weight(value=value, stored=stored, latent=latent.requires_grad_(), size=size, grid=grid)


# Operators, and their inputs that hold weights; None: all.
_TRAINED: Mapping[str, tuple[int, ...] | None] = {
    "Add": None,
    "BatchNormalization": (1, 2),
    "Conv": (1, 2),
    "ConvTranspose": (1, 2),
    "Gemm": (1, 2),
    "InstanceNormalization": (1, 2),
    "LayerNormalization": (1, 2),
    "MatMul": None,
    "Mul": None,
    "PRelu": (1,),
    "Sub": None,
    "Transpose": None,
}


def _is_trained(value: ir.Value) -> bool:
    uses = [(use.node, use.idx) for use in value.uses()]
    return bool(uses) and all(
        is_op(node, *_TRAINED) and (slots is None or slot in slots)
        for node, slot in uses
        for slots in (_TRAINED.get(node.op_type),)
    )


def _is_integer(value: ir.Value) -> bool:
    """Return whether only DequantizeLinear consumes integers, and its output is a weight."""
    uses = [(use.node, use.idx) for use in value.uses()]
    plain = all(
        is_op(n, "DequantizeLinear") and not i and "block_size" not in n.attributes for n, i in uses
    )
    return bool(uses) and plain and all(_is_trained(node.outputs[0]) for node, _ in uses)


def _integers(name: str, array: NDArray[Any], product: IntegerProduct | None, draw: Any) -> Weight:
    """Return integers of 8 bits, or a bias of 32."""
    low, high = _ENDS[array.dtype.name]
    if array.dtype == np.int8:
        low, peak = min(low, int(array.min())), int(np.abs(array.astype(int)).max())
        low, high = (-_HALF, _HALF) if peak <= _HALF else (low, high)
    grid = Grid(low=low, high=high, dtype=array.dtype, pairs=_pairs(array, product, high))
    middle = as_tensor(array).float()
    latent = middle.double() if array.dtype == np.int32 else _within(middle, draw)
    return _weight(name, name, latent, middle - middle.mean(), grid)


def _within(middle: Tensor, draw: Any) -> Tensor:
    """Return a random latent value for each integer: the float weight is not known."""
    return middle + torch.from_numpy(draw.uniform(-0.49, 0.49, middle.shape).astype(np.float32))


def _pairs(array: NDArray[Any], product: IntegerProduct | None, peak: int) -> Pairs | None:
    """Return which integers a kernel sums; None if no sum can be too large, or the file can saturate already."""
    columns = None if product is None else product.columns
    if product is None or columns is None or peak <= _HALF or not is_pair_safe(columns):
        return None
    axes: tuple[int, ...] = (array.ndim - (1 if product.transposed else 2),)
    if product.is_conv:
        axes = (*range(2, array.ndim), 1)
    rest = [axis for axis in range(array.ndim) if axis not in axes]
    return Pairs((*rest, *axes), columns.shape[-2])


def _codes(model: ir.Model, value: ir.Value, draw: Any) -> Iterator[Weight]:
    """Yield a weight whose codes stand in the file as planes of bits (`quantkit.quantize.emit.packed`)."""
    stored = (value.name or "").removesuffix(f"{_PLANE}0")
    whole = _whole_codes(value)
    if whole is None or not whole.name:
        return
    codes = Network(model, [whole.name])({})[whole.name].float()
    bits = _bits(model, stored, codes)
    top = (1 << (bits or int(codes.max()).bit_length())) - 1
    grid = Grid(low=0, high=top, dtype=np.dtype(np.uint8), bits=bits)
    yield _weight(whole.name, stored, _within(codes, draw), codes - codes.mean(), grid)


def _whole_codes(value: ir.Value) -> ir.Value | None:
    """Return the value that holds whole codes, in floats; None if other nodes read them."""
    while True:
        readers = {use.node for use in value.uses()}
        if readers and all(is_op(node, "Sub") for node in readers):
            return value
        if len(readers) != 1 or not is_op(node := readers.pop(), *UNPACKS):
            return None
        value = node.outputs[0]


def _bits(model: ir.Model, stored: str, codes: Tensor) -> int:
    """Return the bits of a code, from the lengths of its planes; 0: a byte holds one code."""
    bits, number = 0, 0
    while (plane := model.graph.initializers.get(f"{stored}{_PLANE}{number}")) is not None:
        assert plane.const_value is not None  # noqa: S101 - of an initializer
        bits += 8 // round(codes.numel() / plane.const_value.size)
        number += 1
    return bits
