"""The integer products of a quantized file on real activations: exact, and as x86 without VNNI adds them.

Activations are those of the file itself with optimization off, so they do not depend on the CPU. Where the file has
int8 activations between QuantizeLinear and DequantizeLinear, products are computed in uint8 as on x86, which adds 128
to the integers and to their zero point.

`matmul_integer` computes as onnxruntime does, exactly or as AVX2 does: `saturate=True` clips each adjacent-K pair sum of a uint8 x int8 product to int16, which is what
x86 without VNNI does, bit for bit. Zero points are an exact correction afterwards:

    sum (a - za)(b - zb) = sum ab - za sum b - zb sum a + K za zb
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from calibrators import Window
from quantkit.model.graph.load import load
from quantkit.model.graph.unpack import unpack
from quantkit.model.ops.integer_ops import INTEGER_OPS, QUANTIZED_PRODUCTS
from quantkit.numerics.decibels import decibels
from quantkit.runtime.saturation import IntegerProduct, integer_products
from quantkit.runtime.synthetic_inputs import Feeds
from quantkit.runtime.taps import read_tensors

Integers = NDArray[Any]

_INT16 = np.iinfo(np.int16)
_TO_UINT8 = 128
_AT_ONCE = 1 << 24  # pair sums


def matmul_integer(
    a: Integers,
    b: Integers,
    a_zero: Integers | int = 0,
    b_zero: Integers | int = 0,
    *,
    saturate: bool = False,
) -> NDArray[np.int32]:
    """ONNX MatMulInteger of (..., M, K) and (K, N); `b_zero` may be one per column.

    Args:
        a: (..., M, K), the activation.
        b: (K, N), the weight.
        a_zero: Of the activation.
        b_zero: Of the weight; one, or one per column.
        saturate: Clip sums of two products at int16, as x86 without VNNI does for uint8 times int8.
    """
    a64, b64 = a.astype(np.int64), b.astype(np.int64)
    az, bz = np.asarray(a_zero, np.int64), np.asarray(b_zero, np.int64)
    product = _pair_sums(a64, b64) if saturate else a64 @ b64
    k = a.shape[-1]
    product = product - az * b64.sum(axis=-2) - bz * a64.sum(axis=-1, keepdims=True) + k * az * bz
    result: NDArray[np.int32] = product.astype(np.int32)
    return result


def _pair_sums(a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.int64]:
    if a.shape[-1] % 2:
        a = np.concatenate([a, np.zeros_like(a[..., :1])], axis=-1)
        b = np.concatenate([b, np.zeros_like(b[:1])], axis=0)
    total = np.zeros((*a.shape[:-1], b.shape[-1]), np.int64)
    for j in range(0, a.shape[-1], 2):
        pair = a[..., j : j + 2] @ b[j : j + 2]
        total += np.clip(pair, _INT16.min, _INT16.max)
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerLayer:
    """One product on some positions of its input.

    Attributes:
        node: Its name.
        may_saturate: Some activations, if not these, would clip a pair.
        pairs: Pair sums that were computed.
        clipped: Those that int16 clips.
        sums: Sums of all pairs, that is outputs.
        differing: Those that differ by the clipping.
        noise_db: Power of that difference over the power of the exact output; None if there is none.
    """

    node: str
    may_saturate: bool
    pairs: int = 0
    clipped: int = 0
    sums: int = 0
    differing: int = 0
    noise_db: float | None = None


def integer_layers(path: Path, samples: Sequence[Feeds], positions: int) -> list[IntegerLayer]:
    """Compute every product with int8 weights on at most `positions` positions of each sample.

    Args:
        path: The candidate.
        samples: What to run.
        positions: Of each sample, evenly spaced.
    """
    model = load(path).model
    unpack(model)
    return layers_among(path, list(integer_products(model)), samples, positions)


def layers_among(
    path: Path,
    products: Sequence[IntegerProduct],
    samples: Sequence[Feeds],
    positions: int,
    work: int | None = None,
) -> list[IntegerLayer]:
    """Compute these products of a file; `work`: with at most so many multiplications each, but at least one row per sample.

    One that quantizes what it reads on its own, or that stands in a subgraph, is judged by its weight alone.

    Args:
        path: The file.
        products: Those to compute.
        samples: What to run.
        positions: At most so many of each sample.
        work: At most so many multiplications per product; None: as many as the positions need.

    Raises:
        An exception in `quantkit.runtime.session.RUNTIME_ERRORS`: it does not run with optimization off.
    """
    shown = [p for p in products if not _quantizes_itself(p)]
    values = [v for p in shown for v in (p.reads, _zero_point(p)) if v is not None]
    computed = [v.name or "" for v in values if ir.convenience.get_const_tensor(v) is None]
    seen = list(read_tensors(path, computed, samples, optimized=False))
    found = []
    for product in products:
        fitting = work // max(1, product.weight.size * len(samples)) if work else positions
        found.append(_layer(product, seen, min(positions, max(1, fitting))))
    return found


def clips(product: IntegerProduct) -> bool:
    """Say whether x86 without VNNI could clip a pair of this product.

    int8 activations of a QLinear or Integer operator are multiplied as they are, by a kernel that widens first; between
    QuantizeLinear and DequantizeLinear they become uint8.
    """
    widened = product.node.op_type not in QUANTIZED_PRODUCTS
    exact = widened and _activation_type(product) is ir.DataType.INT8
    return not exact and product.may_saturate


def share(layers: Sequence[IntegerLayer]) -> float:
    """Return which part of the outputs of all layers is changed by clipping."""
    return sum(layer.differing for layer in layers) / max(1, sum(layer.sums for layer in layers))


def worst_db(layers: Sequence[IntegerLayer]) -> float | None:
    """Return the largest noise of a layer."""
    return max((layer.noise_db for layer in layers if layer.noise_db is not None), default=None)


def _layer(product: IntegerProduct, seen: Sequence[Feeds], positions: int) -> IntegerLayer:
    if _quantizes_itself(product) or not any(product.reads.name in one for one in seen):
        return IntegerLayer(node=product.node.name or "", may_saturate=clips(product))
    columns, window = product.columns, _window(product)
    grouped = columns.reshape(len(columns), window.group, -1).swapaxes(0, 1)
    scale = _constant(product.scale, np.float32(1)).reshape(-1)
    scales = np.broadcast_to(scale, columns.shape[1]).reshape(window.group, 1, -1)
    depthwise = window.group > 1 and window.group == grouped.shape[0] * grouped.shape[2]
    patches, zeros = _patches(product, window, seen, positions)
    exact, rounded = (_product(patches, grouped, zeros, saturate=s) for s in (False, not depthwise))
    signal = float(np.square(exact * scales).sum())
    noise = float(np.square((exact - rounded) * scales).sum())
    return IntegerLayer(
        node=product.node.name or "",
        may_saturate=clips(product),
        pairs=exact.size * (grouped.shape[1] // 2),
        clipped=0 if depthwise else _clipped(patches, grouped),
        sums=exact.size,
        differing=int((exact != rounded).sum()),
        noise_db=decibels(noise / signal) if noise > 0 < signal else None,
    )


def _product(
    patches: NDArray[np.int32], weights: NDArray[Any], zeros: NDArray[np.int32], *, saturate: bool
) -> NDArray[Any]:
    """Return (groups, patches, channels); a zero point is subtracted after the sums, exactly."""
    sums = [
        matmul_integer(part, w, saturate=saturate).astype(np.int64)
        for part, w in zip(patches, weights, strict=True)
    ]
    correction = zeros[np.newaxis, :, np.newaxis] * weights.sum(axis=1, dtype=np.int64)[:, None]
    result: NDArray[Any] = np.stack(sums) - correction
    return result


def _patches(
    product: IntegerProduct, window: Window, seen: Sequence[Feeds], positions: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return (groups, patches, K), and the zero point of each patch; what lies outside an image is zero."""
    zero = _zero_point(product)
    shift = _TO_UINT8 if _becomes_uint8(product) else 0
    fixed = _constant(zero, np.uint8(0)).astype(np.int32)
    found = [np.zeros((window.group, 0, len(product.columns)), np.int32)]
    zeros = [np.zeros(0, np.int32)]
    for one in seen:
        array = one.get(product.reads.name or "")
        if array is None:
            continue
        at = (
            int((fixed if zero is None else one.get(zero.name or "", fixed)).reshape(-1)[0]) + shift
        )
        cut = window.patches(array.astype(np.int32) + shift - at, positions) + at
        found.append(cut)
        zeros.append(np.full(cut.shape[1], at, np.int32))
    return np.concatenate(found, axis=1), np.concatenate(zeros)


