"""Overrides of single tensors as onnxruntime's users write them: what they may say, and questions about them.

    {"tensor": [{"quant_type": ..., "axis": ..., "scale": ..., "zero_point": ..., "rmin": ..., "rmax": ...,
                 "symmetric": ..., "reduce_range": ..., "convert": {..., "recv_nodes": {...}}}, ...]}

A tensor has one dictionary, or, per channel, one for each channel, of which the first names the axis.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from quantkit.errors import UsageError
from quantkit.ort.missing import missing

__all__ = ["QuantTypeInfo", "TensorQuantOverridesHelper", "check_overrides"]
__path__: list[str] = []  # so that what is missing is said; see quantkit.ort.missing

# What scale and zero point leave nothing to say about.
_COMPUTED = ("symmetric", "reduce_range", "rmax", "rmin")
_KNOWN = ("quant_type", "axis", "scale", "zero_point", *_COMPUTED, "convert")
# What all channels of a tensor have in common.
_COMMON = ("quant_type", "axis", "symmetric", "reduce_range")


@dataclass(eq=False)
class QuantTypeInfo:
    """A type, and how it is used. Where one of two says nothing about symmetry or reduced range they are equal."""

    quant_type: Any
    symmetric: bool | None = None
    reduce_range: bool | None = None
    axis: int | None = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, QuantTypeInfo):
            return NotImplemented
        pairs = ((self.symmetric, other.symmetric), (self.reduce_range, other.reduce_range))
        alike = all(mine is None or theirs is None or mine == theirs for mine, theirs in pairs)
        return alike and self.quant_type == other.quant_type and self.axis == other.axis

    __hash__ = None  # type: ignore[assignment]  # equality is no equivalence

    @staticmethod
    def load_from_dict(
        raw_dict: Mapping[str, Any],
        default_qtype: Any = None,
        default_symmetric: bool | None = None,  # noqa: FBT001 - onnxruntime's signature
        default_reduce_range: bool | None = None,  # noqa: FBT001
    ) -> "QuantTypeInfo":
        """Return what a dictionary of overrides says."""
        return QuantTypeInfo(
            raw_dict.get("quant_type", default_qtype),
            raw_dict.get("symmetric", default_symmetric),
            raw_dict.get("reduce_range", default_reduce_range),
            raw_dict.get("axis"),
        )

    def save_to_dict(self, raw_dict: dict[str, Any]) -> None:
        """Write what is known into a dictionary of overrides."""
        raw_dict["quant_type"] = self.quant_type
        for key in ("symmetric", "reduce_range", "axis"):
            if getattr(self, key) is not None:
                raw_dict[key] = getattr(self, key)


class TensorQuantOverridesHelper(MutableMapping[str, list[dict[str, Any]]]):
    """A dictionary of overrides that can be asked, and added to; it is changed in place."""

    def __init__(self, raw_overrides: dict[str, list[dict[str, Any]]]) -> None:
        self.overrides = raw_overrides

    def _first(self, tensor_name: str) -> dict[str, Any]:
        return (self.overrides.get(tensor_name) or [{}])[0]

    def has_per_tensor_overrides(self, tensor_name: str) -> bool:
        """Say whether something is said of the tensor as a whole."""
        return bool(self.overrides.get(tensor_name)) and "axis" not in self._first(tensor_name)

    def has_per_channel_overrides(self, tensor_name: str) -> bool:
        """Say whether something is said of the tensor's channels."""
        return "axis" in self._first(tensor_name)

    def overrides_scale_zp(self, tensor_name: str) -> bool:
        """Say whether scale and zero point are given."""
        return self._first(tensor_name).keys() >= {"scale", "zero_point"}

    def get_per_tensor_overrides(
        self, tensor_name: str, default_val: dict[str, Any] | None = None
    ) -> dict[str, Any] | None:
        """Return what is said of a tensor as a whole; UsageError if it is said of channels."""
        if self.has_per_channel_overrides(tensor_name):
            raise UsageError(f"The overrides of tensor '{tensor_name}' are per channel.")
        return self._first(tensor_name) if self.overrides.get(tensor_name) else default_val

    def get_per_channel_overrides(
        self, tensor_name: str, default_val: list[dict[str, Any]] | None = None
    ) -> list[dict[str, Any]] | None:
        """Return what is said of a tensor's channels; UsageError if no axis is given."""
        found = self.overrides.get(tensor_name) or default_val
        if found and "axis" not in found[0]:
            raise UsageError(f"The overrides of tensor '{tensor_name}' name no axis of channels.")
        return found or None

    def get_quant_types(self) -> set[Any]:
        """Return every type that is named."""
        listed = (one for some in self.overrides.values() for one in some)
        named = (one for given in listed for one in (given, given.get("convert", {})))
        return {one["quant_type"] for one in named if one.get("quant_type") is not None}

    def is_valid(
        self,
        initializers: Mapping[str, Any],
        activation_names: Collection[str],
        default_activation_qtype: Any,
    ) -> tuple[bool, str | None]:
        """Say whether the overrides make sense, and else why not.

        Args:
            initializers: The model's constants, by name.
            activation_names: Its other tensors.
            default_activation_qtype: The type of activations that name none.
        """
        shapes = {name: tuple(tensor.dims) for name, tensor in initializers.items()}
        try:
            check_overrides(self.overrides, shapes, activation_names, default_activation_qtype)
        except UsageError as e:
            return False, str(e)
        return True, None

    def update_tensor_overrides(
        self,
        tensor_name: str,
        new_vals: Mapping[str, Any],
        channels: Iterable[int] | None = None,
        overwrite: bool = True,  # noqa: FBT001 - onnxruntime's signature
    ) -> bool:
        """Say more about a tensor, or about some of its channels; return whether anything was changed.

        Args:
            tensor_name: The tensor.
            new_vals: What is said.
            channels: Only these; None: all.
            overwrite: Else nothing is changed where some of it was said before.
        """
        listed = self.overrides.get(tensor_name) or [{}]
        wanted = range(len(listed)) if channels is None else sorted(set(channels))
        chosen = [listed[index] for index in wanted if index < len(listed)]
        if not new_vals or (not overwrite and any(new_vals.keys() & one.keys() for one in chosen)):
            return False
        self.overrides[tensor_name] = listed
        for one in chosen:
            one.update(new_vals)
        return True

    def get_node_output_qtype_info(
        self,
        output_name: str,
        default_qtype: Any,
        default_symmetric: bool | None = None,  # noqa: FBT001 - onnxruntime's signature
    ) -> QuantTypeInfo:
        """Return the type in which a node makes a tensor."""
        said = self._first(output_name)
        return QuantTypeInfo(
            said.get("quant_type", default_qtype), said.get("symmetric", default_symmetric)
        )

    def get_node_input_qtype_info(
        self,
        input_name: str,
        node_name: str,
        default_qtype: Any,
        default_symmetric: bool | None = None,  # noqa: FBT001 - onnxruntime's signature
        default_reduce_range: bool | None = None,  # noqa: FBT001
    ) -> QuantTypeInfo:
        """Return the type in which a node reads a tensor."""
        said = self._first(input_name)
        convert = said.get("convert")
        if convert is None:
            return QuantTypeInfo.load_from_dict(
                said, default_qtype, default_symmetric, default_reduce_range
            )
        converted = "recv_nodes" not in convert or node_name in convert["recv_nodes"]
        made = said.get("quant_type", default_qtype)
        return QuantTypeInfo(
            convert["quant_type"] if converted else made,
            convert.get("symmetric", default_symmetric),
        )

    def pprint_str(self, indent: int | None = None) -> str:
        """Return the overrides as text."""
        return json.dumps(self.overrides, default=str, indent=indent)

    def empty(self) -> bool:
        """Say whether nothing is overridden."""
        return not self.overrides

    def get_dict(self) -> dict[str, list[dict[str, Any]]]:
        """Return the overrides as they were given, and changed since."""
        return self.overrides

    def __setitem__(self, key: str, value: list[dict[str, Any]]) -> None:
        self.overrides[key] = value

    def __getitem__(self, key: str) -> list[dict[str, Any]]:
        return self.overrides[key]

    def __delitem__(self, key: str) -> None:
        del self.overrides[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.overrides)

    def __len__(self) -> int:
        return len(self.overrides)

    def __repr__(self) -> str:
        return f"TensorQuantOverridesHelper({self.overrides})"


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


def __getattr__(name: str) -> Any:
    raise missing(__name__, name)
