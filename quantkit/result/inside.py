"""What happens inside a model: which layers drift, what runs in integers, whether other CPUs agree."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

__all__ = [
    "Advice",
    "Changes",
    "Fidelity",
    "Layer",
    "Layers",
    "NodeRuns",
    "OperatorChange",
    "Runs",
    "Runtime",
]

_COSTS = 0.005  # below half a per cent a cost is not worth a word

Runs = Literal["integer", "float", "dynamic", "gone"]
"""integer: integer kernel; dynamic: integer kernel, ranges taken at run time; gone: fused into another, or folded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One quantized layer: a node with its weights and the quantization of what it reads.

    Attributes:
        node: The node's name in the float model.
        op_type: Its operator.
        tensor: What it makes, in the float model.
        alone_db: SQNR at the model's output if this layer alone is quantized; None: no error at all.
        share: Its part of the noise power of all layers alone, 0 to 1.
        local_db: SQNR of what it makes, fed with float's values.
        accumulated_db: SQNR of what it makes in the whole quantized model; None: no error, or not to be seen.
        weight_db: SQNR of what it makes, by its weights alone (and by the rounding of its result, where the operator
            does that); None: no error by them.
        input_db: SQNR of what it makes, by the quantization of what it reads alone; None: that is not quantized, or
            cannot be told apart.
        clipped: Share of the values it reads that lie outside the quantized range.
        fix: What would help.
    """

    node: str
    op_type: str
    tensor: str
    alone_db: float | None
    share: float
    local_db: float | None = None
    accumulated_db: float | None = None
    weight_db: float | None = None
    input_db: float | None = None
    clipped: float = 0.0
    fix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Layers that would better stay float: tried on the quantized model, not guessed.

    Attributes:
        nodes: Their names in the float model.
        gain_db: By how much the SQNR at the outputs rises.
        after_db: What it is then; None: no noise is left.
        slower: How much longer a run takes, as a share of the candidate's time: an estimate from the layers' float
            time. It is measured, and so not the same in two runs.
        larger: How much larger the file becomes, as a share of the candidate's.
        option: What to add to the command that quantized it; "" if quantkit did not.
    """

    nodes: tuple[str, ...]
    gain_db: float
    after_db: float | None
    slower: float = field(default=0.0, compare=False)
    larger: float = 0.0
    option: str = ""

    @property
    def brings(self) -> str:
        """What it brings, and how it is done."""
        how = f": add {self.option}" if self.option else ""
        return f"{self.gain_db:+.1f} dB at the output{how}"

    @property
    def sentence(self) -> str:
        """What it brings and costs."""
        shown = list(self.nodes)
        named = shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
        costs = [
            f"{100 * value:.0f} % {what}"
            for value, what in ((self.slower, "slower"), (self.larger, "larger"))
            if value >= _COSTS
        ]
        cost = f"about {', '.join(costs)}" if costs else "at next to no cost"
        flag = f" Flag: {self.option}" if self.option else ""
        return f"Keep {named} in float: {self.gain_db:+.1f} dB (measured), {cost}.{flag}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """Layers ranked by the noise that each alone brings, worst first.

    Attributes:
        layers: The ranking.
        samples: On how many samples.
        note: What could not be looked at, and why.
        advice: What was tried and helps, the best first; at most two.
    """

    layers: tuple[Layer, ...]
    samples: int
    note: str = ""
    advice: tuple[Advice, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRuns:
    """How onnxruntime really runs one product (Conv, MatMul, Gemm, LSTM, ...) of the given file.

    Attributes:
        node: Its name in the candidate.
        op_type: Its operator in the candidate.
        runs: In integers or in float.
        kernel: The operator in the optimized graph.
        why: Why it stays float; "" otherwise.
        fix: What would change it; "" otherwise.
    """

    node: str
    op_type: str
    runs: Runs
    kernel: str = ""
    why: str = ""
    fix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """What onnxruntime runs.

    Attributes:
        integer: Products computed in integers.
        products: All products.
        share: integer / products; 0 without products.
        kernels: Nodes of the optimized graph by operator.
        conversions: QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear that run every time.
        nodes: Every product.
        advice: What would change most, in one sentence per cause.
    """

    integer: int
    products: int
    share: float
    kernels: Mapping[str, int]
    conversions: int
    nodes: tuple[NodeRuns, ...] = ()
    advice: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fidelity:
    """Whether the file means the same wherever it runs.

    Attributes:
        plain_db: Default session against optimization switched off; None: the same numbers.
        plain_max: The largest absolute difference between the two.
        plain_flips: Decisions that differ between the two; None without decisions.
        samples: On how many samples.
        products: Integer products of the file with constant int8 weights.
        unsafe: Names of those whose pair sums could saturate on x86 without VNNI.
        saturated_db: SQNR of what the worst of them makes, saturated against exact, on real samples; None: no difference.
        this_cpu: What this CPU is, and whether it saturates.
        portable: Whether layers give the same integers on AVX2, VNNI and ARM.
        sentence: All that for people.
    """

    plain_db: float | None
    plain_max: float
    samples: int
    products: int
    unsafe: tuple[str, ...]
    saturated_db: float | None
    this_cpu: str
    portable: bool
    sentence: str
    plain_flips: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorChange:
    """How many nodes of an operator there were, and are."""

    op_type: str
    before: int
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What differs between the float file and the candidate's.

    Attributes:
        nodes_before: Nodes of the float model, subgraphs included.
        nodes_after: Of the candidate.
        operators: Those whose number changed.
        weights: Bytes of weights by type ("float32", "int8"), in the candidate.
        kept: Weights that are float in both, by bytes.
        notes: "opset 11 -> 13", ...
    """

    nodes_before: int
    nodes_after: int
    operators: tuple[OperatorChange, ...] = ()
    weights: Mapping[str, int]
    kept: int = 0
    notes: tuple[str, ...] = ()
