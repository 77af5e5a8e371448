"""What a layer's error comes from, in one sentence."""

from collections.abc import Iterator

from quantkit.evaluate.layers.measure import Errors, Models, Seen
from quantkit.match.quantizer import Quantizer
from quantkit.match.regions import Read
from quantkit.ops.integer_ops import INTEGER_OPS, Role

__all__ = ["cause_of", "is_mistake"]

_MISTAKE = 8.0  # times what the data needs: more than any sample left out explains
_WIDE = 3.0  # times what the data needs: more than few samples and a careful method explain
_CLIPPED = 0.005  # share of values from which on clipping is no longer a choice of the method
_GAIN = 0.25  # by how much a layer's weights may be too large or too small before their scale is to blame


def cause_of(models: Models, errors: Errors) -> str:
    """Say what a layer's error comes from, and what else than float would mend that."""
    read = errors.read.ratio if errors.read is not None else 0.0
    by_weights = errors.weights if errors.read is not None else errors.local
    if read < by_weights.ratio or not errors.seen:
        return _weights(models, errors, by_weights.gain)
    tensor, seen = max(errors.seen.items(), key=lambda item: _lost(*item))
    wide = _wide(tensor.meant, tensor.quantizer, seen)
    if wide:
        return wide
    if models.reference.nodes[errors.region.node].op_type == "BatchNormalization":
        return "Fold it into the layer before it, then quantize: quantkit optimize."
    return _activation(tensor, seen)


def is_mistake(errors: Errors) -> bool:
    """Say whether a layer is wrong rather than hard: a scale is wrong, not merely coarse."""
    gain = (errors.weights if errors.read is not None else errors.local).gain
    ratios = [
        read.quantizer.scale / needed
        for read, seen in errors.seen.items()
        if read.quantizer.scale is not None
        and (needed := read.quantizer.needed(seen.low, seen.high)) > 0
    ]
    return abs(gain - 1) > _GAIN or max(ratios, default=0.0) > _MISTAKE


def _weights(models: Models, errors: Errors, gain: float) -> str:
    if abs(gain - 1) > _GAIN:
        times = f"{gain:.1f} times what it should be"
        return f"What its weights make is {times}: their scale is wrong; quantize again."
    made, rounds = errors.region.makes[0].tensor, errors.region.rounds
    wide = "" if rounds is None else _wide(made, rounds, errors.made)
    if wide:
        return wide
    if _is_per_tensor(models, errors):
        return (
            "One scale for all channels of its weights is too coarse: quantize weights per channel."
        )
    rounded = f" and the rounding of '{made}'" if rounds is not None else ""
    return f"Its weights{rounded} lose most."


def _wide(tensor: str, quantizer: Quantizer, seen: Seen) -> str:
    scale, needed = quantizer.scale, quantizer.needed(seen.low, seen.high)
    if scale is None or not needed or scale / needed < _WIDE:
        return ""
    times = f"{scale / needed:.1f} times what the data needs"
    return f"The scale of '{tensor}' is {times}: calibrate again."


def _activation(read: Read, seen: Seen) -> str:
    name = read.meant
    if read.quantizer.scale is not None and seen.clipped > _CLIPPED:
        share = f"{100 * seen.clipped:.1f} % of '{name}' is clipped"
        return f"{share}: calibrate with more samples, or with --method minmax."
    return f"'{name}' needs more than {read.quantizer.bits} bits."


def _lost(read: Read, seen: Seen) -> float:
    """Return how badly a tensor is quantized: its step over the spread of its values, or the share that is cut off."""
    scale = read.quantizer.scale
    if scale is None or seen.high <= seen.low:
        return 0.0
    return scale / (seen.high - seen.low) + seen.clipped


def _is_per_tensor(models: Models, errors: Errors) -> bool:
    """Say whether a matrix of weights in the layer has a single scale."""
    model, stops = models.candidate, set(errors.region.boundary)
    queue = [errors.region.makes[0].candidate]
    seen = set(queue)
    for name in queue:
        node = model.maker_of(name)
        if node is None:
            continue
        for values, by in _held(node.op_type):
            if max(values, by) < len(node.input):
                weight = model.initializers.get(node.input[values])
                scale = model.constant(node.input[by])
                if weight is not None and len(weight.dims) > 1 and scale is not None:
                    return scale.size == 1
        fresh = [n for n in node.input if n and n not in seen and n not in stops]
        seen.update(fresh)
        queue += fresh
    return False


def _held(op_type: str) -> Iterator[tuple[int, int]]:
    """Yield the input slots of integers that may be weights, and of their scales."""
    row = INTEGER_OPS.get(op_type)
    operands = () if row is None else row.reads if row.role is Role.CONVERTS else row.weights
    for operand in operands:
        if operand.scale is not None:
            yield operand.values, operand.scale
