"""Write a model: streamed, to a staging folder, renamed only when the caller says it is good.

    with staged(path) as stage:
        stage.write(model)        # the folder beside `path` now holds the complete result
        ...                       # check stage.model_path
        stage.commit()            # rename into place; without it nothing is left behind

One file below 2 GB, external data beside it above that. Peak memory is one tensor. Data is named by what is in it, so that
an earlier model beside it goes on reading its own until the moment when it is replaced.
"""

import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from copy import copy
from hashlib import blake2b
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from quantkit.errors import ModelError, OutputError, QuantkitError, as_os_error
from quantkit.files import destination, put, scratch
from quantkit.model.graph.load import external_files, read_structure
from quantkit.model.graph.mapping import LIMIT, MARK, Payload, join
from quantkit.model.graph.protos import (
    complaint_of,
    location_of,
    proto_graphs,
    root_cause,
    to_proto,
)

_PROTOBUF_LIMIT = (1 << 31) - (1 << 20)  # 2 GB less a margin for the structure
_UNCHECKED = "quantkit.unchecked"  # in `ir.Model.meta`
_ALIGNMENT = 4096  # so that external tensors can be memory-mapped
_MARK_OF_OURS = "quantkit"  # a key of the metadata of every model that quantkit quantizes


def skeleton(model: ir.Model) -> tuple[onnx.ModelProto, list[ir.TensorProtocol]]:
    """Serialize `model` without its large tensors; they are returned beside it, numbered in order.

    A tensor left out has external data at `MARK` whose offset is its number.
    """
    taken: list[ir.TensorProtocol] = []
    owners: list[ir.Value] = []
    for graph in model.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is None or tensor.dtype is ir.DataType.STRING or tensor.nbytes < LIMIT:
                continue
            taken.append(tensor)
            owners.append(value)
            value.const_value = _placeholder(MARK, len(taken) - 1, tensor, value.name)
    try:
        return to_proto(model), taken
    except ir.serde.SerdeError as e:
        raise ModelError(f"The model holds what ONNX cannot store: {root_cause(e)}") from e
    finally:
        for value, tensor in zip(owners, taken, strict=True):
            value.const_value = tensor


def weightless(structure: onnx.ModelProto) -> onnx.ModelProto:
    """Turn every initializer that `skeleton` left out into an input of the main graph.

    Initializer names are unique over all graphs, so the ones of subgraphs can be captured from there. What
    comes out is a model that onnx's own tools accept, whatever the size of the weights.
    """
    proto = onnx.ModelProto()
    proto.CopyFrom(structure)
    listed = {value.name for value in proto.graph.input}
    for graph in proto_graphs(proto.graph):
        left_out = [t for t in graph.initializer if location_of(t) == MARK]
        for tensor in left_out:
            if tensor.name in listed:
                continue
            value = proto.graph.input.add(name=tensor.name)
            value.type.tensor_type.elem_type = tensor.data_type
            for extent in tensor.dims:
                value.type.tensor_type.shape.dim.add(dim_value=extent)
        if left_out:
            kept = [t for t in graph.initializer if location_of(t) != MARK]
            del graph.initializer[:]
            graph.initializer.extend(kept)
    return proto


def unchecked(model: ir.Model) -> None:
    """Let `Stage.write` pass over onnx's checker: it refuses the input too, which a runtime loads all the same."""
    model.meta[_UNCHECKED] = True


def copy_of(model: ir.Model) -> ir.Model:
    """Return a copy whose graphs, nodes and values are its own; tensors, which nobody changes, are shared.

    It costs little, whatever the size of the weights.
    """
    copied = model.clone()
    copied.meta.update(model.meta)  # `clone` leaves out what is known of the whole model
    for graph in copied.graphs():  # it shares the types of values, which `widen` changes
        made = (value for node in graph for value in node.outputs)
        for value in (*graph.inputs, *made, *graph.initializers.values()):
            value.type = copy(value.type)
    return copied


def _check(structure: onnx.ModelProto) -> None:
    complaint = complaint_of(structure)
    if complaint:
        raise onnx.checker.ValidationError(complaint)


def _placeholder(
    location: str, offset: int, tensor: ir.TensorProtocol, name: str | None
) -> ir.ExternalTensor:
    return ir.ExternalTensor(
        location,
        offset,
        tensor.nbytes,
        tensor.dtype,
        shape=ir.Shape(tensor.shape.numpy()),
        name=name or "",
    )


