"""Settings as they stand in the record of a model, and back: the format of files already written.

What a field is called here was decided when the first models were written, and is not what it is called in quantkit.toml.
Names, defaults and types of settings may change; this may not, or `quantkit verify --again` would not know such models any
more. `tests/settings/records` holds what version 0.1.0 wrote.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec

from quantkit.errors import ModelError, UsageError
from quantkit.settings.data import DataSettings
from quantkit.settings.dynamic import DynamicSettings
from quantkit.settings.float16 import Float16Settings
from quantkit.settings.static import (
    NodeRule,
    QdqSettings,
    RecoverSettings,
    StaticSettings,
    TensorRule,
)
from quantkit.settings.weights import WeightsSettings

__all__ = ["data_settings_of", "dynamic_record", "dynamic_settings_of", "float16_record"]
__all__ += ["float16_settings_of", "static_record", "static_settings_of", "to_record"]
__all__ += [
    "CARRIED",
    "PROVENANCE",
    "Carried",
    "carried_by",
    "carried_text",
    "weights_record",
    "weights_settings_of",
]

CARRIED = "quantkit.preprocessing"
"""The entry in a model's metadata that says how its inputs are made; every rewriting of the model keeps it."""
PROVENANCE = "quantkit.provenance"
"""The entry in a model's metadata that says where it comes from (`quantkit.model.provenance`)."""


# Settings of dynamic quantization that the first records do not have.
_LATER = (
    *("coverage", "keep_inputs", "symmetric_weights", "activation_products", "subgraphs"),
    *("weight_bits", "target_size"),
)

_LATER_STATIC = (*("coverage", "measure", "simplify", "keep_inputs", "weight_bits", "target_size"),)


