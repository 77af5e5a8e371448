"""One model of an evaluation: which file it is, what it costs, what it answers (metrics, drift, flips, slices), and what happens inside it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Literal

_FRACTIONS = {"f1", "accuracy", "precision", "recall", "auc", "map", "map-50", "iou", "wer", "cer"}
_LISTS = {"map", "map-50", "iou"}
_HUNDRED = 100  # samples of which the worst is the 1st percentile
SAME_DB = 200.0
"""SQNR that stands for a sample whose output did not change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Where a figure lies with the given confidence (0.95: in 19 of 20 samples of this size)."""

    low: float
    high: float
    confidence: float = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A figure of merit on labelled data.

    Attributes:
        name: "top-1", "top-5", "f1", "mse", "spearman", or the user's function.
        value: The model's figure, in units of the metric (0.01 of top-1 is one point).
        interval: Of the value, as another draw of as many samples would give it.
        higher_is_better: False for errors.
        drop: How much worse than float, positive is worse whatever the direction; None for float itself.
        drop_interval: Of the drop, samples redrawn in pairs.
        detectable: The drop that this sample could not tell from none, in units of the metric.
        main: The one that is judged.
        chance: What answers score that do not look at the sample: always the most frequent class, the mean of the
            labels; None: not known for this metric.
    """

    name: str
    value: float
    interval: Interval | None = None
    higher_is_better: bool = True
    drop: float | None = None
    drop_interval: Interval | None = None
    detectable: float | None = None
    main: bool = False
    chance: float | None = None

    @property
    def is_guess(self) -> bool:
        """Whether it cannot be told from answers that do not look at the sample."""
        if self.chance is None:
            return False
        if self.interval is None:
            return True
        bounds = self.interval
        return not (
            bounds.low > self.chance if self.higher_is_better else bounds.high < self.chance
        )

    @property
    def value_text(self) -> str:
        """The value, per cent of a share: ``93.70%``."""
        return f"{self.value:.2%}" if self.is_fraction else f"{self.value:.4g}"

    @property
    def drop_text(self) -> str:
        """The drop, points of a share: ``0.11 points``; "" for float itself."""
        if self.drop is None:
            return ""
        return f"{100 * self.drop:.2f} points" if self.is_fraction else f"{self.drop:.3g}"

    @property
    def of_lists(self) -> bool:
        """Whether answers are lists of boxes: in another order, or one longer, they are no worse."""
        return self.name in _LISTS

    @property
    def is_fraction(self) -> bool:
        """Whether it is a share of the samples: shown in per cent, its drop in points."""
        return self.name.startswith("top-") or self.name.lower() in _FRACTIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSqnr:
    """Quantiles of the SQNR that each sample has on its own, in dB from -200 (not finite) to 200 (nothing changed).

    Attributes:
        samples: How many were compared.
        median: The median.
        p1: The 1st percentile, an order statistic: of up to 100 samples the worst one.
        p1_low: A lower confidence bound (one-sided) of the 1st percentile of all inputs, whatever the distribution; None:
            too few samples (fewer than 299 at 95 %).
        worst: The worst sample.
        confidence: Of `p1_low`.
        other_shape: Samples that could not be compared because the output has another shape than float's.
    """

    samples: int
    median: float
    p1: float
    p1_low: float | None
    worst: float
    confidence: float = 0.95
    other_shape: int = 0

    def __str__(self) -> str:
        """Return ``median 31.6, 1 % below 24.1, worst 19.4 dB``; of up to 100 samples median and worst alone."""
        if self.worst >= SAME_DB:
            return "all identical"
        named = {"median": self.median, "1 % below": self.p1, "worst": self.worst}
        if not self.has_percentile:
            del named["1 % below"]
        shown = (f"{k} {'identical' if v >= SAME_DB else f'{v:.1f}'}" for k, v in named.items())
        return f"{', '.join(shown)} dB"

    @property
    def p1_name(self) -> str:
        """What `p1` is with this many samples: "1st percentile" or "worst"."""
        return "1st percentile" if self.has_percentile else "worst"

    @property
    def has_percentile(self) -> bool:
        """Whether there are so many samples that the 1st percentile is not the worst one."""
        return self.samples > _HUNDRED


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputDrift:
    """How far one output is from float's.

    Attributes:
        output: Its name.
        sqnr_db: Signal to noise over all finite values; None: nothing changed, or nothing is finite. See `db`.
        sqnr_interval: Of it, samples redrawn.
        cosine: Mean cosine of a sample's output with float's; None where it has no direction.
        max_error: The largest absolute error.
        p99_error: 99 of 100 absolute errors are below it.
        mean_error: The mean absolute error.
        signal: The root mean square of float's values, to judge errors by.
        not_finite: Values that are NaN or infinite where float's are not.
        compared: How many values entered the figures; None: not counted (by an older version).
        per_sample: Quantiles of the SQNR of each sample; None: no sample was compared, or an older version evaluated.
    """

    output: str
    sqnr_db: float | None
    sqnr_interval: Interval | None = None
    cosine: float | None = None
    max_error: float = 0.0
    p99_error: float = 0.0
    mean_error: float = 0.0
    signal: float = 0.0
    not_finite: int = 0
    compared: int | None = None
    per_sample: SampleSqnr | None = None

    @property
    def db(self) -> float:
        """Signal to noise as a number to judge by: inf where nothing changed, -inf where values are not finite."""
        if self.not_finite:
            return -inf
        return inf if self.sqnr_db is None else self.sqnr_db


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Whether the model still decides as float does (argmax, or an integer output's value).

    Attributes:
        output: The output that decides.
        samples: How many decisions.
        flips: How many differ from float's.
        flip_rate: flips / samples.
        interval: Of the rate.
        gained: Flips from a wrong answer to the right one; None without labels.
        lost: Flips from the right answer to a wrong one; None without labels.
        p_value: McNemar's exact test on gained against lost; None without labels.
    """

    output: str
    samples: int
    flips: int
    flip_rate: float
    interval: Interval
    gained: int | None = None
    lost: int | None = None
    p_value: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Some of the samples: a class, a range of lengths or of labels.

    Attributes:
        by: "class", "label", "length".
        name: Which: "7", "33 to 64 tokens".
        samples: How many.
        float_value: The float model's metric on them.
        value: The candidate's.
        drop: Positive is worse.
        interval: Of the drop.
        p_value: That the drop is chance, corrected for the number of slices looked at (Holm).
    """

    by: str
    name: str
    samples: int
    float_value: float
    value: float
    drop: float
    interval: Interval | None = None
    p_value: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstSample:
    """A sample on which the candidate is furthest from float."""

    name: str
    sqnr_db: float | None
    label: str | None = None
    float_answer: str | None = None
    answer: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """All that is known of a candidate's answers beside the metrics.

    Attributes:
        outputs: One by one.
        decision: None where no output decides.
        slices: The worst first.
        worst: Samples, the worst first.
        sentence: What can and cannot be said with so many samples.
    """

    outputs: tuple[OutputDrift, ...]
    decision: Decision | None = None
    slices: tuple[Slice, ...] = ()
    worst: tuple[WorstSample, ...] = ()
    sentence: str = ""


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
    def decision(self) -> Decision | None:
        """Whether it still decides as float does; None where no output decides."""
        return self.drift.decision if self.drift is not None else None

    @property
    def outputs(self) -> tuple[OutputDrift, ...]:
        """How far each output is from float's; empty without a comparison."""
        return self.drift.outputs if self.drift is not None else ()

    @property
    def ranking(self) -> tuple[Layer, ...]:
        """Its layers by the noise that each brings, the worst first; empty if they were not measured."""
        return self.layers.layers if self.layers is not None else ()

    @property
    def worst_output(self) -> OutputDrift | None:
        """The output furthest from float's; None without a comparison."""
        return min(self.outputs, key=lambda output: output.db, default=None)

    @property
    def worst_percentile(self) -> tuple[OutputDrift, SampleSqnr] | None:
        """The output with the lowest 1st percentile of the samples' SQNR, and its quantiles; None without any."""
        found = [
            (output, output.per_sample) for output in self.outputs if output.per_sample is not None
        ]
        return min(found, key=lambda pair: pair[1].p1, default=None)