class Stage:
    """A result being written; see the module's docstring.

    Attributes:
        target: What is replaced by the result.
        folder: Where the result is until then.
        model_path: The model in there.
        data_path: Its external data in there; None if it has none.
        wrote: Told how many weights of how many are written: what is quantized is computed then.
    """

    def __init__(self, target: Path, folder: Path) -> None:
        self.target = target
        self.folder = folder
        self.model_path = folder / target.name
        self.data_path: Path | None = None
        self.wrote: Callable[[int, int], None] = lambda _done, _of: None

    def write(self, model: ir.Model, *, external: bool = False) -> int:
        """Write the model into the staging folder; return its size in bytes, external data included.

        Raises:
            onnx.checker.ValidationError: The graph is not valid ONNX.
            ModelError: A text in it is not UTF-8.
        """
        proto, tensors = skeleton(model)
        if not model.meta.get(_UNCHECKED):
            _check(proto)
        if self.data_path is not None:  # of an earlier attempt
            self.data_path.unlink()
            self.data_path = None
        total = proto.ByteSize() + sum(t.nbytes for t in tensors)
        if tensors and (external or total > _PROTOBUF_LIMIT):
            self._write_external(proto, tensors)
        else:
            self._write_single(proto, tensors)
        return sum(f.stat().st_size for f in self.folder.iterdir())

    def _write_single(self, proto: onnx.ModelProto, tensors: list[ir.TensorProtocol]) -> None:
        with self.model_path.open("wb") as file:
            for piece in join(proto.SerializeToString(deterministic=True)):
                if isinstance(piece, Payload):
                    file.write(_contents(tensors[piece.index]))
                    self.wrote(piece.index + 1, len(tensors))
                else:
                    file.write(piece)

    def _write_external(self, proto: onnx.ModelProto, tensors: list[ir.TensorProtocol]) -> None:
        if self.target.is_symlink():
            raise OutputError(
                f"'{self.target}' is a link, and weights in a file of their own must be beside the model: give "
                f"'{self.target.resolve()}' as the output."
            )
        offsets: list[int] = []
        digest = blake2b(digest_size=6)
        unnamed = self.folder / "weights"
        with unnamed.open("wb") as file:
            for tensor in tensors:
                gap = b"\0" * (-file.tell() % _ALIGNMENT)
                contents = _contents(tensor)
                for piece in (gap, contents):
                    digest.update(piece)
                file.write(gap)
                offsets.append(file.tell())
                file.write(contents)
                self.wrote(len(offsets), len(tensors))
        self.data_path = self.folder / f"{self.target.name}.{digest.hexdigest()}.data"
        unnamed.rename(self.data_path)
        for graph in proto_graphs(proto.graph):
            for tensor in graph.initializer:
                if location_of(tensor) == MARK:
                    note = {entry.key: entry for entry in tensor.external_data}
                    note["offset"].value = str(offsets[int(note["offset"].value)])
                    note["location"].value = self.data_path.name
        self.model_path.write_bytes(proto.SerializeToString(deterministic=True))

    def commit(self) -> Path | None:
        """Rename the result into place, the model last; return its external data, None if it has none.

        Until the model is renamed, an earlier one is there with its own data, which is then removed.
        """
        earlier = _own_data(self.target)
        data = None
        if self.data_path is not None:
            data = self.target.with_name(self.data_path.name)
            is_new = not data.exists()
            put(self.data_path, data)
        try:
            put(self.model_path, destination(self.target))
        except OSError:
            if data is not None and is_new:
                data.unlink()
            raise
        for path in earlier - _in_use(self.target.parent, among=earlier):
            with suppress(OSError):
                path.unlink()
        return data


@contextmanager
def staged(target: Path) -> Iterator[Stage]:
    """Make a staging folder beside `target` (same disk: the rename is atomic); always remove it."""
    with scratch(destination(target).parent) as folder:
        try:
            yield Stage(target, folder)
        except QuantkitError:
            raise
        except OSError as e:
            said = f"Cannot write '{target}': {e.strerror or e}; nothing was written."
            raise as_os_error(OutputError(said), e) from e


def _own_data(model: Path) -> set[Path]:
    """Return the external data that quantkit wrote for a model that is to be replaced."""
    with suppress(ModelError):
        structure = read_structure(model)
        if any(entry.key.startswith(_MARK_OF_OURS) for entry in structure.metadata_props):
            named = re.compile(re.escape(model.name) + r"(\.[0-9a-f]{12})?\.data")
            return {p for p in external_files(structure, model.parent) if named.fullmatch(p.name)}
    return set()


def _in_use(folder: Path, among: Collection[Path]) -> set[Path]:
    """Return which of some data files the models of a folder use; all of them where a model cannot be read."""
    used: set[Path] = set()
    for path in folder.glob("*.onnx") if among else ():
        try:
            used |= external_files(read_structure(path), folder)
        except ModelError:
            return set(among)
    return used


def _contents(tensor: ir.TensorProtocol) -> memoryview | bytes:
    array = tensor.numpy()
    if array.dtype.isbuiltin == 1 and np.little_endian:
        return np.ascontiguousarray(array).data.cast("B")
    return tensor.tobytes()
