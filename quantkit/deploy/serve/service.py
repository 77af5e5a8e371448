"""What a running server knows: the model that answers, the line of requests, whether it wants more, and its log."""

import logging
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from quantkit.deploy.serve.batch import Line, Rules
from quantkit.deploy.serve.drift import Comparison
from quantkit.deploy.serve.engine import Engine, load_engine
from quantkit.deploy.serve.predict import Predictor, predictor, read_labels
from quantkit.deploy.serve.protocol import RequestError
from quantkit.errors import ModelError, QuantkitError, UsageError
from quantkit.evaluate.gate import rules_of
from quantkit.settings import DataSettings, Recipe, ServeSettings
from quantkit.settings.gate import LIVE_RULES

_OWN_WORDS = ("note", "error", "reason")  # facts that need no name before them


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """Lines on standard error.

    Attributes:
        level: Which requests have a line; start, stop and the like always have.
        readable: Lines are for people, not JSON.
    """

    level: str
    readable: bool = field(default_factory=_is_terminal)

    def __call__(self, level: str, event: str, facts: Mapping[str, Any]) -> None:
        """Write a line."""
        now = datetime.now(UTC)
        if self.readable:
            line = f"{now.astimezone():%H:%M:%S} {_readable(level, event, facts)}"
        else:
            time = now.isoformat(timespec="milliseconds")
            plain = {"time": time, "level": level, "event": event, **facts}
            line = msgspec.json.encode(plain).decode()
        with suppress(OSError):  # nobody reads it any more
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()

    def wants(self, *, failed: bool) -> bool:
        """Return True if a request has a line."""
        return self.level == "info" or (self.level == "warning" and failed)


def _readable(level: str, event: str, facts: Mapping[str, Any]) -> str:
    """Return a line for people; what callers sent cannot change the terminal."""
    mark = "" if level == "info" or event == "request" else f"{level}: "
    left = dict(facts)
    if event == "started":
        words = _started(left)
    elif event == "request":
        words = _request(left)
    else:
        parts = [_fact(key, value) for key, value in left.items()]
        words = ", ".join([*([] if event == "note" else [event]), *filter(None, parts)])
    return "".join(c if c.isprintable() else "?" for c in mark + words)


def _started(facts: Mapping[str, Any]) -> str:
    provider = str(facts["provider"]).removesuffix("ExecutionProvider")
    prepared = "".join(f"; {line}" for line in facts["preprocessing"])
    return (
        f"serving '{facts['model']}' on {facts['address']} (see /docs): {provider}, "
        f"{facts['workers']} workers, batch {facts['batch']}, token {facts['token']}{prepared}"
    )


def _request(facts: dict[str, Any]) -> str:
    start = " ".join(str(facts.pop(key)) for key in ("method", "path", "status"))
    said = facts.pop("error", "")
    times = [f"{facts.pop('ms'):.1f} ms"]
    times += [
        f"{word} {facts.pop(key):.1f}"
        for word, key in (("run", "run_ms"), ("wait", "wait_ms"))
        if key in facts
    ]
    rest = ", ".join([*times, *filter(None, (_fact(*pair) for pair in facts.items()))])
    return f"{start} ({rest})" + (f": {said}" if said else "")


def _fact(name: str, value: Any) -> str:
    if isinstance(value, (list, tuple)):
        value = "; ".join(map(str, value))
    if value in ("", None):
        return ""
    return str(value) if name in _OWN_WORDS else f"{name} {value}"


class ForwardedWarnings(logging.Handler):
    """Writes what other packages warn of as lines of the same log."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line."""
        facts = {"by": record.name, "note": record.getMessage().strip()}
        if record.exc_info is not None:
            facts["error"] = repr(record.exc_info[1])
        self._log(record.levelname.lower(), "note", facts)


_MEGABYTE = 1 << 20
# Bounds of what histograms count, in seconds and in rows.
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_PREPARING = 2  # threads that decode images and large bodies


