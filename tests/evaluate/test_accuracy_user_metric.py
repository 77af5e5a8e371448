"""A metric of the user's own, good and bad."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from builders import graph, model, node
from evaluate.accuracy_cases import (
    classifier,
    contenders,
    evaluated,
    labelled,
    rows,
    text_encoder,
)

from quantkit.errors import DataError, UsageError

MODULE = """
import numpy as np

def hit(outputs, labels):
    return outputs["logits"].argmax(axis=1) == labels

def loss(outputs, labels):
    return np.abs(outputs["logits"]).sum(axis=1)

loss.higher_is_better = False
loss.needs_labels = False

def length(outputs, labels):
    return [outputs["hidden"].shape[1]]

length.needs_labels = False

def total(outputs, labels):
    return [outputs["turned"].sum()]

total.needs_labels = False

def fails(outputs, labels):
    raise KeyError("scores")

def one_number(outputs, labels):
    return 0.5

def text(outputs, labels):
    return "good"

def nan(outputs, labels):
    return np.full(len(labels), np.nan)

value = 3
"""


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "my_metric.py").write_text(MODULE)
    (tmp_path / "broken_metric.py").write_text("import nothing_of_this_name")
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("my_metric", None)


def test_hits_are_top_1(tmp_path: Path) -> None:
    models = contenders(tmp_path, classifier(), classifier(noise=0.3))
    data = labelled(150, classifier())
    own = evaluated(models, data, metric="my_metric:hit").metrics["c1"]
    top_1 = evaluated(models, data, metric="top-1").metrics["c1"][0]
    assert [m.name for m in own] == ["my_metric:hit"]
    assert (own[0].value, own[0].drop, own[0].main) == (top_1.value, top_1.drop, True)
    assert own[0].drop_interval == top_1.drop_interval
    assert str(tmp_path) not in sys.path


def test_a_loss_without_labels(tmp_path: Path) -> None:
    models = contenders(tmp_path, classifier(), classifier(noise=1.0))
    found = evaluated(models, {"x": rows(70)}, metric="my_metric:loss")
    before, now = (found.metrics[name][0] for name in ("float", "c1"))
    assert not now.higher_is_better
    assert now.drop == pytest.approx(now.value - before.value)


def test_samples_of_different_shapes_come_one_by_one(tmp_path: Path) -> None:
    models = contenders(tmp_path, text_encoder(mask=False), text_encoder(mask=False))
    data = [{"input_ids": np.ones((1, n), np.int64)} for n in (1, 2, 5)]
    found = evaluated(models, data, metric="my_metric:length")
    assert found.metrics["float"][0].value == pytest.approx(8 / 3)


def test_outputs_that_are_not_a_row_a_sample_come_one_by_one(tmp_path: Path) -> None:
    nodes = [node("Transpose", ["x"], ["turned"])]
    proto = model(graph(nodes, {"x": ["N", 6]}, {"turned": [6, "N"]}))
    x = rows(20)
    found = evaluated(contenders(tmp_path, proto, proto), {"x": x}, metric="my_metric:total")
    assert found.metrics["c1"][0].value == pytest.approx(float(x.sum(1).mean()), rel=1e-5)


@pytest.mark.parametrize(
    ("metric", "line"),
    [
        ("my_metric:", "metric 'my_metric:' is no function: write module:function."),
        ("my_metrics:hit", "the module 'my_metrics' cannot be imported: ModuleNotFoundError"),
        (
            "broken_metric:hit",
            "cannot be imported: ModuleNotFoundError: No module named 'nothing_of",
        ),
        (
            "my_metric:hits",
            "metric 'my_metric:hits': the module 'my_metric' has no function 'hits'.",
        ),
        ("my_metric:value", "the module 'my_metric' has no function 'value'."),
        (
            "my_metric:fails",
            "metric 'my_metric:fails' on 'arrays row 0' failed: KeyError: 'scores'",
        ),
        (
            "my_metric:one_number",
            "returned an array of shape () for 1 samples: one number per sample",
        ),
        (
            "my_metric:text",
            "metric 'my_metric:text' on 'arrays row 0' returned str: one number per",
        ),
        ("my_metric:nan", "metric 'my_metric:nan' gave nan for 'arrays row 0'."),
    ],
)
def test_what_is_wrong_with_it(tmp_path: Path, metric: str, line: str) -> None:
    models = contenders(tmp_path, classifier(), classifier())
    with pytest.raises(UsageError) as e:
        evaluated(models, labelled(20, classifier()), metric=metric)
    assert line in str(e.value)
    assert "\n" not in str(e.value)


def test_labels_that_it_needs(tmp_path: Path) -> None:
    models = contenders(tmp_path, classifier(), classifier())
    with pytest.raises(DataError, match=r"hit\.needs_labels = False"):
        evaluated(models, {"x": rows(5)}, metric="my_metric:hit")
