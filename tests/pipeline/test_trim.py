"""`trim`: a corpus, a model and a tokenizer become smaller together, proved on the texts, or nothing is written."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import graph, model, node, save, weight
from onnx import TensorProto

import quantkit
from quantkit.api.verify import reproduce
from quantkit.errors import DataError, ModelError, NothingToQuantizeError, UsageError, VerifyError
from quantkit.model.provenance import read_provenance
from quantkit.pipeline.verify_file import attest
from quantkit.reduce.trim.corpus import Counts
from quantkit.reduce.trim.graph import KEPT
from quantkit.reduce.trim.pieces import Pieces

tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("datasets")

WIDTH = 16
WORDS = [f"{a}{b}{c}" for a in "bdfgk" for b in "aeiou" for c in ("", "lm", "rst")]
INT64 = TensorProto.INT64


def encoder(rows: int) -> onnx.ModelProto:
    """A text encoder: token ids and a mask become one vector per token."""
    nodes = [
        node("Gather", ["table", "input_ids"], ["rows"], "look_up"),
        node("MatMul", ["rows", "w"], ["mixed"]),
        node("Cast", ["attention_mask"], ["mask"], to=1),
        node("Unsqueeze", ["mask", "axes"], ["column"]),
        node("Mul", ["mixed", "column"], ["y"]),
    ]
    held = {"table": weight(rows, WIDTH), "w": weight(WIDTH, WIDTH, seed=1), "axes": np.array([2])}
    inputs = {name: ["B", "S"] for name in ("input_ids", "attention_mask")}
    types = dict.fromkeys(inputs, INT64)
    return model(graph(nodes, inputs, {"y": ["B", "S", WIDTH]}, held, types=types))


def wordpiece() -> Any:
    """A tokenizer of whole words and single characters, as BERT's."""
    singles = [p + c for c in "abdefgiklmorstu" for p in ("", "##")]
    vocabulary = {
        p: i for i, p in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS, *singles])
    }
    plain = {
        "version": "1.0",
        "added_tokens": [
            {
                "id": i,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for i, token in enumerate(list(vocabulary)[:4])
        ],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": vocabulary,
        },
    }
    return tokenizers.Tokenizer.from_str(json.dumps(plain))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder as the Hub has them: a model, its tokenizer, their settings; and texts beside it."""
    folder = tmp_path / "encoder"
    (folder / "onnx").mkdir(parents=True)
    tokenizer = wordpiece()
    rows = tokenizer.get_vocab_size()
    tokenizer.save(str(folder / "tokenizer.json"))
    save(encoder(rows), folder / "onnx" / "model.onnx")
    settings = {"vocab_size": rows, "pad_token_id": 0, "hidden_size": WIDTH}
    (folder / "config.json").write_text(json.dumps(settings))
    names = {i: token for token, i in tokenizer.get_vocab().items()}
    (folder / "vocab.txt").write_text("".join(f"{names[i]}\n" for i in range(rows)))
    (folder / "README.md").write_text("hello")
    (folder / "weights.safetensors").write_text("old")
    (tmp_path / "texts").mkdir()
    # Every word is in several texts, so that all are covered by the others.
    lines = [" ".join(WORDS[(i + k) % 20] for k in range(6)) for i in range(200)]
    (tmp_path / "texts" / "t.csv").write_text("\n".join(["text", *lines]) + "\n")
    return tmp_path


def trimmed(place: Path, out: str = "small/m.onnx", **more: Any) -> Any:
    (place / out).parent.mkdir(exist_ok=True)
    source = place / "encoder" / "onnx" / "model.onnx"
    return quantkit.trim(source, place / out, more.pop("data", place / "texts"), **more)


def test_model_and_tokenizer_become_smaller_together(place: Path) -> None:
    result = trimmed(place)
    small = place / "small"
    assert sorted(p.name for p in small.iterdir()) == [
        "m.kept_ids.json",
        "m.onnx",
        "tokenizer.json",
    ]
    assert result.files == ("m.kept_ids.json", "tokenizer.json")
    assert result.verification.compared == {"y": float("inf")}
    assert result.verification.judged_on == "40 texts of the corpus"
    assert (result.compared, result.differ) == (200, 0)
    assert (result.plan.coverage.texts, result.plan.coverage.covered) == (200, 200)
    table = next(
        t for t in onnx.load(small / "m.onnx").graph.initializer if t.name.startswith("table")
    )
    kept = json.loads((small / "m.kept_ids.json").read_text())["kept_ids"]
    assert table.dims[0] == len(kept) == len(result.plan.kept.ids)
    metadata = {p.key: p.value for p in onnx.load(small / "m.onnx").metadata_props}
    assert json.loads(metadata[KEPT]) == kept
    full, new = wordpiece(), tokenizers.Tokenizer.from_file(str(small / "tokenizer.json"))
    text = f"{WORDS[3]} {WORDS[19]} {WORDS[0]}"
    assert [kept[i] for i in new.encode(text).ids] == full.encode(text).ids
    assert new.encode(WORDS[40]).tokens[1:-1] == [WORDS[40][0], *(f"##{c}" for c in WORDS[40][1:])]


def test_with_the_old_tokenizer_inputs_stay_as_they_are(place: Path) -> None:
    result = trimmed(place, keep_tokenizer=True)
    assert result.verification.compared == {"y": float("inf")}
    assert sorted(p.name for p in (place / "small").iterdir()) == ["m.kept_ids.json", "m.onnx"]
    assert result.compared == 0
    ids = {token for token, i in wordpiece().get_vocab().items() if i in result.plan.kept.ids}
    assert not ids.isdisjoint(WORDS[:20])
    assert ids.isdisjoint(WORDS[20:])


def test_a_folder_is_written_as_a_whole_with_new_ids_in_its_settings(place: Path) -> None:
    result = quantkit.trim(place / "encoder", place / "small", place / "texts")
    small, kept = place / "small", len(result.plan.kept.ids)
    names = {p.relative_to(small).as_posix() for p in small.rglob("*") if p.is_file()}
    assert names == {
        *("README.md", "config.json", "vocab.txt", "tokenizer.json"),
        *("onnx/model.onnx", "onnx/model.kept_ids.json"),
    }
    assert result.left_out == ("weights.safetensors",)
    assert json.loads((small / "config.json").read_text()) == {
        "vocab_size": kept,
        "pad_token_id": 0,
        "hidden_size": WIDTH,
    }
    new = tokenizers.Tokenizer.from_file(str(small / "tokenizer.json"))
    lines = (small / "vocab.txt").read_text().splitlines()
    assert {token: i for i, token in enumerate(lines)} == new.get_vocab()
    with pytest.raises(UsageError, match="is there already"):
        quantkit.trim(place / "encoder", place / "small", place / "texts")
    with pytest.raises(UsageError, match="inside of"):
        quantkit.trim(place / "encoder", place / "encoder" / "small", place / "texts")


def test_nothing_is_left_of_a_folder_that_fails(place: Path) -> None:
    before = sorted(p.name for p in place.iterdir())
    with pytest.raises(VerifyError, match="Nothing was written"):
        quantkit.trim(place / "encoder", place / "small", [WORDS[0], WORDS[1]])
    assert sorted(p.name for p in place.iterdir()) == before


def test_the_same_inputs_give_the_same_bytes_again(place: Path) -> None:
    trimmed(place)
    out, source = place / "small" / "m.onnx", place / "encoder" / "onnx" / "model.onnx"
    check = reproduce(out, source, data=place / "texts")
    assert check.outcome == "ok", check.sentence
    found = attest(out, float_model=source, data=place / "texts")
    assert found.ok, str(found)
    assert {c.name: c.outcome for c in found.checks}["data"] == "ok"
    says = read_provenance(out)
    assert says is not None
    assert says.kind == "trim"
    assert says.data is not None
    assert says.data.samples == 200


def test_with_the_old_tokenizer_a_file_verifies_too(place: Path) -> None:
    trimmed(place, keep_tokenizer=True)
    source = place / "encoder" / "onnx" / "model.onnx"
    found = attest(place / "small" / "m.onnx", float_model=source, data=place / "texts")
    assert found.ok, str(found)


@pytest.mark.parametrize("form", ["dynamic", "float16", "weights"])
def test_quantized_models_are_trimmed_exactly(place: Path, form: str) -> None:
    def quantized(source: Path, out: Path) -> Path:
        if form == "dynamic":
            quantkit.quantize_dynamic(source, out)
        elif form == "float16":
            quantkit.quantize_float16(source, out)
        else:
            quantkit.quantize_weights(source, out, bits=8, verify=False)
        return out

    whole = place / "encoder" / "onnx" / "whole.onnx"
    quantized(place / "encoder" / "onnx" / "model.onnx", whole)
    before = quantkit.trim(whole, place / "before.onnx", place / "texts")
    assert before.verification is not None
    assert before.verification.compared == {"y": float("inf")}


def test_a_trimmed_model_is_quantized_as_any_other_and_keeps_its_list(place: Path) -> None:
    trimmed(place)
    quantkit.quantize_float16(place / "small" / "m.onnx", place / "small" / "q.onnx")
    assert KEPT in {p.key for p in onnx.load(place / "small" / "q.onnx").metadata_props}


def test_too_little_coverage_is_refused_with_the_numbers(place: Path) -> None:
    texts = [" ".join(WORDS[i : i + 2]) for i in range(0, 40, 2)]
    with pytest.raises(
        VerifyError, match=r"0\.0% of the next texts covered .*below 90%.*--min-coverage"
    ):
        trimmed(place, data=texts)
    assert not list((place / "small").iterdir())
    result = trimmed(place, data=texts, min_coverage=0)
    assert result.uncovered == 20
    assert result.cosine is not None
    assert result.cosine < 0.9
    assert "Only 20 texts" in result.warnings[0]


def test_each_text_is_judged_by_the_vocabulary_of_the_others() -> None:
    pieces = Pieces(
        plain={"model": {"type": "WordLevel"}},
        kind="WordLevel",
        ids={w: i for i, w in enumerate(WORDS)},
    )
    counts = Counts(len(WORDS))
    for ids in ([5, 6], [5, 6, 6], [6, 7], [6, 7, 8, 8], [9]):
        counts.add(ids)
    assert counts.uncovered(pieces) == [3, 4]
    found = counts.coverage(pieces)
    assert (found.texts, found.covered, found.share) == (5, 3, 0.6)
    assert found.low == pytest.approx(0.2307, abs=1e-4)
    assert found.high == pytest.approx(0.8824, abs=1e-4)


def test_what_is_missing_is_said_in_one_line(place: Path) -> None:
    with pytest.raises(UsageError, match="add --data"):
        trimmed(place, data=None)
    with pytest.raises(DataError, match="holds no text"):
        trimmed(
            place,
            data=[
                {
                    "input_ids": np.zeros((1, 4), np.int64),
                    "attention_mask": np.ones((1, 4), np.int64),
                }
            ],
        )
    everything = [" ".join(WORDS)] * 3
    with pytest.raises(
        NothingToQuantizeError, match=r"Nothing to trim in .*all of its \d+ tokens are needed"
    ):
        trimmed(place, data=everything, min_coverage=0)
    (place / "encoder" / "tokenizer.json").rename(place / "other.json")
    with pytest.raises(DataError, match=r"tokenizer\.json"):
        trimmed(place)


def test_a_tokenizer_of_another_model_is_refused(place: Path) -> None:
    save(encoder(20), place / "encoder" / "onnx" / "model.onnx")
    with pytest.raises(ModelError, match=r"Token '.*' has id \d+, and the table of .* has 20 rows"):
        trimmed(place, min_coverage=0)


def test_a_folder_without_a_model_is_refused(place: Path) -> None:
    (place / "encoder" / "onnx" / "model.onnx").rename(place / "encoder" / "m.onnx")
    with pytest.raises(
        ModelError, match=r"has neither model\.onnx nor onnx/model\.onnx: did you mean"
    ):
        quantkit.trim(place / "encoder", place / "small", place / "texts")


def test_the_tokenizer_that_is_read_is_not_overwritten(place: Path) -> None:
    source = place / "encoder" / "onnx" / "model.onnx"
    with pytest.raises(UsageError, match="would overwrite the input"):
        quantkit.trim(source, place / "encoder" / "small.onnx", place / "texts")


def test_a_result_that_computes_anything_else_is_not_written(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from quantkit.reduce.trim import graph as trim_graphs

    def swapped(full: Any, kept: Any) -> Any:
        first, second = kept.ids[4:6]
        ids = (*kept.ids[:4], second, first, *kept.ids[6:])
        found = trim_graphs.trim_graph(full, replace(kept, ids=ids))
        return replace(found[0], ids=kept.ids), found[1]

    monkeypatch.setattr("quantkit.pipeline.forms.trim.trim_graph", swapped)
    with pytest.raises(VerifyError, match=r"Outputs differ .*'y'"):
        trimmed(place)
    assert not list((place / "small").iterdir())
