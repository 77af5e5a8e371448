"""The samples of an evaluation, in order: single ones, or pairs of texts; and which of them a candidate was calibrated with."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from quantkit.data import (
    Description,
    InputSpec,
    Sample,
    Samples,
    Stream,
    Trial,
    open_data,
    order,
)
from quantkit.data.fingerprint import digest
from quantkit.errors import DataError, ModelError, UsageError
from quantkit.model.provenance import DataOrigin, read_provenance
from quantkit.settings import DataSettings

_PAIR = 2


@dataclass(slots=True, kw_only=True)
class SampleSource:
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
) -> SampleSource:
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
    return SampleSource(
        parts=parts,
        location=location or parts[0].description.location,
        settings=settings,
        skip_bad=skip_bad,
    )


def calibrated_places(path: Path, source: SampleSource) -> frozenset[int]:
    """Return the places of the samples that a model's own record says it was calibrated with.

    None are known where the data is another (told by its fingerprint), or the model has no record.
    """
    data, name, available = _calibration_record(path), source.fingerprint(), source.available
    if data is None or not name or data.fingerprint != name or available is None:
        return frozenset()
    how = data.order
    if not {"limit", "shuffle", "seed"} <= set(how):
        return frozenset()
    chosen = order(available, limit=how["limit"], shuffle=how["shuffle"], seed=how["seed"])
    return frozenset(chosen.tolist())


def recorded_digests(path: Path) -> str:
    """Return the names of the samples that a model was calibrated with, as its record holds them; "" if it has none."""
    data = _calibration_record(path)
    return "" if data is None else data.digests


def _calibration_record(path: Path) -> DataOrigin | None:
    try:
        made = read_provenance(path)
    except ModelError:  # a damaged record tells nothing
        return None
    return None if made is None else made.data
