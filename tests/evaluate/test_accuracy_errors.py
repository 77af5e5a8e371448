"""Bad input: one clear line each, before minutes of work where it can be told before."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import Array, graph, model, node, save, weight
from evaluate.accuracy_cases import classifier, contenders, evaluated, labelled, regressor, rows
from onnx import TensorProto

from quantkit.errors import DataError, ModelError, QuantkitError, RuntimeSupportError, UsageError
from quantkit.evaluate.accuracy import AccuracyOptions, NamedModel
from quantkit.settings import DataSettings


def other(
    *,
    x: str = "x",
    y: str = "logits",
    features: Any = 6,
    classes: Any = 8,
    more: bool = False,
    double: bool = False,
    rank: int = 2,
) -> onnx.ModelProto:
    """The classifier with one thing changed."""
    outputs: dict[str, Any] = {y: ["N", classes] if rank == 2 else ["N", classes, 1]}
    nodes = [node("MatMul", [x, "w"], ["m"])]
    last = "m"
    if double:
        nodes.append(node("Cast", ["m"], ["d"], to=TensorProto.DOUBLE))
        last = "d"
    if rank == 3:
        nodes.append(node("Unsqueeze", [last, "at"], [y]))
    else:
        nodes.append(node("Identity", [last], [y]))
    if more:
        nodes.append(node("Identity", ["m"], ["extra"]))
        outputs["extra"] = ["N", classes]
    weights: dict[str, Array] = {"w": weight(features, classes), "at": np.array([2], np.int64)}
    types = {y: TensorProto.DOUBLE} if double else {}
    return model(graph(nodes, {x: ["N", features]}, outputs, weights, types=types))


@pytest.mark.parametrize(
    ("candidate", "line"),
    [
        (
            other(x="image"),
            "Candidate 'c1' has no input 'x', which the float model has; it has 'image'",
        ),
        (other(features=7), "its input 'x' is float[?, 7], the float model's is float[?, 6]."),
        (other(y="scores"), "Candidate 'c1' has no output 'logits', which the float model has; it"),
        (other(classes=9), "its output 'logits' is float[?, 9], the float model's is float[?, 8]."),
        (other(more=True), "has the output 'extra', which the float model does not have."),
        (
            other(double=True),
            "its output 'logits' is double[?, 8], the float model's is float[?, 8]",
        ),
        (other(rank=3), "its output 'logits' is float[?, 8, 1], the float model's is float[?, 8]."),
    ],
)
def test_other_inputs_and_outputs(tmp_path: Path, candidate: onnx.ModelProto, line: str) -> None:
    with pytest.raises(UsageError) as e:
        evaluated(contenders(tmp_path, classifier(), candidate), labelled(5, classifier()))
    assert line in str(e.value)
    assert "\n" not in str(e.value)


def test_a_missing_output(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'c1' has no output 'extra', which the float model has"):
        evaluated(contenders(tmp_path, other(more=True), other()), {"x": rows(3)})


def test_candidates_that_do_not_load(tmp_path: Path) -> None:
    (first,) = contenders(tmp_path, classifier())
    data = {"x": rows(3)}
    with pytest.raises(ModelError, match="does not exist"):
        evaluated([first, NamedModel(name="c", path=tmp_path / "gone.onnx")], data)
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    with pytest.raises(ModelError, match="is not an ONNX model"):
        evaluated([first, NamedModel(name="c", path=tmp_path / "bad.onnx")], data)
    strange = classifier()
    strange.graph.node[0].domain = "my.own"
    strange.opset_import.append(onnx.helper.make_opsetid("my.own", 1))
    path = save(strange, tmp_path / "strange.onnx")
    with pytest.raises(RuntimeSupportError, match=r"custom domain 'my\.own'"):
        evaluated([first, NamedModel(name="c", path=path)], data)


def test_no_candidate_and_twice_the_same_name(tmp_path: Path) -> None:
    (first,) = contenders(tmp_path, classifier())
    with pytest.raises(UsageError, match="There is no candidate"):
        evaluated([first], {"x": rows(3)})
    with pytest.raises(UsageError, match="Two models are called 'float'"):
        evaluated([first, first], {"x": rows(3)})


Change = Callable[[dict[str, Any]], None]


def _drop(data: dict[str, Any]) -> None:
    del data["label"]


def _short(data: dict[str, Any]) -> None:
    data["label"] = data["label"][:9]


def _texts(data: dict[str, Any]) -> None:
    data["label"] = np.array(["cat"] * 20)


def _beyond(data: dict[str, Any]) -> None:
    data["label"][7] = 8


def _below(data: dict[str, Any]) -> None:
    data["label"][7] = -1


def _halves(data: dict[str, Any]) -> None:
    data["label"] = data["label"] + 0.0
    data["label"][7] = 2.5


@pytest.mark.parametrize(
    ("change", "metric", "line"),
    [
        (_drop, "top-1", "top-1 needs labels, and the data has none"),
        (_short, "f1", "'label' has 9 labels for 20 samples: give one label per sample, or none"),
        (
            _texts,
            "top-1",
            "The label of 'arrays row 0' is the text 'cat', and top-1 needs the index",
        ),
        (
            _beyond,
            None,
            "The label of 'arrays row 7' is 8, and the model has 8 classes: use labels from",
        ),
        (_below, "f1", "The label of 'arrays row 7' is -1, and the model has 8 classes"),
        (_halves, "top-1", "The label of 'arrays row 7' is the number '2.5', and top-1 needs"),
        (
            _texts,
            "mse",
            "mse needs an output with one number per sample; the model has 'logits' [1, 8]",
        ),
    ],
)
def test_labels_that_do_not_serve(
    tmp_path: Path, change: Change, metric: str | None, line: str
) -> None:
    data: dict[str, Any] = labelled(20, classifier())
    change(data)
    with pytest.raises(DataError) as e:
        evaluated(contenders(tmp_path, classifier(), classifier()), data, metric=metric)
    assert line in str(e.value)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("missing", [0, 5])
def test_labels_of_some_samples_only(tmp_path: Path, missing: int) -> None:
    data = [{"x": row, "label": 1} for row in rows(10)]
    del data[missing]["label"]
    with pytest.raises(DataError, match="label all samples, or none"):
        evaluated(contenders(tmp_path, classifier(), classifier()), data)


def test_a_class_metric_of_a_regressor(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"top-1 needs an output \[batch, classes\].*'score' \[1, 1\]"
    ):
        evaluated(
            contenders(tmp_path, regressor(), regressor()),
            {"x": rows(5), "label": np.arange(5)},
            metric="top-1",
        )


def test_numbers_that_are_texts(tmp_path: Path) -> None:
    data = {"x": rows(5), "label": np.array(["a"] * 5)}
    with pytest.raises(
        DataError, match="The label of 'arrays row 0' is 'a', and mse needs a number"
    ):
        evaluated(contenders(tmp_path, regressor(), regressor()), data, metric="mse")


def test_top_5_of_few_classes(tmp_path: Path) -> None:
    data = labelled(20, classifier(classes=4))
    models = contenders(tmp_path, classifier(classes=4), classifier(classes=4))
    with pytest.raises(
        UsageError, match="top-5 needs more than 5 classes; the output 'logits' has 4"
    ):
        evaluated(models, data, metric="top-5")


def test_empty_data(tmp_path: Path) -> None:
    models = contenders(tmp_path, classifier(), classifier())
    with pytest.raises(DataError, match="holds no rows"):
        evaluated(models, {"x": rows(0)})
    with pytest.raises(DataError, match="gave no samples"):
        evaluated(models, iter([]))
    (tmp_path / "nothing").mkdir()
    with pytest.raises(DataError, match="it is empty"):
        evaluated(models, tmp_path / "nothing")


def test_samples_that_cannot_be_read(tmp_path: Path) -> None:
    models = contenders(tmp_path, classifier(), classifier())
    data: list[Any] = [{"x": row} for row in rows(6)]
    data[3] = {"x": rows(1)[:, :4]}
    with pytest.raises(DataError, match="'sample 3' does not fit"):
        evaluated(models, data)
    found = evaluated(models, data, skip_bad=True)
    assert found.data.samples == 5
    assert found.notes[0].startswith("1 samples could not be read and were left out: 'sample 3'")


def test_a_batch_that_is_never_full(tmp_path: Path) -> None:
    models = contenders(tmp_path, classifier(batch=4), classifier(batch=4))
    with pytest.raises(DataError, match="batches of 4, and there are only 3 samples"):
        evaluated(models, [{"x": row} for row in rows(3)])


def test_a_model_that_does_not_run(tmp_path: Path) -> None:
    proto = model(
        graph(
            [node("Reshape", ["x", "to"], ["y"])],
            {"x": ["N", "L"]},
            {"y": ["N", "M"]},
            {"to": np.array([1, 6], np.int64)},
        )
    )
    with pytest.raises(DataError, match="'float' does not run on 'sample 1'"):
        evaluated(contenders(tmp_path, proto, proto), [{"x": rows(1)}, {"x": rows(2)[:, :5]}])


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"metric": "top1"}, "metric 'top1' is unknown (did you mean 'top-1'?)"),
        ({"metric": "mse", "pairs": True}, "pairs are judged by spearman, not by 'mse'"),
        ({"confidence": 95.0}, "above 0.5 and below 1 (0.95 is 95 %)"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], line: str) -> None:
    with pytest.raises(UsageError) as e:
        AccuracyOptions(**options)
    assert line in str(e.value)


def test_pairs_of_what_is_no_text(tmp_path: Path) -> None:
    models = contenders(tmp_path, classifier(), classifier())
    with pytest.raises(UsageError, match="Pairs need the two columns"):
        evaluated(models, {"x": rows(3)}, pairs=True)
    settings = DataSettings()
    text = type(settings.text)(column=("a", "b"))
    with pytest.raises(QuantkitError, match="two text columns"):
        evaluated(models, {"x": rows(3)}, type(settings)(text=text), pairs=True)
