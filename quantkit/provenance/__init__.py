"""Where a model comes from, written into it.

digests -> record: what names a model, and what is said about it, in an entry of its metadata.
"""

from quantkit.provenance.digests import KEY, content_digest, model_digest
from quantkit.provenance.record import (
    SCHEMA,
    CalibrationOrigin,
    DataOrigin,
    ModelOrigin,
    Provenance,
    calibrated_of,
    cpu_name,
    is_sealed,
    json_digest,
    provenance_from_text,
    read_entry,
    read_provenance,
    software,
    write_model,
)

__all__ = [
    "KEY",
    "SCHEMA",
    "CalibrationOrigin",
    "DataOrigin",
    "ModelOrigin",
    "Provenance",
    "calibrated_of",
    "content_digest",
    "cpu_name",
    "is_sealed",
    "json_digest",
    "model_digest",
    "provenance_from_text",
    "read_entry",
    "read_provenance",
    "software",
    "write_model",
]
