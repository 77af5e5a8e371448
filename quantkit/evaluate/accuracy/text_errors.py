"""Word and character error rate of texts that a model writes.

A text is decoded greedily: from token ids as they are, from scores [batch, time, tokens] by the best token at each time
with repeats and blanks left out (CTC). Words are what spaces separate; case and punctuation count.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Self

import numpy as np

from quantkit.errors import DataError
from quantkit.evaluate.accuracy.chunks import Array, Chunk, OutputSpec, Unit
from quantkit.evaluate.accuracy.scorer import Figure, Indices, Ratio, SampleColumn, Scorer
from quantkit.installation import install_command
from quantkit.settings import TextSettings

_FILES = ("tokenizer.json", "vocab.json", "vocab.txt", "tokens.txt", "dict.txt")
_BLANKS = ("<blank>", "<blk>", "<ctc_blank>", "<pad>", "[PAD]", "<eps>", "<ctc>")
_SPECIAL = frozenset(("<s>", "</s>", "<unk>", "[UNK]", "[CLS]", "[SEP]", "<|endoftext|>", *_BLANKS))
_SPACES = ("|", "▁", "Ġ", "<space>")
_SCORES = 3  # axes of [batch, time, tokens]
_TEXTS = "OSU"  # kinds of arrays


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """What token ids stand for.

    Attributes:
        tokens: By id; empty if `tokenizer` knows.
        tokenizer: A `tokenizers.Tokenizer`, or None.
        name: Of the file.
    """

    tokens: tuple[str, ...] = ()
    tokenizer: Any = None
    name: str = ""

    @property
    def size(self) -> int:
        """How many tokens there are."""
        return len(self.tokens) if self.tokenizer is None else int(self.tokenizer.get_vocab_size())

    @property
    def blank(self) -> int | None:
        """The id that stands for nothing; None: not told by its name."""
        if self.tokenizer is not None:
            found = (self.tokenizer.token_to_id(token) for token in _BLANKS)
            return next((i for i in found if i is not None), None)
        return next((self.tokens.index(t) for t in _BLANKS if t in self.tokens), None)

    def text(self, ids: Sequence[int]) -> str:
        """Return what the ids say."""
        if self.tokenizer is not None:
            return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))
        known = (self.tokens[i] for i in ids if 0 <= i < len(self.tokens))
        written = "".join(token for token in known if token not in _SPECIAL)
        for space in _SPACES:
            written = written.replace(space, " ")
        return written


def _find_vocabulary(settings: TextSettings, metric: str) -> Vocabulary:
    """Return the vocabulary that is set, else one beside the model."""
    file = settings.tokenizer
    if file is None:
        places = (folder / name for folder in settings.search for name in _FILES)
        file = next((place for place in places if place.is_file()), None)
    elif file.is_dir():
        file = next((file / name for name in _FILES if (file / name).is_file()), file)
    if file is None:
        raise DataError(
            f"{metric} needs to know what token ids stand for: put {', '.join(_FILES[:3])} beside the model, or give "
            "--tokenizer FILE (tokenizer.json, a JSON of tokens and ids, or a text with one token per line)."
        )
    return _read_vocabulary(file)


def _read_vocabulary(file: Path) -> Vocabulary:
    try:
        content = file.read_text(encoding="utf-8")
        plain = json.loads(content) if file.suffix == ".json" else None
    except (OSError, ValueError, RecursionError) as e:
        raise DataError(f"Cannot read the vocabulary '{file}': {e}.") from e
    if plain is None:
        return Vocabulary(tokens=tuple(content.splitlines()), name=file.name)
    if isinstance(plain, dict) and "model" in plain:
        return Vocabulary(tokenizer=_tokenizer(content, file), name=file.name)
    try:
        by_id = {int(i): str(token) for token, i in plain.items()}
        tokens = tuple(by_id.get(i, "") for i in range(max(by_id) + 1))
    except (AttributeError, TypeError, ValueError) as e:
        raise DataError(
            f"'{file}' is no vocabulary: it needs to be a tokenizer.json, or a JSON of tokens and their ids."
        ) from e
    return Vocabulary(tokens=tokens, name=file.name)


def _tokenizer(content: str, file: Path) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError as e:
        raise DataError(f"'{file}' needs the package tokenizers: {install_command('text')}.") from e
    try:
        return Tokenizer.from_str(content)
    except Exception as e:  # tokenizers raises Exception itself
        raise DataError(f"'{file}' is no tokenizer: {e}.") from e


def _text_output(
    outputs: Sequence[OutputSpec], first: Mapping[str, Sequence[Array]], metric: str
) -> str:
    """Return the output that holds the text: one of texts, of ids [batch, tokens], or of scores [batch, time, tokens]."""
    arrays = {o.name: first[o.name][0] for o in outputs}
    for fits in (
        lambda a: a.dtype.kind in _TEXTS,
        lambda a: a.ndim == _SCORES and a.dtype.kind == "f" and a.shape[-1] > 1,
        lambda a: a.dtype.kind in "iu" and a.ndim in {1, 2},
    ):
        for name, array in arrays.items():
            if fits(array):
                return name
    described = ", ".join(f"'{n}' {list(a.shape)}" for n, a in arrays.items())
    raise DataError(
        f"{metric} needs an output of texts, of token ids [batch, tokens], or of scores [batch, time, tokens]; the model "
        f"has {described}."
    )


def edits(a: Sequence[str], b: Sequence[str]) -> int:
    """Return how many insertions, deletions and substitutions turn one into the other."""
    numbers: dict[str, int] = {}
    one, other = (
        np.array([numbers.setdefault(part, len(numbers)) for part in x], np.int64) for x in (a, b)
    )
    steps = np.arange(other.size + 1)
    row = steps.copy()
    for place, part in enumerate(one, 1):
        least = np.minimum(row[1:] + 1, row[:-1] + (other != part))
        # Insertions run along the row: each place is at most one more than the one before it.
        row = np.minimum.accumulate(np.concatenate([[place], least]) - steps) + steps
    return int(row[-1])


class WordScorer(Scorer):
    """Word error rate and character error rate: edits for each word, or character, of the labels."""

    @classmethod
    def of(
        cls, outputs: Sequence[OutputSpec], first: Chunk, settings: TextSettings, main: str
    ) -> Self:
        """Return the scorer of a model, as its first answers show it.

        Args:
            outputs: Of the model.
            first: The first chunk.
            settings: Where a vocabulary is.
            main: "wer" or "cer".

        Raises:
            DataError: No output holds texts, or what their tokens stand for is not known.
        """
        output = _text_output(outputs, first.answers[0], main)
        written = first.answers[0][output][0].dtype.kind in _TEXTS
        return cls(output, None if written else _find_vocabulary(settings, main), main)

    def __init__(self, output: str, vocabulary: Vocabulary | None, main: str) -> None:
        self.main = main
        self._output = output
        self._vocabulary = vocabulary
        self._blank: int | None = None
        self._words, self._letters = SampleColumn(), SampleColumn()
        self._sizes = SampleColumn(), SampleColumn()
        self._texts: list[tuple[str, ...]] = []  # of each unit, one per model

    def observe(self, chunk: Chunk) -> None:
        """Take in a chunk.

        Raises:
            DataError: A label is no text.
        """
        labels = [_text_label(unit, self.main) for unit in chunk.units]
        self._sizes[0].add([len(label.split()) for label in labels])
        self._sizes[1].add([len(label) for label in labels])
        texts = [[self._text(array) for array in own[self._output]] for own in chunk.answers]
        pairs = [list(zip(own, labels, strict=True)) for own in texts]
        self._words.add([[edits(a.split(), b.split()) for a, b in own] for own in pairs])
        self._letters.add([[edits(a, b) for a, b in own] for own in pairs])
        self._texts += zip(*texts, strict=True)

    def _text(self, array: Array) -> str:
        if array.dtype.kind in _TEXTS:
            return _plain(" ".join(map(str, array.reshape(-1).tolist())))
        if self._vocabulary is None:
            raise DataError(f"{self.main} needs a vocabulary for the output '{self._output}'.")
        if array.dtype.kind in "iu":
            return _plain(self._vocabulary.text(array.reshape(-1).tolist()))
        scores = array.reshape(-1, array.shape[-1])
        best = np.where(np.isnan(scores), -np.inf, scores).argmax(axis=1)
        ids = [key for key, _ in groupby(best.tolist())]
        blank, shift = self._layout(scores.shape[1], best)
        return _plain(self._vocabulary.text([i - shift for i in ids if i != blank]))

    def _layout(self, width: int, best: Indices) -> tuple[int, int]:
        """Return the blank's id, and by how much ids are above those of the vocabulary.

        A vocabulary without a blank has it before its tokens or behind them: where the first text has it more often.
        """
        vocabulary = self._vocabulary
        if self._blank is None:
            named = None if vocabulary is None else vocabulary.blank
            if vocabulary is not None and named is None and vocabulary.size == width - 2:
                # PaddleOCR's: the blank before the tokens, a space behind them.
                self._vocabulary = vocabulary = replace(
                    vocabulary, tokens=(*vocabulary.tokens, " ")
                )
            ends = [int(np.count_nonzero(best == i)) for i in (0, width - 1)]
            self._blank = named if named is not None else 0 if ends[0] >= ends[1] else width - 1
        outside = vocabulary is not None and vocabulary.blank is None and vocabulary.size < width
        return self._blank, int(outside and self._blank == 0)

    def figures(self) -> tuple[Figure, ...]:
        """Return both.

        Raises:
            DataError: No label has a word.
        """
        if not self._sizes[0].values.sum():
            raise DataError(f"{self.main} needs labels with words in them; all are empty.")
        both = (("wer", self._words, self._sizes[0]), ("cer", self._letters, self._sizes[1]))
        return tuple(
            Ratio(
                name=name,
                parts=found.values,
                wholes=sizes.values,
                higher_is_better=False,
                chance=1.0,  # an empty text
            )
            for name, found, sizes in both
        )

    def notes(self) -> tuple[str, ...]:
        """Say what the ids were decoded with."""
        if self._vocabulary is None:
            return ()
        collapsed = "" if self._blank is None else f", repeats and token {self._blank} left out"
        return (f"Texts are decoded greedily with {self._vocabulary.name}{collapsed}.",)

    def answer(self, model: int, unit: int) -> str:
        """Return the text."""
        return self._texts[unit][model]


def _text_label(unit: Unit, metric: str) -> str:
    if not isinstance(unit.label, str | int | float):
        raise DataError(f"The label of '{unit.name}' is '{unit.label}', and {metric} needs a text.")
    return _plain(str(unit.label))


def _plain(text: str) -> str:
    return " ".join(text.split())
