"""The tables [serve], [serve.batch], [serve.limits] and [serve.shadow]: how a model answers requests."""

import re
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from quantkit.errors import UsageError
from quantkit.settings.declare import Range, Setting, check
from quantkit.settings.values import Share

__all__ = ["SERVE_KINDS", "BatchSettings", "LimitSettings", "ServeSettings", "ShadowSettings"]

_MOST_ROWS = 4096
_MOST_MEGABYTES = 4096
_MOST_PORT = 65535
_MOST_WORKERS = 256
_batch, _limit = partial(Setting, panel="Batches"), partial(Setting, panel="Limits")
_compare = partial(Setting, panel="A second model")
_SECONDS = Range(above=0, most=3600, words="seconds above 0 and up to 3600")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """Requests of the same shape that run together; never padded.

    Off by default, and refused where a row's answer depends on the rows beside it.
    """

    batch: Annotated[
        int,
        _batch("Rows that run together at most; 1: each request alone.", "N", key="max", least=1),
    ] = 1
    batch_delay_ms: Annotated[
        float,
        _batch(
            "How long the first waits for others, in milliseconds; 0: those that wait already run together.",
            "MS",
            key="delay_ms",
            range=Range(least=0, most=1000),
        ),
    ] = 0.0

    def __post_init__(self) -> None:
        check(self)
        if self.batch > _MOST_ROWS:
            raise UsageError(f"batch '{self.batch}' is too large: use at most {_MOST_ROWS} rows.")


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings:
    """What a request may take. What is over a limit is refused with the reason; nothing grows without end.

    `queue_s` bounds the time that requests wait: a longer queue, by the measured time of a run, is answered with 503 and
    Retry-After. `memory_mb` bounds all bodies that are held at once, and what a decoded image takes.
    """

    body_mb: Annotated[
        int,
        _limit("Megabytes of a request's body at most.", "MB", least=1, most=_MOST_MEGABYTES),
    ] = 8
    memory_mb: Annotated[
        int,
        _limit(
            "Megabytes of all bodies held at once, and of a decoded image.",
            "MB",
            least=1,
            most=1024 * _MOST_MEGABYTES,
        ),
    ] = 256
    timeout_s: Annotated[
        float, _limit("Seconds until a request is given up (504).", "S", range=_SECONDS)
    ] = 5.0
    queue_s: Annotated[
        float,
        _limit("Seconds that a request may have to wait; else 503.", "S", range=_SECONDS),
    ] = 1.0
    drain_s: Annotated[
        float,
        _limit(
            "Seconds of answering while not ready, after SIGTERM.",
            "S",
            range=Range(least=0, most=3600),
        ),
    ] = 4.0

    def __post_init__(self) -> None:
        check(self)
        if self.body_mb > self.memory_mb:
            raise UsageError(
                f"body_mb '{self.body_mb}' is more than memory_mb '{self.memory_mb}': "
                "no request of that size could be held."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowSettings:
    """A second model beside the one that is served: to compare with, or to try out."""

    shadow: Annotated[
        Path | None,
        _compare(
            "Compare with this model (float) on a share of the requests, after they were answered.",
            "FILE",
            key="model",
        ),
    ] = None
    canary: Annotated[
        Path | None,
        _compare(
            "Let this model answer a share of the requests, as long as it keeps the rules.", "FILE"
        ),
    ] = None
    share: Annotated[
        Share,
        _compare("Which share of the requests: 5%.", "P", range=Range(above=0, most=1)),
    ] = 0.05

    def __post_init__(self) -> None:
        check(self)
        if self.shadow is not None and self.canary is not None:
            raise UsageError(
                "shadow and canary each compare two models: leave out one of the two, or serve twice."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """How a model answers requests.

    Without a `name` the file's. `provider` is who computes: cpu, cuda, openvino, ... `workers` requests are computed at a
    time, each with `threads`: one each is what answers most requests a second.
    """

    name: Annotated[str | None, Setting("What the model is called. Default: its file.", "NAME")] = (
        None
    )
    host: Annotated[str, Setting("Address to listen on. Default: this machine only.", "HOST")] = (
        "127.0.0.1"
    )
    port: Annotated[
        int, Setting("Port to listen on; 0: any that is free.", "N", least=0, most=_MOST_PORT)
    ] = 8000
    token: Annotated[
        str | None,
        Setting(
            "What callers must send as 'Authorization: Bearer ...'; better in QUANTKIT_TOKEN.",
            "TEXT",
        ),
    ] = None
    require_token: Annotated[
        bool, Setting("Refuse to start without a token; in a package, to be deployed without one.")
    ] = False
    provider: Annotated[
        str, Setting("Who computes: cpu, cuda, openvino, ...; cpu where it is absent.", "NAME")
    ] = "cpu"
    workers: Annotated[
        int | None,
        Setting("Runs at a time. Default: one per core.", "N", least=1, most=_MOST_WORKERS),
    ] = None
    threads: Annotated[
        int, Setting("Threads of one run. Default: 1.", "N", least=1, most=_MOST_WORKERS)
    ] = 1
    labels: Annotated[
        Path | None, Setting("Names of the classes, one per line, for /predict.", "FILE")
    ] = None
    pooling: Annotated[
        Literal["mean", "cls", "none"] | None,
        Setting(
            "How /predict makes one vector of a text encoder's tokens. Default: as 1_Pooling/config.json next to the "
            "model says, else mean.",
            "MODE",
        ),
    ] = None
    reload: Annotated[bool, Setting("Load the model again when its file changes (default).")] = True
    log_level: Annotated[
        Literal["info", "warning", "quiet"],
        Setting("info: a line per request; warning: those that failed; quiet.", "LEVEL"),
    ] = "info"
    batches: BatchSettings = field(default_factory=BatchSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    second: ShadowSettings = field(default_factory=ShadowSettings)

    def __post_init__(self) -> None:
        check(self)
        for key, value in (("name", self.name), ("host", self.host)):
            if value is not None and (not value.isprintable() or not value.strip()):
                raise UsageError(f"{key} {value!r} must be text without control characters.")
        if self.name is not None and "/" in self.name:
            raise UsageError(f"name '{self.name}' has a slash: it is part of the address.")
        # What it is stays out of the message.
        if self.token is not None and not re.fullmatch("[!-~]+", self.token):
            raise UsageError(
                "token must be printable ASCII without spaces: it is sent in a header."
            )


SERVE_KINDS = (ServeSettings, BatchSettings, LimitSettings, ShadowSettings)
"""What declares the flags of the command."""
