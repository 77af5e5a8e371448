"""The never-invalid contract: before anything is written, the result is checked, loaded, run and compared.

A `Tally` adds up signal and noise of one output over samples.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import onnx
from numpy.typing import NDArray

from quantkit.errors import RuntimeSupportError, VerifyError
from quantkit.model.graph.half import RUN_WIDE, computes_bfloat16
from quantkit.model.graph.load import LoadedModel
from quantkit.model.graph.mapping import mapped_model
from quantkit.numerics.decibels import decibels, sqnr_db
from quantkit.numerics.half import halved
from quantkit.runtime.runs import run_made_up, run_session
from quantkit.runtime.session import (
    RUNTIME_ERRORS,
    first_line,
    float_session,
    make_session,
    readable_ir_version,
    why_not_loaded,
)
from quantkit.runtime.synthetic_inputs import Feeds, strange_input

# By this much the mean of an output may raise its SQNR. Without a limit a constant in front of the signal would hide any
# noise; without the mean a score that hardly moves would have to be exact to its last digit.
_MEAN_DB = 10.0
_NEGLIGIBLE = 1e-12  # share of the power about zero below which an output does not vary at all

# Above this the float model is not run beside the quantized one, and the quantized one is mapped,
# not copied: verification never needs more memory than quantization.
LARGE = 1 << 30
# Below this the output is more noise than signal, whatever the model is for.
NOISE_DB = 5.0
_ENOUGH, _HALF = 8, 0.5  # fewer values say nothing; if fewer of them are equal, they are noise

# An error of a tenth: what every output keeps of a model whose plan is made here, if any plan does.
FLOOR_DB = 20.0
# What a model was judged on.
_SAMPLE = "pass real ones with --sample FILE"
MADE_UP, GIVEN = "random inputs", "a given sample"
HELD_OUT = "samples that it was not calibrated with"
IN_TURNS = "samples, each left out of calibration in turn"
CALIBRATED = "samples that it was calibrated with"

_SHOWN = 3  # outputs, in a sentence
_HELD_BYTES = 128 << 20  # of the float model's outputs; beyond, fewer samples are compared

_SAMPLE_ERRORS: tuple[type[Exception], ...] = (*RUNTIME_ERRORS, ValueError)


@dataclass(slots=True)
class Tally:
    """Sums over all samples of one output.

    Attributes:
        count: Floats that are finite in the float model.
        near: A value near their mean: sums about it keep their digits.
        total: Sum of their distances from `near`; `spread` is that of the squares.
        power: Sum of their squares.
        noise: Sum of the squares of differences.
        values: Values that are no floats; so many are `equal`.
        resized: Samples on which the output has another shape than float's.
    """

    count: int = 0
    near: float = 0.0
    total: float = 0.0
    spread: float = 0.0
    power: float = 0.0
    noise: float = 0.0
    values: int = 0
    equal: int = 0
    resized: int = 0

    @classmethod
    def sum(cls, tallies: Sequence[Self]) -> Self:
        """Return the sums of several tallies."""
        found = cls()
        for one in tallies:
            moved = one.near - found.near if found.count else 0.0
            found.near = found.near if found.count else one.near
            found.spread += one.spread + 2 * moved * one.total + one.count * moved**2
            found.total += one.total + one.count * moved
            for name in ("count", "power", "noise", "values", "equal", "resized"):
                setattr(found, name, getattr(found, name) + getattr(one, name))
        return found

    def add(self, expected: Any, actual: Any, signal: "Signal | None" = None) -> None:
        """Take in one sample.

        Args:
            expected: What the float model computes.
            actual: What is held against it.
            signal: Of what is expected, for a caller who needs it again; None: found here.
        """
        if not isinstance(expected, np.ndarray):
            return
        if expected.shape != actual.shape:
            self.resized += 1
        elif expected.dtype.kind == "f":
            signal = signal or Signal.of(expected, self.near if self.count else None)
            self.add_signal(signal)
            if signal.finite is not None:
                expected, actual = expected[signal.finite], actual[signal.finite]
            self.noise += _squares(np.subtract(expected, actual, dtype=np.float64))
        else:
            self.values += expected.size
            self.equal += int(np.count_nonzero(expected == actual))

    def add_signal(self, signal: "Signal") -> None:
        """Take in what float computes of one sample."""
        self.near = self.near if self.count else signal.near
        self.count += signal.count
        self.total += signal.total
        self.spread += signal.spread
        self.power += signal.power

    @property
    def lost(self) -> float:
        """Noise over signal; of an output without floats the share of values that differ."""
        if not self.power > 0:
            return 1 - self.equal / self.values if self.values else 0.0
        if not isfinite(self.noise):
            return inf
        return 10 ** (-self.sqnr / 10)

    @property
    def sqnr(self) -> float:
        """Signal over noise in dB. The mean adds `_MEAN_DB` at most, unless the output never varies."""
        return self.about_zero - self.withheld

    @property
    def about_zero(self) -> float:
        """Signal over noise in dB, the mean in full."""
        return sqnr_db(self.power, self.noise)

    @property
    def withheld(self) -> float:
        """What the mean would add in dB beyond `_MEAN_DB`."""
        about_mean = self.spread - self.total**2 / max(1, self.count)
        varies = about_mean > _NEGLIGIBLE * self.power
        return max(0.0, decibels(self.power / about_mean) - _MEAN_DB) if varies else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """Sums over the floats of one output on one sample that are finite, as in `Tally`.

    Attributes:
        finite: Which these are; None: all.
    """

    finite: NDArray[np.bool_] | None
    near: float
    count: int
    total: float
    spread: float
    power: float

    @classmethod
    def of(cls, expected: NDArray[Any], near: float | None = None) -> "Signal":
        """Return the sums of an output; about a value near its mean, or about that of the first sample."""
        finite = np.isfinite(expected)
        whole = bool(finite.all())
        values = np.asarray(expected if whole else expected[finite], np.float64)
        if near is None:
            near = float(values.mean()) if values.size else 0.0
        distance = values - near
        return cls(
            finite=None if whole else finite,
            near=near,
            count=values.size,
            total=float(distance.sum()),
            spread=_squares(distance),
            power=_squares(values),
        )


def _squares(values: NDArray[np.float64]) -> float:
    """Return the sum of squares. Not by BLAS, whose threads wait for each other busily and split the sum as they like."""
    return float(np.square(values).sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Inputs that the float model accepts, and its outputs; or why there are none.

    Attributes:
        feeds: Inputs of the first run.
        outputs: What it gave.
        note: Why there are none, or how they came about.
        others: Inputs and outputs of further runs.
        on: What the inputs are: `MADE_UP`, `GIVEN`, `HELD_OUT`, `IN_TURNS` or `CALIBRATED`.
        excess: Of each run, by output; () where no run sets ranges.
        halved: Inputs and outputs that the model to be compared has in float16 instead.
    """

    feeds: Feeds
    outputs: Mapping[str, Any]
    note: str = ""
    others: tuple[tuple[Feeds, Mapping[str, Any]], ...] = ()
    on: str = MADE_UP
    excess: tuple[Mapping[str, "Excess"], ...] = ()
    halved: frozenset[str] = frozenset()

    @property
    def runs(self) -> tuple[tuple[Feeds, Mapping[str, Any]], ...]:
        """All runs; none if there is nothing to compare with."""
        return ((self.feeds, self.outputs), *self.others) if self.outputs else ()

    @property
    def excess_ratio(self) -> float:
        """How much more noise runs have that do not help to set the ranges; of the output where that is most."""
        names = {name for own in self.excess for name in own}
        found = [[own[name] for own in self.excess if name in own] for name in names]
        sums = [(sum(one.inside for one in own), sum(one.outside for one in own)) for own in found]
        return max((outside / inside for inside, outside in sums if inside > 0), default=1.0)


