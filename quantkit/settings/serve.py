"""The tables [serve], [serve.batch], [serve.limits] and [serve.shadow]: how a model answers requests."""

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from quantkit.errors import UsageError
from quantkit.settings.declare import Settings, Share, setting, table

_MOST_ROWS = 4096
_MOST_MEGABYTES = 4096
_MOST_PORT = 65535
_MOST_WORKERS = 256
_batch, _limit = partial(setting, panel="Batches"), partial(setting, panel="Limits")
_compare = partial(setting, panel="A second model")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings(Settings):
    """Requests of the same shape that run together; never padded.

    Off by default, and refused where a row's answer depends on the rows beside it.
    """

    batch: int = _batch(
        "Rows that run together at most; 1: each request alone.",
        "N",
        default=1,
        key="max",
        ge=1,
        le=_MOST_ROWS,
    )
    batch_delay_ms: float = _batch(
        "How long the first waits for others, in milliseconds; 0: those that wait already run together.",
        "MS",
        default=0.0,
        key="delay_ms",
        ge=0,
        le=1000,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings(Settings):
    """What a request may take. What is over a limit is refused with the reason; nothing grows without end.

    `queue_s` bounds the time that requests wait: a longer queue, by the measured time of a run, is answered with 503 and
    Retry-After. `memory_mb` bounds all bodies that are held at once, and what a decoded image takes.
    """

    body_mb: int = _limit(
        "Megabytes of a request's body at most.", "MB", default=8, ge=1, le=_MOST_MEGABYTES
    )
    memory_mb: int = _limit(
        "Megabytes of all bodies held at once, and of a decoded image.",
        "MB",
        default=256,
        ge=1,
        le=1024 * _MOST_MEGABYTES,
    )
    timeout_s: float = _limit(
        "Seconds until a request is given up (504).", "S", default=5.0, gt=0, le=3600
    )
    queue_s: float = _limit(
        "Seconds that a request may have to wait; else 503.", "S", default=1.0, gt=0, le=3600
    )
    drain_s: float = _limit(
        "Seconds of answering while not ready, after SIGTERM.", "S", default=4.0, ge=0, le=3600
    )

    def _check(self) -> None:
        if self.body_mb > self.memory_mb:
            raise UsageError(
                f"body_mb '{self.body_mb}' is more than memory_mb '{self.memory_mb}': "
                "no request of that size could be held."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowSettings(Settings):
    """A second model beside the one that is served: to compare with, or to try out."""

    shadow: Path | None = _compare(
        "Compare with this model (float) on a share of the requests, after they were answered.",
        "FILE",
        key="model",
    )
    canary: Path | None = _compare(
        "Let this model answer a share of the requests, as long as it keeps the rules.", "FILE"
    )
    share: Share = _compare("Which share of the requests: 5%.", "P", default=0.05, gt=0, le=1)

    def _check(self) -> None:
        if self.shadow is not None and self.canary is not None:
            raise UsageError(
                "shadow and canary each compare two models: leave out one of the two, or serve twice."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings(Settings):
    """How a model answers requests.

    Without a `name` the file's. `provider` is who computes: cpu, cuda, openvino, ... `workers` requests are computed at a
    time, each with `threads`: one each is what answers most requests a second.
    """

    name: str | None = setting("What the model is called. Default: its file.", "NAME")
    host: str = setting(
        "Address to listen on. Default: this machine only.", "HOST", default="127.0.0.1"
    )
    port: int = setting(
        "Port to listen on; 0: any that is free.", "N", default=8000, ge=0, le=_MOST_PORT
    )
    token: str | None = setting(
        "What callers must send as 'Authorization: Bearer ...'; better in QUANTKIT_TOKEN.", "TEXT"
    )
    require_token: bool = setting(
        "Refuse to start without a token; in a package, to be deployed without one.", default=False
    )
    provider: str = setting(
        "Who computes: cpu, cuda, openvino, ...; cpu where it is absent.", "NAME", default="cpu"
    )
    workers: int | None = setting(
        "Runs at a time. Default: one per core.", "N", ge=1, le=_MOST_WORKERS
    )
    threads: int = setting(
        "Threads of one run. Default: 1.", "N", default=1, ge=1, le=_MOST_WORKERS
    )
    labels: Path | None = setting("Names of the classes, one per line, for /predict.", "FILE")
    pooling: Literal["mean", "cls", "none"] | None = setting(
        "How /predict makes one vector of a text encoder's tokens. Default: as 1_Pooling/config.json next to the "
        "model says, else mean.",
        "MODE",
    )
    reload: bool = setting("Load the model again when its file changes (default).", default=True)
    log_level: Literal["info", "warning", "quiet"] = setting(
        "info: a line per request; warning: those that failed; quiet.", "LEVEL", default="info"
    )
    batches: BatchSettings = table(BatchSettings, "batch")
    limits: LimitSettings = table(LimitSettings)
    second: ShadowSettings = table(ShadowSettings, "shadow")

    def _check(self) -> None:
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
