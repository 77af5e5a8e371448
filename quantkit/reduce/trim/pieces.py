"""The vocabulary of a tokenizer.json: which pieces a set of pieces needs, and the same tokenizer without the others.

A text is cut before its pieces are looked up (normalizer, added tokens, pre-tokenizer), and nothing of that depends on the vocabulary.
Text that the full vocabulary cuts into kept pieces is cut into the same pieces by the kept ones:

- **WordPiece** takes the longest piece that matches at each place. Among fewer pieces the longest match is no longer, and the piece that
  matched is still there. By induction over the places all cuts agree. A word without any cut is one [UNK]; it may find a cut among fewer
  pieces, because a longer piece no longer blocks the way. Text with [UNK] is therefore compared, not derived.
- **Unigram** takes the path with the highest sum of scores (Viterbi). All other paths among kept pieces were there before and were no
  better; of equal ones the first wins, and their order stays. An unknown character costs the lowest score of all pieces less 10, so
  the piece with the lowest score always stays, and so do single characters, which decide whether a character is unknown.
- **BPE** joins, again and again, the pair of neighbours whose merge has the lowest rank, the leftmost first. Merges that fire inside a final
  piece are those that fire on the piece alone, because no pair across its ends is joined in between. Closing the kept pieces under these
  derivations keeps each merge that fires on covered text. A merge fires when it has the lowest rank of all that fit; removing others
  keeps the order of the rest, so that at each step the same merge fires, and in the end none fits, as before.
- **WordLevel** looks up words.

Single characters, single bytes, added tokens and the unknown token always stay: other text falls back to them.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from quantkit.errors import DataError, UnsupportedError

_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_KINDS = ("WordPiece", "BPE", "Unigram", "WordLevel")


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """A tokenizer.json.

    Attributes:
        plain: Its contents.
        kind: The algorithm.
        ids: Ids of the pieces of the algorithm; added tokens may be among them.
    """

    plain: Mapping[str, Any]
    kind: str
    ids: Mapping[str, int]

    @classmethod
    def read(cls, file: Path) -> "Pieces":
        """Read a tokenizer.json.

        Raises:
            UnsupportedError: Its algorithm is unknown, or random.
            DataError: It cannot be read.
        """
        try:
            plain = json.loads(file.read_text(encoding="utf-8"))
            model = plain["model"]
            kind = model.get("type") or _guess(model)
            vocabulary = model["vocab"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
            raise DataError(f"Cannot read the tokenizer '{file}': {e!r}.") from e
        if kind not in _KINDS:
            raise UnsupportedError(
                f"The tokenizer '{file}' is of kind '{kind}': trim knows {', '.join(_KINDS)}."
            )
        if model.get("dropout"):
            raise UnsupportedError(
                f"The tokenizer '{file}' cuts at random (dropout {model['dropout']}): set dropout to null."
            )
        if kind == "Unigram":
            vocabulary = {piece: i for i, (piece, _) in enumerate(vocabulary)}
        return cls(plain=plain, kind=kind, ids=vocabulary)

    @property
    def added(self) -> Sequence[Mapping[str, Any]]:
        """The tokens that are found before the algorithm cuts."""
        return self.plain.get("added_tokens") or ()

    @property
    def unknown(self) -> int | None:
        """The id of the unknown token; None if there is none."""
        model = self.plain["model"]
        if self.kind == "Unigram":
            unknown: int | None = model.get("unk_id")
            return unknown
        return self.tokens.get(model.get("unk_token") or "")

    @cached_property
    def tokens(self) -> Mapping[str, int]:
        """The ids of all tokens, added ones included."""
        return {**self.ids, **{token["content"]: token["id"] for token in self.added}}

    @cached_property
    def names(self) -> Mapping[int, str]:
        """All tokens by id."""
        return {number: token for token, number in self.tokens.items()}

    @cached_property
    def always(self) -> frozenset[int]:
        """The ids that always stay."""
        found = {token["id"] for token in self.added} | set(_ids_in(self.plain))
        found |= {i for piece, i in self.ids.items() if len(self._body(piece)) == 1}
        found |= {i for piece, i in self.ids.items() if _BYTE.fullmatch(piece)}
        if self.kind == "Unigram":
            scores = [score for _, score in self.plain["model"]["vocab"]]
            found.add(scores.index(min(scores)))
        return frozenset(found if self.unknown is None else found | {self.unknown})

    def closed(self, ids: Iterable[int]) -> frozenset[int]:
        """Return the ids that stay if these do: also what always stays, and what merges make on the way."""
        found = self.always | frozenset(ids)
        if self.kind != "BPE":
            return found
        pieces = {number: piece for piece, number in self.ids.items()}
        return found.union(*(self._derived(pieces[i]) for i in found if i in pieces))

    def trimmed(self, kept: Sequence[int]) -> dict[str, Any]:
        """Return the contents of a tokenizer.json with these tokens alone, numbered by their places.

        Args:
            kept: Ids in ascending order, closed.
        """
        number = {old: new for new, old in enumerate(kept)}
        model = dict(self.plain["model"])
        if self.kind == "Unigram":
            pieces = model["vocab"]
            model["vocab"] = [pieces[old] for old in kept if old < len(pieces)]
            model["unk_id"] = None if self.unknown is None else number[self.unknown]
        else:
            inside = sorted((i, piece) for piece, i in self.ids.items() if i in number)
            model["vocab"] = {piece: number[i] for i, piece in inside}
        if self.kind == "BPE":
            model["merges"] = [m for m in model["merges"] if self._fits(_pair(m), model["vocab"])]
        return _renumbered({**self.plain, "model": model}, number)

    # --- BPE

    @cached_property
    def _ranks(self) -> Mapping[tuple[str, str], int]:
        return {_pair(merge): rank for rank, merge in enumerate(self.plain["model"]["merges"])}

    @property
    def _prefix(self) -> str:
        prefix: str = self.plain["model"].get("continuing_subword_prefix") or ""
        return prefix

    @property
    def _suffix(self) -> str:
        suffix: str = self.plain["model"].get("end_of_word_suffix") or ""
        return suffix

    def _body(self, piece: str) -> str:
        """Return a piece without what marks its place in a word."""
        body = piece.removeprefix(self._prefix)
        return body.removesuffix(self._suffix) or body

    def _joined(self, left: str, right: str) -> str:
        return left + right.removeprefix(self._prefix)

    def _fits(self, pair: tuple[str, str], vocabulary: Mapping[str, int]) -> bool:
        return all(piece in vocabulary for piece in (*pair, self._joined(*pair)))

    def _derived(self, piece: str) -> Iterator[int]:
        """Yield what merges make of the characters of a piece, until none fits."""
        body, ranks = self._body(piece), self._ranks
        symbols = [self._prefix + c for c in body]
        if not piece.startswith(self._prefix):
            symbols[0] = body[0]
        if self._suffix and piece.endswith(self._suffix):
            symbols[-1] += self._suffix
        while len(symbols) > 1:
            pairs = pairwise(symbols)
            rank, at = min((ranks.get(p, len(ranks)), i) for i, p in enumerate(pairs))
            if rank == len(ranks):
                return
            symbols[at : at + 2] = [self._joined(symbols[at], symbols[at + 1])]
            if symbols[at] in self.ids:
                yield self.ids[symbols[at]]


def _guess(model: Mapping[str, Any]) -> str:
    """Return the kind of a model that does not name it, as files of old versions do not."""
    if "merges" in model:
        return "BPE"
    return "Unigram" if isinstance(model.get("vocab"), list) else "WordPiece"


def _pair(merge: str | Sequence[str]) -> tuple[str, str]:
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left, right


def _ids_in(plain: Mapping[str, Any]) -> Iterator[int]:
    """Yield the ids that padding and the post-processor insert."""
    if plain.get("padding"):
        yield plain["padding"]["pad_id"]
    for processor in _processors(plain.get("post_processor")):
        for name in ("sep", "cls"):
            yield from processor.get(name, ())[1:]
        for token in processor.get("special_tokens", {}).values():
            yield from token["ids"]


def _processors(processor: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    """Yield the post-processors, those in a sequence one by one."""
    if processor is not None and "processors" in processor:
        for one in processor["processors"]:
            yield from _processors(one)
    elif processor is not None:
        yield processor


def _renumbered(plain: Mapping[str, Any], number: Mapping[int, int]) -> dict[str, Any]:
    """Return the contents with new ids outside of the algorithm."""
    found: dict[str, Any] = json.loads(json.dumps(plain))
    for token in found.get("added_tokens") or ():
        token["id"] = number[token["id"]]
    if found.get("padding"):
        found["padding"]["pad_id"] = number[found["padding"]["pad_id"]]
    for processor in _processors(found.get("post_processor")):
        for name in ("sep", "cls"):
            if name in processor:
                processor[name][1] = number[processor[name][1]]
        for token in processor.get("special_tokens", {}).values():
            token["ids"] = [number[i] for i in token["ids"]]
    return found
