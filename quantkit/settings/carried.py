"""The preprocessing of samples that a model carries in its metadata."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

import msgspec

from quantkit.errors import ModelError, UsageError
from quantkit.settings.data import DataSettings
from quantkit.settings.record import CARRIED, PROVENANCE, changed_fields, to_record
from quantkit.settings.recorded import data_settings_of


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
