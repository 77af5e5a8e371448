"""The metadata entry that holds the record: written with the model, read from it.

A model is written without the entry, and hashed; then the entry is put at the end of the file. Protobuf takes
fields in any order, and entries of a list that stand apart as one list, so that nothing is written twice.
"""

from pathlib import Path

import onnx
import onnx_ir as ir

from quantkit.errors import ModelError
from quantkit.graph.load import read_structure
from quantkit.graph.save import Stage
from quantkit.provenance.digests import KEY, content_digest
from quantkit.provenance.record import Provenance, provenance_from_text, sealed, text_of

__all__ = ["read_entry", "read_provenance", "write_model"]


def write_model(stage: Stage, model: ir.Model, provenance: Provenance, *, external: bool) -> int:
    """Write a model with its provenance; return its size in bytes, external data included.

    Raises:
        onnx.checker.ValidationError: The graph is not valid ONNX.
        ModelError: A text in it is not UTF-8.
    """
    model.metadata_props.pop(KEY, None)  # of the model that was read
    nbytes = stage.write(model, external=external)
    done = sealed(provenance, content_digest(stage.model_path))
    entry = onnx.StringStringEntryProto(key=KEY, value=text_of(done))
    addition: bytes = onnx.ModelProto(metadata_props=[entry]).SerializeToString()
    with stage.model_path.open("ab") as file:
        file.write(addition)
    return nbytes + len(addition)


def read_entry(path: Path) -> str | None:
    """Return the record that a model file holds, as it stands there; None if there is none.

    Raises:
        ModelError: The file cannot be read, or holds two.
    """
    found = [e.value for e in read_structure(path).metadata_props if e.key == KEY]
    if len(found) > 1:
        raise ModelError(f"'{path}' holds {len(found)} provenances; quantkit writes one.")
    return found[0] if found else None


def read_provenance(source: str | Path | ir.Model) -> Provenance | None:
    """Return where a model says it comes from; None if it does not say.

    Raises:
        ModelError: The model cannot be read, or what it says is damaged or of another version.
    """
    if isinstance(source, ir.Model):
        text, name = source.metadata_props.get(KEY), "the model"
    else:
        text, name = read_entry(Path(source)), f"'{source}'"
    return None if text is None else provenance_from_text(text, name)
