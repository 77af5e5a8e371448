"""Settings as the record of a quantized model holds them, of this version and earlier ones."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

import msgspec

from quantkit.errors import ModelError
from quantkit.settings.data import DataSettings
from quantkit.settings.declare import Settings
from quantkit.settings.integers import (
    DynamicSettings,
    StaticSettings,
)
from quantkit.settings.record import LATER, TABLES

_Kind = TypeVar("_Kind", bound=Settings)
# What static settings are called in a record, where they are there as they are.
_STATIC = ("target", "per_channel", "symmetric_activations", "include", "exclude")


def recorded_settings(options: Mapping[str, Any], kind: type[_Kind]) -> _Kind:
    """Read what `settings_record` wrote, and for static settings the format beside it.

    Raises:
        KeyError, TypeError, msgspec.ValidationError: The record is not one that this version wrote.
    """
    given: Mapping[str, Any]
    if kind is StaticSettings:
        given = _static_fields(options)
    elif kind is DynamicSettings:
        later = LATER[kind]
        names = [f.name for f in fields(kind) if f.name in options or f.name not in later]  # type: ignore[arg-type]
        given = {name: options[name] for name in names} | {"op_types": options["op_types"] or []}
    else:
        given = options[TABLES[kind]]
    return msgspec.convert(given, kind)


def _static_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    given = options["static"]
    rules = [{**rule, "keep_float": rule["is_float"]} for rule in given["overrides"]]
    rules += ({"tensor": name, "method": how} for name, how in options["methods"].items())
    return {
        **{name: given[name] for name in _STATIC},
        **{name: given[name] for name in LATER[StaticSettings] if name in given},
        "activation_type": given["activation"],
        "weight_type": given["weight"],
        "format": options["format"],
        "op_types": given["op_types"] or [],
        "qdq": given.get("qdq", {}),
        "recover": options["recover"],
        "tensors": rules,
        "nodes": [{"node": node, "mode": "integer"} for node in given["force"]],
    }


def data_settings_of(options: Mapping[str, Any]) -> DataSettings:
    """Return how samples were prepared, from the record of a model that they decided about.

    The record names a tokenizer without its folder; it is looked for beside data and model again.

    Raises:
        ModelError: The record is not one that this version wrote.
    """
    try:
        data = options["data"]
        text = {k: v for k, v in data["text"].items() if k not in {"tokenizer", "search"}}
        return msgspec.convert({**data, "path": None, "text": text}, DataSettings)
    except (KeyError, TypeError, AttributeError, msgspec.ValidationError) as e:
        raise ModelError(f"The recorded data settings are not of this version: {e!r}.") from e
