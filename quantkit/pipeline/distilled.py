"""What distillation plans and reports."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from quantkit.pipeline.result import FormResult


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillPlan:
    """What is trained, on what, and by which comparison.

    Attributes:
        weights: Names of the trained weights.
        outputs: Outputs of both models by how they are compared.
        inner: Inner tensors that are compared while training.
        measure: The name of the held-out loss.
        samples: Training samples.
        held_out: Held-out samples.
        batch: Samples in a step.
        precision: Arithmetic of the training.
        threads: Of the training.
    """

    weights: tuple[str, ...]
    outputs: Mapping[str, str]
    inner: tuple[str, ...]
    measure: str
    samples: int
    held_out: int
    batch: int
    precision: str
    threads: int

    def __str__(self) -> str:
        compared = ", ".join(f"{name} ({kind})" for name, kind in self.outputs.items())
        inner = f" and {len(self.inner)} inner tensors" if self.inner else ""
        return (
            f"{len(self.weights)} weights trained on {self.samples:,} samples, {self.batch} per step, in {self.precision}; "
            f"{self.held_out:,} samples held out; compared: {compared}{inner}"
        )

    @property
    def changes(self) -> bool:
        """Whether anything is trained."""
        return bool(self.weights)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """How a training went.

    Attributes:
        measure: The name of the held-out loss.
        curve: Steps, and the held-out loss there; first that of the student before training.
        losses: The training loss of each step.
        steps: Steps planned; fewer were done where the held-out loss had stopped falling.
        best_step: The step of the weights that were kept; 0: the student before training.
        restarts: How often training began again at a quarter of the rate.
    """

    measure: str
    curve: tuple[tuple[int, float], ...]
    losses: tuple[float, ...]
    steps: int
    best_step: int
    restarts: int

    @property
    def start(self) -> float:
        """The held-out loss before training."""
        return self.curve[0][1]

    @property
    def best(self) -> float:
        """The held-out loss of the weights that were kept."""
        return next(loss for step, loss in self.curve if step == self.best_step)

    @property
    def improved(self) -> bool:
        """Whether the student was changed."""
        return self.best_step > 0

    def __str__(self) -> str:
        lowest = min(loss for _, loss in self.curve[1:] or self.curve)
        if not self.improved:
            return (
                f"Training did not lower the held-out loss ({self.measure} {self.start:.4g}, after training at best {lowest:.4g}): "
                "the student is returned unchanged."
            )
        change = self.best / self.start - 1
        return f"held-out {self.measure} {self.start:.4g} -> {self.best:.4g} ({change:+.0%}) at step {self.best_step:,} of {self.steps:,}"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DistillResult(FormResult):
    """What was trained, and whether it helped.

    Attributes:
        plan: What was compared, on which samples.
        trained: The losses, and which weights were kept.
    """

    plan: DistillPlan
    trained: Trained

    @property
    def improved(self) -> bool:
        """Whether the held-out loss fell; if not, the file holds the student as it was."""
        return self.trained.improved

    def _runs(self) -> list[str]:
        return [str(self.trained)]

    def _inside(self) -> dict[str, Any]:
        found = super(DistillResult, self)._inside()  # `super()` does not know classes with slots
        return {**found, "improved": self.improved, "trained": asdict(self.trained)}