class Metrics:
    """What Prometheus reads; each server has its own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = self._counter("requests", "Requests.", "endpoint", "status")
        self.took = self._seconds("request", "From the first byte in to the last out.")
        self.ran = self._seconds("run", "Runs of the model.")
        self.waited = self._seconds("wait", "Waiting for a run.")
        self.rows = Histogram(
            "quantkit_batch_rows", "Rows that ran together.", buckets=_ROWS, registry=self._registry
        )
        self.waiting = self._gauge("waiting_requests", "Requests that wait for a run.")
        self.held = self._gauge("held_bytes", "Bytes of bodies held.")
        self.ready = self._gauge("ready", "1 while requests are wanted.")
        self.model = self._gauge("model_info", "What is served.", "name", "sha256", "provider")
        self.reloads = self._counter("reloads", "Times the file changed.", "outcome")
        self.compared = self._counter("shadow", "Rows that both models ran.")
        self.dropped = self._counter("shadow_dropped", "Requests not compared: it was busy.")
        self.flips = self._counter("shadow_flips", "Decisions that differ.")
        self.signal = self._counter("shadow_signal_energy", "Sum of squares of the reference.")
        self.error = self._counter("shadow_error_energy", "Sum of squares of differences.")
        self.canary = self._gauge("canary_active", "1 while the candidate answers its share.")

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"quantkit_{name}", text, labels, registry=self._registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"quantkit_{name}", text, labels, registry=self._registry)

    def _seconds(self, name: str, text: str) -> Histogram:
        name = f"quantkit_{name}_seconds"
        return Histogram(name, text, buckets=_SECONDS, registry=self._registry)

    def text(self) -> bytes:
        """Return what Prometheus reads."""
        return generate_latest(self._registry)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A model with what is known of its inputs and classes; exchanged as a whole."""

    engine: Engine
    predictor: Predictor


@dataclass(slots=True, kw_only=True, eq=False)
class Service:
    """The state of a server.

    Attributes:
        settings: What was chosen.
        data: What quantkit.toml says of samples.
        name: Of the model.
        labels: Names of the classes that were given.
        loaded: The model that answers. A request keeps the one that it began with.
        line: Requests that wait.
        metrics: What is counted.
        log: Where lines go.
        preparing: Threads that decode images and large bodies.
        second: A second model that it is compared with, or that is tried out.
        stopping: No more requests are wanted.
        held: Bytes of bodies that are held.
    """

    settings: ServeSettings
    data: DataSettings
    name: str
    labels: tuple[str, ...]
    loaded: Loaded
    line: Line
    metrics: Metrics
    log: Log
    preparing: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(_PREPARING, "prepare")
    )
    second: Comparison | None = None
    stopping: bool = False
    held: int = 0

    def hold(self, size: int) -> None:
        """Take room for bytes of a body, which `release` gives back.

        Raises:
            RequestError: There is none.
        """
        if self.held + size > self.settings.limits.memory_mb * _MEGABYTE:
            raise RequestError("The server holds too many requests; try again later.", 503, 1)
        self.held += size

    def release(self, size: int) -> None:
        """Give back what `hold` took."""
        self.held -= size

    def notes(self) -> tuple[str, ...]:
        """Return what a user should know."""
        found = self.loaded
        batch = self.settings.batches.batch
        off = (
            (f"Requests do not share runs although batch is {batch}: {found.engine.unbatched}.",)
            if batch > 1 and found.engine.unbatched
            else ()
        )
        return (*found.engine.notes, *found.predictor.notes, *off)

    def reload(self) -> None:
        """Load the model's file again beside the one that answers, and let it answer; a bad file changes nothing."""
        old = self.loaded.engine
        try:
            new = self._loaded_again(old)
        except Exception as e:  # noqa: BLE001 - whatever is wrong with a file, the old model goes on
            self.metrics.reloads.labels("failed").inc()
            reason = str(e) if isinstance(e, QuantkitError) else repr(e)
            self.log("error", "reload failed", {"model": str(old.path), "reason": reason})
            return
        self.loaded = new
        self.show_model()
        self.metrics.reloads.labels("done").inc()
        facts = {"model": str(old.path), "sha256": new.engine.digest, "notes": self.notes()}
        self.log("info", "reloaded", facts)

    def _loaded_again(self, old: Engine) -> Loaded:
        new = load(self.settings, old.path, self.data, self.labels)
        if not new.engine.fits(old):
            raise ModelError("it takes or gives other tensors than before")
        return new

    def close(self) -> None:
        """Answer what waits, and end all threads."""
        self.line.close()
        self.preparing.shutdown()
        if self.second is not None:
            self.second.close()

    def show_model(self) -> None:
        """Let the metrics tell which model answers."""
        engine = self.loaded.engine
        self.metrics.model.clear()
        self.metrics.model.labels(self.name, engine.digest, engine.provider).set(1)


