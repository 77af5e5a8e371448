"""A model cut into segments that run one after the other, so that a run can skip first segments whose results are known."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from quantkit.runtime.half_ports import HalfPorts
from quantkit.runtime.pieces import TYPES, Structure
from quantkit.runtime.session import RUNTIME_ERRORS, as_value, make_session

Values = Mapping[str, Any]
_NOTHING: Values = MappingProxyType({})
_FLOAT_BYTES = 4


class Segments:
    """Sessions of consecutive nodes of a model. Tensors that one computes and another reads are not copied."""

    def __init__(self, proto: onnx.ModelProto, barriers: Sequence[int], count: int) -> None:
        """Cut a model and load its segments, each for one thread.

        Where it cannot be cut there is one segment.

        Args:
            proto: The model; weights are in it.
            barriers: Nodes of the main graph that onnxruntime fuses with no other: it is cut behind some of them.
            count: How many segments there should be.

        Raises:
            An exception in `quantkit.runtime.session.RUNTIME_ERRORS`: onnxruntime does not load it.
        """
        model = Structure(proto=proto, folder=Path(), nbytes=0, names={})
        self.starts = [0, *_chosen(model, barriers, count)]
        ends = [*self.starts, len(model.nodes)]
        self._sessions = _loaded(model, ends) if self.starts[1:] else []
        if not self._sessions:
            self.starts = [0]
            self._sessions = [make_session(proto.SerializeToString(), threads=1)]
        found = {o.name: o for session in self._sessions for o in session.get_outputs()}
        self.outputs = [found[name] for name in model.outputs]
        self._reads = [
            {i.name for i in (*own.get_inputs(), *own.get_overridable_initializers())}
            for own in self._sessions
        ]

    def segment_of(self, node: int) -> int:
        """Return the number of the segment of a node of the main graph."""
        return sum(start <= node for start in self.starts) - 1

    def run(
        self,
        names: Sequence[str],
        feeds: Mapping[str, NDArray[Any]],
        start: int = 0,
        known: Values = _NOTHING,
    ) -> list[NDArray[Any]]:
        """Return outputs.

        Args:
            names: Of the outputs.
            feeds: Inputs of the model.
            start: The first segment that is run.
            known: Tensors of skipped segments that later segments read, as `states` returns them.
        """
        if len(self._sessions) == 1:
            return list(self._sessions[0].run(names, dict(feeds)))
        found: dict[str, Any] = dict(known)
        for _, made in self._computed(feeds, start, known):
            found |= made
        return [found[name].numpy() for name in names]

    def states(self, feeds: Mapping[str, NDArray[Any]], nbytes: int) -> dict[int, Values]:
        """Run all segments; return by segment what it and those behind it read of the others, the last first.

        Args:
            feeds: Inputs of the model.
            nbytes: How many bytes all of them may take: the first segments hand on the largest tensors, and save least.
        """
        values = {n: v for _, made in self._computed(feeds) for n, v in made.items()}
        needed = {output.name for output in self.outputs}
        states, held = dict[int, Values](), set[str]()
        for start in range(len(self._sessions) - 1, 0, -1):
            needed |= self._reads[start]
            made = {o.name for own in self._sessions[:start] for o in own.get_outputs()}
            held |= made & needed
            if sum(_nbytes(values[name]) for name in held) > nbytes:
                break
            states[start] = {name: values[name] for name in made & needed}
        return states

    def _computed(
        self, feeds: Mapping[str, NDArray[Any]], start: int = 0, known: Values = _NOTHING
    ) -> Iterator[tuple[int, Values]]:
        """Yield each segment with the tensors that others read of it, and outputs."""
        values = {name: as_value(np.asarray(array, order="C")) for name, array in feeds.items()}
        values |= known
        for number in range(start, len(self._sessions)):
            session, reads = self._sessions[number], self._reads[number]
            names = [output.name for output in session.get_outputs()]
            fed = {name: value for name, value in values.items() if name in reads}
            made = dict(zip(names, session.run_with_ort_values(names, fed), strict=True))
            values |= made
            yield number, made


def _nbytes(value: Any) -> int:
    size: int = prod(value.shape())
    return size * _FLOAT_BYTES


def _chosen(model: Structure, barriers: Sequence[int], count: int) -> list[int]:
    """Return where segments after the first begin: near equal lengths, and only outputs of barriers are read behind the cut.

    So a cut separates no nodes that onnxruntime would fuse.
    """
    passed = {name for at in barriers for name in model.nodes[at].output}
    last = {name: own[-1] for name, own in model.readers.items()}
    length = len(model.nodes) / count
    chosen: list[int] = []
    for number in range(1, count):
        wanted = number * length
        near = sorted((abs(at + 1 - wanted), at + 1) for at in barriers)
        chosen += next(
            ([at] for far, at in near if far < length / 2 and _crossing(model, last, at) <= passed),
            [],
        )
    return chosen


def _crossing(model: Structure, last: Mapping[str, int], at: int) -> set[str]:
    """Return the tensors that nodes before a place compute and those behind it read; `last` reader by tensor."""
    return {name for name, maker in model.maker.items() if maker < at <= last.get(name, -1)}


def _loaded(model: Structure, ends: Sequence[int]) -> list[Any]:
    """Load each segment, its inputs declared as what those before it compute; return none if that cannot be done."""
    if not {*model.outputs} <= model.maker.keys():  # an input or a constant is an output
        return []
    known = {value.name: value for value in model.proto.graph.input}
    sessions = []
    try:
        for start, end in pairwise(ends):
            sessions.append(make_session(_segment(model, start, end, known), threads=1))
            if not _can_hand_on(sessions[-1]):
                return []
            known |= {value.name: _declared(value) for value in sessions[-1].get_outputs()}
    except RUNTIME_ERRORS:
        return []
    return sessions


def _can_hand_on(session: Any) -> bool:
    """Return whether values of all inputs and outputs can be handed from session to session."""
    return not isinstance(session, HalfPorts) and all(
        value.type in TYPES for value in (*session.get_inputs(), *session.get_outputs())
    )


def _segment(
    model: Structure, start: int, end: int, known: Mapping[str, onnx.ValueInfoProto]
) -> bytes:
    """Return the nodes from one to another as a model."""
    read = dict.fromkeys(name for own in model.reads[start:end] for name in own)
    made = [name for name, maker in model.maker.items() if start <= maker < end]
    later = {name for own in model.reads[end:] for name in own}
    inputs = [known[name] for name in read if name in known and name not in made]
    outputs = [name for name in made if name in later or name in model.outputs]
    return model.cut(model.nodes[start:end], read, inputs, outputs)


def _declared(value: Any) -> onnx.ValueInfoProto:
    """Declare as an input what onnxruntime says of an output."""
    info = onnx.ValueInfoProto(name=value.name)
    info.type.tensor_type.elem_type = int(TYPES[value.type])
    for extent in value.shape:  # none at all: a scalar, or nothing is known
        own = info.type.tensor_type.shape.dim.add()
        if isinstance(extent, int):
            own.dim_value = extent
    return info
