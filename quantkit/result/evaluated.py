"""One model of an evaluation: which file it is, what it costs, what it answers, and what happens inside it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from quantkit.result.accuracy import Drift, Interval, Metric, OutputDrift, SampleSqnr

__all__ = ["Advice", "Calibrated", "Changes", "Evaluated", "Fidelity", "Latency", "Layer", "Layers"]
__all__ += ["Memory", "ModelFile", "NodeRuns", "OperatorChange", "Part", "Runs", "Runtime", "Size"]

_COSTS = 0.005  # below half a per cent a cost is not worth a word
_MOST = 0.5  # share of the products in integers from which on those in float are the exception
_SLOWER = 1.05  # times float's time; less is not worth a word


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One cause of size: how many tensors, how many bytes."""

    cause: str
    tensors: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Bytes on disk.

    Invariant: the parts add up to `disk` exactly.

    Attributes:
        disk: All files, external data included.
        ratio: disk / float's disk; 1 for float.
        parts: By cause, the largest first: "weights of Conv", "scales", "shapes and indices", "constant outputs",
            "duplicates", "dead", "metadata", "padding" and "unused external data" (of files beside the model),
            "structure" (nodes, names, types).
        compressed: As a package is downloaded (zlib).
    """

    disk: int
    ratio: float
    parts: tuple[Part, ...]
    compressed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Time of one run, float and all candidates taking turns in one process.

    Attributes:
        batch: Samples in a run.
        threads: For one operator; 0 is onnxruntime's choice.
        median_ms: Of the runs.
        p90_ms: Nine of ten runs are faster.
        ratio: To float: the median of the ratios of neighbouring runs; 1 for float.
        ratio_interval: Of it.
        throughput: Samples a second at the median.
        runs: How many were timed.
    """

    batch: int
    threads: int
    median_ms: float
    p90_ms: float
    ratio: float
    ratio_interval: Interval | None
    throughput: float
    runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Memory of a process of its own that loads the model and runs one sample, above an empty one's.

    Attributes:
        resident: After loading and a run.
        peak: At most, loading included.
    """

    resident: int
    peak: int


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """Which file.

    Attributes:
        path: As the user named it.
        sha256: Of all its files.
        nbytes: On disk, external data included.
        opset: Of the default domain.
        ir_version: Of the file.
        producer: Who wrote it.
        provenance: What quantkit wrote into it about where it comes from; empty if it did not.
    """

    path: str
    sha256: str
    nbytes: int
    opset: int
    ir_version: int
    producer: str = ""
    provenance: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """How activation ranges came about, from the candidate's provenance.

    Attributes:
        method: The calibrator.
        samples: How many.
        data: Where from.
        fingerprint: Of the data.
        warnings: Of the audit.
        shared: Whether evaluated samples were also calibrated on; None: not known.
        seen: How many of the evaluated samples it was calibrated with, as far as known.
        preprocessing: How samples were prepared for calibration, one step per line.
        differs: In what they were prepared otherwise for the evaluation, one difference per line.
    """

    method: str
    samples: int
    data: str
    fingerprint: str
    warnings: tuple[str, ...] = ()
    shared: bool | None = None
    seen: int = 0
    preprocessing: tuple[str, ...] = ()
    differs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """One model, and everything that was measured of it. None: not measured.

    Attributes:
        name: Short and unique in the result.
        role: Float is the reference.
        file: Which file.
        metrics: On labelled data; empty without labels.
        drift: From float; None for float.
        size: On disk.
        latency: One for each batch size and number of threads.
        memory: Of a process of its own.
        layers: Where the drift comes from.
        runtime: What onnxruntime runs in integers.
        fidelity: Whether it means the same wherever it runs.
        changes: What differs from float's file.
        calibration: How ranges came about.
        warnings: What a reviewer should know.
    """

    name: str
    role: Literal["float", "candidate"]
    file: ModelFile
    size: Size
    metrics: tuple[Metric, ...] = ()
    drift: Drift | None = None
    latency: tuple[Latency, ...] = ()
    memory: Memory | None = None
    layers: Layers | None = None
    runtime: Runtime | None = None
    fidelity: Fidelity | None = None
    changes: Changes | None = None
    calibration: Calibrated | None = None
    warnings: tuple[str, ...] = ()

    @property
    def metric(self) -> Metric | None:
        """The metric that is judged; None without labels."""
        return next((m for m in self.metrics if m.main), None)

    @property
    def typical_latency(self) -> Latency | None:
        """The latency that stands for the model: the smallest batch, the first number of threads; None: not timed."""
        return min(self.latency, key=lambda found: found.batch, default=None)

    @property
    def advice(self) -> tuple[str, ...]:
        """What would help most, one or two sentences: what was tried; else, where most products stay float, why."""
        if self.layers is not None and self.layers.advice:
            return tuple(advice.sentence for advice in self.layers.advice)
        runtime = self.runtime
        return runtime.advice[:1] if runtime is not None and runtime.share < _MOST else ()

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a reviewer should know: slowness, then the warnings."""
        return tuple(filter(None, (self.slowness, *self.warnings)))

    @property
    def slowness(self) -> str:
        """That it runs slower than float, and what to do; "" if it does not, or if that is not sure."""
        timed = self.typical_latency
        if timed is None or timed.ratio < _SLOWER:
            return ""
        if timed.ratio_interval is not None and timed.ratio_interval.low <= 1:
            return ""
        said = f"It runs slower than float: {timed.ratio:.2f} times float's time."
        match self.file.provenance.get("kind"):
            case "static":
                return (
                    f"{said} Integers do not pay for layers this small: `quantkit quantize dynamic` shrinks the file "
                    "as much and leaves them in float."
                )
            case "dynamic":
                return (
                    f"{said} Ranges are computed anew in every run: `quantkit quantize static` avoids that, "
                    "`--exclude` keeps small layers in float."
                )
            case "float16":
                return (
                    f"{said} This CPU has no kernels for float16, and values are converted in every run: `quantkit quantize "
                    "float16` without --compute stores the weights alone, and runs like float."
                )
            case _:
                return f"{said} What runs in integers, and what is converted in every run, is listed under int8."

    @property
    def worst_output(self) -> OutputDrift | None:
        """The output furthest from float's; None without a comparison."""
        outputs = self.drift.outputs if self.drift is not None else ()
        return min(outputs, key=lambda output: output.db, default=None)

    @property
    def worst_percentile(self) -> tuple[OutputDrift, SampleSqnr] | None:
        """The output with the lowest 1st percentile of the samples' SQNR, and its quantiles; None without any."""
        outputs = self.drift.outputs if self.drift is not None else ()
        found = [(output, output.per_sample) for output in outputs if output.per_sample is not None]
        return min(found, key=lambda pair: pair[1].p1, default=None)
