"""The models of an evaluation: float and its candidates, loaded, with the same inputs and outputs.

And its samples, in order: single ones, or pairs of texts.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from quantkit.calibration.prepare import inputs_of
from quantkit.data import (
    Description,
    InputSpec,
    Sample,
    Samples,
    Stream,
    Trial,
    fixed_batch,
    open_data,
    order,
)
from quantkit.data.fingerprint import digest
from quantkit.errors import DataError, ModelError, RuntimeSupportError, UsageError
from quantkit.evaluate.match.pair import NamedModel
from quantkit.runtime.session import RUNTIME_ERRORS, why_not_loaded
from quantkit.settings import DataSettings

__all__ = [
    "OpenModel",
    "OutputSpec",
    "Source",
    "open_models",
    "open_source",
    "single_rows",
]

_PAIR = 2


@dataclass(slots=True, kw_only=True)
class Source:
    """Data that is read once, in order.

    Attributes:
        parts: The data; two for pairs, one for each text.
        location: As the user named it.
        settings: How much of it.
        skip_bad: Leave out what cannot be read.
        without: Places of samples that are held out.
        only: Places of the samples that are read, in this order, whatever the settings say; None: as they say.
        bad: Why each was left out, filled while reading.
    """

    parts: tuple[Samples | Stream, ...]
    location: str
    settings: DataSettings
    skip_bad: bool
    without: frozenset[int] = frozenset()
    only: tuple[int, ...] | None = None
    bad: list[str] = field(default_factory=list)

    @property
    def description(self) -> Description:
        """What was found; the steps of both texts of a pair."""
        first = self.parts[0].description
        lines = (line for part in self.parts for line in part.description.preprocessing)
        return replace(first, location=self.location, preprocessing=tuple(dict.fromkeys(lines)))

    @property
    def available(self) -> int | None:
        """How many samples (or pairs) there are."""
        first = self.parts[0]
        return len(first) if isinstance(first, Samples) else first.description.samples

    @property
    def count(self) -> int | None:
        """How many samples (or pairs) will be read, if all can be."""
        limit, available = self.settings.limit, self.available
        if self.only is not None:
            return len(self.places())
        if available is None:
            return None
        left = available - len(self.without)
        return left if limit is None else min(limit, left)

    @property
    def drawn(self) -> bool:
        """Whether the samples are some of all, drawn at random."""
        limit, available = self.settings.limit, self.available
        left = None if available is None else available - len(self.without)
        fewer = limit is not None and left is not None and limit < left
        return fewer and self.settings.shuffle and isinstance(self.parts[0], Samples)

    @property
    def order(self) -> str:
        """Which samples of the data are evaluated, in words."""
        held = f", {len(self.without)} held out" if self.without else ""
        if self.only is not None:
            return f"{self.count} of {self.available} that were set apart{held}"
        if self.drawn:
            return f"{self.count} drawn with seed {self.settings.seed}{held}"
        whole = self.settings.limit is None or (self.count == self.available is not None)
        return ("all, in order" if whole else f"the first {self.settings.limit}") + held

    def fingerprint(self) -> str:
        """Return what names the data; "" for a stream."""
        found = [part.fingerprint() for part in self.parts if isinstance(part, Samples)]
        return found[0] if len(found) == 1 else digest(found) if found else ""

    def __iter__(self) -> Iterator[tuple[Sample, ...]]:
        """Yield one sample after the other; of pairs, both texts together."""
        if not all(isinstance(part, Samples) for part in self.parts):
            yield from islice(zip(*self.parts, strict=True), self.settings.limit)
            return
        known = [part for part in self.parts if isinstance(part, Samples)]
        for index in self.places():
            try:
                yield self._named([part[index] for part in known])
            except DataError as e:
                if not self.skip_bad:
                    raise
                self.bad.append(str(e))

    def places(self) -> list[int]:
        """Return which samples are read, in order; none is known of a stream."""
        if self.only is not None:
            return [i for i in self.only if i not in self.without]
        if self.available is None:
            return []
        left = [i for i in range(self.available) if i not in self.without]
        seed = self.settings.seed
        return [left[i] for i in order(len(left), limit=self.count, shuffle=self.drawn, seed=seed)]

    def _named(self, group: Sequence[Sample]) -> tuple[Sample, ...]:
        """Return samples with names of their own: those of a pair come from one row."""
        if len(group) == 1:
            return tuple(group)
        columns = zip(group, self.settings.text.column, strict=True)
        return tuple(replace(one, name=f"{one.name}, {column}") for one, column in columns)


def open_source(
    data: object,
    inputs: Sequence[InputSpec],
    settings: DataSettings,
    *,
    trial: Trial,
    pairs: bool,
    skip_bad: bool,
) -> Source:
    """Open the data; for pairs once for each of the two text columns.

    Args:
        data: A path, or a Python object that `open_data` takes.
        inputs: What the models take.
        settings: Which samples, and how they are prepared.
        trial: Runs rows, where the model does not tell whether they are samples.
        pairs: Two text columns make one sample.
        skip_bad: Leave out samples that cannot be read.

    Raises:
        DataError: The data cannot be read or does not fit the model, or has more or fewer labels than samples.
        UsageError: Pairs are asked for without two columns.
    """
    location = str(data) if isinstance(data, str | Path) else ""
    chosen = [settings]
    if pairs:
        if len(settings.text.column) != _PAIR:
            raise UsageError(
                "Pairs need the two columns of the texts: give --column twice, or "
                'column = ["sentence1", "sentence2"] in [data.text].'
            )
        chosen = [
            replace(settings, text=replace(settings.text, column=(column,)))
            for column in settings.text.column
        ]
    parts = tuple(open_data(data, inputs, one, trial) for one in chosen)
    if wrong := parts[0].description.mislabelled:
        raise DataError(f"{wrong}: give one label per sample, or none.")
    if pairs and parts[0].description.preprocessing == parts[1].description.preprocessing:
        raise UsageError(
            f"Pairs need a table with two text columns, and the data is of the kind "
            f"'{parts[0].description.kind}'."
        )
    return Source(
        parts=parts,
        location=location or parts[0].description.location,
        settings=settings,
        skip_bad=skip_bad,
    )


_FLOATS = frozenset(f"tensor({name})" for name in ("float", "double", "float16", "bfloat16"))
_HALVED = _FLOATS - {"tensor(double)"}

Extents = tuple[int | None, ...]


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
    fixed = {spec.name: list(spec.shape) for spec in inputs}
    kinds = {name: kind for name, (kind, _) in _inputs(reference).items()}
    mixed: set[str] = set()
    for model in opened[1:]:
        _check_same("input", _inputs(model), _inputs(reference), model.name)
        outputs = {spec.name: (spec.type, spec.shape) for spec in model.outputs}
        wanted = {spec.name: (spec.type, spec.shape) for spec in reference.outputs}
        _check_same("output", outputs, wanted, model.name)
        for name, (kind, shape) in _inputs(model).items():
            mixed.update({name} if kind != kinds[name] else ())
            for axis, extent in enumerate(shape or ()):
                fixed[name][axis] = extent if fixed[name][axis] is None else fixed[name][axis]
    specs = (
        replace(spec, dtype=np.dtype(np.float32)) if spec.name in mixed else spec for spec in inputs
    )
    return opened, tuple(replace(spec, shape=tuple(fixed[spec.name])) for spec in specs)


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


def _inputs(model: OpenModel) -> dict[str, tuple[str, Extents | None]]:
    return {i.name: (i.type, _extents(i.shape)) for i in model.session.get_inputs()}


def _extents(shape: Sequence[Any] | None) -> Extents | None:
    """Return the extents; onnxruntime gives names, None or -1 for free ones, and [] also for no rank."""
    if shape is None:
        return None
    return tuple(n if isinstance(n, int) and n >= 0 else None for n in shape)


def _check_same(
    what: str,
    have: Mapping[str, tuple[str, Extents | None]],
    want: Mapping[str, tuple[str, Extents | None]],
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
