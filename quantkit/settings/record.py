"""Settings as they stand in the metadata of a model, and back: the format of files already written.

What a field is called here was decided when the first models were written, and is not what it is called in quantkit.toml.
Names, defaults and types of settings may change; this may not, or `quantkit verify --again` would not know such models any
more. `tests/settings/records` holds what version 0.1.0 wrote.
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from quantkit.errors import ModelError, UsageError
from quantkit.settings.data import DataSettings
from quantkit.settings.declare import Settings
from quantkit.settings.distill import DistillSettings
from quantkit.settings.float16 import Float16Settings
from quantkit.settings.integers import (
    DynamicSettings,
    RecoverSettings,
    StaticSettings,
    TensorRule,
)
from quantkit.settings.prune import PruneSettings
from quantkit.settings.trim import TrimSettings
from quantkit.settings.weights import WeightsSettings

CARRIED = "quantkit.preprocessing"
"""The entry in a model's metadata that says how its inputs are made; every rewriting of the model keeps it."""
PROVENANCE = "quantkit.provenance"
"""The entry in a model's metadata that says where it comes from (`quantkit.model.provenance`)."""

# Settings that the first records do not have: left out where they are the default.
LATER: Mapping[type, tuple[str, ...]] = {
    DynamicSettings: (
        *("coverage", "keep_inputs", "symmetric_weights", "activation_products", "subgraphs"),
        *("weight_bits", "target_size"),
    ),
    StaticSettings: (
        *("coverage", "measure", "simplify", "keep_inputs", "weight_bits", "target_size"),
    ),
    RecoverSettings: ("activation_ranges",),
    TensorRule: ("symmetric", "scales", "zero_points", "axis", "reduced", "readers"),
}
TABLES: Mapping[type, str] = {
    DistillSettings: "distill",
    Float16Settings: "float16",
    PruneSettings: "prune",
    WeightsSettings: "weights",
    TrimSettings: "trim",
}
_Kind = TypeVar("_Kind", bound=Settings)
# What static settings are called in a record, where they are there as they are.
_STATIC = ("target", "per_channel", "symmetric_activations", "include", "exclude")


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


def settings_record(settings: Settings, samples: DataSettings | None = None) -> dict[str, Any]:
    """Return how a model was quantized: static without the format, which stands beside it.

    Args:
        settings: What was chosen: static, dynamic, float16 or weights. Of static ones those that were used: target and types
            may be null there, rules of nodes are what they exclude or force.
        samples: How they were prepared; None if none decided anything. Where they lay, and how much memory might be held,
            changes no result.
    """
    if isinstance(settings, StaticSettings):
        found = _static_record(settings)
    elif isinstance(settings, DynamicSettings):
        found = {**_without_later(settings), "op_types": settings.op_types or None}
    else:
        found = {TABLES[type(settings)]: settings}
    if samples is not None:
        found["data"] = replace(samples, path=None, memory=None)
    plain: dict[str, Any] = to_record(found)
    return plain


def _static_record(settings: StaticSettings) -> dict[str, Any]:
    rules = (*settings.overrides, *settings.conversions)
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
        "overrides": [
            {"tensor": r.tensor, "range": r.range, "dtype": r.dtype, "is_float": r.keep_float}
            | changed_fields(r, *LATER[TensorRule])
            for r in rules
        ],
        **changed_fields(settings, *LATER[StaticSettings], "qdq"),
    }
    recover = _without_later(settings.recover)
    return {"static": static, "recover": recover, "methods": settings.methods}


def _without_later(settings: Any) -> dict[str, Any]:
    """Return settings; of those that came later what is not the default."""
    kind = type(settings)
    first = {name: getattr(settings, name) for name in _first(kind)}
    return first | changed_fields(settings, *LATER[kind])


def _first(kind: Any) -> list[str]:
    """Return the settings that the first records have."""
    return [f.name for f in fields(kind) if f.name not in LATER[kind]]


def changed_fields(settings: Any, *names: str) -> dict[str, Any]:
    """Return what is not the default; of a table the lines that are not."""
    defaults = {f.name: f.default for f in fields(settings)}
    found = {}
    for name in names:
        value: Any = getattr(settings, name)
        if is_dataclass(value):
            value = changed_fields(value, *(f.name for f in fields(value)))
        if value != ({} if defaults[name] is MISSING else defaults[name]):
            found[name] = value
    return found


def recorded_settings(options: Mapping[str, Any], kind: type[_Kind]) -> _Kind:
    """Read what `settings_record` wrote, and for static settings the format beside it.

    Raises:
        KeyError, TypeError, msgspec.ValidationError: The record is not one that this version wrote.
    """
    given: dict[str, Any]
    if kind is StaticSettings:
        given = _static_fields(options)
    elif kind is DynamicSettings:
        later = [name for name in LATER[kind] if name in options]
        given = {name: options[name] for name in (*_first(kind), *later)}
        given["op_types"] = given["op_types"] or []
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
        "image": changed_fields(image, *(f.name for f in fields(image))),
        "text": changed_fields(text, "column", "max_length"),
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
