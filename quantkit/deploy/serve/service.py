"""What a running server knows: the model that answers, the line of requests, and whether it wants more."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from quantkit.deploy.serve.batch import Line, Rules
from quantkit.deploy.serve.drift import Comparison
from quantkit.deploy.serve.engine import Engine, load_engine
from quantkit.deploy.serve.log import Log
from quantkit.deploy.serve.metrics import Metrics
from quantkit.deploy.serve.predict import Predictor, predictor, read_labels
from quantkit.deploy.serve.protocol import RequestError
from quantkit.errors import ModelError, QuantkitError, UsageError
from quantkit.evaluate.gate.rules import rules_of
from quantkit.settings import DataSettings, Recipe, ServeSettings
from quantkit.settings.gate import LIVE_RULES

_MEGABYTE = 1 << 20
_PREPARING = 2  # threads that decode images and large bodies


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
