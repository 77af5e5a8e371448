"""Perplexity of a language model: e to the mean surprise at each token, given those before it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, log
from typing import Self

import numpy as np
from scipy.special import logsumexp

from quantkit.errors import DataError
from quantkit.evaluate.accuracy.chunks import Array, Chunk, OutputSpec, Unit
from quantkit.evaluate.accuracy.scorer import Figure, Floats, Indices, Ratio, SampleColumn, Scorer
from quantkit.numerics.statistics import Bounds

_SCORES = 3  # axes of [batch, tokens, vocabulary]
_ROWS = 64  # times whose scores are turned into probabilities at once
_COUNTED = 10  # occurrences of a token on average, for its frequency to be known
_VOCABULARY = 50_000  # tokens, where the number is not known


def _logits_output(outputs: Sequence[OutputSpec], first: Chunk) -> str:
    """Return the output of a language model: scores for each token of the input."""
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

    @classmethod
    def of(cls, outputs: Sequence[OutputSpec], first: Chunk) -> Self:
        """Return the scorer of a model, as its first answers show it.

        Raises:
            DataError: No output has scores for each token of the input, or no input takes token ids.
        """
        return cls(_logits_output(outputs, first))

    def __init__(self, output: str) -> None:
        self._output = output
        self._sums = SampleColumn()
        self._tokens = SampleColumn()
        self._seen: Counter[int] = Counter()
        self._width = 1

    def observe(self, chunk: Chunk) -> None:
        """Take in a chunk.

        Raises:
            DataError: A sample has no two tokens to go by.
        """
        wanted = [_next_tokens(unit) for unit in chunk.units]
        self._tokens.add([places.size for places, _ in wanted])
        self._seen.update(token for _, tokens in wanted for token in tokens.tolist())
        found = [answers[self._output] for answers in chunk.answers]
        self._width = found[0][-1].shape[-1]
        self._sums.add(
            [
                [_surprise(array[0], *at) for array, at in zip(own, wanted, strict=True)]
                for own in found
            ]
        )

    def figures(self) -> tuple[Figure, ...]:
        """Return the perplexity. A token whose scores are not finite surprises as much as one of all at random."""
        parts, tokens = self._sums.values, self._tokens.values
        return (Perplexity(parts=parts, wholes=tokens, chance=exp(self._blind())),)

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

    def answer(self, model: int, unit: int) -> str:
        """Return the perplexity of a text."""
        return f"{exp(self._sums.values[model, unit] / self._tokens.values[unit]):.4g}"


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
        with np.errstate(invalid="ignore", over="ignore"):
            found = logsumexp(rows, axis=1) - own
        total += float(np.where(np.isfinite(found), found, log(scores.shape[-1])).sum())
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class Perplexity(Figure):
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

    def only(self, chosen: Indices) -> Self:
        """Return the same of some texts."""
        return replace(self, parts=self.parts[:, chosen], wholes=self.wholes[chosen])
