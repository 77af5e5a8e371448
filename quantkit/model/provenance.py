"""Where a model comes from, as one line of JSON that stands in the model itself.

It holds no time and no folder: the same inputs, options, software and CPU give the same line. Nobody signs it:
`seal` and `content` show what was changed by accident or without care, not by somebody who computes them anew.

A model is written without the entry, and hashed; then the entry is put at the end of the file. Protobuf takes
fields in any order, and entries of a list that stand apart as one list, so that nothing is written twice.

Two digests name a model. `model_digest` is of the files as they are. `content_digest` is of what a model says, however it is stored:

    content = SHA-256(structure),  in which each tensor's bytes are replaced by their SHA-256

Invariant: one file or external data, other file names, offsets, and the provenance entry itself do not change it;
every node, attribute, name, other metadata entry and weight does. Nothing larger than the structure and one block
is in memory.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import onnx
import onnx_ir as ir

from quantkit._version import __version__
from quantkit.errors import ModelError
from quantkit.model.graph.load import LoadedModel, read_structure
from quantkit.model.graph.mapping import MARK, MappedFile
from quantkit.model.graph.protos import leads_out, proto_graphs
from quantkit.model.graph.save import Stage
from quantkit.result import Calibrated, DataSource
from quantkit.settings.record import PROVENANCE
from quantkit.targets import this_machine

KEY = PROVENANCE
_BLOCK = 1 << 20


def model_digest(source: LoadedModel) -> dict[str, Any]:
    """Return the name, the size and the SHA-256 of a model, external data included."""
    digest = sha256()
    if source.proto is not None:
        digest.update(source.proto.SerializeToString(deterministic=True))
    for path in source.files:
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
    return {
        "name": source.path.name if source.path else "ModelProto",
        "bytes": source.nbytes,
        "sha256": digest.hexdigest(),
    }


def content_digest(path: Path) -> str:
    """Return the digest of what a model file says; see the module's docstring.

    Raises:
        ModelError: It cannot be read, or its external data is missing or too short.
    """
    structure = read_structure(path)
    kept = [entry for entry in structure.metadata_props if entry.key != KEY]
    del structure.metadata_props[:]
    structure.metadata_props.extend(kept)
    for tensor in _tensors(structure.graph):
        _reduce(tensor, path)
    return sha256(structure.SerializeToString(deterministic=True)).hexdigest()


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield the tensors whose contents may be elsewhere."""
    for part in proto_graphs(graph):
        constants = (a.t for node in part.node for a in node.attribute if a.HasField("t"))
        yield from chain(part.initializer, constants)


def _reduce(tensor: onnx.TensorProto, model: Path) -> None:
    """Put the digest of a tensor's bytes in their place, wherever they are."""
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        digest = _external_digest(tensor, model)
    elif tensor.HasField("raw_data"):
        digest = sha256(tensor.raw_data).digest()
    else:
        return  # typed fields are part of the structure
    tensor.ClearField("external_data")
    tensor.ClearField("data_location")
    tensor.raw_data = digest


def _external_digest(tensor: onnx.TensorProto, model: Path) -> bytes:
    """Return the SHA-256 of a tensor's bytes in a file, read in blocks."""
    note = {entry.key: entry.value for entry in tensor.external_data}
    location, digest = note.get("location", ""), sha256()
    if leads_out(location):
        raise ModelError(
            f"External data '{location}' cannot be read: it lies outside the model's folder."
        )
    try:
        file = MappedFile(model if location == MARK else model.parent / location)
        start = int(note.get("offset", 0))
        end = start + int(note["length"]) if "length" in note else max(start, len(file))
        for block in file.blocks(start, min(end, len(file))):
            digest.update(block)
    except (OSError, ValueError) as e:
        raise ModelError(f"External data '{location}' cannot be read: {e}.") from e
    if end > max(start, len(file)):
        missing = end - max(start, len(file))
        raise ModelError(
            f"External data '{location}' is {missing} bytes too short for tensor '{tensor.name}'."
        )
    return digest.digest()


def software(*more: str) -> dict[str, str]:
    """Return the versions that results depend on; of more packages than those that all of them do, where these are installed."""
    found = {"quantkit": __version__, "onnxruntime": runtime_package()[1]}
    for name in ("onnx", "numpy", *more):
        with suppress(PackageNotFoundError):
            found.setdefault(name, version(name))
    return found


def runtime_package() -> tuple[str, str]:
    """Return under which name onnxruntime is installed, and its version; "unknown" if no package says that it is it."""
    for name in _RUNTIMES:
        with suppress(PackageNotFoundError):
            return name, version(name)
    return _RUNTIMES[0], "unknown"


