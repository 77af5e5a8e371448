"""Texts: pairs, variable lengths, padding."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import Array, rng
from data.makers import VOCABULARY, tokenizer
from evaluate.accuracy_cases import contenders, evaluated, text_encoder
from scipy import stats

from quantkit.errors import DataError
from quantkit.settings import DataSettings, TextSettings

PAIR = TextSettings(column=("a", "b"))


def written(folder: Path, count: int = 60) -> tuple[list[list[list[int]]], Array]:
    """Write pairs of texts of 1 to 8 words; return their ids and the scores."""
    generator = rng(0)
    words = VOCABULARY[2:]
    ids = [
        [generator.integers(2, len(VOCABULARY), generator.integers(1, 9)).tolist() for _ in "ab"]
        for _ in range(count)
    ]
    scores = generator.random(count)
    lines = [
        json.dumps(
            {
                "a": " ".join(words[i - 2] for i in first),
                "b": " ".join(words[i - 2] for i in second),
                "score": float(score),
            }
        )
        for (first, second), score in zip(ids, scores, strict=True)
    ]
    (folder / "pairs.jsonl").write_text("\n".join(lines))
    tokenizer(folder)
    return ids, scores


def cosines(proto: onnx.ModelProto, ids: list[list[list[int]]]) -> list[float]:
    """By what the encoder is: a row of a table for each token."""
    table = onnx.numpy_helper.to_array(proto.graph.initializer[0]).astype(float)
    pairs = [[table[text].mean(axis=0) for text in pair] for pair in ids]
    return [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in pairs]


@pytest.mark.parametrize("batch", [None, 6])
def test_pairs_are_judged_by_the_rank_of_their_cosine(tmp_path: Path, batch: int | None) -> None:
    ids, scores = written(tmp_path)
    first, second = text_encoder(), text_encoder(noise=0.5)
    found = evaluated(
        contenders(tmp_path, first, second),
        tmp_path / "pairs.jsonl",
        DataSettings(text=PAIR, batch=batch),
        pairs=True,
    )
    (metric,) = found.metrics["c1"]
    assert (metric.name, metric.main) == ("spearman", True)
    assert metric.value == pytest.approx(stats.spearmanr(cosines(second, ids), scores)[0])
    before = stats.spearmanr(cosines(first, ids), scores)[0]
    assert metric.drop == pytest.approx(before - metric.value)
    drift = found.drift["c1"]
    assert drift.decision is None
    assert {s.by for s in drift.slices} == {"label", "length"}
    assert sum(s.samples for s in drift.slices if s.by == "length") == 60
    assert found.data.samples == 60
    assert found.data.preprocessing[0] == "text from 'a'"
    worst = drift.worst[0].name
    assert worst.startswith("pairs.jsonl row ")
    assert worst.endswith((", a", ", b"))


def test_padding_adds_no_drift(tmp_path: Path) -> None:
    written(tmp_path)
    models = contenders(tmp_path, text_encoder(mask=False), text_encoder(noise=0.5, mask=False))
    one, many = (
        evaluated(
            models,
            tmp_path / "pairs.jsonl",
            DataSettings(text=TextSettings(column=("a",)), batch=batch),
        ).drift["c1"]
        for batch in (None, 8)
    )
    assert one.outputs[0].sqnr_db == pytest.approx(many.outputs[0].sqnr_db)
    assert one.outputs[0].mean_error == pytest.approx(many.outputs[0].mean_error)
    assert [w.name for w in one.worst] == [w.name for w in many.worst]


def test_pairs_without_labels(tmp_path: Path) -> None:
    written(tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "pairs.jsonl").read_text().splitlines()]
    lines = [json.dumps({"a": row["a"], "b": row["b"]}) for row in rows]
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines))
    models = contenders(tmp_path, text_encoder(), text_encoder())
    with pytest.raises(DataError, match="spearman needs labels, and the data has none"):
        evaluated(models, tmp_path / "pairs.jsonl", DataSettings(text=PAIR), pairs=True)


def test_texts_that_are_no_pairs_have_lengths(tmp_path: Path) -> None:
    written(tmp_path)
    models = contenders(tmp_path, text_encoder(), text_encoder(noise=0.5))
    settings = DataSettings(text=TextSettings(column=("a",)))
    found = evaluated(models, tmp_path / "pairs.jsonl", settings)
    assert found.metrics["c1"] == ()
    assert "in no known way" in " ".join(found.notes)
    assert found.drift["c1"].sentence.startswith("Without a metric: 'hidden' has ")