def _window(product: IntegerProduct) -> Window:
    """Return what a product reads of its input at once."""
    if not product.is_conv:
        return Window()
    kernel = tuple(int(n) for n in product.weight.shape.numpy()[2:])
    given = product.node.attributes
    return Window.of_conv(kernel, {name: attribute.value for name, attribute in given.items()})


def _clipped(patches: NDArray[np.int32], weights: NDArray[Any]) -> int:
    """Count the pair sums that do not fit int16, some rows at a time."""
    even, odd = (weights[:, i::2].astype(np.int32) for i in (0, 1))
    even = even[:, : odd.shape[1]]  # an odd last one is alone, and fits
    step = max(1, _AT_ONCE // max(1, even.size))
    total = 0
    for start in range(0, patches.shape[1], step):
        some = patches[:, start : start + step, : 2 * odd.shape[1], np.newaxis]
        sums = some[:, :, 0::2] * even[:, np.newaxis] + some[:, :, 1::2] * odd[:, np.newaxis]
        total += int(((sums > _INT16.max) | (sums < _INT16.min)).sum())
    return total


def _quantizes_itself(product: IntegerProduct) -> bool:
    """Say whether it reads floats, and quantizes them on its own."""
    row = INTEGER_OPS.get(product.node.op_type)
    return row is not None and row.dynamic


def _becomes_uint8(product: IntegerProduct) -> bool:
    """Say whether onnxruntime computes it with uint8 on x86 though the file says int8."""
    return (
        product.node.op_type in QUANTIZED_PRODUCTS and _activation_type(product) is ir.DataType.INT8
    )


def _activation_type(product: IntegerProduct) -> ir.DataType:
    """Return the type of the activation: that of its zero point, uint8 without one."""
    zero = _zero_point(product)
    tensor = None if zero is None else ir.convenience.get_const_tensor(zero)
    return ir.DataType.UINT8 if tensor is None else tensor.dtype


def _zero_point(product: IntegerProduct) -> ir.Value | None:
    """Return the activation's: beside it, or in the DequantizeLinear that a QDQ operator reads.

    None if it is left out, or found at run time by an operator that quantizes what it reads on its own.
    """
    source = product.node.inputs[0]
    maker = None if source is None or source is product.reads else source.producer()
    node = product.node if maker is None else maker
    (read,) = INTEGER_OPS[node.op_type].reads or (None,)
    slot = None if read is None else read.zero_point
    return None if slot is None or slot >= len(node.inputs) else node.inputs[slot]


def _constant(value: ir.Value | None, default: Any) -> NDArray[Any]:
    """Return a constant, or a default for what is left out or computed."""
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    return np.asarray(default) if tensor is None else tensor.numpy()