def load(
    settings: ServeSettings, path: Path, data: DataSettings, labels: tuple[str, ...]
) -> Loaded:
    """Load a model with what is known of its inputs and classes.

    Args:
        settings: Who computes.
        path: The model.
        data: What quantkit.toml says of samples.
        labels: Names of the classes.
    """
    engine = _engine(settings, path)
    memory = settings.limits.memory_mb * _MEGABYTE
    found = predictor(engine, data, labels, memory, settings.pooling)
    return Loaded(engine=engine, predictor=found)


def _engine(settings: ServeSettings, path: Path) -> Engine:
    batch = settings.batches.batch > 1
    return load_engine(path, provider=settings.provider, threads=settings.threads, batch=batch)


def start_service(path: Path, settings: ServeSettings, recipe: Recipe) -> Service:
    """Load the model and start its workers.

    Args:
        path: The model.
        settings: How it is served.
        recipe: What else quantkit.toml says.

    Raises:
        QuantkitError: It cannot be loaded, or settings contradict it.
    """
    labels, data = read_labels(settings.labels), recipe.data
    loaded = load(settings, path, data, labels)
    batches, limits = settings.batches, settings.limits
    rules = Rules(
        workers=settings.workers or _cores(),
        rows=batches.batch,
        delay=batches.batch_delay_ms / 1000,
        longest=limits.queue_s,
    )
    service = Service(
        settings=settings,
        data=data,
        name=settings.name or path.stem,
        labels=labels,
        loaded=loaded,
        line=Line(rules, loaded.engine.seconds),
        metrics=Metrics(),
        log=Log(level=settings.log_level),
    )
    service.metrics.waiting.set_function(lambda: len(service.line))
    service.metrics.held.set_function(lambda: service.held)
    service.metrics.ready.set_function(lambda: 0 if service.stopping else 1)
    service.show_model()
    service.second = _second(service, recipe)
    return service


def _second(service: Service, recipe: Recipe) -> Comparison | None:
    """Load the second model, if there is one."""
    chosen = service.settings.second
    path = chosen.canary or chosen.shadow
    if path is None:
        return None
    rules = tuple(rule for rule in rules_of(recipe.gate) if rule.key in LIVE_RULES)
    if chosen.canary is not None and not rules:
        raise UsageError(
            "A canary needs a rule that it must keep: add --max-flips 2%, --min-sqnr-db 20 or --max-latency-ratio 1.2, or "
            "such a line under [gate] in quantkit.toml."
        )
    engine = _engine(service.settings, path)
    if not engine.fits(service.loaded.engine):
        raise UsageError(
            f"'{path}' cannot be compared with '{service.loaded.engine.path}': it takes or gives other tensors."
        )
    found = Comparison(
        engine, rules, service.metrics, share=chosen.share, canary=chosen.canary is not None
    )
    found.on_return = lambda reason: service.log(
        "error", "canary returned", {"model": str(path), "reason": reason}
    )
    return found


def _cores() -> int:
    import os

    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
