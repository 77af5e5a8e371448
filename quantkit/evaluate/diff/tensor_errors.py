"""How far the tensors of two models are apart when both run on the same inputs.

Both run without onnxruntime's optimizations: only then is every tensor there, and the file's own meaning is compared.

`quantkit.evaluate.match.correspondence` matches a quantized model with its float model. Here any two may be compared, so the
one that is quantized less is taken for the float one, and what was done to *its* tensors is undone too.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from quantkit.errors import DataError, ModelError
from quantkit.evaluate.match import HELD, ModelPair, Survey, base_name
from quantkit.evaluate.match.correspondence import Match, correspondence, made_by
from quantkit.evaluate.match.noise import Noise
from quantkit.model.graph.channel_factors import read_divisors
from quantkit.model.ops.integer_ops import INTEGER_OPS, is_quantized
from quantkit.runtime.check_result import run_float
from quantkit.runtime.pieces import Structure
from quantkit.runtime.session import RUNTIME_ERRORS, first_line, widened_feeds
from quantkit.runtime.synthetic_inputs import Feeds


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPair:
    """A tensor of each model; `Match.restored` of each gives floats that compare."""

    a: Match
    b: Match

    def floats(self, a: NDArray[Any], b: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return what both stand for."""
        return self.a.restored(a), self.b.restored(b)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """All pairs in the order of the model that is quantized more; or why there are none."""

    pairs: tuple[TensorPair, ...]
    note: str = ""


def _tensor_pairs(a: Structure, b: Structure) -> Pairs:
    """Match the tensors of two models."""
    if _quantized(a) > _quantized(b):
        found = _pairs(b, a)
        return Pairs(pairs=tuple(TensorPair(a=p.b, b=p.a) for p in found.pairs), note=found.note)
    return _pairs(a, b)


def _quantized(model: Structure) -> tuple[int, int]:
    """Return how far a model is from float: operators on integers first, then anything that quantizes."""
    found = [node.op_type for node in model.nodes if is_quantized(node.op_type)]
    rows = [INTEGER_OPS.get(op_type) for op_type in found]
    integers = sum(row is None or (row.in_integers and not row.dynamic) for row in rows)
    return integers, len(rows) - integers


def _pairs(reference: Structure, candidate: Structure) -> Pairs:
    found = correspondence(reference, candidate)
    divisors = read_divisors(reference.properties) or {}
    pairs = []
    for match in found.matches.values():
        name, stands = match.tensor, _as_quantized(reference, match)
        own = Match(tensor=name, candidate=stands, divisor=divisors.get(name))
        pairs.append(TensorPair(a=own, b=match))
    pairs += _integers(reference, candidate)
    named = {pair.b.candidate for pair in pairs}
    # What comes back from integers is the tensor that went in, seen twice.
    once = (
        p for p in pairs if (base := base_name(p.b.candidate)) == p.b.candidate or base not in named
    )
    return Pairs(pairs=tuple(once), note=found.note)


def _as_quantized(reference: Structure, match: Match) -> str:
    """Return the tensor that stands beside the candidate's.

    Integers of the candidate are clipped and rounded. Where the reference quantizes that tensor too, what comes back
    from its integers is alike, and the tensor before is not: it may lack a Relu that the quantization does.
    """
    name = match.tensor
    if match.quantizer is None:
        return name
    for op_type in ("QuantizeLinear", "DequantizeLinear"):
        readers = [reference.nodes[i] for i in reference.readers.get(name, [])]
        made = [node.output[0] for node in readers if node.op_type == op_type]
        if not made:
            return match.tensor
        name = made[0]
    return name


def _integers(a: Structure, b: Structure) -> Iterator[TensorPair]:
    """Pair the integers of the same name that operators of both models make."""
    scales = {n: q for node in a.nodes if (q := made_by(a, node)) for n in node.output}
    left, right = (read_divisors(m.properties) or {} for m in (a, b))
    for node in b.nodes:
        quantizer = made_by(b, node)
        for name in node.output:
            if quantizer is not None and name in scales:
                yield TensorPair(
                    a=Match(
                        tensor=name, candidate=name, divisor=left.get(name), quantizer=scales[name]
                    ),
                    b=Match(
                        tensor=name, candidate=name, divisor=right.get(name), quantizer=quantizer
                    ),
                )


# Tensors that are compared at most: a session that computes more of them takes longer than linearly.
_TENSORS = 2000
_REFUSED: tuple[type[Exception], ...] = (*RUNTIME_ERRORS, ModelError)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorError:
    """A tensor that corresponds in both models.

    Attributes:
        a: Its name in the first model.
        b: Its name in the second.
        sqnr_db: The first's values against the difference; None: no difference at all.
    """

    a: str
    b: str
    sqnr_db: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorErrors:
    """What running both models shows.

    Attributes:
        tensors: The worst first.
        outputs: Names of those that are outputs of the first model.
        samples: On how many runs; 0: nothing was run.
        made_up: The inputs were made up, not a user's.
        note: Why nothing was run, or what could not be compared.
    """

    tensors: tuple[TensorError, ...] = ()
    outputs: tuple[str, ...] = ()
    samples: int = 0
    made_up: bool = False
    note: str = ""

    @property
    def differ(self) -> bool:
        """Whether any tensor differs."""
        return any(t.sqnr_db is not None for t in self.tensors)


