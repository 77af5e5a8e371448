"""The training loop: Adam with a cooling rate, a restart where the rate is too high, and the student with the best held-out loss."""

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

Answers = Callable[[Feeds], Mapping[str, NDArray[Any]]]

CHECKS = 12
"""How many times the held-out loss is computed in a run, besides the first time."""
_PATIENCE, _SETTLED = 5, 0.85  # checks without a gain; part of the steps after which they count
_WARM, _FEWEST_WARM = 0.03, 20  # part of the steps in which the rate rises, and how many at least
_COOLING = 0.8  # part of the steps in which it falls
_MEAN, _SQUARE, _TINY = 0.9, 0.99, 1e-12  # Adam's
_FLOAT_RATE, _LARGE = 5e-3, 0.1  # of a tensor's size, up to which it counts
_INTEGER_RATE = 2.5e-4  # of a tensor's size: the same relative change at any number of bits
_SLOWER, _RESTARTS = 0.25, 3
# A loss that rises by 1 to 2 dB while the rate is high comes back when it cools; one that is lost rises by far more.
_EARLY, _RECENT, _WORSE = 80, 8, 2.0  # steps, and 3 dB
_CHANCE_RISE = 2.0  # standard errors
_GAIN, _CHANCE = 0.99, 1e-6  # of the held-out loss: a smaller gain is chance
_FEWEST, _TIMED = 10, 0.02  # steps; part of the time that is spent to see how long a step takes
_SHARE = 0.95  # of the time is planned with
_VIEWS = 3  # augmented copies of a sample behind frozen layers


@dataclass
class State:
    """The progress of a training: all that a killed one needs to resume, besides the tensors.

    Attributes:
        step: Steps done.
        restarts: How often training began again, each time at a quarter of the rate.
        steps: Steps planned.
        best_step: The step of the least held-out loss.
        limit: The mean of recent training losses above which the rate is too high.
        losses: The training loss of each step.
        curve: Steps, and the held-out loss there.
    """

    step: int = 0
    restarts: int = 0
    steps: int = 0
    best_step: int = 0
    limit: float = math.inf
    losses: list[float] = field(default_factory=list)
    curve: list[tuple[int, float]] = field(default_factory=list)

    @property
    def start(self) -> float:
        """The held-out loss of the student before training."""
        return self.curve[0][1]

    @property
    def best(self) -> float:
        """The least held-out loss."""
        return min(loss for _, loss in self.curve)

    @property
    def is_better(self) -> bool:
        """Whether the held-out loss fell by more than chance."""
        return self.best < _GAIN * self.start - _CHANCE


@dataclass(frozen=True, slots=True)
class _Lesson:
    """Inputs of the student, the teacher's answers, and which tokens count."""

    inputs: Mapping[str, Tensor]
    answers: Mapping[str, Tensor]
    mask: Tensor | None

    @property
    def nbytes(self) -> int:
        return sum(x.nbytes for x in (*self.inputs.values(), *self.answers.values()))


