"""The integer products of a quantized file on real activations: exact, and as x86 without VNNI adds them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from calibrators import Window
from quantkit.analyze.network_view import network_of
from quantkit.graph.load import load
from quantkit.numerics.integer import matmul_integer
from quantkit.recover.layout import window_of
from quantkit.runtime import make_session
from quantkit.saturation_check import IntegerProduct, integer_products

__all__ = ["Layer", "layers_of", "share", "worst_db"]

Feeds = Mapping[str, NDArray[Any]]

_INT16 = np.iinfo(np.int16)
# They read floats, and quantize them on their own.
_READ_FLOATS = frozenset({"DynamicQuantizeLSTM", "DynamicQuantizeMatMul"})
# The slot of the activation's zero point, where it is not 2.
_ZERO_SLOTS: Mapping[str, int] = {"MatMulIntegerToFloat": 4, "QAttention": 6}
_AT_ONCE = 1 << 24  # pair sums


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
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
    pairs: int
    clipped: int
    sums: int
    differing: int
    noise_db: float | None


def layers_of(path: Path, samples: Sequence[Feeds], positions: int) -> list[Layer]:
    """Compute every product with int8 weights on at most `positions` positions of each sample.

    Activations are those that the file computes itself, on this machine. A product that quantizes what it reads
    on its own is judged by its weight alone.
    """
    model = load(path).model
    steps = {step.name: step for step in network_of(model).steps}
    products = list(integer_products(model))
    tapped = [p for p in products if p.node.op_type not in _READ_FLOATS]
    seen = _integers(model, tapped, samples)
    found = []
    for product in products:
        window = Window()
        if product.is_conv:
            step = replace(steps[product.node.name or ""], op_type="Conv")
            window = window_of(step, tuple(int(n) for n in product.weight.shape.numpy()))
        arrays = seen.get(product.reads.name or "", ())
        found.append(_layer(product, window, arrays, positions))
    return found


def share(layers: Sequence[Layer]) -> float:
    """Return which part of the outputs of all layers is changed by clipping."""
    return sum(layer.differing for layer in layers) / max(1, sum(layer.sums for layer in layers))


def worst_db(layers: Sequence[Layer]) -> float | None:
    """Return the largest noise of a layer."""
    return max((layer.noise_db for layer in layers if layer.noise_db is not None), default=None)


def _integers(
    model: ir.Model, products: Sequence[IntegerProduct], samples: Sequence[Feeds]
) -> dict[str, list[NDArray[Any]]]:
    """Run a quantized model; return the integers that its products read."""
    listed = {value.name for value in (*model.graph.inputs, *model.graph.outputs)}
    names = []
    for product in products:
        value = product.reads
        if value.name in listed:
            continue
        kind = ir.DataType.from_numpy(_constant(_zero_point(product), np.uint8(0)).dtype)
        value.type = value.type or ir.TensorType(kind)
        model.graph.outputs.append(value)
        listed.add(value.name)
        names.append(value.name or "")
    session = make_session(ir.serde.serialize_model(model).SerializeToString())
    found: dict[str, list[NDArray[Any]]] = {name: [] for name in names}
    for sample in samples:
        for name, array in zip(names, session.run(names, dict(sample)), strict=True):
            found[name].append(array)
    return found


def _layer(
    product: IntegerProduct, window: Window, arrays: Sequence[NDArray[Any]], positions: int
) -> Layer:
    columns = product.columns
    grouped = columns.reshape(len(columns), window.group, -1).swapaxes(0, 1)
    scale = _constant(product.scale, np.float32(1)).reshape(-1)
    scales = np.broadcast_to(scale, columns.shape[1]).reshape(window.group, 1, -1)
    zero = int(_constant(_zero_point(product), np.uint8(0)).item())
    depthwise = window.group > 1 and window.group == grouped.shape[0] * grouped.shape[2]
    patches = _patches(arrays, window, zero, positions, len(columns))
    exact, rounded = (
        np.stack(
            [
                matmul_integer(part, w, zero, saturate=how)
                for part, w in zip(patches, grouped, strict=True)
            ]
        )
        for how in (False, not depthwise)
    )
    signal = float(np.square(exact * scales).sum())
    noise = float(np.square((exact - rounded) * scales).sum())
    return Layer(
        node=product.node.name or "",
        may_saturate=product.may_saturate,
        pairs=grouped.shape[2] * patches.size // 2,
        clipped=0 if depthwise else _clipped(patches, grouped),
        sums=exact.size,
        differing=int((exact != rounded).sum()),
        noise_db=10 * float(np.log10(noise / signal)) if noise > 0 < signal else None,
    )


def _patches(
    arrays: Sequence[NDArray[Any]], window: Window, zero: int, positions: int, k: int
) -> NDArray[np.int32]:
    """Return (groups, patches, K); what lies outside an image is its zero point."""
    found = [np.zeros((window.group, 0, k), np.int32)]
    found += [window.patches(a.astype(np.int32) - zero, positions) + zero for a in arrays]
    return np.concatenate(found, axis=1)


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


def _zero_point(product: IntegerProduct) -> ir.Value | None:
    """Return the activation's: beside it, or in the DequantizeLinear that a QDQ operator reads."""
    source = product.node.inputs[0]
    maker = None if source is None or source is product.reads else source.producer()
    node = product.node if maker is None else maker
    slot = _ZERO_SLOTS.get(node.op_type, 2)
    return node.inputs[slot] if len(node.inputs) > slot else None


def _constant(value: ir.Value | None, default: Any) -> NDArray[Any]:
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    return np.asarray(default) if tensor is None else tensor.numpy()