def cpu_name() -> str:
    """Return the CPU's name and the instructions that matter for arithmetic."""
    return str(this_machine())


# Builds of onnxruntime under other names; all are one module.
_RUNTIMES = (
    "onnxruntime",
    "onnxruntime-gpu",
    "onnxruntime-openvino",
    "onnxruntime-migraphx",
    "onnxruntime-directml",
    "onnxruntime-qnn",
)
SCHEMA = "quantkit.provenance/1"
_SHOWN = 12  # digits of a hash that tell two apart

SOURCE = "quantkit.source"
"""The entry in a model's metadata that says what it was exported from; every rewriting of the model keeps it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOrigin:
    """The model that was read.

    Attributes:
        name: Of its file, without folders; "ModelProto" if it was given as one.
        bytes: On disk, external data included.
        sha256: Of all its files.
    """

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What an exported model was before: the model of a framework.

    Attributes:
        framework: "torch", "scikit-learn", ...
        version: Of the framework.
        code: Which object or file it is, without folders: "models:resnet20".
        weights: SHA-256 of its weights.
        commit: Of the code, in git; "" if it is in none.
        changed: Whether the code had changes that are in no commit.
    """

    framework: str
    version: str
    code: str
    weights: str = ""
    commit: str = ""
    changed: bool = False

    def __str__(self) -> str:
        told = [f"{self.framework} {self.version}"]
        if self.commit:
            told.append(f"git {self.commit[:_SHOWN]}" + (" with changes" if self.changed else ""))
        if self.weights:
            told.append(f"weights sha256 {self.weights[:_SHOWN]}")
        return f"{self.code} ({', '.join(told)})"


def source_of(metadata: Mapping[str, str]) -> Source | None:
    """Return what a model was exported from, by its metadata; None if it does not say, or not legibly."""
    try:
        return msgspec.json.decode(metadata[SOURCE], type=Source)
    except (KeyError, msgspec.MsgspecError, UnicodeError):
        return None


def source_text(source: Source) -> str:
    """Return the entry `SOURCE` of a model."""
    return _encoded(source)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataOrigin:
    """The data that activations were calibrated with.

    Attributes:
        kind: "image folder", "npz", ...
        name: Of the directory or file, without folders; or the Python type.
        samples: How many were run.
        fingerprint: Of what the samples are made of; "" for a Python iterable.
        method: The calibrator, with its settings.
        order: Batch, limit, shuffle and seed as they were used.
        preprocessing: One step per line.
        settings: What tells two preparations of the same files apart, by name.
        values: Of each input of real numbers, what 1, 50 and 99 of 100 values are below.
        digests: Names of samples, 8 hexadecimal digits each and sorted; of many the least, which are a fair draw.
        warnings: Of the audit.
    """

    kind: str
    name: str
    samples: int
    fingerprint: str
    method: str
    order: Mapping[str, Any] = field(default_factory=dict)
    preprocessing: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)
    digests: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationOrigin:
    """A calibration that was made before and given instead of data.

    Attributes:
        sha256: Of what it saw.
        model: SHA-256 of the model that it was made with; "" if it does not say.
        software: Versions that it was made with.
        cpu: That it was made on.
    """

    sha256: str
    model: str = ""
    software: Mapping[str, str] = field(default_factory=dict)
    cpu: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where a model comes from.

    Attributes:
        kind: What was done.
        float: The model that was read.
        data: What activations were calibrated with; None where none was needed.
        calibration: The calibration that was given; None if there was none.
        options: What a user decided, as plain data.
        quantkit: The version that wrote the model.
        software: Versions of everything that figures depend on.
        cpu: Name, and the instructions that matter.
        content: `content_digest` of the model.
        seal: SHA-256 of this record without the seal.
        schema: Which version of this format.
    """

    kind: str
    float: ModelOrigin
    data: DataOrigin | None = None
    calibration: CalibrationOrigin | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    quantkit: str = __version__
    software: Mapping[str, str] = field(default_factory=software)
    cpu: str = field(default_factory=cpu_name)
    content: str = ""
    seal: str = ""
    schema: str = SCHEMA

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        found: dict[str, Any] = msgspec.json.decode(text_of(self))
        return found


def text_of(provenance: Provenance) -> str:
    """Return the record as compact JSON with sorted keys."""
    return _encoded(provenance)


def sealed(provenance: Provenance, content: str) -> Provenance:
    """Return the record with the digest of the model that it is for, and its seal."""
    filled = replace(provenance, content=content, seal="")
    return replace(filled, seal=_seal(filled.to_json()))


def is_sealed(text: str) -> bool:
    """Say whether a record is as it was written."""
    plain = msgspec.json.decode(text)
    return isinstance(plain, dict) and plain.get("seal") == _seal(plain)


def provenance_from_text(text: str, name: str) -> Provenance:
    """Read a record; `name` is that of the model, for messages.

    Raises:
        ModelError: It is damaged, or of another version.
    """
    try:
        plain = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as e:
        raise ModelError(f"The provenance in {name} is damaged: it is not JSON ({e}).") from e
    schema = plain.get("schema") if isinstance(plain, dict) else None
    if schema != SCHEMA:
        raise ModelError(
            f"The provenance in {name} is not of this version: its schema is '{schema}', not "
            f"'{SCHEMA}'; use the quantkit that wrote it, or a newer one."
        )
    try:
        return msgspec.json.decode(text, type=Provenance)
    except msgspec.ValidationError as e:
        raise ModelError(f"The provenance in {name} is damaged: {e}.") from e


def json_digest(plain: Mapping[str, Any]) -> str:
    """Return the SHA-256 of plain data, whatever the order of its keys."""
    return sha256(_encoded(plain).encode()).hexdigest()


def _seal(plain: Mapping[str, Any]) -> str:
    return json_digest({**plain, "seal": ""})


def _encoded(value: object) -> str:
    return msgspec.json.encode(value, order="sorted").decode()


def write_model(stage: Stage, model: ir.Model, provenance: Provenance, *, external: bool) -> int:
    """Write a model with its provenance; return its size in bytes, external data included.

    Args:
        stage: Where files are prepared before they take their place.
        model: What to write; the entry is added to its metadata.
        provenance: What the file says about how it was made.
        external: Weights go into a file beside it.

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


