"""Which recipe `compress` tries next: one step further than the best so far, where most is to be won per minute.

Gains, losses and minutes of a step are those of the table (`quantkit.pipeline.tune.steps`) until a recipe with it was run beside the same
without it; from then on they are what was measured.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from statistics import fmean

from quantkit.pipeline.tune.choice import BASES, WHOLE, Budget, Choice, Figures, best_of, drop_of
from quantkit.settings.declare import Settings

_FEWER = (4, 3, 2)  # bits, as long as the budget is kept
_BETWEEN = (5, 6)  # where 4 are too few
_MENDED = (
    4.0  # times the budget: training wins back more than half of what is lost, and not much more
)
_BUILD = 1.0  # minutes that quantizing takes, where nothing was timed yet
_USELESS = 0.3  # of the gain that was expected: what brings less
_TWICE = 2  # is not taken further; once may be chance, as times are
TRAINING = "distill"
_PACKED = ("static", "weights")  # forms with fewer bits


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step that changes the float model before it is quantized.

    Attributes:
        name: Names it in recipes and folders: "prune-80".
        kind: Of a recipe's steps each has another kind; those of one kind take away more and more.
        settings: What its form is asked for.
        time: What it is expected to leave of the time.
        size: The same of the size.
        minutes: That it takes, about.
    """

    name: str
    kind: str
    settings: Settings
    time: float = 1.0
    size: float = 1.0
    minutes: float = 1.0


