"""The table [distill]: how a small model is trained on the outputs of a large one."""

from dataclasses import dataclass
from typing import Literal

from quantkit.settings.declare import Names, Settings, setting

_WEEK = 7 * 24 * 60  # minutes
_MOST_STEPS = 10_000_000
_MOST_THREADS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillSettings(Settings):
    """How a student is trained. None: as quantkit finds best; the record of the result holds what was used.

    The same `steps`, data, seed, CPU, torch, `threads` and `precision` give the same bytes. `minutes` decide how many steps
    there are, and that depends on the load of the machine.
    """

    minutes: float = setting("Train for about N minutes.", "N", default=10.0, gt=0, le=_WEEK)
    steps: int | None = setting(
        "Train for N steps instead: the same command then writes the same bytes on the same CPU.",
        "N",
        ge=1,
        le=_MOST_STEPS,
    )
    rate: float = setting("Multiply the learning rate by X.", "X", default=1.0, gt=0, le=1000)
    freeze: str | None = setting(
        "Train only the layers behind this node; those before it run once per sample.", "NODE"
    )
    embeddings: Names = setting(
        "This output is an embedding: compare its direction. May be repeated.",
        "OUTPUT",
        default=(),
        flag="--embedding",
    )
    augment: bool | None = setting(
        "Shift and mirror images while training. Default: if inputs are colour images."
    )
    threads: int | None = setting(
        "Threads of the training. Default: as torch chooses.", "N", ge=1, le=_MOST_THREADS
    )
    precision: Literal["float32", "bfloat16"] | None = setting(
        "Arithmetic of the training: float32 or bfloat16. Default: bfloat16 for float students on CPUs that have it.",
        "TYPE",
    )