@dataclass(frozen=True, slots=True)
class Excess:
    """The noise of a sample in a simulation of the plan.

    Attributes:
        inside: With ranges that all samples set.
        outside: With ranges that other samples set.
    """

    inside: float
    outside: float

    def beyond(self, noise: float) -> float:
        """Return how much more noise the sample would have; less where the result has less than its simulation."""
        if not self.inside > 0:
            return 0.0
        return max(0.0, self.outside - self.inside) * min(1.0, noise / self.inside)


@dataclass(frozen=True, slots=True)
class Agreement:
    """How many of the values of an output are those of the float model: integers, truth values, strings."""

    equal: int
    values: int

    @property
    def share(self) -> float:
        """The part that is equal."""
        return self.equal / max(1, self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What was checked.

    Attributes:
        compared: Outputs that were compared with the float model, with their SQNR in dB over all samples (`Tally.sqnr`).
        note: What could not be checked, and why; empty if everything was.
        ran: Whether it was run at all.
        about_zero: The same with the mean in full, which tells noise from a lost detail next to a constant.
        median: The median of the SQNR of single samples, in dB; of outputs that were compared on several.
        lowest: The lowest SQNR of a single sample, likewise.
        largest_share: The largest share that a single sample has in the noise, likewise.
        agreement: Outputs without floats, compared by equality.
        samples: On how many samples.
        on: What they are: `MADE_UP`, `GIVEN`, `HELD_OUT`, `IN_TURNS` or `CALIBRATED`.
    """

    compared: Mapping[str, float]
    note: str
    ran: bool
    about_zero: Mapping[str, float] = field(default_factory=dict)
    median: Mapping[str, float] = field(default_factory=dict)
    lowest: Mapping[str, float] = field(default_factory=dict)
    largest_share: Mapping[str, float] = field(default_factory=dict)
    agreement: Mapping[str, Agreement] = field(default_factory=dict)
    samples: int = 0
    on: str = MADE_UP

    def __str__(self) -> str:
        done = "valid, loads and runs in onnxruntime" if self.ran else "valid, loads in onnxruntime"
        found = self.figures(_SHOWN)
        inside = " (in-sample: other inputs may get less)" if self.on == CALIBRATED else ""
        return f"{self.heading}: {done}" + (
            f"; SQNR vs float on {self.judged_on}{inside}: {found}" if found else ""
        )

    def figures(self, most: int | None = None) -> str:
        """Return "y 33.1 dB, label 98.0 % equal"; of at most so many outputs."""
        found = [
            f"{name} {f'{db:.1f} dB' if isfinite(db) else 'identical'}{self._spread(name)}"
            for name, db in self.compared.items()
        ]
        found += [f"{name} {a.share:.1%} equal" for name, a in self.agreement.items()]
        shown = found[:most]
        more = f" and {len(found) - len(shown)} more" if len(found) > len(shown) else ""
        return ", ".join(shown) + more

    def _spread(self, name: str) -> str:
        if name not in self.median or not isfinite(self.lowest[name]):
            return ""
        return f" (median {self.median[name]:.1f}, worst sample {self.lowest[name]:.1f})"

    @property
    def heading(self) -> str:
        """Return "verified", or "noise" where an output, or all that varies in it, has nothing to do with float's.

        On the samples that set the ranges nothing is verified: "checked".
        """
        return "noise" if self.has_noise else "checked" if self.on == CALIBRATED else "verified"

    @property
    def has_noise(self) -> bool:
        """Whether an output, or all that varies in it, is noise.

        Outputs without floats decide only where there are no others, and enough values: labels at a tie tell nothing.
        """
        if self.worst is not None:
            return self.worst < NOISE_DB
        return any(a.values >= _ENOUGH and a.share < _HALF for a in self.agreement.values())

    @property
    def is_noise(self) -> bool:
        """Whether an output has nothing to do with float's, not even by its mean."""
        return self.has_noise and min(self.about_zero.values(), default=-inf) < NOISE_DB

    @property
    def below_floor(self) -> bool:
        """Whether an output has less than `FLOOR_DB`, as printed."""
        return self.worst is not None and self.worst < FLOOR_DB

    @property
    def remark(self) -> str:
        """The note as a sentence; "" if there is none."""
        rest = self.note.removeprefix("not run: ")
        said = f"Not verified: {rest}." if rest != self.note else f"Verification: {rest}."
        return said if self.note else ""

    @property
    def judged_on(self) -> str:
        """What it was compared with float on, in words."""
        if self.on in {MADE_UP, GIVEN}:
            return self.on
        return (
            f"{self.samples} {self.on}"
            if self.samples != 1
            else f"1 {self.on}".replace("samples", "sample")
        )

    @property
    def worst(self) -> float | None:
        """The lowest SQNR, with the digits that are printed; None if nothing was compared.

        All limits apply to it: 19.96 dB reads 20.0, and is not below 20.
        """
        return min((round(db, 1) for db in self.compared.values()), default=None)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        # Infinite where nothing changed at all, which JSON cannot say.
        found = {k: v if isfinite(v) else None for k, v in self.compared.items()}
        about_zero = {k: v if isfinite(v) else None for k, v in self.about_zero.items()}
        return {
            "sqnr_db": found,
            "sqnr_about_zero_db": about_zero,
            "sqnr_median_db": {k: v for k, v in self.median.items() if isfinite(v)},
            "sqnr_lowest_db": {k: v for k, v in self.lowest.items() if isfinite(v)},
            "equal": {k: {"equal": a.equal, "values": a.values} for k, a in self.agreement.items()},
            "samples": self.samples,
            "on": self.on,
            "note": self.note,
            "ran": self.ran,
        }


def run_float(
    source: LoadedModel,
    sample: Feeds | None = None,
    ranges: Mapping[str, tuple[float, float]] = MappingProxyType({}),
    *,
    more: Sequence[Feeds] = (),
    on: str = GIVEN,
) -> Reference:
    """Load and run the float model on samples, or on inputs made up from its signature.

    Args:
        source: The float model.
        sample: A sample to run it on; it must take it.
        ranges: Between which values made-up inputs lie, where that is known.
        more: Further samples; those that it does not take are left out, and so are those whose outputs would take
            too much memory.
        on: What the samples are.

    Raises:
        RuntimeSupportError: onnxruntime does not load the float model; says why.
    """
    if source.nbytes > LARGE and sample is None:
        size = source.nbytes / 2**30
        return Reference(feeds={}, outputs={}, note=f"not compared with float ({size:.1f} GB)")
    try:
        session = float_session(source)
    except RUNTIME_ERRORS as e:
        raise RuntimeSupportError(why_not_loaded(source, str(e))) from e
    wide = RUN_WIDE if computes_bfloat16(source.model) else ""
    if sample is not None:
        return replace(_run_samples(session, sample, more, on), note=wide)
    strange = strange_input(session.get_inputs())
    if strange is not None:
        why = f"no value can be made up for input '{strange.name}' of type {strange.type}"
        return Reference(feeds={}, outputs={}, note=f"not run: {why}; {_SAMPLE}")
    found = run_made_up(session, ranges)
    if found.feeds:
        return Reference(feeds=found.feeds, outputs=found.outputs, note=wide)
    why = f"the float model rejected our random inputs ({found.reason})"
    return Reference(feeds={}, outputs={}, note=f"not run: {why}; {_SAMPLE}")


def _run_samples(session: Any, sample: Feeds, more: Sequence[Feeds], on: str) -> Reference:
    try:
        outputs = run_session(session, sample)
    except _SAMPLE_ERRORS as e:
        raise VerifyError(
            f"The float model does not run on the given sample: {first_line(e)}"
        ) from e
    others = []
    each = sum(value.nbytes for value in outputs.values() if isinstance(value, np.ndarray))
    for feeds in more[: _HELD_BYTES // max(1, each)]:
        try:
            others.append((feeds, run_session(session, feeds)))
        except _SAMPLE_ERRORS:
            continue
    return Reference(feeds=sample, outputs=outputs, others=tuple(others), on=on)


def compare(candidate: Path, reference: Reference, *, nbytes: int) -> Verification:
    """Load the written candidate, run it on the reference's inputs, and compare.

    Args:
        candidate: The written file.
        reference: What the float model made of which inputs.
        nbytes: Of the candidate and its external data: a large one is mapped.

    Raises:
        VerifyError: It does not load, does not run, or gives NaN where float does not.
    """
    try:
        session = _candidate_session(candidate, nbytes)
    except RUNTIME_ERRORS as e:
        raise VerifyError(f"onnxruntime does not load the result: {first_line(e)}") from e
    if not reference.outputs:
        return _run_unseen(session, reference)
    tallies: dict[str, list[Tally]] = {output.name: [] for output in session.get_outputs()}
    for number, (feeds, expected) in enumerate(reference.runs):
        excess = reference.excess[number] if reference.excess else {}
        try:
            outputs = run_session(session, fed(reference, feeds))
        except RUNTIME_ERRORS as e:
            raise VerifyError(f"The result loads but does not run: {first_line(e)}") from e
        outputs |= {n: y.astype(np.float32) for n, y in outputs.items() if n in reference.halved}
        for output in session.get_outputs():
            _check_form(output, expected[output.name], outputs[output.name])
            tally = Tally()
            tally.add(expected[output.name], outputs[output.name])
            if output.name in excess:
                tally.noise += excess[output.name].beyond(tally.noise)
            tallies[output.name].append(tally)
    return _verification(tallies, reference)


def fed(reference: Reference, feeds: Feeds) -> dict[str, Any]:
    """Return a sample as the candidate takes it: some of its inputs may be float16."""
    return {n: halved(x, np.float16) if n in reference.halved else x for n, x in feeds.items()}


def _verification(samples: Mapping[str, Sequence[Tally]], reference: Reference) -> Verification:
    # Four kinds of outputs, and each is named in the result: floats with a signal have an SQNR; integers, booleans
    # and texts the share that is equal; those of another shape on some samples are not compared there (a detector
    # that keeps one box more is not broken, but no value stands beside its own); the rest is not comparable:
    # sequences, and floats that are zero everywhere, of which no ratio exists. An output may be in two of them.
    tallies = {name: Tally.sum(own) for name, own in samples.items()}
    floats = {name: tally for name, tally in tallies.items() if tally.power > 0}
    others = {name: tally for name, tally in tallies.items() if tally.values}
    found = Verification(
        compared={name: tally.sqnr for name, tally in floats.items()},
        note=_not_compared(tallies, len(reference.runs)) or reference.note,
        ran=True,
        about_zero={name: tally.about_zero for name, tally in floats.items()},
        agreement={name: Agreement(t.equal, t.values) for name, t in others.items()},
        samples=len(reference.runs),
        on=reference.on,
    )
    return _with_spread(found, samples, floats)


def _not_compared(tallies: Mapping[str, Tally], runs: int) -> str:
    """Name the outputs that were not compared: a check of nothing must not read like one that found nothing."""
    resized = [name for name, tally in tallies.items() if tally.resized]
    skipped = [name for name, t in tallies.items() if not (t.power > 0 or t.values or t.resized)]
    notes = [f"not comparable: {', '.join(skipped)}"] if skipped else []
    if resized:
        some = f" on {max(t.resized for t in tallies.values())} of {runs} samples"
        where = some if runs > 1 else ""
        notes.append(f"not of float's shape, so not compared{where}: {', '.join(resized)}")
    return "; ".join(notes)


def _with_spread(
    found: Verification, samples: Mapping[str, Sequence[Tally]], floats: Mapping[str, Tally]
) -> Verification:
    """Add how much single samples differ, for outputs of several."""
    # The mean is that of all samples: what it may not add is taken off each of them.
    each = {
        name: np.array([one.about_zero for one in samples[name] if one.power > 0]) - tally.withheld
        for name, tally in floats.items()
        if len(samples[name]) > 1
    }
    return replace(
        found,
        median={name: float(np.median(own)) for name, own in each.items()},
        lowest={name: float(own.min()) for name, own in each.items()},
        largest_share={
            name: max(one.noise for one in samples[name]) / floats[name].noise
            for name in each
            if floats[name].noise > 0
        },
    )


def _check_form(output: Any, expected: Any, actual: Any) -> None:
    """Raise if an output has another type or rank than float's, or values where float has none.

    Extents that the model leaves free may differ: what a detector keeps depends on its scores.
    """
    if not isinstance(expected, np.ndarray):
        return
    wrong = expected.dtype != actual.dtype or expected.ndim != actual.ndim
    # A declared extent counts only if the float model keeps it: some models declare wrong ones.
    extents = zip(output.shape, expected.shape, actual.shape, strict=False)
    if wrong or any(declared == e != a for declared, e, a in extents):
        raise VerifyError(
            f"Output '{output.name}' of the result is {actual.dtype}{list(actual.shape)}, "
            f"not {expected.dtype}{list(expected.shape)}."
        )
    same = expected.shape == actual.shape and expected.dtype.kind == "f"
    if same and not np.isfinite(actual[np.isfinite(expected)]).all():
        raise VerifyError(f"Output '{output.name}' of the result holds NaN or infinity.")


def _run_unseen(session: Any, reference: Reference) -> Verification:
    """Run a result that cannot be compared, on the first made-up inputs that it takes."""
    if run_made_up(session).feeds:
        return Verification(compared={}, note=reference.note, ran=True)
    note = reference.note if "not run" in reference.note else f"{reference.note}; not run"
    return Verification(compared={}, note=note, ran=False)


def _candidate_session(path: Path, nbytes: int) -> Any:
    """Load the result as users will; if it is large, mapped so that it is not in memory twice."""
    if nbytes < LARGE // 4:
        return make_session(str(path))
    mapped = mapped_model(path, readable_ir_version)
    return make_session(mapped.structure, folder=mapped.folder, prepack=False)


def rounding_noted(path: Path, reference: Reference) -> list[str]:
    """Say what the kernels' own rounding of activations adds: the file is run once more with float activations.

    Args:
        path: The quantized model, in a folder of its own.
        reference: Samples that it was compared with float on.
    """
    structure = onnx.load(path, load_external_data=False)
    kernels = [n for n in structure.graph.node if n.op_type == "MatMulNBits"]
    levels = [a for n in kernels for a in n.attribute if a.name == "accuracy_level" and a.i]
    if not levels:
        return []
    for level in levels:
        level.i = 0
    feeds = reference.runs[0][0]
    exact = path.with_name(f"exact_{path.name}")  # beside it: external data must not be elsewhere
    exact.write_bytes(structure.SerializeToString())
    try:
        outputs = [run_session(make_session(str(p)), feeds) for p in (exact, path)]
    finally:
        exact.unlink()
    tallies = {name: Tally() for name in outputs[0]}
    for name, tally in tallies.items():
        tally.add(outputs[0][name], outputs[1][name])
    said = ", ".join(f"{n} {t.sqnr:.1f} dB" for n, t in tallies.items() if t.power)
    if not said:
        return []
    return [
        f"MatMulNBits rounds activations to 8 bits, block by block (accuracy_level 4); that alone: {said}."
    ]
