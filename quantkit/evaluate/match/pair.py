"""Models that several comparisons share: each is opened once, and what is derived from it is computed when first needed.

`SharedModel` is one file, `ModelPair` two of them with the nodes and tensors that correspond.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.errors import UsageError
from quantkit.evaluate.match.correspondence import Correspondence, correspondence
from quantkit.evaluate.match.nodes import Nodes, pair_nodes
from quantkit.files import scratch
from quantkit.model.graph.half import half_type, widen
from quantkit.model.graph.load import LoadedModel
from quantkit.model.graph.load import read_structure as read_file
from quantkit.model.graph.save import Stage, copy_of
from quantkit.model.graph.size import Accounts, account
from quantkit.model.graph.unpack import unpack
from quantkit.model.provenance import model_digest
from quantkit.result import Runtime
from quantkit.runtime.kernels import runtime_of
from quantkit.runtime.kernels.truth import optimized_nodes
from quantkit.runtime.pieces import Kind, Part, Structure, part_of, read_structure, types_of
from quantkit.runtime.session import load_model, make_session

HELD = 512 << 20
"""Bytes of inner tensors that are held at once."""

LARGE = 1 << 28
"""Bytes from which on a file gets no session that outlives its use: two would hold its weights twice."""

Feeds = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Types of tensors, and their shapes on one sample. What is no plain tensor is not in it."""

    kinds: Mapping[str, Kind]
    shapes: Mapping[str, tuple[int, ...]]

    def nbytes(self, tensor: str) -> int:
        """Return how much memory a tensor takes."""
        return int(prod(self.shapes[tensor]) * self.kinds[tensor].dtype.itemsize)


@dataclass(frozen=True)
class SharedModel:
    """One model file. Nobody changes what it hands out.

    Attributes:
        path: The file.
    """

    path: Path
    _inner: dict[str, Part] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def loaded(self) -> LoadedModel:
        """The file, opened."""
        return load_model(self.path)

    @property
    def model(self) -> ir.Model:
        """The normalized graph."""
        return self.loaded.model

    @cached_property
    def unpacked(self) -> ir.Model:
        """The graph with weights as a runtime has them, instead of nodes that unpack them."""
        model = copy_of(self.model)
        unpack(model)
        return model

    @cached_property
    def proto(self) -> onnx.ModelProto:
        """The file as it is written, without its large tensors."""
        return read_file(self.path)

    @cached_property
    def accounts(self) -> Accounts:
        """Its bytes by cause."""
        return account(self.path)

    @cached_property
    def sha256(self) -> str:
        """The digest of all its files."""
        return str(model_digest(self.loaded)["sha256"])

    @cached_property
    def structure(self) -> Structure:
        """Its main graph as nodes and names, of which parts can be run."""
        return read_structure(self.path, self.loaded)

    @cached_property
    def session(self) -> Any:
        """A session as users make it; it takes turns with others, so threads do not spin."""
        return make_session(str(self.path))

    def whole(self, outputs: Sequence[str]) -> Part:
        """Return that session with some of the outputs."""
        return Part(self.session, {name: name for name in self.structure.inputs}, tuple(outputs))

    @cached_property
    def optimized(self) -> tuple[onnx.NodeProto, ...]:
        """The nodes that such a session runs."""
        return optimized_nodes(self.path)

    @cached_property
    def runtime(self) -> Runtime:
        """How each product runs."""
        return runtime_of(self.path, self.model, self.optimized)

    def inner(self, tensors: Iterable[str]) -> Part:
        """Return a session without optimization that computes tensors inside of the model.

        It also computes the outputs of the model, and serves everybody who wants no other tensors. Without optimization
        no node is fused, so a tensor has the same values whatever else comes out.
        """
        maker = self.structure.maker
        wanted = tuple(name for name in dict.fromkeys(tensors) if name in maker)
        part = self._inner.get("part")
        if part is None or not set(wanted) <= set(part.outputs):
            outputs = (name for name in self.structure.outputs if name in maker)
            part = part_of(self.structure, list(dict.fromkeys((*wanted, *outputs))), {})
            self._inner["part"] = part
        return Part(part.session, part.entries, wanted)

    def survey(self, tensors: Iterable[str], feeds: Feeds) -> Survey:
        """Look at tensors that nodes make, and at the inputs.

        Args:
            tensors: Those to look at.
            feeds: One sample.
        """
        part = self.inner(tensors)
        types = types_of(part)
        plain = Part(part.session, part.entries, tuple(n for n in part.outputs if n in types))
        shapes = {name: tuple(array.shape) for name, array in plain.run(feeds).items()}
        kinds = {name: Kind(types[name], len(shape)) for name, shape in shapes.items()}
        for info in self.structure.proto.graph.input:
            if info.name in feeds and info.name in self.structure.inputs:
                shapes[info.name] = tuple(feeds[info.name].shape)
                dtype = ir.DataType(info.type.tensor_type.elem_type)
                kinds[info.name] = Kind(dtype, len(shapes[info.name]))
        found = Survey(kinds=kinds, shapes=shapes)
        if sum(map(found.nbytes, shapes)) > HELD:
            self._inner.clear()  # its memory stays with the session
        return found

    @contextmanager
    def in_float32(self) -> "Iterator[tuple[SharedModel, str]]":
        """Yield a model that computes in float32, itself or written anew, and the type of its halves; "" if it has none."""
        half = half_type(self.model)
        if not half:
            yield self, half
            return
        model = copy_of(self.model)
        widen(model)
        with scratch() as folder:
            stage = Stage(folder / self.path.name, folder)
            stage.write(model)
            yield SharedModel(stage.model_path), half

    def release(self) -> None:
        """Let go of sessions; they are made again if needed."""
        self._inner.clear()
        self.__dict__.pop("session", None)


@dataclass(frozen=True, kw_only=True)
class NamedModel(SharedModel):
    """A model to evaluate; the first of several is the float model.

    Attributes:
        name: Short, and unique among them.
        path: The file.
    """

    name: str


def named(arguments: Sequence[str | Path]) -> tuple[NamedModel, ...]:
    """Return models by the names that a report shows: "name=path", else the file's name without its ending.

    Raises:
        UsageError: Two models would have one name.
    """
    found: dict[str, NamedModel] = {}
    for argument in arguments:
        name, path = _name_and_path(argument)
        if name in found:
            raise UsageError(
                f"Two models are called '{name}': give them names, as in 'first={path}'."
            )
        found[name] = NamedModel(name=name, path=path)
    return tuple(found.values())


def _name_and_path(argument: str | Path) -> tuple[str, Path]:
    name, equals, path = str(argument).partition("=")
    if equals and name and path and not Path(argument).exists():
        return name, Path(path)
    return Path(argument).name.removesuffix(".onnx"), Path(argument)


@dataclass(frozen=True)
class ModelPair:
    """Two models side by side: float and a candidate, or an earlier and a later file.

    Attributes:
        a: The first.
        b: The second.
    """

    a: SharedModel
    b: SharedModel

    @classmethod
    def of(cls, a: Path, b: Path) -> "ModelPair":
        """Return two files side by side."""
        return cls(SharedModel(a), SharedModel(b))

    @cached_property
    def sides(self) -> Sequence[SharedModel]:
        """Both."""
        return self.a, self.b

    @cached_property
    def nodes(self) -> Nodes:
        """Which node of the second model is which of the first."""
        return pair_nodes(self.a.model, self.b.model)

    @cached_property
    def tensors(self) -> Correspondence:
        """Which tensor of the second model stands for which of the first, which is float."""
        return correspondence(self.a.structure, self.b.structure)