def to_record(value: object) -> Any:
    """Return JSON data for a tree of frozen dataclasses.

    Files become names without folders, for the record must not depend on where things lie.

    Raises:
        TypeError: It holds something else.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, Path):
        return value.name
    if isinstance(value, Enum):
        return to_record(value.value)
    if isinstance(value, Mapping):
        return {str(key): to_record(inner) for key, inner in value.items()}
    if is_dataclass(value):
        return {f.name: to_record(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Sequence):
        return [to_record(inner) for inner in value]
    raise TypeError(f"{type(value).__name__} has no place in a record.")


def dynamic_record(settings: DynamicSettings) -> dict[str, Any]:
    """Return how a model was quantized dynamically. All operators are null there; what came later is left out where it is the default."""
    first = {f.name: getattr(settings, f.name) for f in fields(settings) if f.name not in _LATER}
    found: dict[str, Any] = to_record(
        {**first, "op_types": settings.op_types or None, **_said(settings, *_LATER)}
    )
    return found


def dynamic_settings_of(options: Mapping[str, Any]) -> DynamicSettings:
    """Read what `dynamic_record` wrote; other options of the record are left out."""
    names = [f.name for f in fields(DynamicSettings)]
    said = {name: options[name] for name in names if name in options or name not in _LATER}
    return msgspec.convert(said | _operators(options), DynamicSettings)


def float16_record(settings: Float16Settings, samples: DataSettings | None) -> dict[str, Any]:
    """Return how a model was written in 16 bits; `samples`: how they were prepared, None if none decided anything."""
    found: dict[str, Any] = {"float16": to_record(settings)}
    if samples is not None:
        found["data"] = to_record(replace(samples, path=None, memory=None))
    return found


def float16_settings_of(options: Mapping[str, Any]) -> Float16Settings:
    """Read what `float16_record` wrote.

    Raises:
        KeyError, TypeError, msgspec.ValidationError: The record is not one that this version wrote.
    """
    return msgspec.convert(options["float16"], Float16Settings)


def static_record(settings: StaticSettings, samples: DataSettings) -> dict[str, Any]:
    """Return how a model was quantized statically; not the format, which stands beside it.

    Args:
        settings: What was chosen about nodes and tensors, by the settings that were used: target and types may be null
            there, rules of nodes are what they exclude or force.
        samples: How they were prepared. Where they lay, and how much memory might be held, changes no result.
    """
    own = ("symmetric", "scales", "zero_points", "axis", "reduced", "readers")
    plain = {f.name: f.default for f in fields(TensorRule)}
    overrides = [
        {"tensor": r.tensor, "range": r.range, "dtype": r.dtype, "is_float": r.keep_float}
        | {name: said for name in own if (said := getattr(r, name)) != plain[name]}
        for r in (*settings.overrides, *settings.conversions)
    ]
    static = {
        "target": settings.runs_on.name,
        "activation": settings.activation_type,
        "weight": settings.weight_type,
        "per_channel": settings.channelwise,
        "symmetric_activations": settings.symmetric_activations,
        "op_types": settings.op_types or None,
        "include": settings.include,
        "exclude": settings.excluded,
        "force": settings.forced,
        "overrides": overrides,
        **_said(settings, *_LATER_STATIC, "qdq"),
    }
    found: dict[str, Any] = to_record(
        {
            "static": static,
            "recover": _recover_record(settings.recover),
            "methods": settings.methods,
            "data": replace(samples, path=None, memory=None),
        }
    )
    return found


def _recover_record(recover: RecoverSettings) -> dict[str, Any]:
    """Return what was done to win back accuracy; what came later is left out where it is the default."""
    later = "activation_ranges"
    first = {f.name: getattr(recover, f.name) for f in fields(recover) if f.name != later}
    return {**first, **_said(recover, later)}


def static_settings_of(options: Mapping[str, Any]) -> StaticSettings:
    """Read what `static_record` wrote, and the format beside it.

    Raises:
        KeyError, TypeError, msgspec.ValidationError: The record is not one that this version wrote.
    """
    given = options["static"]
    rules = [
        msgspec.convert(_renamed(rule, is_float="keep_float"), TensorRule)
        for rule in given["overrides"]
    ]
    rules += (TensorRule(tensor=name, method=how) for name, how in options["methods"].items())
    same = ("target", "per_channel", "symmetric_activations", "include", "exclude")
    return replace(
        msgspec.convert(
            {name: given[name] for name in same}
            | {"activation_type": given["activation"], "weight_type": given["weight"]}
            | {"format": options["format"]}
            | {name: given[name] for name in _LATER_STATIC if name in given}
            | _operators(given),
            StaticSettings,
        ),
        qdq=msgspec.convert(given.get("qdq", {}), QdqSettings),
        recover=msgspec.convert(options["recover"], RecoverSettings),
        tensors=tuple(rules),
        nodes=tuple(NodeRule(node=node, mode="integer") for node in given["force"]),
    )


def weights_record(settings: WeightsSettings, samples: DataSettings) -> dict[str, Any]:
    """Return how weights were quantized in blocks.

    Args:
        settings: What was chosen.
        samples: How they were prepared. Where they lay, and how much memory might be held, changes no result.
    """
    found: dict[str, Any] = to_record(
        {"weights": settings, "data": replace(samples, path=None, memory=None)}
    )
    return found


def weights_settings_of(options: Mapping[str, Any]) -> WeightsSettings:
    """Read what `weights_record` wrote."""
    return msgspec.convert(options["weights"], WeightsSettings)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """How a model's inputs are made and its classes are called, as the model itself says.

    Attributes:
        data: How samples are prepared: `image` and `text` count.
        labels: The names of classes in the order of the scores; empty: not known.
    """

    data: DataSettings
    labels: tuple[str, ...] = ()


def carried_text(carried: Carried) -> str:
    """Return the entry `CARRIED` of a model: no folders, the same for the same settings."""
    image, text = carried.data.image, carried.data.text
    plain = {
        "image": _said(image, *(f.name for f in fields(image))),
        "text": _said(text, "column", "max_length"),
        "labels": list(carried.labels),
    }
    return msgspec.json.encode(to_record(plain), order="sorted").decode()


def carried_by(metadata: Mapping[str, str]) -> Carried | None:
    """Return how inputs are made from a model's metadata: its own entry, else what it was calibrated with; None: unknown.

    Raises:
        ModelError: The entry is damaged, or not of this version.
    """
    try:
        if CARRIED in metadata:
            plain = msgspec.json.decode(metadata[CARRIED])
            data = {"image": plain.get("image", {}), "text": plain.get("text", {})}
            return Carried(
                data=msgspec.convert(data, DataSettings),
                labels=msgspec.convert(plain.get("labels", ()), tuple[str, ...]),
            )
        options = msgspec.json.decode(metadata.get(PROVENANCE, "{}")).get("options", {})
        return Carried(data=data_settings_of(options)) if "data" in options else None
    except (TypeError, AttributeError, UsageError, msgspec.MsgspecError) as e:
        raise ModelError(f"The preprocessing in the model's metadata is damaged: {e}.") from e


def _said(settings: Any, *names: str) -> dict[str, Any]:
    """Return what is not as it was before there was such a setting; of a table the lines that are not."""
    plain = type(settings)()
    found = {name: getattr(settings, name) for name in names}
    found = {name: value for name, value in found.items() if value != getattr(plain, name)}
    return {
        name: _said(value, *(f.name for f in fields(value))) if is_dataclass(value) else value
        for name, value in found.items()
    }


def _operators(options: Mapping[str, Any]) -> dict[str, Any]:
    return {"op_types": options["op_types"] or []}


def _renamed(plain: Mapping[str, Any], **names: str) -> dict[str, Any]:
    return {names.get(key, key): value for key, value in plain.items()}
