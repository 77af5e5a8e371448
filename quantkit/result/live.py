"""What two models answered to the same live requests: counts and sums, which add up over time and over servers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

import msgspec

from quantkit.errors import UsageError
from quantkit.numerics.decibels import sqnr_db

LIVE_SCHEMA = "quantkit.live/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Sums over pairs (a, b): enough for means, variances and what two of these have in common."""

    n: int = 0
    a: float = 0.0
    b: float = 0.0
    aa: float = 0.0
    bb: float = 0.0
    ab: float = 0.0

    def __add__(self, other: "Pairs") -> "Pairs":
        return Pairs(
            n=self.n + other.n,
            a=self.a + other.a,
            b=self.b + other.b,
            aa=self.aa + other.aa,
            bb=self.bb + other.bb,
            ab=self.ab + other.ab,
        )

    def mean(self, p: float, q: float) -> float:
        """Return the mean of ``p a + q b``."""
        return (p * self.a + q * self.b) / self.n

    def variance(self, p: float, q: float) -> float:
        """Return the variance of ``p a + q b``."""
        squares = (p * p * self.aa + 2 * p * q * self.ab + q * q * self.bb) / self.n
        return max(squares - self.mean(p, q) ** 2, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveOutput:
    """One output of two models.

    Attributes:
        output: Its name.
        energies: By row: the sum of squares of the reference, and of the differences from it.
        not_finite: Values that are NaN, infinite or absent where the reference's are not.
    """

    output: str
    energies: Pairs = Pairs()
    not_finite: int = 0

    def __add__(self, other: "LiveOutput") -> "LiveOutput":
        return LiveOutput(
            output=self.output,
            energies=self.energies + other.energies,
            not_finite=self.not_finite + other.not_finite,
        )

    @property
    def db(self) -> float:
        """Signal to noise: inf where nothing differs, -inf where values are not finite."""
        return -inf if self.not_finite else sqnr_db(self.energies.a, self.energies.b)


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """Two models on the same live requests.

    Attributes:
        reference: The sha256 of the model that is right by definition: float, or the one that was there before.
        candidate: The sha256 of the other.
        requests: That both ran.
        dropped: That were chosen and not compared, for want of time.
        failed: That could not be compared, the candidate being to blame.
        decisions: Rows of the output that decides.
        flips: Those of them that the two decide differently.
        decider: The output that decides; "": none does.
        outputs: One by one.
        seconds: Of runs, per row: of the reference and of the candidate.
        ratios: The logarithm of candidate's seconds over reference's, per request (a alone).
    """

    reference: str
    candidate: str
    requests: int = 0
    dropped: int = 0
    failed: int = 0
    decisions: int = 0
    flips: int = 0
    decider: str = ""
    outputs: tuple[LiveOutput, ...] = ()
    seconds: Pairs = Pairs()
    ratios: Pairs = Pairs()
    schema: str = LIVE_SCHEMA

    @property
    def worst(self) -> LiveOutput | None:
        """The output that is furthest from the reference's."""
        return min(self.outputs, key=lambda one: one.db, default=None)


def merged(parts: Sequence[Live]) -> Live:
    """Return what several servers, or several hours, saw together.

    Raises:
        UsageError: They are of different models.
    """
    found = parts[0]
    for other in parts[1:]:
        if (other.reference, other.candidate) != (found.reference, found.candidate):
            raise UsageError("These were counted with different models: they do not add up.")
        outputs = {one.output: one for one in found.outputs}
        for one in other.outputs:
            outputs[one.output] = outputs.get(one.output, LiveOutput(output=one.output)) + one
        counts = ("requests", "dropped", "failed", "decisions", "flips", "seconds", "ratios")
        found = replace(
            found,
            decider=found.decider or other.decider,
            outputs=tuple(outputs.values()),
            **{name: getattr(found, name) + getattr(other, name) for name in counts},
        )
    return found


def live_from_json(content: bytes, name: str | Path) -> Live:
    """Return what a server's /drift said.

    Raises:
        UsageError: It is something else.
    """
    try:
        plain = msgspec.json.decode(content)
        found = msgspec.convert(plain["live"], Live)
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, TypeError) as e:
        raise UsageError(f"'{name}' is not what a server's /drift says: {e!r}.") from e
    if found.schema != LIVE_SCHEMA:
        raise UsageError(f"'{name}' is of another version ({found.schema}).")
    return found
