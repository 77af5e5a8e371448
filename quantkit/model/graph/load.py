"""Open a model: structure in memory, weights left in their files.

A path or an `onnx.ModelProto` becomes an `ir.Model` in the form that all later stages rely on
(`quantkit.model.graph.normalize`). The input is only ever read.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from quantkit.errors import ModelError, UsageError, as_os_error
from quantkit.files import model_in
from quantkit.model.graph.mapping import LIMIT, MARK, MappedFile, split
from quantkit.model.graph.normalize import inline_functions, normalize
from quantkit.model.graph.protos import (
    DamageError,
    complaint_of,
    leads_out,
    location_of,
    mend,
    proto_graphs,
    root_cause,
    tensors_of,
    to_ir,
    validate,
)
from quantkit.protobuf import WireError

LINKS = "QUANTKIT_ALLOW_LINKS"  # an environment variable: external data may be anywhere


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model and where it came from.

    Attributes:
        model: The normalized graph.
        path: The model file; None if a ModelProto was given.
        proto: A copy of the ModelProto that was given, mended; None if a file was read.
        files: Every file the model consists of.
        missing: External data files that are not there, or too short.
        nbytes: Size of all files, or of the serialized ModelProto.
        maps: The files, as they were when it was opened.
        complaint: What onnx's checker has against it; "" if nothing. A runtime may load it all the same.
    """

    model: ir.Model
    path: Path | None
    proto: onnx.ModelProto | None
    files: tuple[Path, ...]
    missing: tuple[str, ...]
    nbytes: int
    maps: tuple[MappedFile, ...]
    complaint: str = ""

    @property
    def name(self) -> str:
        """What to call the model in a message."""
        return f"'{self.path}'" if self.path else "the given ModelProto"

    @property
    def source(self) -> Path | onnx.ModelProto:
        """What another process loads it from."""
        if self.path is not None:
            return self.path.absolute()
        assert self.proto is not None  # noqa: S101 - one of the two is there
        return self.proto

    def require_weights(self) -> None:
        """Raise if external data is missing."""
        if self.missing:
            raise ModelError(
                f"External data of {self.name} is missing or too short: {', '.join(self.missing)}; "
                "put the file(s) beside the model."
            )

    @property
    def has_changed(self) -> bool:
        """Whether one of its files was written, replaced or removed since it was opened."""
        return any(mapped.has_changed for mapped in self.maps)

    @property
    def is_untouched(self) -> bool:
        """Whether nobody can have written into its files since they were opened; if not, only their contents can tell."""
        return all(mapped.is_untouched for mapped in self.maps)

    def require_unchanged(self) -> None:
        """Raise if one of its files has changed: what was read of it may belong to two models."""
        if self.has_changed:
            raise ModelError(
                f"{self.name} was changed while it was being read; nothing was written. Run it again when nobody "
                "writes to it."
            )

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Say that a file has changed, if that is why something failed, and not what came of it."""
        try:
            yield
        except Exception:
            self.require_unchanged()
            raise


def load(source: str | Path | onnx.ModelProto) -> LoadedModel:
    """Open a model.

    Raises:
        ModelError: The file is not there, truncated, no ONNX model, not valid, or uses sparse
            initializers or training information.
    """
    if isinstance(source, onnx.ModelProto):
        own = onnx.ModelProto()
        own.CopyFrom(source)  # the caller's is not touched
        mend(own)
        return _load(own, path=None, mapped=None)
    if not isinstance(source, str | Path):
        raise UsageError(
            f"A model is given as a path or an onnx.ModelProto, not as {type(source).__name__}."
        )
    path = Path(source)
    mapped, proto = _read(path)
    return _load(proto, path=path, mapped=mapped)


def read_structure(path: Path) -> onnx.ModelProto:
    """Return a model file without the contents of its large tensors: those point into the file, at `MARK`.

    Raises:
        ModelError: The file is not there, truncated or no ONNX model.
    """
    return _read(path)[1]


def external_files(structure: onnx.ModelProto, folder: Path) -> set[Path]:
    """Return the files outside a model in `folder` that its tensors are said to be in."""
    return {
        folder / name for name in map(location_of, tensors_of(structure)) if name and name != MARK
    }


def model_files(path: Path) -> tuple[Path, ...]:
    """Return every file that a model consists of, as far as that can be told: itself, and its external data."""
    try:
        return path, *sorted(external_files(read_structure(path), path.parent))
    except ModelError:
        return (path,)  # loading it says what is wrong


def _read(path: Path) -> tuple[MappedFile, onnx.ModelProto]:
    try:
        _require_file(path)
        mapped = MappedFile(path)
        proto = onnx.ModelProto.FromString(split(mapped.view()))
    except ModelError:
        raise
    except OSError as e:
        raise as_os_error(ModelError(f"'{path}' cannot be read: {e.strerror or e}."), e) from e
    except (WireError, DecodeError) as e:
        raise ModelError(
            f"'{path}' is not an ONNX model, or is truncated ({e}); export or copy it again."
        ) from e
    except (RuntimeError, ValueError) as e:  # links in a circle; a null in the name
        raise ModelError(f"'{path}' cannot be read: {e}.") from e
    mend(proto)
    return mapped, proto


def _require_file(path: Path) -> None:
    """Raise if there is no file of that name with something in it, or one that runtimes cannot be told of."""
    try:
        str(path.resolve()).encode()
        mode, size = (found := path.stat()).st_mode, found.st_size
    except UnicodeEncodeError as e:
        raise ModelError(
            f"The name of the model file '{path}' is not UTF-8, which runtimes cannot open: rename it."
        ) from e
    except (FileNotFoundError, NotADirectoryError) as e:
        raise as_os_error(ModelError(f"Model file '{path}' does not exist."), e) from e
    if not stat.S_ISREG(mode):
        if stat.S_ISDIR(mode):
            said = f"Model file '{path}' is a directory: {model_in(path)}"
            raise as_os_error(ModelError(said), IsADirectoryError)
        raise ModelError(f"Model file '{path}' is no regular file.")
    if size == 0:
        raise ModelError(f"'{path}' is empty (0 bytes).")


def _load(proto: onnx.ModelProto, *, path: Path | None, mapped: MappedFile | None) -> LoadedModel:
    name = f"'{path}'" if path else "the given ModelProto"
    _refuse(proto, name)
    complaint = complaint_of(proto)
    try:
        model = to_ir(proto)
    except (RuntimeError, ValueError, TypeError) as e:
        raise ModelError(f"{name} holds what quantkit does not support: {root_cause(e)}") from e
    try:
        inline_functions(model)
    except (RuntimeError, ValueError, ir.passes.InvariantError) as e:
        raise ModelError(
            f"The functions of {name} cannot be inlined ({root_cause(e)}); export it without functions."
        ) from e
    _name_default_domain(model)
    externals = _Externals(path.parent if path else None, mapped)
    _map_weights(model, externals)
    normalize(model)
    files = ((path,) if path else ()) + tuple(m.path for m in externals.maps.values())
    return LoadedModel(
        model=model,
        path=path,
        proto=None if path else proto,
        files=files,
        missing=tuple(sorted(externals.missing)),
        nbytes=sum(f.stat().st_size for f in files) if path else proto.ByteSize(),
        maps=tuple(externals.maps.values()) + ((mapped,) if mapped else ()),
        complaint=complaint,
    )


def _refuse(proto: onnx.ModelProto, name: str) -> None:
    """Refuse what onnx-ir would drop silently, and what is no model."""
    if not proto.HasField("graph") or not proto.opset_import:
        raise ModelError(f"{name} is not an ONNX model: it has no graph or no opset.")
    if proto.training_info:
        raise ModelError(
            f"{name} holds training information, which would be lost; export it for inference."
        )
    for part in proto_graphs(proto.graph):
        if part.sparse_initializer:
            tensor = part.sparse_initializer[0].values.name
            raise ModelError(
                f"{name} has sparse initializers (the first is '{tensor}'), which quantkit does "
                "not support; store them dense."
            )
    try:
        validate(proto)
    except DamageError as e:
        raise ModelError(f"{name} is not valid ONNX ({e}); export or copy it again.") from e


def _name_default_domain(model: ir.Model) -> None:
    """Write the default domain as "": "ai.onnx" means the same."""
    version = model.opset_imports.pop("ai.onnx", None)
    if version is not None:
        model.opset_imports.setdefault("", version)


class _Externals:
    """Resolves external tensors to mapped files, and remembers the ones that are not there."""

    def __init__(self, folder: Path | None, model_file: MappedFile | None) -> None:
        self.folder = folder
        self.model_file = model_file
        self.maps: dict[str, MappedFile] = {}
        self.missing: set[str] = set()

    def resolve(self, tensor: ir.ExternalTensor) -> ir.TensorProtocol:
        """Return a lazily read tensor in place of an external one."""
        offset = tensor.offset or 0
        if tensor.location == MARK and self.model_file is not None:
            mapped: MappedFile | None = self.model_file
        else:
            mapped = self._open(str(tensor.location), tensor.name)
        if mapped is None:
            return tensor
        if offset + tensor.nbytes > len(mapped):
            self.missing.add(f"{tensor.location} (too short for tensor '{tensor.name}')")
            return tensor
        return mapped.tensor(tensor, offset)

    def _open(self, location: str, tensor: str | None) -> MappedFile | None:
        if location in self.maps:
            return self.maps[location]
        if self.folder is None:
            raise ModelError(
                f"Tensor '{tensor}' of the given ModelProto is in the external file '{location}'; "
                "pass the model's path, or load its external data first."
            )
        if leads_out(location):
            raise ModelError(
                f"Tensor '{tensor}' points outside the model's folder ('{location}'); refused."
            )
        path = self.folder / location
        try:
            self._refuse_link(path, tensor)
            if not path.is_file() or path.stat().st_size == 0:
                self.missing.add(location)
                return None
            self.maps[location] = MappedFile(path)
        except (
            OSError,
            RuntimeError,
            ValueError,
        ):  # no name that a file can have; links in a circle
            self.missing.add(location)
            return None
        return self.maps[location]

    def _refuse_link(self, path: Path, tensor: str | None) -> None:
        """Refuse a file that lies elsewhere: whoever made the model's folder would choose what is read and copied.

        A Hugging Face cache is no such case: there the model is a link too, and its data lies beside it.
        """
        assert self.folder is not None  # noqa: S101 - `_open` looked
        assert self.model_file is not None  # noqa: S101 - what has a folder has a file
        real = path.resolve()
        beside = (self.folder.resolve(), self.model_file.path.resolve().parent)
        if any(real.is_relative_to(folder) for folder in beside) or os.environ.get(LINKS):
            return
        raise ModelError(
            f"Tensor '{tensor}' is in '{path}', a link to '{real}' outside the model's folder; refused. Copy the file "
            f"there, or set {LINKS}=1 if you trust the link."
        )


def _map_weights(model: ir.Model, externals: _Externals) -> None:
    for graph in model.graphs():
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = externals.resolve(value.const_value)
            elif isinstance(value.const_value, ir.serde.TensorProtoTensor):
                value.const_value = _detached(value.const_value)
        for node in graph:
            for attribute in tuple(node.attributes.values()):
                if attribute.type is ir.AttributeType.TENSOR:
                    tensor = _read_lazily(attribute.as_tensor(), externals)
                    node.attributes[attribute.name] = ir.AttrTensor(attribute.name, tensor)
                elif attribute.type is ir.AttributeType.TENSORS:
                    tensors = [_read_lazily(t, externals) for t in attribute.as_tensors()]
                    node.attributes[attribute.name] = ir.AttrTensors(attribute.name, tensors)


def _read_lazily(tensor: ir.TensorProtocol, externals: _Externals) -> ir.TensorProtocol:
    if isinstance(tensor, ir.ExternalTensor):
        return externals.resolve(tensor)
    if isinstance(tensor, ir.serde.TensorProtoTensor) and tensor.nbytes >= LIMIT:
        return _detached(tensor)
    return tensor


def _detached(tensor: ir.serde.TensorProtoTensor) -> ir.LazyTensor:
    """Return a tensor that reads the message but cannot change it: renaming would."""
    return ir.LazyTensor(
        lambda: tensor, dtype=tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=tensor.name
    )
