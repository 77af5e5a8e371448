"""All models, with the same inputs and outputs, run on the same samples; their outputs come in chunks that memory holds.

Statistics are taken of a chunk at a time: as many numpy calls for 64 samples as for one.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators import Sketch
from quantkit.calibration.job import sample_digest
from quantkit.calibration.model_inputs import batch_for, fixed_batch, inputs_of
from quantkit.data import InputSpec, Label, Sample, collate
from quantkit.errors import DataError, ModelError, RuntimeSupportError, UsageError
from quantkit.evaluate.accuracy.samples import SampleSource
from quantkit.evaluate.match import NamedModel
from quantkit.runtime.session import RUNTIME_ERRORS, first_line, why_not_loaded

_FLOATS = frozenset(f"tensor({name})" for name in ("float", "double", "float16", "bfloat16"))
_HALVED = _FLOATS - {"tensor(double)"}

Extents = tuple[int | None, ...]
_Port = tuple[str, Extents | None]  # type and extents


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSpec:
    """One output as onnxruntime describes it. A free dimension is None.

    Attributes:
        name: Its name.
        type: For example "tensor(float)".
        shape: Its extents; None: the rank is not known.
    """

    name: str
    type: str
    shape: Extents | None

    @property
    def is_tensor(self) -> bool:
        """Whether its values come as an array."""
        return self.type.startswith("tensor(")

    @property
    def is_float(self) -> bool:
        """Whether its values are real numbers."""
        return self.type in _FLOATS


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenModel:
    """A loaded model."""

    name: str
    session: Any
    outputs: tuple[OutputSpec, ...]


def open_models(
    models: Sequence[NamedModel],
) -> tuple[tuple[OpenModel, ...], tuple[InputSpec, ...]]:
    """Load all models; return them with the inputs that fit every one.

    An extent that any model fixes is fixed in the inputs.

    Raises:
        ModelError: A file is no model, or onnxruntime does not load it.
        UsageError: A candidate has other inputs or outputs than float.
    """
    _check_names(models)
    loaded = models[0].loaded
    loaded.require_weights()
    inputs = inputs_of(loaded)
    opened = tuple(_open(model) for model in models)
    reference = opened[0]
    if not any(spec.is_tensor for spec in reference.outputs):
        raise ModelError(
            f"No output of {loaded.name} is a tensor: there is nothing to compare; export it with tensors "
            "as outputs (scikit-learn: zipmap off)."
        )
    # The float model says what inputs are called and what they hold; candidates may only be narrower. A quantizer may
    # fix a batch that was free, and data is then cut for the narrowest, or the candidate alone would fail half-way
    # through. Outputs must agree by name and type, as they are compared one by one.
    # One of the two may be in float16, inputs and outputs too: the samples are then float32, which sessions of halves take.
    for model in opened[1:]:
        _check_same("input", _inputs(model), _inputs(reference), model.name)
        _check_same("output", _outputs(model), _outputs(reference), model.name)
    ports = [_inputs(model) for model in opened]
    return opened, tuple(_fitting(spec, [own[spec.name] for own in ports]) for spec in inputs)


def _fitting(spec: InputSpec, ports: Sequence[_Port]) -> InputSpec:
    """Return an input of the float model as it fits all models, of which the first is float."""
    mixed = len({kind for kind, _ in ports}) > 1
    fixed = list(spec.shape)
    for _, shape in ports[1:]:
        for axis, extent in enumerate(shape or ()):
            fixed[axis] = extent if fixed[axis] is None else fixed[axis]
    return replace(spec, shape=tuple(fixed), dtype=np.dtype(np.float32) if mixed else spec.dtype)


def single_rows(
    inputs: Sequence[InputSpec], outputs: Sequence[OutputSpec]
) -> tuple[InputSpec, ...]:
    """Return the inputs as one sample fills them: rows of a fixed batch are samples with labels of their own.

    They are unless an output has another number of rows than the batch: then they belong together (frames of a film).
    """
    batch = fixed_batch(inputs)
    rows = {spec.shape[0] if spec.shape else None for spec in outputs}
    if batch is None or batch == 1 or not rows <= {batch, None}:
        return tuple(inputs)
    shapes = [(None, *spec.shape[1:]) if spec.shape else () for spec in inputs]
    return tuple(
        replace(spec, shape=shape, axis="batch") for spec, shape in zip(inputs, shapes, strict=True)
    )


def _check_names(models: Sequence[NamedModel]) -> None:
    if len(models) <= 1:
        raise UsageError("There is no candidate: name at least one model beside the float model.")
    names = [model.name for model in models]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"Two models are called '{twice}': give each a name of its own.")


def _open(model: NamedModel) -> OpenModel:
    try:
        session = model.session
    except RUNTIME_ERRORS as e:
        # A file that is damaged or not there is told by `load`, in better words.
        raise RuntimeSupportError(why_not_loaded(model.loaded, str(e))) from e
    outputs = tuple(
        OutputSpec(name=o.name, type=o.type, shape=_extents(o.shape)) for o in session.get_outputs()
    )
    return OpenModel(name=model.name, session=session, outputs=outputs)


def _inputs(model: OpenModel) -> dict[str, _Port]:
    return {i.name: (i.type, _extents(i.shape)) for i in model.session.get_inputs()}


def _outputs(model: OpenModel) -> dict[str, _Port]:
    return {spec.name: (spec.type, spec.shape) for spec in model.outputs}


def _extents(shape: Sequence[Any] | None) -> Extents | None:
    """Return the extents; onnxruntime gives names, None or -1 for free ones, and [] also for no rank."""
    if shape is None:
        return None
    return tuple(n if isinstance(n, int) and n >= 0 else None for n in shape)


def _check_same(
    what: str,
    have: Mapping[str, _Port],
    want: Mapping[str, _Port],
    model: str,
) -> None:
    """Raise if names, types, ranks or fixed extents differ."""
    for name in want:
        if name not in have:
            others = ", ".join(f"'{n}'" for n in have if n not in want)
            instead = f"; it has {others} instead" if others else ""
            raise UsageError(
                f"Candidate '{model}' has no {what} '{name}', which the float model has{instead}."
            )
    for name, (kind, shape) in have.items():
        if name not in want:
            raise UsageError(
                f"Candidate '{model}' has the {what} '{name}', which the float model does not have."
            )
        halved = {kind, want[name][0]} <= _HALVED
        if (kind != want[name][0] and not halved) or _differ(shape, want[name][1]):
            raise UsageError(
                f"Candidate '{model}': its {what} '{name}' is {_text(kind, shape)}, the float "
                f"model's is {_text(*want[name])}."
            )


def _differ(a: Extents | None, b: Extents | None) -> bool:
    # An output without a known rank and a scalar look alike: both are empty.
    if not a or not b:
        return False
    return len(a) != len(b) or any(None not in {x, y} and x != y for x, y in zip(a, b, strict=True))


def _text(kind: str, shape: Extents | None) -> str:
    plain = kind.removeprefix("tensor(").removesuffix(")") if kind.startswith("tensor(") else kind
    extents = ", ".join("?" if n is None else str(n) for n in shape or ())
    return f"{plain}[{extents}]"


Array = NDArray[Any]
Feeds = Mapping[str, Array]

UNITS = 64  # in a chunk
_BYTES = 32 << 20  # of the outputs of all models in a chunk; one sample may have more
_KEPT = 16  # feeds that are kept for other measurements
_LOOKED_AT = 256  # samples whose values are looked at
_LARGE = 64  # values of a sample
_FRACTIONS = 8  # of them that are not whole numbers
_TEXT_RANK = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """What statistics count: a sample, or one row of a sample of several rows.

    Attributes:
        name: Where it comes from.
        label: Its label.
        length: Real tokens of a text; else the extent of axis 1 of the first input that has one.
        mask: The attention mask of a text.
        ids: The token ids of a text.
        digest: What names its inputs: two units with the same are copies of each other.
    """

    name: str
    label: Label
    length: int
    mask: Array | None = None
    ids: Array | None = None
    digest: int = 0


@dataclass(slots=True, kw_only=True)
class Chunk:
    """Units and the answers of all models.

    Attributes:
        units: In order.
        answers: For each model, output -> one array a unit, batch axis first.
        nbytes: Of all arrays.
    """

    units: list[Unit] = field(default_factory=list)
    answers: list[dict[str, list[Array]]]
    nbytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    """Rows `start` to `stop` of a run, which are one unit."""

    unit: Unit
    sample: Sample
    start: int
    stop: int


class SampleRunner:
    """Reads a source once and runs every model on every sample.

    Attributes:
        batch: Samples in a run.
        samples: How many were run, so far.
        left_over: How many at the end did not fill a batch of the model.
        feeds: What the first runs were fed, a sample each unless the model's batch is fixed.
        whole: Samples run alone: their first axes do not count samples.
        digests: What names each sample's inputs.
        values: How the values of each input of real numbers are distributed, in the first samples.
    """

    def __init__(
        self, models: Sequence[OpenModel], inputs: Sequence[InputSpec], source: SampleSource
    ) -> None:
        self.models = tuple(models)
        self.outputs: tuple[OutputSpec, ...] = tuple(o for o in models[0].outputs if o.is_tensor)
        self.batch = source.settings.batch or 1
        self.samples = 0
        self.left_over = 0
        self.whole = False
        self.feeds: list[Feeds] = []
        self.digests: list[int] = []
        self.values = {spec.name: Sketch() for spec in inputs if spec.dtype.kind == "f"}
        self._inputs = tuple(inputs)
        self._whole = fixed_batch(inputs) is not None
        self._source = source
        self._mask = next((spec.name for spec in inputs if _is_mask(spec)), None)
        self._ids = next((spec.name for spec in inputs if _is_ids(spec)), None)

    @property
    def large(self) -> bool:
        """Whether two samples with equal inputs must be copies: not if inputs are a handful of whole numbers."""
        if not self.feeds:
            return False
        values = [a.astype(np.float64) for a in self.feeds[0].values() if a.dtype.kind in "fiub"]
        fractions = sum(int(np.count_nonzero(a != np.rint(a))) for a in values)
        return fractions >= _FRACTIONS or sum(a.size for a in self.feeds[0].values()) >= _LARGE

    def distinct(self, together: int) -> int | None:
        """Return how many samples feed something of their own to the model; None if alike ones need not be copies.

        Args:
            together: Inputs that are one sample: 2 for pairs.
        """
        groups = zip(*[iter(self.digests)] * together, strict=True)
        return len(set(groups)) if self.large else None

    def chunks(self) -> Iterator[Chunk]:
        """Yield chunks; the first holds as little as one run, so that errors come early.

        Raises:
            DataError: A sample cannot be read, or a model does not run on it.
        """
        chunk, most = self._empty(), 1
        for batch in self._batches():
            self._run(batch, chunk)
            self.samples += len(batch)
            if len(chunk.units) >= most or chunk.nbytes >= _BYTES:
                yield chunk
                chunk, most = self._empty(), UNITS
        if chunk.units:
            yield chunk

    def _empty(self) -> Chunk:
        names = [output.name for output in self.outputs]
        return Chunk(answers=[{name: [] for name in names} for _ in self.models])

    def _batches(self) -> Iterator[list[Sample]]:
        """Yield what is run together; the texts of a pair are neighbours, and in one list."""
        groups = iter(self._source)
        first = next(groups, None)
        if first is None:
            raise DataError(f"'{self._source.location}' gave no samples: nothing to evaluate.")
        self.batch = batch_for(self._inputs, first[0], self.batch)
        batch = list(first)
        for group in groups:
            full = len(batch) % self.batch == 0 if self._whole else len(batch) >= self.batch
            if full:
                yield batch
                batch = []
            batch.extend(group)
        if self._whole and len(batch) % self.batch:
            self.left_over = len(batch)
            if not self.samples:
                raise DataError(
                    f"The model takes batches of {self.batch}, and there are only {len(batch)} samples."
                )
            return
        yield batch

    def _run(self, batch: Sequence[Sample], chunk: Chunk) -> None:
        """Run a batch, or each sample where a batch of 1 was asked for."""
        rest = iter(batch)
        while some := list(islice(rest, self.batch)):
            waiting = iter(some)
            for feeds in collate(some):
                together: list[Sample] = []
                rows = _extent(feeds)
                while sum(_extent(s.feeds) for s in together) < rows:
                    together.append(next(waiting))
                self._keep(feeds, together)
                self._run_once(feeds, together, chunk)

    def _keep(self, feeds: Feeds, samples: Sequence[Sample]) -> None:
        found = [feeds] if self._whole else [sample.feeds for sample in samples]
        self.feeds.extend(found[: _KEPT - len(self.feeds)])
        self.whole = self.whole or any(sample.whole for sample in samples)
        for sample in samples:
            if len(self.digests) < _LOOKED_AT:
                for name, sketch in self.values.items():
                    sketch.observe(sample.feeds[name])
            self.digests.append(sample_digest(sample.feeds))

    def _run_once(self, feeds: Feeds, samples: Sequence[Sample], chunk: Chunk) -> None:
        names = [output.name for output in self.outputs]
        plain = dict(feeds)
        spans: list[_Span] = []
        for model, answers in zip(self.models, chunk.answers, strict=True):
            try:
                values = model.session.run(names, plain)
            except RUNTIME_ERRORS as e:
                raise DataError(
                    f"'{model.name}' does not run on '{samples[0].name}': {first_line(e)}{samples[0].advice}"
                ) from e
            if not spans:
                spans = self._spans(samples, values)
                chunk.units.extend(span.unit for span in spans)
            for output, array in zip(self.outputs, values, strict=True):
                chunk.nbytes += array.nbytes
                answers[output.name].extend(_divided(array, output, spans, feeds))

    def _spans(self, samples: Sequence[Sample], values: Sequence[Array]) -> list[_Span]:
        """Return the units of a run. Rows of an unlabelled sample of several are units of their own."""
        extents = [_extent(sample.feeds) for sample in samples]
        divisible = all(a.ndim and a.shape[0] == sum(extents) for a in values)
        spans, start = [], 0
        digests = self.digests[-len(samples) :]
        for sample, extent, digest in zip(samples, extents, digests, strict=True):
            single = extent > 1 and sample.label is None and divisible and not sample.whole
            step = 1 if single else extent
            for number in range(0, extent, step):
                name = f"{sample.name} [{number}]" if single else sample.name
                at = start + number
                unit = self._unit(sample, name, number, hash((digest, number)))
                spans.append(_Span(unit=unit, sample=sample, start=at, stop=at + step))
            start += extent
        return spans

    def _unit(self, sample: Sample, name: str, row: int, digest: int) -> Unit:
        ids = None if self._ids is None else sample.feeds[self._ids][row]
        if self._mask is not None:
            mask = sample.feeds[self._mask][row]
            length = int(np.count_nonzero(mask))
            return Unit(
                name=name, label=sample.label, length=length, mask=mask, ids=ids, digest=digest
            )
        lengths = (a.shape[1] for a in sample.feeds.values() if a.ndim >= _TEXT_RANK)
        return Unit(name=name, label=sample.label, length=next(lengths, 0), ids=ids, digest=digest)


def _is_ids(spec: InputSpec) -> bool:
    name = spec.name.lower()
    others = ("type", "position", "mask", "segment")
    whole = len(spec.shape) == _TEXT_RANK and spec.dtype.kind in "iu"
    return whole and not any(word in name for word in others)


def _is_mask(spec: InputSpec) -> bool:
    name = spec.name.rpartition("/")[2].partition(":")[0].lower()
    return (
        len(spec.shape) == _TEXT_RANK
        and spec.dtype.kind in "iub"
        and name.endswith("mask")
        and "special" not in name
    )


def _extent(feeds: Feeds) -> int:
    """Return how many rows there are: the leading extent, 1 where an input has none."""
    return min((a.shape[0] for a in feeds.values() if a.ndim), default=1)


def _divided(
    array: Array, output: OutputSpec, spans: Sequence[_Span], feeds: Feeds
) -> Iterator[Array]:
    """Yield each unit's part of an output, without what padding added to it.

    An output that has not one row per row of the batch is counted with the run's first unit.
    """
    if len(spans) == 1:
        yield array
        return
    if not array.ndim or array.shape[0] != spans[-1].stop:
        yield array
        yield from (array.reshape(-1)[:0] for _ in spans[1:])
        return
    for span in spans:
        yield _unpadded(array[span.start : span.stop], output, span.sample, feeds)


def _unpadded(array: Array, output: OutputSpec, sample: Sample, feeds: Feeds) -> Array:
    padding = sample.padding
    fixed = output.shape is not None and len(output.shape) > 1 and output.shape[1] is not None
    if padding is None or fixed or array.ndim < _TEXT_RANK:
        return array
    name = next(iter(padding.values))
    longest, own = feeds[name].shape[1], sample.feeds[name].shape[1]
    if array.shape[1] != longest:
        return array
    return array[:, longest - own :] if padding.left else array[:, :own]
