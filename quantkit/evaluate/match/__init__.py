"""Two models side by side: which tensor of one is which tensor of the other, from the two files alone.

Nodes are matched, in this order, if they

1. have the same operator and make the same tensor,
2. have the same operator and name,
3. are products that alone read the same weight (Conv and QLinearConv),
4. make the same tensor, the parts behind an integer product taken for the product (Gemm and MatMulInteger),
5. have the same name.

Tensors are compared by `base_name`, what a tensor was called before somebody quantized it: tools that quantize name what they
add after the tensor it stands for. Names are a hint for matching, never the proof that two tensors are equal. QuantizeLinear
and its like only match their like: by 3 to 5 they would stand for the operators that they were put around.

`SharedModel` is one file, opened once; what is derived from it is computed when first needed. `ModelPair` is two of them with
the nodes and tensors that correspond.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property
from math import prod
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.errors import UsageError
from quantkit.evaluate.match.correspondence import Correspondence, correspondence
from quantkit.files import scratch
from quantkit.model.graph.half import half_type, widen
from quantkit.model.graph.load import LoadedModel
from quantkit.model.graph.load import read_structure as read_file
from quantkit.model.graph.save import Stage, copy_of
from quantkit.model.graph.size import Accounts, account
from quantkit.model.graph.unpack import unpack
from quantkit.model.ops.float_ops import FLOAT_PRODUCTS
from quantkit.model.ops.integer_ops import CONVERSIONS, INTEGER_OPS, INTEGER_PRODUCTS
from quantkit.model.provenance import model_digest
from quantkit.result import Runtime
from quantkit.runtime.kernels import runtime_of
from quantkit.runtime.kernels.truth import optimized_nodes
from quantkit.runtime.pieces import Kind, Part, Structure, part_of, read_structure, types_of
from quantkit.runtime.session import load_model, make_session

Nodes = dict[ir.Node, ir.Node]
"""Nodes of one model with those of the other."""

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


# Of quantkit, onnxruntime.quantization and exporters that quantize themselves.
_SUFFIXES = (
    "_QuantizeLinear_Output",
    "_QuantizeLinear_Input",
    "_DequantizeLinear_Output",
    "_dequantized",
    "_quantized",
    "_widened",
)


@cache
def base_name(tensor: str) -> str:
    """Return the name without the endings of quantization, however many there are."""
    for suffix in _SUFFIXES:
        if tensor.endswith(suffix) and len(tensor) > len(suffix):
            return base_name(tensor.removesuffix(suffix))
    return tensor


_FURTHEST = 4  # nodes between a product and its weight: Cast, Sub, Mul, Transpose

Key = Callable[[ir.Node], Hashable | None]


def pair_nodes(a: ir.Model, b: ir.Model) -> Nodes:
    """Return the node of `b` for each node of `a` that has one."""
    left, right = list(a.graph.all_nodes()), list(b.graph.all_nodes())
    made_a, made_b = _made_names(left), _made_names(right)
    pairs: Nodes = {}
    taken: set[ir.Node] = set()
    steps: tuple[tuple[Key, Key], ...] = (
        (_operator_and_tensor, _operator_and_tensor),
        (_operator_and_name, _operator_and_name),
        (_weight_read, _weight_read),
        (_stands_for(left, made_b).get, _stands_for(right, made_a).get),
        (_name, _name),
    )
    for key_a, key_b in steps:
        known = _by_key((n for n in right if n not in taken), key_b)
        for key, node in _by_key((n for n in left if n not in pairs), key_a).items():
            other = known.get(key)
            if other is not None:
                pairs[node] = other
                taken.add(other)
    return pairs


def _by_key(nodes: Iterable[ir.Node], key: Key) -> dict[Hashable, ir.Node]:
    """Return the nodes whose key no other has: of several equal ones nobody knows which is meant."""
    found: dict[Hashable, ir.Node] = {}
    several: set[Hashable] = set()
    for node in nodes:
        k = key(node)
        if k is None:
            continue
        if k in found:
            several.add(k)
        found[k] = node
    return {k: node for k, node in found.items() if k not in several}


def _made_tensor(node: ir.Node) -> str | None:
    """Return the base name of the first tensor that a node makes."""
    name = next((out.name for out in node.outputs if out.name), None)
    return base_name(name) if name else None


def _operator_and_tensor(node: ir.Node) -> Hashable | None:
    made = _made_tensor(node)
    return (node.op_type, made) if made else None


def _operator_and_name(node: ir.Node) -> Hashable:
    return node.op_type, node.name


def _name(node: ir.Node) -> Hashable | None:
    return None if node.op_type in CONVERSIONS else node.name


def _weight_read(node: ir.Node) -> Hashable | None:
    """Return the base name of the largest constant that a product reads, itself or through one or more nodes."""
    if node.op_type not in FLOAT_PRODUCTS | INTEGER_PRODUCTS:
        return None
    sources = [v for v in (_constant_behind(value) for value in node.inputs) if v is not None]
    if not sources:
        return None
    return base_name(max(sources, key=_size).name or "")


def _size(value: ir.Value) -> int:
    return value.const_value.size if value.const_value is not None else 0


def _constant_behind(value: ir.Value | None) -> ir.Value | None:
    """Return the initializer from which a value is restored or moved; None if there is none."""
    for _ in range(_FURTHEST):
        if value is None or value.is_initializer():
            return value
        producer = value.producer()
        if producer is None or not producer.inputs:
            return None
        value = producer.inputs[0]
    return None


def _made_names(nodes: Iterable[ir.Node]) -> set[str]:
    return {made for node in nodes if (made := _made_tensor(node)) is not None}


def _stands_for(nodes: Iterable[ir.Node], elsewhere: set[str]) -> dict[ir.Node, Hashable]:
    """Return, for every node but conversions, the base name of a tensor that the other model has too.

    An integer product stands for the first such tensor that its scaling and its bias make.
    """
    keys: dict[ir.Node, Hashable] = {}
    for node in nodes:
        made = _made_tensor(node)
        if made not in elsewhere or node.op_type in CONVERSIONS:
            continue
        keys.setdefault(_integer_product_behind(node) or node, made)
    return keys


def _integer_product_behind(node: ir.Node) -> ir.Node | None:
    """Return the product p of ``[Add(] Mul(Cast(p), scale) [, bias)]`` whose last part `node` is; None if it is none."""
    current = node
    if current.op_type == "Add" and len(current.inputs) == 2:
        constant = [v is not None and v.is_initializer() for v in current.inputs]
        current = _maker(current, slot=1 if constant[0] else 0) if any(constant) else current
    for op_type in ("Mul", "Cast"):
        if current.op_type != op_type:
            return None
        current = _maker(current, slot=0)
    row = INTEGER_OPS.get(current.op_type)
    return current if row is not None and row.makes_sums else None


def _maker(node: ir.Node, *, slot: int) -> ir.Node:
    """Return the node that makes an input; `node` itself where there is none."""
    value = node.inputs[slot]
    return (value.producer() if value is not None else None) or node
