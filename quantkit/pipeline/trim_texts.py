"""The texts of a corpus, read one by one, and cut by a tokenizer or by a smaller one."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantkit.calibration.model_inputs import inputs_of, with_model_folder
from quantkit.calibration.monitor import Monitor
from quantkit.data import InputSpec, open_data, order
from quantkit.data.tables import TableSamples
from quantkit.data.text import TextEncoder, id_inputs, text_encoder
from quantkit.errors import DataError, UnsupportedError, UsageError, VerifyError
from quantkit.model.graph.load import LoadedModel
from quantkit.pipeline.prepared import Job
from quantkit.reduce.trim.corpus import Counts, evenly
from quantkit.reduce.trim.files import TOKENIZER
from quantkit.reduce.trim.pieces import Pieces
from quantkit.settings import DataSettings, TrimSettings

_COMPARED = 10_000  # texts that are cut by both tokenizers
_TICK = 500  # texts


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """A corpus.

    Attributes:
        samples: The rows that hold the texts.
        encoder: Cuts them, with the full vocabulary.
        inputs: What the model takes.
        settings: Which texts, and how they are prepared.
        numbers: The rows that are used.
        skip_bad: Leave out rows that hold no text.
    """

    samples: TableSamples
    encoder: TextEncoder
    inputs: tuple[InputSpec, ...]
    settings: DataSettings
    numbers: NDArray[np.int64]
    skip_bad: bool = False

    @property
    def ids(self) -> tuple[str, ...]:
        """The inputs that take token ids."""
        return id_inputs(self.inputs)

    @property
    def padding(self) -> int:
        """The id that fills up batches."""
        if self.encoder.padding is not None:
            return int(self.encoder.padding.values[self.ids[0]])
        return int(self.encoder.tokenizer.padding["pad_id"])

    def count(self, size: int, monitor: Monitor) -> Counts:
        """Count in which texts tokens occur, in one pass.

        Args:
            size: One more than the largest id.
            monitor: Told how many texts are done.

        Raises:
            DataError: A row holds no text.
        """
        monitor.name("Counting tokens")
        monitor.start(len(self.numbers), "texts")
        counts = Counts(size)
        for done, texts in enumerate(self._readable(), 1):
            counts.add(self.encoder.tokenizer.encode(*texts).ids)
            if done % _TICK == 0:
                monitor.tick(_TICK)
        if not counts.texts:
            raise DataError(f"'{self.samples.description.location}' holds no text.")
        return counts

    def _readable(self) -> Iterator[list[str]]:
        for number in self.numbers.tolist():
            try:
                yield self.samples.texts(number)
            except DataError:
                if not self.skip_bad:
                    raise

    def some(self, most: int, among: Sequence[int] | None = None) -> list[list[str]]:
        """Return at most so many texts, evenly spread over all, or over some by their places."""
        readable = list(self._readable_numbers()) if self.skip_bad else self.numbers.tolist()
        chosen = range(len(readable)) if among is None else among
        return [self.samples.texts(readable[chosen[i]]) for i in evenly(len(chosen), most)]

    def _readable_numbers(self) -> Iterator[int]:
        for number in self.numbers.tolist():
            try:
                self.samples.texts(number)
            except DataError:
                continue
            yield number

    def smaller(self, pieces: Pieces, kept: Sequence[int], folder: Path) -> TextEncoder:
        """Write a tokenizer.json with kept tokens alone into a folder; return it, set up as the full one is.

        Raises:
            UnsupportedError: It gives other ids than the places of the tokens.
        """
        file = folder / TOKENIZER
        plain = json.dumps(pieces.trimmed(kept), ensure_ascii=False, indent=2)
        file.write_text(plain + "\n", encoding="utf-8")
        text = replace(self.settings.text, tokenizer=file)
        encoder = text_encoder(text, self.inputs, None)
        for new, old in enumerate(kept):
            found = encoder.tokenizer.token_to_id(pieces.names[old])
            if found != new:
                raise UnsupportedError(
                    f"Token '{pieces.names[old]}' gets id {found} in a smaller tokenizer, and {new} is its row: use --keep-tokenizer."
                )
        return encoder

    def require_same_pieces(
        self, smaller: TextEncoder, kept: Sequence[int], unknown: int | None
    ) -> dict[str, int]:
        """Cut texts by both tokenizers; return how many, and how many differ, which only texts with unknown words may.

        Raises:
            VerifyError: Another text is cut differently.
        """
        differ, chosen = 0, self.some(_COMPARED)
        for texts in chosen:
            before = self.encoder.tokenizer.encode(*texts).ids
            if [kept[i] for i in smaller.tokenizer.encode(*texts).ids] == before:
                continue
            if unknown not in before:
                raise VerifyError(
                    f"The smaller tokenizer cuts {texts[0][:60]!r} differently; nothing was written. Please report it."
                )
            differ += 1
        return {"compared": len(chosen), "differ": differ}

    def feeds(self, texts: Sequence[str]) -> dict[str, Any]:
        """Return the model's inputs for a text."""
        return self.encoder.feeds(texts)

    def without(
        self, feeds: Mapping[str, Any], kept: Sequence[int], unknown: int
    ) -> dict[str, Any]:
        """Return inputs with the unknown token in the place of others than kept ones."""
        return {
            n: np.where(np.isin(x, kept), x, unknown).astype(x.dtype) if n in self.ids else x
            for n, x in feeds.items()
        }

    def feeds_by(
        self, smaller: TextEncoder, kept: Sequence[int], texts: Sequence[str]
    ) -> dict[str, Any]:
        """Return the full model's inputs for a text that is cut by a smaller tokenizer."""
        numbers = np.asarray(kept)
        found: Mapping[str, Any] = smaller.feeds(texts)
        return {n: numbers[x].astype(x.dtype) if n in self.ids else x for n, x in found.items()}


def open_texts(source: LoadedModel, job: Job[TrimSettings]) -> Texts:
    """Open the texts of a job.

    Raises:
        UsageError: There is no data.
        DataError: It holds no text, or there is no tokenizer.
    """
    if job.data is None:
        raise UsageError("Which texts? Trimming keeps the tokens that texts use: add --data.")
    data = _as_table(job.data)
    settings, inputs = with_model_folder(job.settings, source), inputs_of(source)
    if not id_inputs(inputs):
        named = ", ".join(f"'{one.name}'" for one in inputs)
        raise DataError(f"No input of {source.name} takes token ids: its inputs are {named}.")
    samples = open_data(data, inputs, settings)
    encoder = samples.text if isinstance(samples, TableSamples) else None
    if encoder is None or not isinstance(samples, TableSamples):
        found = samples.description
        raise DataError(
            f"'{found.location}' ({found.kind}) holds no text: give a table (csv, jsonl, parquet, ...) with a column of texts."
        )
    if isinstance(data, str | Path):
        samples.description = replace(samples.description, location=str(data))
    numbers = order(
        len(samples), limit=settings.limit, shuffle=settings.shuffle, seed=settings.seed
    )
    return Texts(
        samples=samples,
        encoder=encoder,
        inputs=inputs,
        settings=settings,
        numbers=np.sort(numbers),
        skip_bad=job.calibrate.skip_bad,
    )


def _as_table(data: object) -> object:
    """Return a list of texts as a table; anything else as it is."""
    if not isinstance(data, list | tuple) or not all(isinstance(text, str) for text in data):
        return data
    from datasets import Dataset

    return Dataset.from_dict({"text": list(data)})
