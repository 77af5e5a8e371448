"""The training loop: Adam with a rate that cools, restarts when it is too fast, and the best student by what is held out."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quantkit.errors import VerifyError
from quantkit.files import scratch
from quantkit.reduce.distill.batches import Batches, Feeds
from quantkit.reduce.distill.losses import Objective, mask_in
from quantkit.reduce.distill.network import Network
from quantkit.reduce.distill.weights import Weight

Teacher = Callable[[Feeds], Mapping[str, NDArray[Any]]]

_CHECKS = 12  # times that the held-out figure is taken in a run
_PATIENCE = 5  # checks without a gain
_WARM, _COOLING = 0.03, 0.8  # shares of the steps
_MEAN, _SQUARE, _TINY = 0.9, 0.99, 1e-12  # Adam's
_FLOAT_RATE = 6e-4
_INTEGER_RATE = 2.5e-4  # of the size of a tensor: the same relative change at any number of bits
_SLOWER, _RESTARTS = 0.25, 3
_EARLY, _RECENT, _FIRST, _WORSE = 40, 8, 4, 1.26  # steps, and 1 dB
_GAIN, _CHANCE = 0.99, 1e-6  # of the held-out figure: less than both is chance
_FEWEST, _TIMED = 10, 3  # steps
_SHARE = 0.9  # of the time is planned with


@dataclass
class State:
    """Where a training is; what a killed one goes on from."""

    step: int = 0
    factor: float = 1.0
    steps: int = 0
    best_step: int = 0
    first: float = 0.0  # the loss of the student as it came
    losses: list[float] = field(default_factory=list)
    curve: list[tuple[int, float]] = field(default_factory=list)  # steps, held-out figures

    @property
    def start(self) -> float:
        """The held-out figure of the student as it came."""
        return self.curve[0][1]

    @property
    def best(self) -> float:
        """The least held-out figure."""
        return min(figure for _, figure in self.curve)

    @property
    def is_better(self) -> bool:
        """Whether training has gained anything."""
        return self.best < _GAIN * self.start - _CHANCE


@dataclass(kw_only=True)
class Training:
    """A student that learns from a teacher.

    Attributes:
        network: The student.
        weights: What is trained of it.
        objective: What is compared.
        teacher: Returns what the teacher makes of feeds.
        batches: What is trained on.
        held_out: What is judged on.
        rate: A factor of the rate.
        folder: Where a killed run finds its state.
        tell: Is called after each step with the number of it, how many there are, and the last held-out figure.
    """

    network: Network
    weights: Sequence[Weight]
    objective: Objective
    teacher: Teacher
    batches: Batches
    held_out: Sequence[Feeds]
    rate: float
    folder: Path
    tell: Callable[[int, int, float], None]

    def __post_init__(self) -> None:
        self.state = State()
        self._latents = [w.latent for w in self.weights]
        self._means = [torch.zeros_like(x) for x in self._latents]
        self._squares = [torch.zeros_like(x) for x in self._latents]
        self._best = [x.detach().clone() for x in self._latents]
        self._first = [x.clone() for x in self._best]
        whole = any(w.grid is not None for w in self.weights)
        self._rates = [_INTEGER_RATE * w.size if whole else _FLOAT_RATE for w in self.weights]
        self._answers: list[tuple[dict[str, Tensor], dict[str, Tensor]]] = []

    # --- the whole

    def run(self, *, steps: int = 0, minutes: float = 0.0) -> State:
        """Train; the weights are those of the best student afterwards.

        Args:
            steps: So many; 0: as many as there is time for.
            minutes: How long.

        Raises:
            VerifyError: The loss is NaN.
        """
        if not self._resume(steps):
            began = monotonic()
            figure = self._figure()
            seconds = monotonic() - began
            self.state.steps = steps or self._steps_within(60 * minutes, seconds)
            self.state.curve.append((0, figure))
            self.state.first = self._first_loss()
        state = self.state
        every = max(1, math.ceil(state.steps / _CHECKS))
        while state.step < state.steps:
            self._step()
            self.tell(state.step, state.steps, state.curve[-1][1])
            if self._fell():
                self._restart()
            elif (state.step % every == 0 or state.step == state.steps) and self._check():
                break
        self._set(self._best if state.is_better else self._first)
        return state

    def _steps_within(self, seconds: float, check: float) -> int:
        """Return how many steps there is time for; checks take theirs."""
        began = monotonic()
        for number in range(_TIMED):
            for feeds in self.batches.step(number):
                self._loss(feeds).backward()
        each = (monotonic() - began) / _TIMED
        self._forget()
        return max(_FEWEST, int((_SHARE * seconds - _CHECKS * check) / each))

    def _first_loss(self) -> float:
        with torch.no_grad():
            found = [self._loss(feeds) for i in range(_FIRST) for feeds in self.batches.step(i)]
        return float(torch.stack(found).mean())

    # --- one step

    def _step(self) -> None:
        state = self.state
        parts = [self._loss(feeds) for feeds in self.batches.step(state.step)]
        loss = torch.stack(parts).mean()
        state.losses.append(float(loss.detach()))
        if math.isfinite(state.losses[-1]):
            loss.backward()
            self._adam(self.rate * state.factor * self._schedule())
        self._forget()
        state.step += 1

    def _schedule(self) -> float:
        """Return the share of the rate: it rises quickly, and cools over most of the steps."""
        done = (self.state.step + 1) / self.state.steps
        cooled = max(0.0, (done - (1 - _COOLING)) / _COOLING)
        return min(1.0, done / _WARM) * 0.5 * (1 + math.cos(math.pi * min(1.0, cooled)))

    def _adam(self, rate: float) -> None:
        count = self.state.step + 1
        with torch.no_grad():
            for i, latent in enumerate(self._latents):
                if latent.grad is None:
                    continue
                mean, square = self._means[i], self._squares[i]
                mean.lerp_(latent.grad, 1 - _MEAN)
                square.mul_(_SQUARE).addcmul_(latent.grad, latent.grad, value=1 - _SQUARE)
                size = (square / (1 - _SQUARE**count)).sqrt_().add_(_TINY)
                latent.addcdiv_(mean, size, value=-rate * self._rates[i] / (1 - _MEAN**count))

    def _forget(self) -> None:
        for latent in self._latents:
            latent.grad = None

    def _loss(self, feeds: Feeds) -> Tensor:
        inputs = _tensors(feeds)
        return self.objective.loss(
            self._student(inputs), _tensors(self.teacher(feeds)), mask_in(inputs)
        )

    def _student(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return self.network({**inputs, **{w.value: w.read() for w in self.weights}})

    # --- what is held out

    def _figure(self) -> float:
        """Return how far the student is from the teacher on what is held out."""
        if not self._answers:
            outputs = self.objective.outputs
            for feeds in self.held_out:
                found = self.teacher(feeds)
                self._answers.append((_tensors(feeds), _tensors({n: found[n] for n in outputs})))
        total = rows = 0.0
        with torch.no_grad():
            for inputs, want in self._answers:
                count = len(next(iter(want.values())))
                have = self._student(inputs)
                total += count * self.objective.distance(have, want, mask_in(inputs))
                rows += count
        if not math.isfinite(total):
            raise VerifyError(
                "The loss is NaN on samples that are held out: student or teacher outputs NaN; look at both with quantkit diff."
            )
        return total / rows

    def _check(self) -> bool:
        """Take the held-out figure, keep the best student and the state; say whether nothing more is gained."""
        state = self.state
        figure, before = self._figure(), state.best
        state.curve.append((state.step, figure))
        if figure < before:
            state.best_step = state.step
            self._best = [x.detach().clone() for x in self._latents]
        self._save()
        every = max(1, math.ceil(state.steps / _CHECKS))
        return state.step - state.best_step >= _PATIENCE * every

    # --- too fast

    def _fell(self) -> bool:
        """Say whether the loss is NaN, or has risen in the first steps."""
        losses = self.state.losses
        if not math.isfinite(losses[-1]):
            return True
        if not _RECENT < len(losses) <= _EARLY:
            return False
        return sum(losses[-_RECENT:]) / _RECENT > _WORSE * self.state.first

    def _restart(self) -> None:
        """Begin again from the start at a quarter of the rate."""
        state = self.state
        if state.factor <= _SLOWER**_RESTARTS:
            if not math.isfinite(state.losses[-1]):
                raise VerifyError(
                    f"The loss is NaN in step {state.step}, also at {state.factor:.3f} of the rate: train with --rate 0.01, or look at the student with quantkit diff."
                )
            state.step = state.steps  # it rises whatever the rate: the student stays
            return
        self._set(self._first)
        for moment in (*self._means, *self._squares):
            moment.zero_()
        self._best = [x.clone() for x in self._first]
        state.factor *= _SLOWER
        state.step = state.best_step = 0
        state.losses.clear()
        del state.curve[1:]

    def _set(self, values: Sequence[Tensor]) -> None:
        with torch.no_grad():
            for latent, value in zip(self._latents, values, strict=True):
                latent.copy_(value)

    # --- killed and resumed

    def _groups(self) -> Iterator[tuple[str, Sequence[Tensor]]]:
        yield "latent", self._latents
        yield "mean", self._means
        yield "square", self._squares
        yield "best", self._best

    def _save(self) -> None:
        arrays = {
            f"{name}{i}": x.detach().numpy()
            for name, group in self._groups()
            for i, x in enumerate(group)
        }
        text = json.dumps(vars(self.state))
        with scratch(self.folder) as place:
            np.savez(place / "state.npz", text=np.array(text), **arrays)
            (place / "state.npz").replace(self.folder / "state.npz")

    def _resume(self, steps: int) -> bool:
        """Take up what a killed run has left; say whether there was anything."""
        path = self.folder / "state.npz"
        try:
            with np.load(path) as found:
                said = json.loads(str(found["text"]))
                arrays = {
                    n: [torch.from_numpy(found[f"{n}{i}"]) for i in range(len(g))]
                    for n, g in self._groups()
                }
        except (OSError, ValueError, KeyError):
            return False
        if steps and said["steps"] != steps:
            return False
        with torch.no_grad():
            for name, group in self._groups():
                for x, value in zip(group, arrays[name], strict=True):
                    x.copy_(value)
        self.state = State(**{**said, "curve": [(int(i), float(x)) for i, x in said["curve"]]})
        return True


def _tensors(feeds: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
    return {n: torch.from_numpy(np.ascontiguousarray(a)) for n, a in feeds.items()}
