"""Find the operators of a model file that mix the rows of a run, without the onnx package.

The trial in `engine` runs made-up rows; what a file declares also holds for the rows that nobody made up.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from quantkit.protobuf import Buffer, WireError, fields_of, varint

_ONE_RANGE = (
    "DynamicQuantizeLinear",
    "DynamicQuantizeMatMul",
    "DynamicQuantizeLSTM",
    "QAttention",
)
_RECURRENT = ("RNN", "GRU", "LSTM")
# Numbers of fields in ModelProto, GraphProto, NodeProto and AttributeProto.
_GRAPH, _NODE = 7, 1
_INPUT, _OUTPUT, _OP_TYPE, _ATTRIBUTE = 1, 2, 4, 5
_NAME, _INT, _INTS = 1, 3, 8
_LENGTH_DELIMITED = 2


def mixing_operator(content: bytes, inputs: Collection[str]) -> str:
    """Return why an operator makes a row depend on the rows next to it; "" if none is found.

    Args:
        content: The model file.
        inputs: Names of the model's inputs.
    """
    for op in _ONE_RANGE:
        if _names(content, op):
            return f"{op} gives all rows of a run one range, so that an answer would depend on who else is asking"
    if not any(_names(content, op) for op in _RECURRENT):
        return ""
    try:
        return _sequence(content, inputs)
    except (WireError, UnicodeDecodeError):  # onnxruntime's own format: only the trial can tell
        return ""


def _names(content: bytes, op: str) -> bool:
    tag = _OP_TYPE << 3 | _LENGTH_DELIMITED
    return content.find(bytes([tag, len(op)]) + op.encode()) >= 0


def _sequence(content: bytes, inputs: Collection[str]) -> str:
    """Return which recurrent operator reads the first axis of an input as its sequence; "" if none does.

    Recurrent operators read [sequence, batch, features]; exporters put a Transpose before them where the batch comes first.
    """
    leading = set(inputs)  # tensors whose first axis is that of an input
    for node in _nodes(content):
        if (
            node.op in _RECURRENT
            and node.inputs[0] in leading
            and not any(node.numbers.get("layout", ()))
        ):
            return f"the first axis is the sequence of a {node.op}, which carries a state from row to row"
        moved = node.op == "Transpose" and node.numbers.get("perm", (1,))[0] != 0
        if not moved and node.op not in {"Shape", "Size"} and not leading.isdisjoint(node.inputs):
            leading.update(node.outputs)
    return ""


@dataclass(slots=True)
class _Node:
    op: str = ""
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    numbers: dict[str, tuple[int, ...]] = field(default_factory=dict)


def _nodes(content: Buffer) -> Iterator[_Node]:
    """Yield the nodes of the main graph in their order."""
    for graph in fields_of(content, 0, len(content)):
        if graph.number != _GRAPH:
            continue
        for one in fields_of(content, graph.value, graph.end):
            if one.number == _NODE:
                yield _node(content, one.value, one.end)


def _node(content: Buffer, start: int, end: int) -> _Node:
    found = _Node()
    for one in fields_of(content, start, end):
        if one.number == _ATTRIBUTE:
            found.numbers |= _numbers(content, one.value, one.end)
        elif one.number in {_INPUT, _OUTPUT, _OP_TYPE}:
            text = bytes(content[one.value : one.end]).decode()
            if one.number == _OP_TYPE:
                found.op = text
            else:
                (found.inputs if one.number == _INPUT else found.outputs).append(text)
    return found


def _numbers(content: Buffer, start: int, end: int) -> Mapping[str, tuple[int, ...]]:
    """Return the whole numbers of an attribute by its name; nothing if it has none."""
    name, values = "", []
    for one in fields_of(content, start, end):
        if one.number == _NAME:
            name = bytes(content[one.value : one.end]).decode()
        elif one.number in {_INT, _INTS}:  # a list may be packed into one field
            place = one.value
            while place < one.end:
                value, place = varint(content, place, one.end)
                values.append(value)
    return {name: tuple(values)} if values else {}
