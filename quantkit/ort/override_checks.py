"""Checks of overrides of single tensors, as onnxruntime's users write them.

    {"tensor": [{"quant_type": ..., "axis": ..., "scale": ..., "zero_point": ..., "rmin": ..., "rmax": ...,
                 "symmetric": ..., "reduce_range": ..., "convert": {..., "recv_nodes": {...}}}, ...]}

A tensor has one dictionary, or, per channel, one for each channel, of which the first names the axis.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from quantkit.errors import UsageError

__all__ = ["check_overrides"]

# What scale and zero point leave nothing to say about.
_COMPUTED = ("symmetric", "reduce_range", "rmax", "rmin")
_KNOWN = ("quant_type", "axis", "scale", "zero_point", *_COMPUTED, "convert")
# What all channels of a tensor have in common.
_COMMON = ("quant_type", "axis", "symmetric", "reduce_range")


def check_overrides(
    overrides: Mapping[str, Any],
    constants: Mapping[str, tuple[int, ...]],
    activations: Collection[str],
    default: Any,
) -> None:
    """Refuse overrides that make no sense. All are looked at: onnxruntime stops at the first that is right.

    Args:
        overrides: What was given.
        constants: The shapes of the model's constants, by name.
        activations: The names of its other tensors.
        default: The type of activations that name none.

    Raises:
        UsageError: A tensor is not there, or what is said of it contradicts itself.
    """
    if not isinstance(overrides, Mapping):
        raise UsageError("TensorQuantOverrides maps tensor names to lists of dictionaries.")
    for tensor, listed in overrides.items():
        if tensor not in constants and tensor not in activations:
            raise UsageError(
                f"Tensor '{tensor}' of TensorQuantOverrides is not present in the model."
            )
        if not isinstance(listed, list | tuple) or not all(isinstance(g, Mapping) for g in listed):
            raise _wrong(tensor, "they are no list of dictionaries")
        if not listed:
            continue
        for given in listed:
            _check_keys(tensor, given)
        if len(listed) > 1 or listed[0].get("axis") is not None:
            _check_channels(tensor, listed, constants.get(tensor))
        if tensor in constants:
            _check_constant(tensor, listed)
        else:
            _check_activation(tensor, listed[0], default)


def _wrong(tensor: str, why: str) -> UsageError:
    return UsageError(f"TensorQuantOverrides of '{tensor}': {why}.")


def _check_keys(tensor: str, given: Mapping[str, Any]) -> None:
    """Refuse what is unknown, and what goes together and does not come together."""
    unknown = [key for key in given if key not in (*_KNOWN, "recv_nodes")]
    if unknown:
        known = ", ".join(_KNOWN)
        raise _wrong(tensor, f"'{unknown[0]}' is unknown; use {known}")
    both = [key for key in _COMPUTED if key in given]
    if "scale" in given and both:
        raise _wrong(
            tensor,
            f"option(s) [{', '.join(both)}] are invalid with 'scale' and 'zero_point', which leave nothing open",
        )
    for one, other in (("scale", "zero_point"), ("rmin", "rmax")):
        if (one in given) != (other in given):
            raise _wrong(
                tensor, f"Must provide both '{one}' and '{other}', for one says nothing alone"
            )


def _check_channels(
    tensor: str, listed: Sequence[Mapping[str, Any]], shape: tuple[int, ...] | None
) -> None:
    if shape is None:
        raise _wrong(tensor, "it is computed, and only constants can be quantized per channel")
    axis = listed[0].get("axis")
    if axis is None:
        raise _wrong(tensor, "the first of several dictionaries names the axis of channels")
    if not -len(shape) <= axis < len(shape):
        raise _wrong(tensor, f"axis {axis} is out of range: it has {len(shape)} axes")
    if len(listed) not in {1, shape[axis]}:
        raise _wrong(
            tensor, f"{len(listed)} dictionaries for {shape[axis]} channels: give one, or one each"
        )
    for given in listed[1:]:
        for key in _COMMON:
            if key in given and given[key] != listed[0].get(key):
                raise _wrong(tensor, f"all channels must have the '{key}' of the first")
        for key in ("scale", "rmin"):
            if (key in given) != (key in listed[0]):
                raise _wrong(tensor, f"'{key}' is given for some channels and not for others")


def _check_constant(tensor: str, listed: Iterable[Mapping[str, Any]]) -> None:
    if any("convert" in given for given in listed):
        raise _wrong(tensor, "'convert' is for computed tensors: give a constant its type at once")


def _check_activation(tensor: str, given: Mapping[str, Any], default: Any) -> None:
    """Refuse what only constants can have, and a conversion that converts nothing."""
    convert = given.get("convert")
    if convert is not None and not isinstance(convert, Mapping):
        raise _wrong(tensor, "'convert' is a dictionary")
    for one in (given, convert or {}):
        if "reduce_range" in one:
            raise _wrong(tensor, "'reduce_range' is for constants, and it is computed")
    if convert is None:
        return
    _check_keys(tensor, convert)
    if convert.get("quant_type") is None:
        raise _wrong(tensor, "'convert' must name a 'quant_type'")
    one, other = convert["quant_type"], given.get("quant_type", default)
    if getattr(one, "name", one) == getattr(other, "name", other):
        raise _wrong(tensor, "'convert' names the quant_type that the tensor has already")
