"""`inspect_model`: what is in a model, what it weighs, what would quantize, what is risky."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from quantkit.errors import UsageError
from quantkit.model.graph.half import RUN_WIDE, computes_bfloat16, half_type
from quantkit.model.graph.load import LoadedModel
from quantkit.model.graph.opset import opset_of
from quantkit.model.graph.save import copy_of
from quantkit.model.graph.size import account
from quantkit.model.graph.unpack import unpack
from quantkit.model.ops.integer_ops import BLOCKWISE, quantized_among
from quantkit.model.ops.view import View
from quantkit.model.provenance import source_of
from quantkit.numerics.weights import WeightAnalysis, analyze_weight
from quantkit.pipeline.foresight import foresee
from quantkit.quantize.plan import Plan
from quantkit.quantize.plan.blocks import slow_path
from quantkit.result import Part
from quantkit.runtime.session import load_model, runtime_limits, runtime_version
from quantkit.settings.record import to_record
from quantkit.text import human

_SHOWN = 5  # of a kind, when printed
_SLOW = ", the slow path of its kernel"
_LESS = 0.95  # of the size; what saves less is not worth telling


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """An input or output; a dynamic dimension is its name, or "?"."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}[{', '.join(str(n) for n in self.shape)}]"

    @property
    def is_dynamic(self) -> bool:
        """Whether any dimension is dynamic."""
        return any(isinstance(n, str) for n in self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightRow:
    """One weight and its analysis."""

    tensor: str
    shape: tuple[int, ...]
    analysis: WeightAnalysis


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What `quantkit inspect` shows.

    Attributes:
        name: The model's path.
        nbytes: Size of all its files.
        ir_version: Its IR version.
        opsets: Version by domain.
        producer: Who wrote it.
        inputs: Its inputs, without initializers.
        outputs: Its outputs.
        operators: How many nodes of each operator, subgraphs included.
        size: Bytes by cause; they add up to `nbytes`.
        plans: What each mode would do, by the mode's name: "static", "dynamic", "stored", "weights", "float16". The
            static plan assumes that calibration finds a range for every tensor.
        foreseen: About how large the file of a plan would be; what saves nothing is left out.
        int8: How many layers (Conv, Gemm, MatMul with a weight, LSTM) could compute in int8, by "static" and "dynamic",
            and under "layers" how many there are.
        stored: How weights of few bits stand in the file, with how many nodes read them so.
        quantized: How it is quantized already; "" if it is not.
        source: The model of a framework that it was exported from; "" if it does not say.
        weights: Analyses of the largest weights, if asked for.
        hazards: Warnings: what may go wrong with it.
    """

    name: str
    nbytes: int
    ir_version: int
    opsets: Mapping[str, int]
    producer: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    operators: Mapping[str, int]
    size: tuple[Part, ...]
    plans: Mapping[str, Plan]
    weights: tuple[WeightRow, ...]
    hazards: tuple[str, ...]
    foreseen: Mapping[str, int]
    int8: Mapping[str, int]
    stored: Mapping[str, int]
    quantized: str = ""
    source: str = ""

    def __str__(self) -> str:
        """Say what counts, in a few lines."""
        ports = [f"{kind} {port}" for kind, port in self._ports()]
        more = [f"and {len(ports) - _SHOWN} more"] if len(ports) > _SHOWN else []
        operators = [f"{n} {op}" for op, n in self.operators.items()]
        rest = [f"{len(operators) - _SHOWN} other kinds"] if len(operators) > _SHOWN else []
        lines = [self._head(), *ports[:_SHOWN], *more]
        lines.append(f"operators: {', '.join(operators[:_SHOWN] + rest)}")
        lines += [f"{mode}: {plan}" for mode, plan in self.plans.items()]
        lines += [f"warning: {text}" for text in self.hazards[:_SHOWN]]
        return "\n".join(lines)

    @property
    def next_mode(self) -> str:
        """The mode of `quantkit quantize` to try first; "" if none would gain anything.

        Dynamic needs no data, so static has to compute more layers in int8.
        """
        static, dynamic = self.int8.get("static", 0), self.int8.get("dynamic", 0)
        if self.quantized or not (static or dynamic or "dynamic" in self.foreseen):
            return ""
        return "static" if static > dynamic else "dynamic"

    def __repr__(self) -> str:
        return f"<Inspection: {self._head()}>"

    def _head(self) -> str:
        opset = self.opsets.get("", 0)
        nodes = sum(self.operators.values())
        return f"{self.name}, {human(self.nbytes)}, {nodes} nodes, opset {opset}"

    def _ports(self) -> "list[tuple[str, Port]]":
        return [("input", p) for p in self.inputs] + [("output", p) for p in self.outputs]

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        plain: dict[str, Any] = to_record(replace(self, plans={}, weights=()))
        return {
            **plain,
            "plans": {mode: plan.to_json() for mode, plan in self.plans.items()},
            "weights": [
                {"tensor": w.tensor, "shape": list(w.shape), **w.analysis.to_json()}
                for w in self.weights
            ],
        }


def inspect_model(source: str | Path | onnx.ModelProto, *, weights: int = 0) -> Inspection:
    """Look at a model without changing anything.

    Args:
        source: A path, or a ModelProto.
        weights: How many of the largest weights to analyze.
    """
    if not hasattr(weights, "__index__"):
        raise UsageError(f"weights is a whole number, not {weights!r}.")
    loaded = load_model(source)
    model = loaded.model
    inputs = tuple(_port(v) for v in model.graph.inputs if not v.is_initializer())
    outputs = tuple(_port(v) for v in model.graph.outputs)
    operators = dict(Counter(_operator(n) for n in model.graph.all_nodes()).most_common())
    accounts = account(loaded.source)
    stored = _stored(model)
    wide, half = computes_bfloat16(model), half_type(model)
    seen = foresee(loaded, accounts.nbytes)
    return Inspection(
        name=loaded.name.strip("'"),
        nbytes=accounts.nbytes,
        ir_version=model.ir_version or 0,
        opsets=dict(model.opset_imports),
        producer=f"{model.producer_name or ''} {model.producer_version or ''}".strip(),
        inputs=inputs,
        outputs=outputs,
        operators=operators,
        size=accounts.parts,
        plans=seen.plans,
        weights=_analyses(model, seen.view, weights) if not loaded.missing else (),
        hazards=tuple(_warnings(loaded, seen.view, inputs, stored, half, wide=wide)),
        foreseen={n: size for n, size in seen.nbytes.items() if size < _LESS * accounts.nbytes},
        int8=seen.int8,
        stored=stored,
        quantized=_quantized_how(model),
        source=str(source_of(model.metadata_props) or ""),
    )


def _stored(model: ir.Model) -> dict[str, int]:
    """Count how weights of few bits stand in a file."""
    found = Counter(said for node in model.graph.all_nodes() if (said := _blocks_of(node)))
    if packed := unpack(copy_of(model)):
        found["constants of packed bits, put together when the file is loaded"] = packed
    return dict(found.most_common())


def _blocks_of(node: ir.Node) -> str:
    """Say how a node reads weights in blocks; "" if it reads none."""
    attribute = node.attributes.get_int
    if node.op_type == "DequantizeLinear":
        block, source = attribute("block_size", 0), node.inputs[0]
        dtype = source.dtype.name.lower() if source is not None and source.dtype else "?"
        return f"DequantizeLinear: {dtype}, blocks of {block}" if block else ""
    if node.op_type not in BLOCKWISE:
        return ""
    bits, block = attribute("bits", 4), attribute("block_size", 128)
    said = f"{node.op_type}: {bits} bits, blocks of {block}"
    if node.op_type == "GatherBlockQuantized":
        return said
    level = attribute("accuracy_level", 0)
    return f"{said}, accuracy level {level}" + (_SLOW if slow_path(bits, block, level) else "")


def _quantized_how(model: ir.Model) -> str:
    """Return how a model is quantized already; "" if it is not."""
    operators = quantized_among(n.op_type for n in model.graph.all_nodes())
    made = model.metadata_props.get("quantkit", "")
    if not operators and (not made or made.endswith(" float16")):
        return ""
    return ", ".join(operators) or "weights in 8 bits"


def _operator(node: ir.Node) -> str:
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type


def _port(value: ir.Value) -> Port:
    shape: tuple[int | str, ...] = ()
    if value.shape is not None:
        shape = tuple(n if isinstance(n, int) else (n.value or "?") for n in value.shape.dims)
    return Port(
        name=value.name or "",
        dtype=str(value.dtype.name).lower() if value.dtype is not None else "?",
        shape=shape,
    )


def _analyses(model: ir.Model, view: View, limit: int) -> tuple[WeightRow, ...]:
    largest = sorted(view.weights.values(), key=lambda w: -w.size)[:limit]
    nodes = {node.name: node for node in view.nodes}
    tensors = {
        value.name: value.const_value
        for graph in model.graphs()
        for value in graph.initializers.values()
    }
    rows = []
    for weight in largest:
        axis = 0
        use = next((u for u in weight.uses if u.known), None)
        if use is not None:
            axis = nodes[use.node].channel_axis(use.slot, len(weight.shape))
        tensor = tensors[weight.tensor]
        assert tensor is not None  # noqa: S101 - weights have contents
        rows.append(
            WeightRow(
                tensor=weight.tensor,
                shape=weight.shape,
                analysis=analyze_weight(tensor.numpy(), axis),
            )
        )
    return tuple(rows)


def _warnings(
    loaded: LoadedModel,
    view: View,
    inputs: tuple[Port, ...],
    stored: Mapping[str, int],
    half: str,
    *,
    wide: bool,
) -> list[str]:
    # What a user should know before an hour of calibration, each of which is legal ONNX: weights that are not there,
    # a version that the installed runtime does not load, a model that was quantized before (doing it again loses
    # twice), a fixed batch (samples must come in such numbers), a weight that no integer can hold.
    limits, version = runtime_limits(), f"onnxruntime {runtime_version()}"
    model = loaded.model
    found = [f"external data is missing: {name}" for name in loaded.missing]
    if half:
        found.append(
            f"it is a {half} model: quantizing computes and stores in float32 what does not become integers"
        )
    if wide:
        found.append(RUN_WIDE.replace("was run", "is run here"))
    if (model.ir_version or 0) > limits.ir_version:
        found.append(
            f"IR version {model.ir_version}: {version} reads up to {limits.ir_version}; "
            "quantkit writes its result in a version that loads"
        )
    if opset_of(model) > limits.opset:
        found.append(f"opset {opset_of(model)}: {version} supports up to {limits.opset}")
    found += [
        f"{count} {said}: 20 to 40 times slower than with accuracy level 4"
        for said, count in stored.items()
        if said.endswith(_SLOW)
    ]
    if how := _quantized_how(model):
        found.append(f"it is quantized already ({how})")
    found += [
        f"input '{port.name}' has a fixed batch of {port.shape[0]}"
        for port in inputs
        if len(port.shape) > 1 and isinstance(port.shape[0], int)
    ]
    found += [
        f"weight '{weight.tensor}' holds NaN or infinity"
        for weight in view.weights.values()
        if not weight.finite
    ]
    return found
