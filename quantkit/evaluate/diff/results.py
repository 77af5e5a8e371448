"""`compare_results`: this release against the last, figure by figure, and why the figures of the two may not compare."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Literal

import msgspec

from quantkit.evaluate.diff.nodes import Change
from quantkit.result import DataSource, Evaluated, Interval, Judged, Outcome, Result, Rule
from quantkit.result import Verdict as GateVerdict

Unit = Literal["metric", "share", "dB", "bytes", "ratio"]
Verdict = Literal["better", "worse", "same", "within noise", "new", "gone"]
# Memory of a process moves by pages and allocator; no interval is measured.
_MEMORY_NOISE = 0.05


@dataclass(frozen=True, slots=True)
class Figure:
    """One number.

    Attributes:
        name: What it is, unique in a model.
        value: None: perfect, where that has no number (an SQNR without noise); -inf: an output is not finite.
        unit: How to write it.
        higher_is_better: Its direction.
        interval: Where it lies; None: it is exact, or no interval was measured.
    """

    name: str
    value: float | None
    unit: Unit
    higher_is_better: bool = False
    interval: Interval | None = None


def figures_of(model: Evaluated) -> dict[str, Figure]:
    """Return everything that was measured of a model, by name, in the order to show."""
    return {f.name: f for f in (*_accuracy(model), *_cost(model))}


def _accuracy(model: Evaluated) -> Iterator[Figure]:
    for metric in model.metrics:
        unit: Unit = "share" if metric.is_fraction else "metric"
        better = metric.higher_is_better
        yield Figure(metric.name, metric.value, unit, better, metric.interval)
        if metric.drop is not None:
            name = f"drop of {metric.name}"
            yield Figure(name, metric.drop, unit, interval=metric.drop_interval)
    if (found := model.decision) is not None:
        yield Figure("flips", found.flip_rate, "share", interval=found.interval)
    for output in model.outputs:
        db = None if output.db == inf else output.db
        name = f"SQNR of {output.output}"
        yield Figure(name, db, "dB", higher_is_better=True, interval=output.sqnr_interval)


def _cost(model: Evaluated) -> Iterator[Figure]:
    yield Figure("size", model.size.disk, "bytes")
    for latency in model.latency if model.role == "candidate" else ():
        threads = f", {latency.threads} threads" if latency.threads else ""
        name = f"latency ratio, batch {latency.batch}{threads}"
        yield Figure(name, latency.ratio, "ratio", interval=latency.ratio_interval)
    if model.runtime is not None and model.role == "candidate":
        yield Figure("int8 share", model.runtime.share, "share", higher_is_better=True)
    if model.memory is not None:
        for name, value in (("resident", model.memory.resident), ("peak", model.memory.peak)):
            around = Interval(low=value * (1 - _MEMORY_NOISE), high=value * (1 + _MEMORY_NOISE))
            yield Figure(f"{name} memory", value, "bytes", interval=around)


def judge(a: Figure | None, b: Figure | None, *, same_samples: bool = True) -> Verdict:
    """Say what became of a figure.

    A change is within noise if each value lies in the other's interval; where only one has an interval, in that. Of
    other samples it is already if the intervals overlap: both figures are then drawn anew.

    Args:
        a: The earlier figure; None: there is none.
        b: The later figure; None: there is none.
        same_samples: Both are of the same samples, so that they share their luck.
    """
    # A value of None is an SQNR without noise (infinite), so it beats any number. Intervals describe how far a figure
    # moves with other samples. On the same samples both values share that luck, so each must lie in the other's
    # interval: asking for overlap only would hide real changes. On other samples the luck is drawn twice, and overlap
    # is all that can be asked. A figure without any interval (a size) has no noise: then every difference counts.
    if a is None or b is None:
        return "new" if a is None else "gone"
    if a.value == b.value:
        return "same"
    if a.value is None or b.value is None:
        return "better" if b.value is None else "worse"
    overlap = not same_samples and _overlap(a.interval, b.interval)
    if overlap or _within_each_other((a.interval, b.value), (b.interval, a.value)):
        return "within noise"
    return "better" if (b.value > a.value) == b.higher_is_better else "worse"


def _overlap(a: Interval | None, b: Interval | None) -> bool:
    return a is not None and b is not None and a.low <= b.high and b.low <= a.high


def _within_each_other(*pairs: tuple[Interval | None, float]) -> bool:
    """Say whether each value lies in the interval beside it; one at least must have an interval."""
    known = [(interval, value) for interval, value in pairs if interval is not None]
    return bool(known) and all(i.low <= value <= i.high for i, value in known)


_DIGEST = 12  # characters of a digest that people read


@dataclass(frozen=True, slots=True)
class Caveat:
    """Something that differs and that figures depend on.

    Attributes:
        what: What differs.
        a: In the first result.
        b: In the second.
        spoils: What does not compare because of it.
    """

    what: str
    a: str
    b: str
    spoils: str


def _caveats_of(a: Result, b: Result) -> tuple[Caveat, ...]:
    """Return what differs between the conditions of two results, the gravest first."""
    return tuple(c for c in (*_models(a, b), *_data(a.data, b.data), *_machine(a, b)) if c.a != c.b)


def _models(a: Result, b: Result) -> Iterator[Caveat]:
    spoils = "drops, flips, SQNR and ratios: they are relative to another model"
    first, second = (_short(result.float_model.file.sha256) for result in (a, b))
    yield Caveat("float model", first, second, spoils)


def _data(a: DataSource, b: DataSource) -> Iterator[Caveat]:
    spoils = "metrics, drops, flips and SQNR: they are of other samples"
    yield Caveat("data fingerprint", _short(a.fingerprint), _short(b.fingerprint), spoils)
    yield Caveat("samples", str(a.samples), str(b.samples), spoils)
    if a.samples == b.samples:  # else it says the same again
        yield Caveat("order", a.order, b.order, spoils)
    yield Caveat("preprocessing", "; ".join(a.preprocessing), "; ".join(b.preprocessing), spoils)


def _machine(a: Result, b: Result) -> Iterator[Caveat]:
    x, y = a.origin, b.origin
    spoils = "latency and memory, and integers where a CPU saturates"
    yield Caveat("CPU", x.cpu, y.cpu, spoils)
    yield Caveat("cores", str(x.cores), str(y.cores), "latency")
    yield Caveat("system", x.system, y.system, "latency and memory")
    for name in {**x.software, **y.software}:
        first, second = (origin.software.get(name, "none") for origin in (x, y))
        yield Caveat(name, first, second, _spoiled_by(name))


def _spoiled_by(software: str) -> str:
    if software == "onnxruntime":
        return "latency, memory and int8 share: another runtime ran the models"
    return "figures that it computes" if software == "quantkit" else "little"


def _short(digest: str) -> str:
    return digest[:_DIGEST]


# A layer's SQNR on a few samples moves by some tenths of a dB with the samples.
_LAYER_DB = 1.0
_PERFECT = 200.0  # dB; stands for no error where losses are ranked


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureChange:
    """One figure in both results; None where it was not measured, or where an SQNR has no noise."""

    figure: str
    unit: Unit
    a: float | None
    b: float | None
    a_interval: Interval | None
    b_interval: Interval | None
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleChange:
    """A rule of the gate whose limit or outcome differs; None: there is no such rule."""

    rule: str
    a: Judged | None
    b: Judged | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerChange:
    """A layer that alone brings more noise than before, in dB at the output; None: no error at all."""

    node: str
    op_type: str
    a: float | None
    b: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateDiff:
    """One candidate in both results.

    Attributes:
        name: Its name, "old -> new" where that differs; the float model is among them.
        figures: Every figure of either.
        outcome: Its verdict, if that differs.
        rules: Rules whose limit or outcome differs.
        layers_worse: The largest loss first.
        layers_better: How many layers got better.
        warnings_new: Only in the second.
        warnings_gone: Only in the first.
        file_changed: The model file is another one.
    """

    name: str
    figures: tuple[FigureChange, ...]
    outcome: Change | None
    rules: tuple[RuleChange, ...]
    layers_worse: tuple[LayerChange, ...]
    layers_better: int
    warnings_new: tuple[str, ...]
    warnings_gone: tuple[str, ...]
    file_changed: bool

    @property
    def same(self) -> bool:
        """Whether no difference was found; another file with the same figures is none."""
        still = all(f.verdict == "same" for f in self.figures)
        moved = self.layers_worse or self.layers_better or self.warnings_new or self.warnings_gone
        return still and not (self.outcome or self.rules or moved)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultDiff:
    """What differs between two results.

    Attributes:
        a: Title of the first.
        b: Title of the second.
        caveats: Why figures may not compare.
        candidates: Those in both, the float model first.
        only_a: Names of candidates that only the first has.
        only_b: Names of candidates that only the second has.
    """

    a: str
    b: str
    caveats: tuple[Caveat, ...]
    candidates: tuple[CandidateDiff, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]

    @property
    def same(self) -> bool:
        """Whether no figure, rule or warning differs and nothing says that figures do not compare."""
        return not (self.caveats or self.only_a or self.only_b) and all(
            c.same for c in self.candidates
        )

    @property
    def worse(self) -> tuple[tuple[str, FigureChange], ...]:
        """Every figure that got worse beyond noise, with its candidate."""
        return tuple(
            (c.name, f) for c in self.candidates for f in c.figures if f.verdict == "worse"
        )

    @property
    def is_worse(self) -> bool:
        """Whether a candidate has a worse figure, fails the gate that it passed, or is gone."""
        candidates = self.candidates[1:]  # float is not what is released
        broken = any(c.outcome.a == "pass" and c.outcome.b for c in candidates if c.outcome)
        worse = any(f.verdict == "worse" for c in candidates for f in c.figures)
        return broken or worse or bool(self.only_a)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        plain: dict[str, Any] = msgspec.json.decode(
            msgspec.json.encode(self)
        )  # no NaN, no Infinity
        return {"kind": "results", "same": self.same, **plain}


def compare_results(a: Result, b: Result) -> ResultDiff:
    """Compare two results: candidates of the same name, or the only ones, and the float models with each other."""
    before, after = ({m.name: m for m in result.candidates} for result in (a, b))
    verdicts = [{v.candidate: v for v in result.verdicts} for result in (a, b)]
    same = (a.data.fingerprint, a.data.order) == (b.data.fingerprint, b.data.order)
    pairs = _matched(list(before), list(after))
    both = (
        _candidate(
            old if old == new else f"{old} -> {new}",
            before[old],
            after[new],
            [verdicts[0].get(old), verdicts[1].get(new)],
            same_samples=same,
        )
        for old, new in pairs.items()
    )
    floats = _candidate("float", a.float_model, b.float_model, [None, None], same_samples=same)
    return ResultDiff(
        a=a.title,
        b=b.title,
        caveats=_caveats_of(a, b),
        candidates=(floats, *both),
        only_a=tuple(n for n in before if n not in pairs),
        only_b=tuple(n for n in after if n not in pairs.values()),
    )


def _matched(before: Sequence[str], after: Sequence[str]) -> dict[str, str]:
    """Return the later name of each earlier candidate: the same, or that of the only one."""
    if len(before) == len(after) == 1:
        return dict(zip(before, after, strict=True))
    return {name: name for name in before if name in after}


def _candidate(
    name: str,
    a: Evaluated,
    b: Evaluated,
    verdicts: Sequence[GateVerdict | None],
    *,
    same_samples: bool,
) -> CandidateDiff:
    # Figures are joined by name, so one that only one result has shows as new or gone instead of vanishing. Warnings
    # are compared as text: they hold names and numbers, and one with another number is another warning. Layers count
    # as moved by more than the noise of measuring them; those that improved are a number only, as nobody acts on
    # them.
    left, right = figures_of(a), figures_of(b)
    layers = list(_layers(a, b))
    worse = [c for c in layers if _db(c.b) < _db(c.a)]
    outcomes = ["" if v is None else v.outcome for v in verdicts]
    return CandidateDiff(
        name=name,
        figures=tuple(
            _change(key, left.get(key), right.get(key), same_samples=same_samples)
            for key in {**left, **right}
        ),
        outcome=Change(what="verdict", a=outcomes[0], b=outcomes[1])
        if outcomes[0] != outcomes[1]
        else None,
        rules=tuple(_rules(*map(_judged, verdicts))),
        layers_worse=tuple(sorted(worse, key=lambda c: _db(c.b) - _db(c.a))),
        layers_better=len(layers) - len(worse),
        warnings_new=tuple(w for w in b.warnings if w not in a.warnings),
        warnings_gone=tuple(w for w in a.warnings if w not in b.warnings),
        file_changed=a.file.sha256 != b.file.sha256,
    )


def _change(name: str, a: Figure | None, b: Figure | None, *, same_samples: bool) -> FigureChange:
    known = b or a
    assert known is not None  # noqa: S101 - the name comes from one of the two
    return FigureChange(
        figure=name,
        unit=known.unit,
        a=a.value if a is not None else None,
        b=b.value if b is not None else None,
        a_interval=a.interval if a is not None else None,
        b_interval=b.interval if b is not None else None,
        verdict=judge(a, b, same_samples=same_samples),
    )


def _judged(verdict: GateVerdict | None) -> dict[str, Judged]:
    return {} if verdict is None else {judged.rule.key: judged for judged in verdict.rules}


def _rules(a: dict[str, Judged], b: dict[str, Judged]) -> Iterator[RuleChange]:
    for key in {**a, **b}:
        left, right = a.get(key), b.get(key)
        if _essence(left) != _essence(right):
            yield RuleChange(rule=key, a=left, b=right)


def _essence(judged: Judged | None) -> tuple[Rule, Outcome] | None:
    return None if judged is None else (judged.rule, judged.outcome)


def _layers(a: Evaluated, b: Evaluated) -> Iterator[LayerChange]:
    """Yield the layers whose noise moved by more than `_LAYER_DB`."""
    before = {layer.node: layer for layer in a.ranking}
    for now in b.ranking:
        was = before.get(now.node)
        if was is not None and abs(_db(was.alone_db) - _db(now.alone_db)) > _LAYER_DB:
            yield LayerChange(node=now.node, op_type=now.op_type, a=was.alone_db, b=now.alone_db)


def _db(value: float | None) -> float:
    return _PERFECT if value is None else min(value, _PERFECT)
