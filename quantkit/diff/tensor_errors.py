"""How far the tensors of two models are apart when both run on the same inputs.

Both run without onnxruntime's optimizations: only then is every tensor there, and the file's own meaning is compared.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from quantkit.diff.tensor_pairs import TensorPair, tensor_pairs
from quantkit.errors import DataError, ModelError
from quantkit.graph.load import LoadedModel
from quantkit.match.noise import Noise
from quantkit.match.parts import part_of
from quantkit.match.structure import Structure, read_structure
from quantkit.match.survey import Survey, survey
from quantkit.runtime.check_result import run_float
from quantkit.runtime.session import RUNTIME_ERRORS, first_line
from quantkit.runtime.synthetic_inputs import Feeds

__all__ = ["TensorError", "TensorErrors", "tensor_errors"]

_MEMORY = 512 << 20  # bytes of tensors that are held at once
# Tensors that are compared at most. To look at their shapes takes longer than linearly: on a chain of 20,000 nodes 2.2 s
# for 2,000 tensors and 22 s for 20,000, of which 16 s are the run of as many Shape nodes.
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
    a: LoadedModel, b: LoadedModel, samples: Sequence[Feeds], progress: Callable[[str], None]
) -> TensorErrors:
    """Run both models and compare every tensor that corresponds.

    Args:
        a: The first model, from a file.
        b: The second model, from a file.
        samples: What both are run on, one run each.
        progress: Is told what is being done.

    Raises:
        DataError: A model does not run on the given samples.
    """
    inputs = [{v.name for v in m.model.graph.inputs if not v.is_initializer()} for m in (a, b)]
    if inputs[0] != inputs[1]:
        return TensorErrors(note="not run: the two models have other inputs")
    if samples:
        try:
            return _compared(a, b, samples, progress, made_up=False)
        except _REFUSED as e:
            raise DataError(f"The models do not both run on the data: {first_line(e)}") from e
    try:
        reference = run_float(a)
        if not reference.feeds:
            return TensorErrors(note=reference.note)
        return _compared(a, b, [reference.feeds], progress, made_up=True)
    except _REFUSED as e:
        return TensorErrors(note=f"not run: {first_line(e)}")


def _compared(
    a: LoadedModel,
    b: LoadedModel,
    samples: Sequence[Feeds],
    progress: Callable[[str], None],
    *,
    made_up: bool,
) -> TensorErrors:
    assert a.path is not None  # noqa: S101 - models are compared as files
    assert b.path is not None  # noqa: S101
    models = read_structure(a.path), read_structure(b.path)
    found = tensor_pairs(*models)
    chosen, left_out = _chosen(found.pairs, models)
    errors = []
    for group in _groups(chosen, models, samples[0]):
        noises = _noises(group, models, samples, progress)
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
    pairs: Sequence[TensorPair], models: tuple[Structure, Structure], feeds: Feeds
) -> Iterator[list[TensorPair]]:
    """Yield pairs of floats of the same shape, as many at once as may be held in memory."""
    left = survey(models[0], (p.a.candidate for p in pairs), feeds)
    right = survey(models[1], (p.b.candidate for p in pairs), feeds)
    group: list[TensorPair] = []
    held = 0
    for pair in pairs:
        if not _comparable(pair, left, right):
            continue
        nbytes = left.nbytes(pair.a.candidate) + right.nbytes(pair.b.candidate)
        if group and held + nbytes > _MEMORY:
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
    models: tuple[Structure, Structure],
    samples: Sequence[Feeds],
    progress: Callable[[str], None],
) -> list[Noise]:
    parts = (
        part_of(models[0], list(dict.fromkeys(p.a.candidate for p in group)), {}),
        part_of(models[1], list(dict.fromkeys(p.b.candidate for p in group)), {}),
    )
    noises = [Noise() for _ in group]
    for i, feeds in enumerate(samples):
        progress(f"Running both models: sample {i + 1} of {len(samples)}")
        left, right = (part.run(feeds) for part in parts)
        for pair, noise in zip(group, noises, strict=True):
            noise.add(*pair.floats(left[pair.a.candidate], right[pair.b.candidate]))
    return noises