@dataclass(kw_only=True)
class Training:
    """A student that learns from a teacher.

    Attributes:
        network: The student.
        weights: Its trained weights.
        objective: The loss.
        teacher: Returns the teacher's outputs.
        frozen: Returns the output of the student's frozen first layers; None: it has none.
        batches: The samples.
        held_out: Feeds of the held-out samples, which decide which student is the best.
        rate: A factor of the learning rate.
        half: Compute layers in bfloat16 while training. The held-out loss is always computed in float32.
        folder: Holds the state of a killed run.
        tell: Called after each step with its number, the number of steps, and the last held-out loss.
        threads: Of torch and of the teacher.
    """

    network: Network
    weights: Sequence[Weight]
    objective: Objective
    teacher: Answers
    frozen: Answers | None
    batches: Batches
    held_out: Sequence[Feeds]
    rate: float
    half: bool
    folder: Path
    tell: Callable[[int, int, float], None]
    threads: int

    def __post_init__(self) -> None:
        self.state = State()
        self._latents = [w.latent for w in self.weights]
        self._means = [torch.zeros_like(x) for x in self._latents]
        self._squares = [torch.zeros_like(x) for x in self._latents]
        self._best = [x.detach().clone() for x in self._latents]
        self._first = [x.clone() for x in self._best]
        integers = any(w.grid is not None for w in self.weights)
        self._rates = [
            _INTEGER_RATE * w.size if integers else _FLOAT_RATE * min(w.size, _LARGE)
            for w in self.weights
        ]
        self._test: list[_Lesson] = []
        self._lessons: dict[int, list[_Lesson]] = {}
        self._cached_bytes = 0

    # --- the whole

    def run(self, *, steps: int = 0, minutes: float = 0.0) -> State:
        """Train, and leave the best weights in place.

        Args:
            steps: How many; 0: as many as fit into `minutes`.
            minutes: Of wall time.

        Raises:
            VerifyError: The loss is NaN.
        """
        if not self._resume(steps):
            began = monotonic()
            loss = self._held_out_loss()
            seconds = monotonic() - began
            self.state.steps = steps or self._steps_within(60 * minutes, seconds)
            self.state.curve.append((0, loss))
            self.state.limit = self._loss_limit()
        state = self.state
        while state.step < state.steps:
            self._step()
            self.tell(state.step, state.steps, state.curve[-1][1])
            if self._fell():
                self._restart()
            elif (state.step % self._every == 0 or state.step == state.steps) and self._check():
                break
        self._set(self._best if state.is_better else self._first)
        return state

    def _steps_within(self, seconds: float, check: float) -> int:
        """Return how many steps there is time for, apart from the checks."""
        list(self._backward(0))  # the first one also compiles kernels
        began, done = monotonic(), 0
        while not done or monotonic() - began < _TIMED * seconds:
            done += 1
            list(self._backward(done))
        spent = monotonic() - began
        self._forget()
        left = _SHARE * seconds - (CHECKS + 1) * check - spent
        return max(_FEWEST, int(left * done / spent))

    def _loss_limit(self) -> float:
        """Return the training loss of the student before training, 3 dB worse, and as much more as batches differ by chance."""
        with torch.no_grad():
            found = [float(self._loss(one)) for i in range(_RECENT) for one in self._lessons_of(i)]
        return float(_WORSE * np.mean(found) + _CHANCE_RISE * np.std(found) / math.sqrt(_RECENT))

    @property
    def _every(self) -> int:
        """Steps between two checks."""
        return max(1, math.ceil(self.state.steps / CHECKS))

    # --- one step

    def _step(self) -> None:
        state = self.state
        losses = list(self._backward(state.step))
        state.losses.append(sum(losses) / len(losses))
        if math.isfinite(state.losses[-1]):
            self._adam(self.rate * _SLOWER**state.restarts * self._schedule())
        self._forget()
        state.step += 1

    def _backward(self, number: int) -> Iterator[float]:
        lessons = self._lessons_of(number)
        for lesson in lessons:
            loss = self._loss(lesson) / len(lessons)
            loss.backward()
            yield float(loss.detach()) * len(lessons)

    def _schedule(self) -> float:
        """Return the factor of the rate: it rises quickly, and falls over most of the steps."""
        done, steps = self.state.step + 1, self.state.steps
        warm = min(max(_FEWEST_WARM, _WARM * steps), steps / 5)
        cooled = min(1.0, max(0.0, (done / steps - (1 - _COOLING)) / _COOLING))
        return min(1.0, done / max(1.0, warm)) * 0.5 * (1 + math.cos(math.pi * cooled))

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

    def _loss(self, lesson: _Lesson) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.half):
            have = self._student(lesson.inputs)
        outputs = {name: x.float() for name, x in have.items()}
        return self.objective.loss(outputs, lesson.answers, lesson.mask)

    def _student(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return self.network({**inputs, **{w.value: w.read() for w in self.weights}})

    # --- lessons

    def _lessons_of(self, number: int) -> list[_Lesson]:
        """Return the lessons of a step. Behind frozen layers they repeat, so that these layers run once for each."""
        if self.frozen is None:
            return [self._lesson(feeds) for feeds in self.batches.step(number)]
        number %= _VIEWS * max(1, len(self.batches.places) // self.batches.size)
        if number in self._lessons:
            return self._lessons[number]
        found = [self._lesson(feeds) for feeds in self.batches.step(number)]
        self._cached_bytes += sum(one.nbytes for one in found)
        if self._cached_bytes < self.batches.memory:
            self._lessons[number] = found
        return found

    def _lesson(self, feeds: Feeds) -> _Lesson:
        answers = _tensors(self.teacher(feeds))
        given = {**feeds, **({} if self.frozen is None else self.frozen(feeds))}
        inputs = _tensors({n: a for n, a in given.items() if n in self.network.reads})
        return _Lesson(inputs, answers, mask_in(_tensors(feeds)))

    # --- held-out samples

    def _held_out_loss(self) -> float:
        """Return the distance between student and teacher on the held-out samples."""
        self._test = self._test or [self._lesson(feeds) for feeds in self.held_out]
        total = rows = 0.0
        with torch.no_grad():
            for one in self._test:
                count = len(next(iter(one.answers.values())))
                have = self._student(one.inputs)
                total += count * self.objective.distance(have, one.answers, one.mask)
                rows += count
        if not math.isfinite(total):
            raise VerifyError(
                "The loss is NaN on held-out samples: student or teacher outputs NaN; look at both with quantkit diff."
            )
        return total / rows

    def _check(self) -> bool:
        """Compute the held-out loss, keep the best student, save the state; return whether to stop early."""
        state = self.state
        loss, before = self._held_out_loss(), state.best
        state.curve.append((state.step, loss))
        if loss < before:
            state.best_step = state.step
            self._best = [x.detach().clone() for x in self._latents]
        self._save()
        stale = state.step - state.best_step >= _PATIENCE * self._every
        return stale and state.step > _SETTLED * state.steps

    # --- a rate that is too high

    def _fell(self) -> bool:
        """Return whether the loss is NaN, or has risen in the first steps."""
        losses = self.state.losses
        if not math.isfinite(losses[-1]):
            return True
        if not _RECENT < len(losses) <= _EARLY:
            return False
        return sum(losses[-_RECENT:]) / _RECENT > self.state.limit

    def _restart(self) -> None:
        """Begin again from the start at a quarter of the rate."""
        state = self.state
        if state.restarts >= _RESTARTS:
            if not math.isfinite(state.losses[-1]):
                raise VerifyError(
                    f"The loss is NaN in step {state.step}, also at {_SLOWER**state.restarts:.3f} of the rate: train with --rate 0.01, or look at the student with quantkit diff."
                )
            state.step = state.steps  # it rises at every rate: the student stays as it is
            return
        self._set(self._first)
        for moment in (*self._means, *self._squares):
            moment.zero_()
        self._best = [x.clone() for x in self._first]
        state.restarts += 1
        state.step = state.best_step = 0
        state.losses.clear()
        del state.curve[1:]

    def _set(self, values: Sequence[Tensor]) -> None:
        with torch.no_grad():
            for latent, value in zip(self._latents, values, strict=True):
                latent.copy_(value)

    # --- kill and resume

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
        """Restore the state of a killed run; return whether there was one."""
        path = self.folder / "state.npz"
        try:
            with np.load(path) as found:
                state = json.loads(str(found["text"]))
                arrays = {
                    n: [torch.from_numpy(found[f"{n}{i}"]) for i in range(len(g))]
                    for n, g in self._groups()
                }
        except (OSError, ValueError, KeyError):
            return False
        if steps and state["steps"] != steps:
            return False
        with torch.no_grad():
            for name, group in self._groups():
                for x, value in zip(group, arrays[name], strict=True):
                    x.copy_(value)
        curve = [(int(i), float(x)) for i, x in state["curve"]]
        self.state = State(**{**state, "curve": curve})
        return True


def _tensors(feeds: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
    """Return arrays as tensors; images with their channels last, where convolutions are a third faster."""
    found = {n: torch.from_numpy(np.ascontiguousarray(a)) for n, a in feeds.items()}
    last = torch.channels_last
    return {n: x.contiguous(memory_format=last) if x.ndim == 4 else x for n, x in found.items()}
