"""Where a model comes from, written into it.

digests -> record: what names a model, and what is said about it, in an entry of its metadata.
"""

from quantkit.model.provenance.digests import KEY, content_digest, model_digest
from quantkit.model.provenance.record import (
    SCHEMA,
    SOURCE,
    CalibrationOrigin,
    DataOrigin,
    ModelOrigin,
    Provenance,
    Source,
    calibrated_of,
    cpu_name,
    is_sealed,
    json_digest,
    provenance_from_text,
    read_entry,
    read_provenance,
    runtime_package,
    software,
    source_of,
    source_text,
    write_model,
)

__all__ = [
    "KEY",
    "SCHEMA",
    "SOURCE",
    "CalibrationOrigin",
    "DataOrigin",
    "ModelOrigin",
    "Provenance",
    "Source",
    "calibrated_of",
    "content_digest",
    "cpu_name",
    "is_sealed",
    "json_digest",
    "model_digest",
    "provenance_from_text",
    "read_entry",
    "read_provenance",
    "runtime_package",
    "software",
    "source_of",
    "source_text",
    "write_model",
]
