"""Python objects as data: dicts of arrays, one after the other or by index.

What has a length and an index is random access; everything else is read once, in order. Each
element is a whole feed, as `InferenceSession.run` takes it, or one sample without the batch axis.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, Protocol

import numpy as np

from quantkit.data.arrays import ArraySamples
from quantkit.data.blocks import Header, Trial, block_of, joins
from quantkit.data.fingerprint import digest
from quantkit.data.labels import ArrayLabels, array_labels_line, labels_of, plain_label, usual_label
from quantkit.data.model import Array, Description, InputSpec, Label, Sample, Samples, Stream
from quantkit.data.rows import conform, input_lines, quoted
from quantkit.errors import DataError, UsageError
from quantkit.settings import DataSettings


class _Indexed(Protocol):
    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Any: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Elements:
    """Makes samples of elements."""

    inputs: tuple[InputSpec, ...]
    label: str | None
    whole: bool = False

    def sample(self, element: object, index: int) -> Sample:
        name = f"sample {index}"
        if isinstance(element, np.ndarray) and len(self.inputs) == 1:
            element = {self.inputs[0].name: element}
        if not isinstance(element, Mapping):
            raise DataError(
                f"'{name}' is of type '{type(element).__name__}': "
                "give dicts of arrays, with the names of the model's inputs."
            )
        key = _label_key(element, self.inputs, self.label)
        feeds = {str(k): np.asarray(v) for k, v in element.items() if k != key}
        label: Label = None
        if key is not None:
            values = labels_of(np.asarray(element[key]))
            one = values is not None and len(values) == 1
            label = plain_label(values[0]) if one and values is not None else None
        sample = Sample(feeds=feeds, name=name, label=label, whole=self.whole)
        return conform(sample, self.inputs)

    def tried(self, first: Sequence[object], trial: Trial | None) -> "_Elements":
        """Return them with samples that run alone, if the first ones must."""
        feeds = [self.sample(element, i).feeds for i, element in enumerate(first)]
        return replace(self, whole=not joins(self.inputs, feeds, trial))


def _label_key(
    names: Mapping[str, Any], inputs: Sequence[InputSpec], label: str | None
) -> str | None:
    if label is None:
        return usual_label(names, inputs)
    return label if label in names and label not in {spec.name for spec in inputs} else None


class SequenceSamples:
    """Random access to a Python sequence of feeds."""

    def __init__(self, source: _Indexed, elements: _Elements, trial: Trial | None) -> None:
        self._source = source
        if not len(source):
            raise DataError(
                f"The data '{type(source).__name__}' holds no samples: nothing to read."
            )
        self._elements = elements.tried([source[i] for i in range(min(3, len(source)))], trial)
        first = self[0]
        self.description = Description(
            kind="Python sequence",
            location=type(source).__name__,
            samples=len(source),
            inputs=input_lines(first),
            labels="none" if first.label is None else "one per sample",
        )

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._elements.sample(self._source[index], index)

    def fingerprint(self) -> str:
        """Return the digest of the length and of the first and last sample."""
        parts: list[str | bytes] = [str(len(self))]
        for sample in (self[0], self[len(self) - 1]):
            parts.append(str(sample.label))
            for name, array in sample.feeds.items():
                parts += [name, f"{array.dtype}{array.shape}", array.tobytes()]
        return digest(parts)


class ObjectStream:
    """Feeds in the order in which a Python object gives them.

    `restart` gives a new iterator for another pass; None for what can be read only once.
    """

    def __init__(
        self,
        feeds: Iterator[object],
        *,
        restart: Callable[[], Iterator[object]] | None,
        elements: _Elements,
        description: Description,
        trial: Trial | None,
    ) -> None:
        self._restart = restart
        try:
            first = next(feeds)
        except StopIteration as e:
            again = "" if restart is not None else " (has it been read before?)"
            raise DataError(
                f"The data '{description.location}' gave no samples: nothing to read{again}."
            ) from e
        self._first_pass: Iterator[object] | None = chain([first], feeds)
        self._elements = elements.tried([first], trial)
        sample = self._elements.sample(first, 0)
        self.description = replace(
            description,
            inputs=input_lines(sample),
            labels="none" if sample.label is None else "one per sample",
        )

    def __iter__(self) -> Iterator[Sample]:
        feeds, self._first_pass = self._first_pass, None
        if feeds is None and self._restart is None:
            raise DataError(
                f"The data '{self.description.location}' was read before, and can be read only once: "
                "give a list, or files."
            )
        if feeds is None and self._restart is not None:
            feeds = self._restart()
        return (self._elements.sample(f, i) for i, f in enumerate(feeds or ()))


def open_object(
    source: object, inputs: Sequence[InputSpec], settings: DataSettings, trial: Trial | None
) -> Samples | Stream:
    """Open a Python object and read its first sample.

    Args:
        source: Arrays by name, a sequence or iterable of samples, or an object with get_next().
        inputs: What the model takes.
        settings: How samples are prepared and which column is the label.
        trial: Runs rows, where the model does not tell whether they are samples.
    """
    check_data(source)
    elements = _Elements(inputs=tuple(inputs), label=settings.label)
    if isinstance(source, np.ndarray) and len(inputs) == 1:
        source = {inputs[0].name: source}
    if isinstance(source, Mapping):
        if any(hasattr(value, "column_names") for value in source.values()):
            raise UsageError(
                f"'{type(source).__name__}' holds the splits {quoted([str(k) for k in source])}: "
                "give one of them."
            )
        return _rows(source, inputs, settings.label, trial)
    opened = partial(_stream, elements=elements, source=source, trial=trial)
    if hasattr(source, "get_next"):
        return opened(_until_none(source.get_next), None, kind="data reader")
    if hasattr(source, "__len__") and hasattr(source, "__getitem__"):
        return SequenceSamples(source, elements, trial)
    assert isinstance(source, Iterable)  # noqa: S101 - what else may be given stands above
    feeds = iter(source)
    restart = None if feeds is source else source.__iter__
    return opened(feeds, restart, kind="Python iterable")


def check_data(source: object) -> None:
    """Refuse an object that gives no samples in any way that is understood; nothing is read of it.

    Raises:
        UsageError: It is none of the kinds; a class is none, even if its objects would be.
    """
    indexed = hasattr(source, "__len__") and hasattr(source, "__getitem__")
    known = indexed or hasattr(source, "get_next") or isinstance(source, Iterable)
    if known and not isinstance(source, type):
        return
    raise UsageError(
        f"'{type(source).__name__}' is no kind of data: give a path, a sequence or iterable of dicts of "
        "arrays, an object with get_next(), or a datasets.Dataset."
    )


def _stream(
    feeds: Iterator[object],
    restart: Callable[[], Iterator[object]] | None,
    *,
    elements: _Elements,
    source: object,
    kind: str,
    trial: Trial | None,
) -> ObjectStream:
    description = Description(kind=kind, location=type(source).__name__, samples=_length(source))
    return ObjectStream(
        feeds, restart=restart, elements=elements, description=description, trial=trial
    )


def _length(source: object) -> int | None:
    """Return the length of what has one; onnxruntime's reader has the method but may refuse."""
    try:
        return len(source)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        return None


