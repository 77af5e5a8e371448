"""Write a model: streamed, to a staging folder, renamed only when the caller says it is good.

    with staged(path) as stage:
        stage.write(model)        # the folder beside `path` now holds the complete result
        ...                       # check stage.model_path
        stage.commit()            # rename into place; without it nothing is left behind

One file below 2 GB, external data beside it above that. Peak memory is one tensor.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from quantkit.errors import ModelError, OutputError
from quantkit.files import umask
from quantkit.graph._proto import location_of, proto_graphs, root_cause
from quantkit.graph._wire import LIMIT, MARK, Payload, join
from quantkit.graph.messages import to_proto

__all__ = ["Stage", "skeleton", "staged", "weightless"]

_PROTOBUF_LIMIT = (1 << 31) - (1 << 20)  # 2 GB less a margin for the structure
_ALIGNMENT = 4096  # so that external tensors can be memory-mapped


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


def _check(structure: onnx.ModelProto) -> None:
    """Run onnx's checker, except that inputs and outputs may come without a shape.

    onnxruntime takes such models, and exporters write them where a rank is not known.
    """
    proto = weightless(structure)
    for value in (*proto.graph.input, *proto.graph.output):
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.shape.SetInParent()
    onnx.checker.check_model(proto)


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
    """A result being written; see the module's docstring."""

    def __init__(self, target: Path, folder: Path) -> None:
        self.target = target
        self.folder = folder
        self.model_path = folder / target.name
        self.data_path = folder / f"{target.name}.data"

    def write(self, model: ir.Model, *, external: bool = False) -> int:
        """Write the model into the staging folder; return its size in bytes, external data included.

        Raises:
            onnx.checker.ValidationError: The graph is not valid ONNX.
            ModelError: A text in it is not UTF-8.
        """
        proto, tensors = skeleton(model)
        _check(proto)
        total = proto.ByteSize() + sum(t.nbytes for t in tensors)
        if tensors and (external or total > _PROTOBUF_LIMIT):
            self._write_external(proto, tensors)
        else:
            self.data_path.unlink(missing_ok=True)  # of an earlier attempt
            self._write_single(proto, tensors)
        return sum(f.stat().st_size for f in self.folder.iterdir())

    def _write_single(self, proto: onnx.ModelProto, tensors: list[ir.TensorProtocol]) -> None:
        with self.model_path.open("wb") as file:
            for piece in join(proto.SerializeToString(deterministic=True)):
                if isinstance(piece, Payload):
                    file.write(_contents(tensors[piece.index]))
                else:
                    file.write(piece)

    def _write_external(self, proto: onnx.ModelProto, tensors: list[ir.TensorProtocol]) -> None:
        offsets: list[int] = []
        with self.data_path.open("wb") as file:
            for tensor in tensors:
                file.write(b"\0" * (-file.tell() % _ALIGNMENT))
                offsets.append(file.tell())
                file.write(_contents(tensor))
        for graph in proto_graphs(proto.graph):
            for tensor in graph.initializer:
                if location_of(tensor) == MARK:
                    note = {entry.key: entry for entry in tensor.external_data}
                    note["offset"].value = str(offsets[int(note["offset"].value)])
                    note["location"].value = self.data_path.name
        self.model_path.write_bytes(proto.SerializeToString(deterministic=True))

    def commit(self) -> None:
        """Rename the result into place, data first: a model never points at data that is not there."""
        for path in (self.data_path, self.model_path):
            if path.exists():
                path.chmod(0o666 & ~umask())
                path.replace(self.target.with_name(path.name))


@contextmanager
def staged(target: Path) -> Iterator[Stage]:
    """Make a staging folder beside `target` (same disk: the rename is atomic); always remove it."""
    try:
        folder = Path(tempfile.mkdtemp(prefix=".quantkit-", dir=target.parent))
    except OSError as e:
        raise OutputError(
            f"Cannot write to '{target.parent}': {e.strerror or e}; nothing was written."
        ) from e
    try:
        yield Stage(target, folder)
    except OSError as e:
        raise OutputError(
            f"Cannot write '{target}': {e.strerror or e}; nothing was written."
        ) from e
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _contents(tensor: ir.TensorProtocol) -> memoryview | bytes:
    array = tensor.numpy()
    if array.dtype.isbuiltin == 1 and np.little_endian:
        return np.ascontiguousarray(array).data.cast("B")
    return tensor.tobytes()
