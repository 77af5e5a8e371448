"""Texts that a model writes: word and character error rate, and the perplexity of a language model.

A text is decoded greedily: from token ids as they are, from scores [batch, time, tokens] by the best token at each time
with repeats and blanks left out (CTC). Words are what spaces separate; case and punctuation count.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np

from quantkit.errors import DataError
from quantkit.evaluate.accuracy.chunks import Array, Chunk, Unit
from quantkit.evaluate.accuracy.figures import Figure, Floats, Indices, Ratio
from quantkit.evaluate.accuracy.labels import Column
from quantkit.evaluate.accuracy.models import OutputSpec
from quantkit.evaluate.accuracy.scorers import Scorer
from quantkit.installation import install_command
from quantkit.numerics.statistics import Bounds
from quantkit.settings import TextSettings

__all__ = ["LogitScorer", "Vocabulary", "WordScorer", "edits", "find_vocabulary", "logits_output"]
__all__ += ["text_output"]

_FILES = ("tokenizer.json", "vocab.json", "vocab.txt", "tokens.txt", "dict.txt")
_BLANKS = ("<blank>", "<blk>", "<ctc_blank>", "<pad>", "[PAD]", "<eps>", "<ctc>")
_SPECIAL = frozenset(("<s>", "</s>", "<unk>", "[UNK]", "[CLS]", "[SEP]", "<|endoftext|>", *_BLANKS))
_SPACES = ("|", "▁", "Ġ", "<space>")
_SCORES = 3  # axes of [batch, time, tokens]
_ROWS = 64  # times whose scores are turned into probabilities at once
_COUNTED = 10  # occurrences of a token on average, for its frequency to be known
_VOCABULARY = 50_000  # tokens, where the number is not known


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


def find_vocabulary(settings: TextSettings, metric: str) -> Vocabulary:
    """Return the vocabulary that is set, else one beside the model.

    Raises:
        DataError: There is none, or it cannot be read.
    """
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


def text_output(
    outputs: Sequence[OutputSpec], first: Mapping[str, Sequence[Array]], metric: str
) -> str:
    """Return the output that holds the text: one of texts, of ids [batch, tokens], or of scores [batch, time, tokens].

    Args:
        outputs: Of the model.
        first: The answers to the first units, by output.
        metric: For the message.

    Raises:
        DataError: There is none.
    """
    arrays = {o.name: first[o.name][0] for o in outputs}
    for fits in (
        lambda a: a.dtype.kind in "OSU",
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

    def __init__(self, output: str, vocabulary: Vocabulary | None, models: int, main: str) -> None:
        self.main = main
        self._output = output
        self._vocabulary = vocabulary
        self._blank: int | None = None
        self._words = [Column() for _ in range(models)]
        self._letters = [Column() for _ in range(models)]
        self._sizes = Column(), Column()
        self._answers: list[list[str]] = [[] for _ in range(models)]

    def observe(self, chunk: Chunk) -> None:
        """Take in a chunk.

        Raises:
            DataError: A label is no text.
        """
        labels = [_text_label(unit, self.main) for unit in chunk.units]
        self._sizes[0].add(np.array([len(label.split()) for label in labels], np.float64))
        self._sizes[1].add(np.array([len(label) for label in labels], np.float64))
        for model, answers in enumerate(chunk.answers):
            said = [self._said(array) for array in answers[self._output]]
            pairs = list(zip(said, labels, strict=True))
            words = [edits(a.split(), b.split()) for a, b in pairs]
            self._words[model].add(np.array(words, np.float64))
            self._letters[model].add(np.array([edits(a, b) for a, b in pairs], np.float64))
            self._answers[model] += said

    def _said(self, array: Array) -> str:
        if array.dtype.kind in "OSU":
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
                parts=np.stack([column.values for column in columns]),
                wholes=sizes.values,
                higher_is_better=False,
                chance=1.0,  # an empty text
            )
            for name, columns, sizes in both
        )

    def notes(self) -> tuple[str, ...]:
        """Say what the ids were decoded with."""
        if self._vocabulary is None:
            return ()
        collapsed = "" if self._blank is None else f", repeats and token {self._blank} left out"
        return (f"Texts are decoded greedily with {self._vocabulary.name}{collapsed}.",)

    def answer(self, model: int, unit: int) -> str | None:
        """Return the text."""
        return self._answers[model][unit]


def _text_label(unit: Unit, metric: str) -> str:
    if not isinstance(unit.label, str | int | float):
        raise DataError(f"The label of '{unit.name}' is '{unit.label}', and {metric} needs a text.")
    return _plain(str(unit.label))


def _plain(text: str) -> str:
    return " ".join(text.split())


def logits_output(outputs: Sequence[OutputSpec], first: Chunk) -> str:
    """Return the output of a language model: scores for each token of the input.

    Raises:
        DataError: There is none, or no input of token ids.
    """
    ids = first.units[0].ids
    if ids is None:
        raise DataError(
            "perplexity needs a model that takes token ids [batch, tokens], in an input called input_ids or the like."
        )
    answers = first.answers[0]
    fitting = (
        o.name
        for o in outputs
        if o.is_float
        and answers[o.name][0].ndim == _SCORES
        and answers[o.name][0].shape[1] == ids.size
    )
    found = next(fitting, None)
    if found is None:
        described = ", ".join(f"'{o.name}' {list(answers[o.name][0].shape)}" for o in outputs)
        raise DataError(
            f"perplexity needs an output of scores [batch, {ids.size} tokens, vocabulary]; the model has {described}."
        )
    return found


class LogitScorer(Scorer):
    """Perplexity: e to the mean surprise at each token, given those before it."""

    main = "perplexity"

    def __init__(self, output: str, models: int) -> None:
        self._output = output
        self._sums = [Column() for _ in range(models)]
        self._tokens = Column()
        self._seen: dict[int, int] = {}
        self._width = 1

    def observe(self, chunk: Chunk) -> None:
        """Take in a chunk.

        Raises:
            DataError: A sample has no two tokens to go by.
        """
        wanted = [_next_tokens(unit) for unit in chunk.units]
        self._tokens.add(np.array([places.size for places, _ in wanted], np.float64))
        for _, tokens in wanted:
            for token in tokens.tolist():
                self._seen[token] = self._seen.get(token, 0) + 1
        for column, answers in zip(self._sums, chunk.answers, strict=True):
            sums = []
            for array, (places, tokens) in zip(answers[self._output], wanted, strict=True):
                self._width = array.shape[-1]
                sums.append(_surprise(array[0], places, tokens))
            column.add(np.array(sums, np.float64))

    def figures(self) -> tuple[Figure, ...]:
        """Return the perplexity. A token whose scores are not finite surprises as much as one of all at random."""
        parts = np.stack([column.values for column in self._sums])
        return (Perplexity(parts=parts, wholes=self._tokens.values, chance=exp(self._blind())),)

    def _blind(self) -> float:
        """Return the mean surprise of who knows how frequent tokens are, or only how many there are."""
        counts = np.array(list(self._seen.values()), np.float64)
        if counts.sum() < _COUNTED * counts.size:
            return log(self._width)
        shares = counts / counts.sum()
        return float(-(shares * np.log(shares)).sum())

    def notes(self) -> tuple[str, ...]:
        """Say how many tokens it rests on."""
        return (f"Perplexity is that of {int(self._tokens.values.sum()):,} tokens.",)

    def answer(self, model: int, unit: int) -> str | None:
        """Return the perplexity of a text."""
        return f"{exp(self._sums[model].values[unit] / self._tokens.values[unit]):.4g}"


def _next_tokens(unit: Unit) -> tuple[Indices, Indices]:
    """Return the places whose next token is real, and these tokens."""
    ids = np.empty(0, np.int64) if unit.ids is None else unit.ids.astype(np.int64)
    real = np.ones(ids.size, np.bool_) if unit.mask is None else unit.mask.astype(np.bool_)
    places = np.flatnonzero(real[:-1] & real[1:])
    if not places.size:
        raise DataError(f"'{unit.name}' has fewer than two tokens: perplexity needs a next one.")
    return places, ids[places + 1]


def _surprise(scores: Array, places: Indices, tokens: Indices) -> float:
    """Return the sum of -log softmax at the tokens."""
    total = 0.0
    for start in range(0, places.size, _ROWS):
        rows = scores[places[start : start + _ROWS]].astype(np.float64)
        own = rows[np.arange(len(rows)), tokens[start : start + _ROWS]]
        top = rows.max(axis=1)
        with np.errstate(invalid="ignore", over="ignore"):
            found = top + np.log(np.exp(rows - top[:, None]).sum(axis=1)) - own
        total += float(np.where(np.isfinite(found), found, log(scores.shape[-1])).sum())
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class Perplexity:
    """e to a ratio: surprise by token.

    Attributes:
        parts: (models, samples): the sum of the surprises.
        wholes: Tokens of each sample.
        chance: Of who does not look at the text.
    """

    parts: Floats
    wholes: Floats
    chance: float | None = None
    name: str = "perplexity"
    higher_is_better: bool = False

    @property
    def _logs(self) -> Ratio:
        return Ratio(
            name="",
            parts=self.parts,
            wholes=self.wholes,
            higher_is_better=False,
            chance=log(self.chance or _VOCABULARY),
        )

    @property
    def samples(self) -> int:
        """How many texts were scored."""
        return self.wholes.size

    def value(self, model: int) -> float:
        """Return the perplexity of a model."""
        return exp(self._logs.value(model))

    def interval(self, model: int, confidence: float, seed: int) -> Bounds | None:
        """Return e to the interval of the mean surprise."""
        bounds = self._logs.interval(model, confidence, seed)
        return None if bounds is None else (exp(bounds[0]), exp(bounds[1]))

    def drop_interval(self, model: int, confidence: float, seed: int) -> Bounds | None:
        """Return float's perplexity times what the interval of the difference of surprises makes of it."""
        bounds = self._logs.drop_interval(model, confidence, seed)
        if bounds is None:
            return None
        return self.value(0) * (exp(bounds[0]) - 1), self.value(0) * (exp(bounds[1]) - 1)

    def contributions(self, model: int) -> Floats:
        """Return what each text adds to the drop."""
        logs = self._logs.contributions(model)
        mean = float(logs.mean())
        return logs * ((self.value(model) - self.value(0)) / mean if mean else self.value(0))

    def only(self, chosen: Indices) -> "Perplexity":
        """Return the same of some texts."""
        return replace(self, parts=self.parts[:, chosen], wholes=self.wholes[chosen])