_APART = 4.0  # times as wide: hardly two parts of one data set are, and most changes of the pixels' range
_GUESSED = re.compile(r" \((told from|because of) [^)]*\)")
_FACTS = re.compile(
    r"-?\d[\d.]*|[A-Z]{3,}"
)  # sizes, values, channels and layout: versions word the rest differently


def calibrated_of(
    provenance: Provenance | None, evaluated: DataSource | None = None, seen: int = 0
) -> Calibrated | None:
    """Return how a model's activation ranges came about; None if it says nothing about that.

    `shared` is True where the evaluated data is the calibrated data set, so that samples may have been seen
    before; False where its fingerprint is another; None where one of the two has none.

    Args:
        provenance: The model's own record.
        evaluated: What it is evaluated on.
        seen: How many of those samples are known to be calibrated with.
    """
    if provenance is None or provenance.data is None:
        return None
    data = provenance.data
    fingerprint = "" if evaluated is None else evaluated.fingerprint
    known = bool(fingerprint and data.fingerprint)
    return Calibrated(
        method=data.method,
        samples=data.samples,
        data=f"{data.name} ({data.kind})",
        fingerprint=data.fingerprint,
        warnings=data.warnings,
        shared=data.fingerprint == fingerprint if known else None,
        seen=seen,
        preprocessing=data.preprocessing,
        differs=() if evaluated is None else tuple(_differences(data, evaluated)),
    )


def _differences(data: DataOrigin, evaluated: DataSource) -> Iterator[str]:
    """Yield in what samples were prepared otherwise; where settings do not tell, by the values that came of them."""
    both = [key for key in data.settings if key in evaluated.settings]
    found = [
        (key, data.settings[key], evaluated.settings[key])
        for key in both
        if data.settings[key] != evaluated.settings[key]
    ]
    if not data.settings and data.kind == evaluated.kind == "image folder":  # of an older version
        before, now = ("; ".join(d.preprocessing) for d in (data, evaluated))
        if _FACTS.findall(_GUESSED.sub("", before)) != _FACTS.findall(_GUESSED.sub("", now)):
            found.append(("images", f"'{before}'", f"'{now}'"))
    for key, before, now in found:
        yield f"{key}: calibrated with {before}, evaluated with {now}"
    if not both and not found:
        yield from _other_values(data, evaluated)


def _other_values(data: DataOrigin, evaluated: DataSource) -> Iterator[str]:
    for name, (low, middle, high) in data.values.items():
        if name not in evaluated.values:
            continue
        bottom, centre, top = evaluated.values[name]
        widths = sorted((high - low, top - bottom))
        if widths[0] > 0 and (widths[1] > _APART * widths[0] or abs(centre - middle) > widths[1]):
            yield (
                f"values of '{name}': calibrated with {low:.3g} to {high:.3g}, evaluated with "
                f"{bottom:.3g} to {top:.3g}"
            )
