"""A result with everything in it, for tests of what reads results."""

from dataclasses import replace

from quantkit.result import (
    Advice,
    Calibrated,
    Changes,
    DataSource,
    Decision,
    Drift,
    Evaluated,
    Fidelity,
    Interval,
    Latency,
    Layer,
    Layers,
    Memory,
    Metric,
    ModelFile,
    NodeRuns,
    OperatorChange,
    Origin,
    OutputDrift,
    Part,
    Result,
    Runtime,
    SampleSqnr,
    Size,
    Slice,
    WorstSample,
)

__all__ = ["candidate", "example_result", "float_model"]

_FLOAT_BYTES = 400_000


def _size(nbytes: int) -> Size:
    parts = (
        Part(cause="weights of Conv", tensors=7, nbytes=nbytes * 7 // 10),
        Part(cause="weights of Gemm", tensors=2, nbytes=nbytes // 5),
        Part(cause="scales", tensors=40, nbytes=nbytes // 50),
    )
    rest = nbytes - sum(p.nbytes for p in parts)
    return Size(
        disk=nbytes,
        ratio=nbytes / _FLOAT_BYTES,
        parts=(*parts, Part(cause="structure", tensors=0, nbytes=rest)),
        compressed=int(nbytes * 0.9),
    )


def _latency(median: float, ratio: float) -> tuple[Latency, ...]:
    interval = None if ratio == 1 else Interval(low=ratio - 0.02, high=ratio + 0.02)
    return tuple(
        Latency(
            batch=batch,
            threads=0,
            median_ms=median * batch,
            p90_ms=median * batch * 1.1,
            ratio=ratio,
            ratio_interval=interval,
            throughput=1000 / median,
            runs=200,
        )
        for batch in (1, 8)
    )


def float_model() -> Evaluated:
    """The reference."""
    return Evaluated(
        name="float32",
        role="float",
        file=ModelFile(
            path="model.onnx", sha256="a" * 64, nbytes=_FLOAT_BYTES, opset=17, ir_version=8
        ),
        size=_size(_FLOAT_BYTES),
        metrics=(
            Metric(name="top-1", value=0.912, interval=Interval(low=0.9, high=0.924), main=True),
            Metric(name="top-5", value=0.991, interval=Interval(low=0.985, high=0.995)),
        ),
        latency=_latency(2.0, 1.0),
        memory=Memory(resident=12_000_000, peak=15_000_000),
        runtime=Runtime(
            integer=0, products=9, share=0.0, kernels={"Conv": 7, "Gemm": 2}, conversions=0
        ),
    )


def _layers(count: int) -> Layers:
    return Layers(
        layers=tuple(
            Layer(
                node=f"/features/{i}/conv/Conv",
                op_type="Conv" if i < count - 2 else "Gemm",
                tensor=f"/features/{i}/conv/Conv_output_0",
                alone_db=25.0 + 2 * i,
                share=0.5 / 2**i,
                local_db=30.0 + i,
                accumulated_db=24.0 + i,
                weight_db=35.0,
                input_db=33.0,
                clipped=0.001 if i == 0 else 0.0,
                fix="Keep it in float: --exclude '/features/0/conv/Conv'." if i == 0 else "",
            )
            for i in range(count)
        ),
        samples=8,
        advice=(
            Advice(
                nodes=("/features/0/conv/Conv",),
                gain_db=2.4,
                after_db=33.6,
                slower=0.06,
                larger=0.01,
                option="--exclude /features/0/conv/Conv",
            ),
        ),
    )


def candidate(name: str = "static", *, drop: float = 0.003, ratio: float = 0.27) -> Evaluated:
    """A candidate with everything in it."""
    nbytes = int(_FLOAT_BYTES * ratio)
    return Evaluated(
        name=name,
        role="candidate",
        file=ModelFile(
            path=f"{name}.onnx",
            sha256="b" * 64,
            nbytes=nbytes,
            opset=17,
            ir_version=8,
            producer="quantkit",
            provenance={"quantkit": "1.0", "kind": "static"},
        ),
        size=_size(nbytes),
        metrics=(
            Metric(
                name="top-1",
                value=0.912 - drop,
                interval=Interval(low=0.9 - drop, high=0.924 - drop),
                drop=drop,
                drop_interval=Interval(low=drop - 0.004, high=drop + 0.004),
                detectable=0.004,
                main=True,
            ),
            Metric(
                name="top-5",
                value=0.990,
                interval=Interval(low=0.984, high=0.994),
                drop=0.001,
                drop_interval=Interval(low=-0.001, high=0.003),
                detectable=0.002,
            ),
        ),
        drift=Drift(
            outputs=(
                OutputDrift(
                    output="logits",
                    sqnr_db=31.2,
                    sqnr_interval=Interval(low=30.8, high=31.7),
                    cosine=0.9993,
                    max_error=0.81,
                    p99_error=0.22,
                    mean_error=0.05,
                    signal=4.2,
                    per_sample=SampleSqnr(
                        samples=2000, median=31.6, p1=24.1, p1_low=22.8, worst=19.4
                    ),
                ),
            ),
            decision=Decision(
                output="logits",
                samples=2000,
                flips=22,
                flip_rate=0.011,
                interval=Interval(low=0.0069, high=0.0166),
                gained=6,
                lost=12,
                p_value=0.238,
            ),
            slices=(
                Slice(
                    by="class",
                    name="6",
                    samples=200,
                    float_value=0.75,
                    value=0.73,
                    drop=0.02,
                    interval=Interval(low=-0.01, high=0.05),
                    p_value=1.0,
                ),
                Slice(by="class", name="2", samples=190, float_value=0.9, value=0.895, drop=0.005),
            ),
            worst=(
                WorstSample(
                    name="images.npz row 17", sqnr_db=14.1, label="6", float_answer="6", answer="2"
                ),
                WorstSample(
                    name="images.npz row 99", sqnr_db=15.9, label="1", float_answer="1", answer="1"
                ),
            ),
            sentence="With 2000 samples a drop under 0.4 points of top-1 cannot be told from none.",
        ),
        latency=_latency(1.3, 0.65),
        memory=Memory(resident=8_000_000, peak=11_000_000),
        layers=_layers(9),
        runtime=Runtime(
            integer=8,
            products=9,
            share=8 / 9,
            kernels={"QLinearConv": 7, "QGemm": 1, "Gemm": 1},
            conversions=3,
            nodes=(
                NodeRuns(node="/conv1", op_type="Conv", runs="integer", kernel="QLinearConv"),
                NodeRuns(
                    node="/head",
                    op_type="Gemm",
                    runs="float",
                    kernel="Gemm",
                    why="its output is not quantized",
                    fix="quantize its output",
                ),
            ),
            advice=("1 Gemm stays float: its output is not quantized.",),
        ),
        fidelity=Fidelity(
            plain_db=48.0,
            plain_max=0.02,
            plain_flips=0,
            samples=16,
            products=8,
            unsafe=(),
            saturated_db=None,
            this_cpu="x86_64 with AVX-512 VNNI",
            portable=True,
            sentence="The same integers on AVX2, VNNI and ARM: no pair of weights can saturate.",
        ),
        changes=Changes(
            nodes_before=24,
            nodes_after=41,
            operators=(
                OperatorChange(op_type="BatchNormalization", before=6, after=0),
                OperatorChange(op_type="QuantizeLinear", before=0, after=9),
            ),
            weights={"int8": 95_000, "float32": 4_000},
            kept=0,
            notes=("BatchNormalization folded",),
        ),
        calibration=Calibrated(
            method="mse", samples=128, data="images/", fingerprint="c" * 64, shared=False
        ),
    )


def example_result() -> Result:
    """Float, a good candidate, and one that is worse."""
    worse = candidate("ort default", drop=0.05, ratio=0.26)
    return Result(
        title="Fashion-MNIST classifier",
        data=DataSource(
            kind="npz",
            location="images/",
            samples=2000,
            available=2000,
            labels="10 classes from 'label'",
            fingerprint="d" * 64,
            preprocessing=("as stored",),
            batch=1,
            order="all, in order",
        ),
        models=(float_model(), candidate(), replace(worse, warnings=("Something is odd.",))),
        origin=Origin(
            command="quantkit evaluate model.onnx static.onnx --data images/",
            created="2026-11-16T12:00:00Z",
            software={"quantkit": "1.0", "onnxruntime": "1.31.1"},
            python="3.11.7",
            system="Linux",
            cpu="x86_64 with AVX-512 VNNI",
            cores=2,
        ),
        notes=("Everything here is made up.",),
    )