def tensor_errors(
    pair: ModelPair, samples: Sequence[Feeds], progress: Callable[[str], None]
) -> TensorErrors:
    """Run both models and compare every tensor that corresponds.

    Args:
        pair: The two models.
        samples: What both are run on, one run each.
        progress: Is told what is being done.

    Raises:
        DataError: A model does not run on the given samples.
    """
    inputs = [{v.name for v in m.model.graph.inputs if not v.is_initializer()} for m in pair.sides]
    if inputs[0] != inputs[1]:
        return TensorErrors(note="not run: the two models have other inputs")
    if samples:
        try:
            return _compared(pair, samples, progress, made_up=False)
        except _REFUSED as e:
            raise DataError(f"The models do not both run on the data: {first_line(e)}") from e
    try:
        reference = run_float(pair.a.loaded)
        if not reference.feeds:
            return TensorErrors(note=reference.note)
        return _compared(pair, [reference.feeds], progress, made_up=True)
    except _REFUSED as e:
        return TensorErrors(note=f"not run: {first_line(e)}")


def _compared(
    pair: ModelPair,
    samples: Sequence[Feeds],
    progress: Callable[[str], None],
    *,
    made_up: bool,
) -> TensorErrors:
    models = pair.a.structure, pair.b.structure
    samples = [widened_feeds(feeds) for feeds in samples]  # one of the two may take float16
    found = _tensor_pairs(*models)
    chosen, left_out = _chosen(found.pairs, models)
    errors = []
    for group in _groups(chosen, pair, samples[0]):
        noises = _noises(group, pair, samples, progress)
        errors += [
            TensorError(a=pair.a.candidate, b=pair.b.candidate, sqnr_db=noise.db)
            for pair, noise in zip(group, noises, strict=True)
            if noise.comparable
        ]
    errors.sort(key=lambda e: (e.sqnr_db is None, e.sqnr_db or 0.0))
    names = {e.a for e in errors}
    return TensorErrors(
        tensors=tuple(errors),
        outputs=tuple(name for name in models[0].outputs if name in names),
        samples=len(samples),
        made_up=made_up,
        note=found.note or left_out,
    )


def _chosen(
    pairs: Sequence[TensorPair], models: tuple[Structure, Structure]
) -> tuple[list[TensorPair], str]:
    """Return pairs that nodes of both models make, evenly spaced if there are too many, and what was left out."""
    made = [
        p for p in pairs if p.a.candidate in models[0].maker and p.b.candidate in models[1].maker
    ]
    step = -(-len(made) // _TENSORS)
    if step <= 1:
        return made, ""
    outputs = set(models[0].outputs)
    kept = [p for i, p in enumerate(made) if i % step == 0 or p.a.candidate in outputs]
    return kept, f"of {len(made)} that correspond, {len(kept)} were compared"


def _groups(
    pairs: Sequence[TensorPair], models: ModelPair, feeds: Feeds
) -> Iterator[list[TensorPair]]:
    """Yield pairs of floats of the same shape, as many at once as may be held in memory."""
    left = models.a.survey((p.a.candidate for p in pairs), feeds)
    right = models.b.survey((p.b.candidate for p in pairs), feeds)
    group: list[TensorPair] = []
    held = 0
    for pair in pairs:
        if not _comparable(pair, left, right):
            continue
        nbytes = left.nbytes(pair.a.candidate) + right.nbytes(pair.b.candidate)
        if group and held + nbytes > HELD:
            yield group
            group, held = [], 0
        group.append(pair)
        held += nbytes
    if group:
        yield group


def _comparable(pair: TensorPair, left: Survey, right: Survey) -> bool:
    """Say whether both are floats, or integers of a known scale, of one shape."""
    sides = ((pair.a, left), (pair.b, right))
    if not all(m.candidate in seen.kinds and m.candidate in seen.shapes for m, seen in sides):
        return False
    floats = all(m.quantizer is not None or s.kinds[m.candidate].is_float for m, s in sides)
    return floats and left.shapes[pair.a.candidate] == right.shapes[pair.b.candidate]


def _noises(
    group: Sequence[TensorPair],
    models: ModelPair,
    samples: Sequence[Feeds],
    progress: Callable[[str], None],
) -> list[Noise]:
    parts = (
        models.a.inner(p.a.candidate for p in group),
        models.b.inner(p.b.candidate for p in group),
    )
    noises = [Noise() for _ in group]
    for i, feeds in enumerate(samples):
        progress(f"Running both models: sample {i + 1} of {len(samples)}")
        left, right = (part.run(feeds) for part in parts)
        for pair, noise in zip(group, noises, strict=True):
            noise.add(*pair.floats(left[pair.a.candidate], right[pair.b.candidate]))
    return noises
