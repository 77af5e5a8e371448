"""Settings as they stand in the record of a model, and back: the format of files already written.

What a field is called here was decided when the first models were written, and is not what it is called in quantkit.toml.
Names, defaults and types of settings may change; this may not, or `quantkit verify --again` would not know such models any
more. `tests/settings/records` holds what version 0.1.0 wrote.
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from quantkit.settings.data import DataSettings
from quantkit.settings.declare import Settings
from quantkit.settings.float16 import Float16Settings
from quantkit.settings.integers import (
    DynamicSettings,
    RecoverSettings,
    StaticSettings,
    TensorRule,
)
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
TABLES: Mapping[type, str] = {Float16Settings: "float16", WeightsSettings: "weights"}


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
    later = LATER[type(settings)]
    first = {f.name: getattr(settings, f.name) for f in fields(settings) if f.name not in later}
    return first | changed_fields(settings, *later)


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