@dataclass(frozen=True, slots=True)
class Moves:
    """The recipes around what is known.

    Attributes:
        known: What was made.
        budget: What must be kept.
        steps: All steps, in the order in which a recipe has them; of one kind those that take away less first.
    """

    known: Mapping[Choice, Figures]
    budget: Budget
    steps: Sequence[Step]

    def wanted(self) -> list[Choice]:
        """Return the recipes to try, the most promising first."""
        whole = next((base for base in BASES if self._verdict(base) == "in"), None)
        fewer = [] if whole is None else list(self._fewer_bits(whole))
        fewer += [*self._fewer_bits(Choice(form="weights")), Choice(form="float16")]
        further = self._further()
        return [*further, *fewer] if self.budget.goal == "speed" else [*fewer, *further]

    def _verdict(self, choice: Choice) -> str:
        return self.known[choice].verdict if choice in self.known else ""

    def _fewer_bits(self, like: Choice) -> Iterator[Choice]:
        """Yield the same with the bits to try next: fewer as long as the budget is kept, else some between 4 and 8."""
        like = replace(like, point=0, after=())
        found = {bits: self._verdict(replace(like, bits=bits)) for bits in (*_FEWER, *_BETWEEN)}
        ladder = _BETWEEN if found[_FEWER[0]] == "out" else _FEWER
        going = "out" if ladder is _BETWEEN else "in"
        bits = next((bits for bits in ladder if found[bits] != going), None)
        if bits is not None and not found[bits]:
            yield replace(like, bits=bits)

    # --- steps

    def _further(self) -> list[Choice]:
        """Return recipes with a step more or a stronger one, those first that promise most per minute."""
        best = best_of(self.known, self.budget)
        if best is None:
            return []
        fewer = self._fewer_bits(best) if best.form in _PACKED else ()
        found = dict.fromkeys([*self._stronger(best), *fewer, *self._mended(best)])
        worth = {c: self._promise(c, best) for c in found if c not in self.known}
        good = [c for c in worth if worth[c] > 0 and not self._is_hopeless(c)]
        return sorted(good, key=lambda c: -worth[c])

    def _stronger(self, best: Choice) -> Iterator[Choice]:
        """Yield the best with the next step of each kind, or the first that was not tried."""
        for kind in dict.fromkeys(step.kind for step in self.steps if step.kind != TRAINING):
            own = [step for step in self.steps if step.kind == kind]
            ways = [self._with(best, step) for step in own]
            first = ways.index(best) + 1 if best in ways else 0
            new = next((w for w in ways[first:] if w not in self.known), None)
            if new is not None and not self._is_useless(kind):
                yield new

    def _mended(self, best: Choice) -> Iterator[Choice]:
        """Yield recipes that would be better and lose a little too much, with training: of few bits as they are, else in float."""
        limit = self.budget.drop or 0.0
        own = self.budget.worth(self.known[best]) - self.budget.close
        for choice, figures in self.known.items():
            near = figures.verdict == "out" and drop_of(figures) <= _MENDED * limit
            if not near or choice.form != "static" or self.budget.worth(figures) >= own:
                continue
            for step in (step for step in self.steps if step.kind == TRAINING):
                if choice.bits < WHOLE:
                    yield replace(choice, after=(step.name,))
                elif choice.before:
                    yield self._with(choice, step)

    def _untrained(self, choice: Choice) -> Choice:
        names = {step.name for step in self.steps if step.kind == TRAINING}
        before = tuple(name for name in choice.before if name not in names)
        return replace(choice, before=before, after=())

    def _with(self, choice: Choice, step: Step) -> Choice:
        """Return a recipe with a step, instead of one of its kind."""
        names = {one.name for one in self.steps if one.kind == step.kind}
        kept = {name for name in choice.before if name not in names} | {step.name}
        before = tuple(one.name for one in self.steps if one.name in kept)
        return replace(choice, before=before, point=0, after=())

    def _rank(self, choice: Choice, kind: str) -> int:
        """Return how much is taken away by the step of a kind; 0: there is none."""
        own = [step.name for step in self.steps if step.kind == kind]
        return next((own.index(name) + 1 for name in choice.before if name in own), 0)

    def _is_hopeless(self, choice: Choice) -> bool:
        """Say whether a recipe that takes away no more was too much already, or could not be made."""
        return any(
            f.verdict != "in" and self._takes_no_less(choice, c) for c, f in self.known.items()
        )

    def _takes_no_less(self, choice: Choice, other: Choice) -> bool:
        few, more = self._untrained(choice), self._untrained(other)
        same = replace(few, before=(), bits=8, point=0) == replace(more, before=(), bits=8, point=0)
        kinds = {step.kind for step in self.steps} - {TRAINING}
        return (
            same
            and choice.bits <= other.bits
            and all(self._rank(few, kind) >= self._rank(more, kind) for kind in kinds)
            and (few == choice or more != other)
        )

    # --- what a recipe promises

    def _promise(self, choice: Choice, best: Choice) -> float:
        """Return what is expected to be won per minute over the best; 0 where it is expected to lose far too much."""
        own = self.budget.worth(self.known[best])
        plain = self._untrained(choice)
        if plain in self.known:  # training changes neither time nor size
            expected = self.budget.worth(self.known[plain])
        else:
            expected = own * self._share(choice) / self._share(best)
            lost = drop_of(self.known[best]) + self._loss(choice) - self._loss(best)
            if lost > _MENDED * (self.budget.drop or inf):
                return 0.0
        if own - expected <= self.budget.close / 2:
            return 0.0
        return (own - expected) / self._minutes(choice)

    def _share(self, choice: Choice) -> float:
        """Return what a recipe leaves of time or size, against static int8 of the float model."""
        shares = [self._measured(s) or self._expected(s) for s in self._steps_of(choice)]
        found = choice.bits / 8 if self.budget.goal == "size" else 1.0
        for share in shares:
            found *= share
        return found

    def _expected(self, step: Step) -> float:
        return step.time if self.budget.goal == "speed" else step.size

    def _steps_of(self, choice: Choice) -> list[Step]:
        return [step for step in self.steps if step.name in choice.before]

    def _pairs(self, step: Step) -> list[tuple[Figures, Figures]]:
        """Return what is known of recipes with a step, each beside the same without it."""
        found = []
        for choice, figures in self.known.items():
            rest = tuple(name for name in choice.before if name != step.name)
            other = self.known.get(replace(choice, before=rest))
            made = figures.verdict != "failed" and other is not None and other.verdict != "failed"
            if step.name in choice.before and other is not None and made:
                found.append((figures, other))
        return found

    def _measured(self, step: Step) -> float | None:
        """Return what a step was found to leave of time or size; None: not known yet."""
        worth = self.budget.worth
        return fmean([worth(a) / worth(b) for a, b in self._pairs(step)] or [0.0]) or None

    def _is_useless(self, kind: str) -> bool:
        """Say whether steps of a kind were found to bring much less than was expected."""
        found = [(s, self._measured(s)) for s in self.steps if s.kind == kind]
        small = [
            step
            for step, share in found
            if share is not None and 1 - share < _USELESS * (1 - self._expected(step))
        ]
        return len(small) >= _TWICE

    def _loss(self, choice: Choice) -> float:
        """Return what a recipe's steps were found to lose; of steps that were not tried nothing is known."""
        lost = (
            [drop_of(a) - drop_of(b) for a, b in self._pairs(step)]
            for step in self._steps_of(choice)
        )
        return sum(fmean(some) for some in lost if some)

    def _minutes(self, choice: Choice) -> float:
        """Return how long a recipe takes to make, where no other one shares its steps."""
        shared = {c.before[: n + 1] for c in self.known for n in range(len(c.before))}
        new = [
            step.minutes
            for n, step in enumerate(self._steps_of(choice))
            if choice.before[: n + 1] not in shared
        ]
        return _BUILD + sum(new) + sum(s.minutes for s in self.steps if s.name in choice.after)