def _until_none(get_next: Callable[[], object]) -> Iterator[object]:
    """Yield what a CalibrationDataReader gives until it gives None or nothing."""
    while feeds := get_next():
        yield feeds


@dataclass(frozen=True, slots=True, kw_only=True)
class _Memory:
    columns: Mapping[str, Array]

    def rows(self, block: int, key: str, rows: slice | None) -> Array:
        del block  # there is one
        return np.array(self.columns[key][rows] if rows else self.columns[key])

    def fingerprint(self) -> str:
        parts: list[str | bytes] = []
        for name, array in self.columns.items():
            parts += [name, f"{array.dtype}{array.shape}", array.tobytes()]
        return digest(parts)


def _rows(
    source: Mapping[str, Any], inputs: Sequence[InputSpec], label: str | None, trial: Trial | None
) -> ArraySamples:
    """Return the samples of arrays in memory, by the rule of npz files."""
    arrays = {str(name): np.asarray(value) for name, value in source.items()}
    key = _label_key(arrays, inputs, label)
    headers = {n: Header(dtype=a.dtype, shape=a.shape) for n, a in arrays.items()}
    samples = ArraySamples(
        _Memory(columns=arrays),
        blocks=[block_of("arrays", headers, {n: n for n in arrays if n != key}, inputs)],
        inputs=inputs,
        description=Description(kind="Python arrays", location=type(source).__name__, samples=None),
        trial=trial,
    )
    if key is not None:
        labels = ArrayLabels.of(arrays[key], len(samples), f"'{key}'")
        used = [labels.values]
        line = array_labels_line(used, f"'{key}'")
        samples.label(used, line, labels.wrong, filter(None, [labels.note]))
    return samples
