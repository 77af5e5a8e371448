"""What a model costs: bytes, milliseconds, memory."""

from dataclasses import dataclass

from quantkit.result.accuracy import Interval

__all__ = ["Latency", "Memory", "Part", "Size"]


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
