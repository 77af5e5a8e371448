"""Text that kept pieces cover is cut into the same pieces: over random vocabularies of every kind, and over MiniLM's own."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantkit.errors import DataError, UnsupportedError
from quantkit.reduce.trim.pieces import Pieces

tokenizers = pytest.importorskip("tokenizers")

LETTERS = "abcd"
MINILM = Path(__file__).parents[4] / "shared" / "models" / "all-MiniLM-L6-v2" / "tokenizer.json"
texts_of = st.lists(st.text(LETTERS + "xé ", min_size=1, max_size=14), min_size=1, max_size=12)
words_of = st.lists(st.text(LETTERS, min_size=2, max_size=5), max_size=30, unique=True)


def saved(plain: dict[str, Any], folder: Path) -> Path:
    file = folder / "tokenizer.json"
    file.write_text(json.dumps(plain), encoding="utf-8")
    return file


def tokenizer_json(model: dict[str, Any], *, special: Sequence[str] = ()) -> dict[str, Any]:
    added = [
        {
            "id": i,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for i, token in enumerate(special)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": model,
    }


def wordpiece(words: Iterable[str]) -> dict[str, Any]:
    singles = [*LETTERS, *(f"##{c}" for c in LETTERS)]
    marked = [word if i % 2 else f"##{word}" for i, word in enumerate(words)]
    vocabulary = ["[UNK]", *marked, *singles]
    return tokenizer_json(
        {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {piece: i for i, piece in enumerate(dict.fromkeys(vocabulary))},
        },
        special=["[UNK]"],
    )


def unigram(words: Sequence[str], scores: Sequence[float], **more: Any) -> dict[str, Any]:
    singles = [(c, -4.0 - i) for i, c in enumerate(LETTERS)]
    scored = [(word, scores[i % len(scores)]) for i, word in enumerate(words)]
    vocabulary = [["<unk>", 0.0], *map(list, scored), *map(list, singles)]
    model = {"type": "Unigram", "unk_id": 0, "vocab": vocabulary, "byte_fallback": False, **more}
    return tokenizer_json(model, special=["<unk>"])


def bpe(
    picks: Sequence[tuple[int, int]], prefix: str = "", suffix: str = "", **more: Any
) -> dict[str, Any]:
    symbols = [p + c + s for c in LETTERS for p in {"", prefix} for s in {"", suffix}]
    symbols.sort()
    merges: list[tuple[str, str]] = []
    for first, second in picks:
        left, right = symbols[first % len(symbols)], symbols[second % len(symbols)]
        fits = not (suffix and left.endswith(suffix)) and right.startswith(prefix)
        joined = left + right.removeprefix(prefix)
        if fits and joined not in symbols and len(joined) < 14:
            merges.append((left, right))
            symbols.append(joined)
    return tokenizer_json(
        {
            "type": "BPE",
            "vocab": {piece: i for i, piece in enumerate(["<unk>", *symbols])},
            "merges": [list(merge) for merge in merges],
            "unk_token": "<unk>",
            "continuing_subword_prefix": prefix or None,
            "end_of_word_suffix": suffix or None,
            "fuse_unk": False,
            "byte_fallback": False,
            **more,
        },
        special=["<unk>"],
    )


def check(plain: dict[str, Any], used: Sequence[str], others: Sequence[str]) -> int:
    """Trim to what some texts use; return how many of all texts are covered, after comparing their pieces."""
    full = tokenizers.Tokenizer.from_str(json.dumps(plain))
    kind = plain["model"]["type"]
    vocabulary = plain["model"]["vocab"]
    ids = {p: i for i, (p, _) in enumerate(vocabulary)} if kind == "Unigram" else vocabulary
    pieces = Pieces(plain=plain, kind=kind, ids=ids)
    kept = sorted(pieces.closed({i for text in used for i in full.encode(text).ids}))
    small = tokenizers.Tokenizer.from_str(json.dumps(pieces.trimmed(kept)))
    assert [small.token_to_id(pieces.names[old]) for old in kept] == list(range(len(kept)))
    covered = 0
    for text in [*used, *others]:
        before = full.encode(text)
        if not set(before.ids) <= set(kept) or (kind == "WordPiece" and 0 in before.ids):
            assert max(small.encode(text).ids, default=0) < len(kept)
            continue
        covered += 1
        assert small.encode(text).tokens == before.tokens, text
        assert [kept[i] for i in small.encode(text).ids] == before.ids
    return covered


@settings(max_examples=150, deadline=None)
@given(words_of, texts_of, texts_of)
def test_wordpiece_cuts_covered_text_into_the_same_pieces(
    words: list[str], used: list[str], others: list[str]
) -> None:
    check(wordpiece(words), used, others)


@settings(max_examples=150, deadline=None)
@given(
    words_of,
    st.lists(st.sampled_from([-1.0, -2.0, -2.5, -7.0, -30.0]), min_size=1, max_size=8),
    texts_of,
    texts_of,
)
def test_unigram_cuts_covered_text_into_the_same_pieces(
    words: list[str], scores: list[float], used: list[str], others: list[str]
) -> None:
    check(unigram(words, scores), used, others)


picks_of = st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), max_size=40)


@settings(max_examples=150, deadline=None)
@given(
    picks=picks_of,
    marks=st.sampled_from([("", ""), ("##", ""), ("", "</w>")]),
    ignore_merges=st.booleans(),
    used=texts_of,
    others=texts_of,
)
def test_bpe_cuts_covered_text_into_the_same_pieces(
    *,
    picks: list[tuple[int, int]],
    marks: tuple[str, str],
    ignore_merges: bool,
    used: list[str],
    others: list[str],
) -> None:
    check(bpe(picks, *marks, ignore_merges=ignore_merges), used, others)


def test_an_unknown_character_keeps_its_price() -> None:
    # Without the piece of score -30 an unknown character would cost less, and "xx" would be cut differently.
    plain = unigram(["zzzz", "xx"], [-30.0, -22.0])
    assert check(plain, ["ab"], ["xé"]) > 0
    pieces = Pieces(
        plain=plain, kind="Unigram", ids={p: i for i, (p, _) in enumerate(plain["model"]["vocab"])}
    )
    assert 1 in pieces.closed([])


def test_merges_on_the_way_to_a_piece_stay() -> None:
    plain = bpe([(0, 1), (4, 2), (2, 3)])  # a+b, ab+c, c+d
    pieces = Pieces(plain=plain, kind="BPE", ids=plain["model"]["vocab"])
    kept = pieces.closed([plain["model"]["vocab"]["abc"]])
    names = {pieces.names[i] for i in kept}
    assert {"ab", "abc"} <= names
    assert "cd" not in names
    assert pieces.trimmed(sorted(kept))["model"]["merges"] == [["a", "b"], ["ab", "c"]]


def test_single_characters_bytes_and_added_tokens_always_stay() -> None:
    plain = wordpiece(["aab"])
    plain["model"]["vocab"] |= {"<0x0A>": 50, "[PAD]": 51}
    plain["padding"] = {"pad_id": 51, "pad_token": "[PAD]"}
    pieces = Pieces(plain=plain, kind="WordPiece", ids=plain["model"]["vocab"])
    names = {pieces.names[i] for i in pieces.closed([])}
    assert names == {"[UNK]", "<0x0A>", "[PAD]", *LETTERS, *(f"##{c}" for c in LETTERS)}


def test_ids_in_the_post_processor_and_padding_are_new() -> None:
    plain = wordpiece(["aab", "bb"])
    vocabulary = plain["model"]["vocab"]
    vocabulary |= {"[CLS]": 30, "[SEP]": 31}
    template = {"id": "[CLS]", "ids": [30], "tokens": ["[CLS]"]}
    plain["post_processor"] = {
        "type": "Sequence",
        "processors": [
            {"type": "BertProcessing", "sep": ["[SEP]", 31], "cls": ["[CLS]", 30]},
            {"type": "TemplateProcessing", "special_tokens": {"[CLS]": template}},
        ],
    }
    plain["padding"] = {"pad_id": 31}
    pieces = Pieces(plain=plain, kind="WordPiece", ids=vocabulary)
    kept = sorted(pieces.closed([]))
    new = {pieces.names[old]: number for number, old in enumerate(kept)}
    found = pieces.trimmed(kept)
    bert, other = found["post_processor"]["processors"]
    assert bert["sep"] == ["[SEP]", new["[SEP]"]]
    assert bert["cls"] == ["[CLS]", new["[CLS]"]]
    assert other["special_tokens"]["[CLS]"]["ids"] == [new["[CLS]"]]
    assert found["padding"]["pad_id"] == new["[SEP]"]
    assert plain["padding"]["pad_id"] == 31


def test_kinds_that_are_unknown_or_random_are_refused(tmp_path: Path) -> None:
    plain = wordpiece([])
    plain["model"]["type"] = "Bits"
    with pytest.raises(UnsupportedError, match=r"of kind 'Bits': trim knows WordPiece, BPE"):
        Pieces.read(saved(plain, tmp_path))
    with pytest.raises(UnsupportedError, match="at random"):
        Pieces.read(saved(bpe([], dropout=0.1), tmp_path))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match="Cannot read the tokenizer"):
        Pieces.read(tmp_path / "tokenizer.json")


@pytest.mark.skipif(not MINILM.is_file(), reason="shared models are not here")
def test_minilm_cuts_covered_text_into_the_same_pieces(tmp_path: Path) -> None:
    full = tokenizers.Tokenizer.from_file(str(MINILM))
    full.no_padding()
    pieces = Pieces.read(MINILM)
    used = ["A quick brown fox jumps over the lazy dog.", "Vivendi was keeping the door open."]
    others = ["the quick dog was open", "a lazy vivendi door", "quantization of embeddings"]
    kept = sorted(pieces.closed({i for text in used for i in full.encode(text).ids}))
    small = tokenizers.Tokenizer.from_file(str(saved(pieces.trimmed(kept), tmp_path)))
    small.no_padding()
    for text in [*used, *others[:2]]:
        assert small.encode(text).tokens == full.encode(text).tokens
    assert small.encode(others[2]).tokens != full.encode(others[2]).tokens
    assert "[UNK]" not in small.encode(others[2]).tokens
