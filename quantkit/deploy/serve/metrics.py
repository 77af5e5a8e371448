"""What Prometheus reads."""

from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def _counter(name: str, text: str, *labels: str) -> Counter:
    return Counter(f"quantkit_{name}", text, labels, registry=None)


def _gauge(name: str, text: str, *labels: str) -> Gauge:
    return Gauge(f"quantkit_{name}", text, labels, registry=None)


def _seconds(name: str, text: str) -> Histogram:
    return Histogram(f"quantkit_{name}_seconds", text, buckets=_SECONDS, registry=None)


@dataclass(slots=True, kw_only=True, eq=False)
class Metrics:
    """All that is counted; each server has its own."""

    requests: Counter = field(
        default_factory=lambda: _counter("requests", "Requests.", "endpoint", "status")
    )
    took: Histogram = field(
        default_factory=lambda: _seconds("request", "From the first byte in to the last out.")
    )
    ran: Histogram = field(default_factory=lambda: _seconds("run", "Runs of the model."))
    waited: Histogram = field(default_factory=lambda: _seconds("wait", "Waiting for a run."))
    rows: Histogram = field(
        default_factory=lambda: Histogram(
            "quantkit_batch_rows", "Rows that ran together.", buckets=_ROWS, registry=None
        )
    )
    waiting: Gauge = field(
        default_factory=lambda: _gauge("waiting_requests", "Requests that wait for a run.")
    )
    held: Gauge = field(default_factory=lambda: _gauge("held_bytes", "Bytes of bodies held."))
    ready: Gauge = field(default_factory=lambda: _gauge("ready", "1 while requests are wanted."))
    model: Gauge = field(
        default_factory=lambda: _gauge(
            "model_info", "What is served.", "name", "sha256", "provider"
        )
    )
    reloads: Counter = field(
        default_factory=lambda: _counter("reloads", "Times the file changed.", "outcome")
    )
    compared: Counter = field(
        default_factory=lambda: _counter("shadow", "Rows that both models ran.")
    )
    dropped: Counter = field(
        default_factory=lambda: _counter("shadow_dropped", "Requests not compared: it was busy.")
    )
    flips: Counter = field(
        default_factory=lambda: _counter("shadow_flips", "Decisions that differ.")
    )
    signal: Counter = field(
        default_factory=lambda: _counter("shadow_signal_energy", "Sum of squares of the reference.")
    )
    error: Counter = field(
        default_factory=lambda: _counter("shadow_error_energy", "Sum of squares of differences.")
    )
    canary: Gauge = field(
        default_factory=lambda: _gauge("canary_active", "1 while the candidate answers its share.")
    )

    def text(self) -> bytes:
        """Return what Prometheus reads."""
        registry = CollectorRegistry()
        for name in self.__slots__:
            registry.register(getattr(self, name))
        return generate_latest(registry)
