"""What the rest of the float model makes of one tensor that is not what it was.

The layers, in graph order, are split into a few runs. For each run there is one session of the float graph behind its first
layer, in which each of its layers' tensors goes through a switch:

    y' = If(select_i) then the tensor that is given, else y

What lies before the run is fed with float's values. So a layer's error costs one run of what is behind it, and the
reference (no switch on) comes from the same session: without an error the difference is exactly zero.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.match.parts import Kind, Part, declared, part_of, renamed
from quantkit.match.structure import Structure

__all__ = ["Suffix", "given_as", "result_of", "suffixes_of", "switch_of", "switched"]

Array = NDArray[Any]
_RUNS = 8  # sessions at most
_MEMORY = 512 << 20  # bytes that their weights may take
_BOOL = Kind(ir.DataType.BOOL, 0)


@dataclass(frozen=True, slots=True)
class Suffix:
    """The float model behind a run of layers.

    Attributes:
        layers: Their numbers.
        tensors: The tensors of each.
        part: The session.
        outputs: The outputs of the model that depend on the layers, as the model calls them.
        empty: What is given for tensors that are not switched.
    """

    layers: tuple[int, ...]
    tensors: Mapping[int, tuple[str, ...]]
    part: Part
    outputs: tuple[str, ...]
    empty: Mapping[str, Array]

    def run(
        self, feeds: Mapping[str, Array], layer: int | None, given: Mapping[str, Array]
    ) -> list[Array]:
        """Run with the tensors of one layer replaced by those that are given; with those of none if it is None.

        Args:
            feeds: What the rest of the model reads.
            layer: Whose tensors are replaced; None: nobody's.
            given: The tensors to put there, by name.
        """
        switches = {switch_of(i): np.asarray(i == layer) for i in self.layers}
        chosen = self.tensors[layer] if layer is not None else ()
        replaced = {given_as(name): given[name] for name in chosen}
        return list(self.part.run(feeds, switches, {**self.empty, **replaced}).values())


def suffixes_of(
    model: Structure,
    layers: Sequence[tuple[str, ...]],
    available: Mapping[str, Kind],
    outputs: Sequence[str],
) -> Iterator[Suffix]:
    """Make the sessions.

    Args:
        model: The float model.
        layers: The tensors of each layer, in graph order.
        available: All tensors whose values in the float model will be given, the layers' own among them.
        outputs: The outputs to look at.
    """
    # Each layer's own suffix (what the model computes behind it) would be the cheapest run and a session per layer;
    # one session for all would run the whole model for each layer. Between the two: as many sessions as fit into
    # memory, each for a run of neighbouring layers, beginning where the first of them ends. What lies before is fed
    # from the float run, which is made anyway. Empty arrays stand for what is not switched: onnxruntime wants every
    # input fed.
    fitting = max(1, min(_RUNS, _MEMORY // max(model.nbytes, 1), len(layers)))
    for numbers in np.array_split(np.arange(len(layers)), fitting):
        tensors = {int(i): layers[i] for i in numbers}
        behind = _behind(model, {name for names in tensors.values() for name in names})
        fed = {name: kind for name, kind in available.items() if name not in behind}
        chosen = switched(model, tensors, available)
        names = {name: result_of(name) for each in tensors.values() for name in each}
        reached = tuple(name for name in outputs if name in behind)
        part = part_of(chosen, [names.get(name, name) for name in reached], fed, level=99)
        empty = {
            given_as(name): np.zeros((0,) * available[name].rank, available[name].dtype.numpy())
            for name in names
        }
        yield Suffix(tuple(tensors), tensors, part, reached, empty)


def _behind(model: Structure, tensors: set[str]) -> set[str]:
    """Return all tensors that depend on given ones, and these."""
    found = set(tensors)
    for node, read in zip(model.nodes, model.reads, strict=True):
        if not found.isdisjoint(read):
            found.update(name for name in node.output if name)
    return found


def switched(
    model: Structure, layers: Mapping[int, tuple[str, ...]], kinds: Mapping[str, Kind]
) -> Structure:
    """Return a model in which each layer's tensors go through a switch, fed as `switch_of` and `given_as` it.

    Args:
        model: The model.
        layers: Tensors by the number of their layer.
        kinds: Type and rank of each tensor.
    """
    owner = {name: i for i, names in layers.items() for name in names}
    names = {name: result_of(name) for name in owner}
    proto = onnx.ModelProto(ir_version=model.proto.ir_version)
    proto.opset_import.extend(model.proto.opset_import)
    proto.graph.initializer.extend(model.proto.graph.initializer)
    proto.graph.input.extend(model.proto.graph.input)
    proto.graph.input.extend(declared(switch_of(i), _BOOL) for i in layers)
    proto.graph.input.extend(declared(given_as(name), kinds[name]) for name in owner)
    for node in model.nodes:
        proto.graph.node.append(renamed(node, names))
        for name in node.output:
            if name in owner:
                proto.graph.node.append(_choice(name, owner[name], kinds[name]))
    return replace(model, proto=proto)


def _choice(name: str, layer: int, kind: Kind) -> onnx.NodeProto:
    node = onnx.NodeProto(op_type="If", name=result_of(name))
    node.input.append(switch_of(layer))
    node.output.append(result_of(name))
    for branch, source in (("then_branch", given_as(name)), ("else_branch", name)):
        attribute = node.attribute.add(name=branch, type=onnx.AttributeProto.GRAPH)
        copied = f"{branch}/{name}"
        attribute.g.name = branch
        attribute.g.node.add(op_type="Identity", input=[source], output=[copied])
        attribute.g.output.append(declared(copied, kind))
    return node


def switch_of(layer: int) -> str:
    """Return the name of a layer's switch."""
    return f"switch/{layer}"


def given_as(tensor: str) -> str:
    """Return the name of the input that may stand for a tensor."""
    return f"given/{tensor}"


def result_of(tensor: str) -> str:
    """Return the name of a tensor behind its switch."""
    return f"switched/{tensor}"
