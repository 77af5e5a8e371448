"""Whole evaluations of small models: what is measured is what numpy finds on the same outputs."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import Array, graph, model, node, rng, run, sqnr, weight
from evaluate.accuracy_cases import (
    batched,
    classifier,
    contenders,
    evaluated,
    labelled,
    regressor,
    rows,
    without,
)
from onnx import TensorProto
from scipy import stats

from quantkit.errors import ModelError
from quantkit.evaluate.accuracy import MeasuredOutputs, chunks
from quantkit.samples import fashion_mnist
from quantkit.settings import DataSettings


@pytest.fixture
def found(tmp_path: Path) -> tuple[MeasuredOutputs, dict[str, Array], Array, Array]:
    first, second = classifier(), classifier(noise=0.3)
    data = labelled(300, first)
    x = {"x": data["x"]}
    found = evaluated(contenders(tmp_path, first, second, first), data)
    return found, data, run(first, x)[0], run(second, x)[0]


def test_drift_is_that_of_all_outputs_together(
    found: tuple[MeasuredOutputs, dict[str, Array], Array, Array],
) -> None:
    answered, _, before, now = found
    drift = answered.drift["c1"].outputs[0]
    error = np.abs(before - now)
    assert drift.output == "logits"
    assert drift.sqnr_db == pytest.approx(sqnr(before.astype(float), now.astype(float)), abs=1e-4)
    assert drift.sqnr_db is not None
    assert drift.sqnr_interval is not None
    assert drift.sqnr_interval.low < drift.sqnr_db < drift.sqnr_interval.high
    assert drift.max_error == pytest.approx(error.max(), rel=1e-5)
    assert drift.mean_error == pytest.approx(error.mean(), rel=1e-5)
    assert drift.p99_error == pytest.approx(np.quantile(error, 0.99), rel=0.03)
    norms = np.linalg.norm(before, axis=1) * np.linalg.norm(now, axis=1)
    assert drift.cosine == pytest.approx(((before * now).sum(1) / norms).mean(), abs=1e-6)
    assert drift.signal == pytest.approx(np.sqrt((before**2).mean()), rel=1e-5)
    assert drift.not_finite == 0


def test_decisions_are_counted_and_tested(
    found: tuple[MeasuredOutputs, dict[str, Array], Array, Array],
) -> None:
    answered, data, before, now = found
    decision = answered.drift["c1"].decision
    old, new = before.argmax(1), now.argmax(1)
    lost = int(((old == data["label"]) & (new != data["label"])).sum())
    gained = int(((old != data["label"]) & (new == data["label"])).sum())
    assert decision is not None
    assert (decision.flips, decision.samples) == (int((old != new).sum()), 300)
    assert (decision.lost, decision.gained) == (lost, gained)
    assert decision.p_value == pytest.approx(stats.binomtest(gained, gained + lost).pvalue)
    assert decision.interval.low < decision.flip_rate < decision.interval.high


def test_metrics_of_classes(found: tuple[MeasuredOutputs, dict[str, Array], Array, Array]) -> None:
    answered, data, before, now = found
    labels = data["label"]
    top_1, top_5, f1 = answered.metrics["c1"]
    assert [m.name for m in (top_1, top_5, f1)] == ["top-1", "top-5", "f1"]
    assert [m.main for m in (top_1, top_5, f1)] == [True, False, False]
    assert top_1.value == pytest.approx((now.argmax(1) == labels).mean())
    best = np.argsort(-now, axis=1, kind="stable")[:, :5]
    assert top_5.value == pytest.approx((best == labels[:, None]).any(1).mean())
    drop = (before.argmax(1) == labels).mean() - (now.argmax(1) == labels).mean()
    assert top_1.drop == pytest.approx(drop)
    assert top_1.drop_interval is not None
    assert top_1.drop_interval.low <= drop <= top_1.drop_interval.high
    assert answered.metrics["float"][0].drop is None


def test_copies_are_no_evidence(tmp_path: Path) -> None:
    nodes = [node("MatMul", ["x", "w"], ["y"])]
    weights = (weight(16, 4), weight(16, 4) + 0.3 * weight(16, 4, seed=1))
    models = contenders(
        tmp_path,
        *(model(graph(nodes, {"x": ["N", 16]}, {"y": ["N", 4]}, {"w": w})) for w in weights),
    )
    x = rng(1).standard_normal((60, 16)).astype(np.float32)
    labels = rng(2).integers(0, 4, 60)
    once = evaluated(models, {"x": x, "label": labels})
    thrice = evaluated(models, {"x": np.repeat(x, 3, 0), "label": np.repeat(labels, 3)})
    assert (thrice.data.samples, thrice.data.distinct) == (180, 60)
    assert once.metrics["c1"][0].drop_interval == thrice.metrics["c1"][0].drop_interval
    assert once.drift["c1"].decision is not None
    assert thrice.drift["c1"].decision is not None
    assert once.drift["c1"].decision.interval == thrice.drift["c1"].decision.interval
    intervals = [e.drift["c1"].outputs[0].sqnr_interval for e in (once, thrice)]
    assert intervals[0] == intervals[1]
    assert (
        "120 of 180 samples are copies of others: intervals count each sample once." in thrice.notes
    )
    assert not any("copies" in note for note in once.notes)


def test_an_identical_candidate_has_no_drift(
    found: tuple[MeasuredOutputs, dict[str, Array], Array, Array],
) -> None:
    answered = found[0]
    drift = answered.drift["c2"]
    assert drift.outputs[0].sqnr_db is None
    assert drift.outputs[0].max_error == 0
    assert drift.outputs[0].cosine == pytest.approx(1)
    assert drift.decision is not None
    assert drift.decision.flips == 0
    assert drift.worst == ()
    for metric in answered.metrics["c2"]:
        assert metric.drop == 0
        assert metric.detectable is not None
        # No flip among 300 samples does not mean that there is none among others; of a rare class F1 has fewer samples.
        least = 3.84 / 303.84
        assert metric.detectable == pytest.approx(least, rel=0.01) or metric.name == "f1"
        assert metric.detectable > 0.99 * least
    assert (
        "top-1 did not change; with 300 samples, a drop of up to 1.3 points is still"
        in drift.sentence
    )


def test_the_worst_samples_have_names_labels_and_answers(
    found: tuple[MeasuredOutputs, dict[str, Array], Array, Array],
) -> None:
    answered, data, before, now = found
    ratio = (before**2).sum(1) / ((before - now) ** 2).sum(1)
    order = np.argsort(ratio)[:10]
    worst = answered.drift["c1"].worst
    assert [w.name for w in worst] == [f"arrays row {i}" for i in order]
    first = order[0]
    assert worst[0].sqnr_db == pytest.approx(10 * np.log10(ratio[first]), abs=1e-3)
    assert worst[0].label == str(data["label"][first])
    assert worst[0].float_answer == str(before[first].argmax())
    assert worst[0].answer == str(now[first].argmax())


@pytest.mark.parametrize("units", [1, 3, 64])
@pytest.mark.parametrize("batch", [None, 7])
def test_chunks_and_batches_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, units: int, batch: int | None
) -> None:
    models = contenders(tmp_path, classifier(), classifier(noise=0.2))
    data = labelled(50, classifier())
    expected = evaluated(models, data)
    monkeypatch.setattr(chunks, "UNITS", units)
    found = evaluated(models, data, batched(batch))
    assert found.metrics == expected.metrics
    one, other = found.drift["c1"], expected.drift["c1"]
    assert (one.decision, one.slices) == (other.decision, other.slices)
    assert one.outputs[0].sqnr_db == pytest.approx(other.outputs[0].sqnr_db, abs=1e-4)
    assert one.outputs[0].p99_error == pytest.approx(other.outputs[0].p99_error, rel=0.02)
    assert [w.name for w in one.worst] == [w.name for w in other.worst]


def test_a_fixed_batch_is_obeyed_and_the_rest_left_out(tmp_path: Path) -> None:
    models = contenders(tmp_path, classifier(), classifier(noise=0.1, batch=4))
    samples = [{"x": row, "label": np.array(1)} for row in rows(10)]
    found = evaluated(models, samples)
    assert (found.data.samples, found.data.batch) == (8, 4)
    assert found.notes == ("The last 2 samples do not fill the model's batch of 4: left out.",)
    assert [feeds["x"].shape for feeds in found.feeds] == [(4, 6), (4, 6)]


def test_rows_of_an_unlabelled_sample_count_one_by_one(tmp_path: Path) -> None:
    models = contenders(tmp_path, classifier(), classifier(noise=0.1))
    found = evaluated(models, [{"x": rows(5, seed)} for seed in range(3)])
    decision = found.drift["c1"].decision
    assert decision is not None
    assert (decision.samples, found.data.samples) == (15, 3)
    assert found.drift["c1"].worst[0].name.startswith("sample ")
    assert found.drift["c1"].worst[0].name.endswith("]")


def test_without_labels_there_is_drift_and_no_metric(tmp_path: Path) -> None:
    models = contenders(tmp_path, classifier(), classifier(noise=0.5))
    found = evaluated(models, {"x": rows(100)})
    drift = found.drift["c1"]
    assert found.metrics == {"float": (), "c1": ()}
    assert found.notes == ("The data has no labels: no metric, only drift.",)
    assert drift.decision is not None
    assert drift.decision.gained is None
    assert f"{100 * drift.decision.flip_rate:.1f} % of the answers differ" in drift.sentence
    assert drift.slices[0].name.startswith("float says ")
    assert drift.slices[0].p_value is None


def test_numbers_are_judged_by_squared_error(tmp_path: Path) -> None:
    first, second = regressor(), regressor(noise=0.3)
    x = rows(200)
    before, now = (run(m, {"x": x})[0][:, 0].astype(float) for m in (first, second))
    labels = before + 0.3 * rng(3).standard_normal(200)
    found = evaluated(contenders(tmp_path, first, second), {"x": x, "label": labels})
    mse, spearman = found.metrics["c1"]
    assert (mse.name, mse.main, mse.higher_is_better) == ("mse", True, False)
    assert mse.value == pytest.approx(((now - labels) ** 2).mean(), rel=1e-4)
    assert mse.drop == pytest.approx(
        ((now - labels) ** 2).mean() - ((before - labels) ** 2).mean(), rel=1e-4
    )
    assert spearman.value == pytest.approx(stats.spearmanr(now, labels)[0], abs=1e-6)
    assert found.drift["c1"].decision is None
    assert {s.by for s in found.drift["c1"].slices} == {"label"}
    assert sum(s.samples for s in found.drift["c1"].slices) == 200
    assert found.drift["c1"].worst[0].answer is not None


def test_no_number_is_no_good_answer(tmp_path: Path) -> None:
    """A candidate that answers NaN is as wrong as the worst answer, and not as right as 0."""

    def root(shift: float) -> onnx.ModelProto:
        nodes = [node("Add", ["x", "shift"], ["moved"]), node("Sqrt", ["moved"], ["score"])]
        held = {"shift": np.array(shift, np.float32)}
        return model(graph(nodes, {"x": ["N", 1]}, {"score": ["N", 1]}, held))

    x = np.linspace(1, 2, 30, dtype=np.float32)[:, None]
    labels = 0.1 * rng(1).standard_normal(30)  # near 0: what NaN must not count as
    models = contenders(tmp_path, root(0.0), root(-1.5), root(-9.0))
    found = evaluated(models, {"x": x, "label": labels})
    before = (np.sqrt(x[:, 0]) - labels) ** 2
    broken = x[:, 0] < 1.5
    now = np.where(broken, before.max(), (np.sqrt(np.abs(x[:, 0] - 1.5)) - labels) ** 2)
    assert found.metrics["c1"][0].value == pytest.approx(now.mean(), rel=1e-3)
    assert found.metrics["c2"][0].value == pytest.approx(before.max(), rel=1e-3)
    assert found.metrics["c2"][1].value == 0  # ranks nothing
    assert found.drift["c1"].outputs[0].not_finite == broken.sum()


def test_the_largest_feature_of_an_embedding_is_no_decision(tmp_path: Path) -> None:
    def renamed(proto: onnx.ModelProto) -> onnx.ModelProto:
        proto.graph.node[0].output[0] = proto.graph.output[0].name = "sentence_embedding"
        return proto

    models = contenders(tmp_path, renamed(classifier()), renamed(classifier(noise=0.5)))
    found = evaluated(models, {"x": rows(40)})
    assert found.drift["c1"].decision is None
    assert "dB SQNR" in found.drift["c1"].sentence
    data = labelled(40, classifier())
    assert evaluated(models, data).metrics["float"][0].name == "top-1"  # labels know better


def test_integers_are_decisions(tmp_path: Path) -> None:
    def labeller(noise: float) -> onnx.ModelProto:
        w = weight(6, 4, scale=1.0) + noise * weight(6, 4, seed=1, scale=1.0)
        nodes = [
            node("MatMul", ["x", "w"], ["scores"]),
            node("ArgMax", ["scores"], ["answer"], axis=1, keepdims=0),
        ]
        types = {"answer": TensorProto.INT64}
        return model(graph(nodes, {"x": ["N", 6]}, {"answer": ["N"]}, {"w": w}, types=types))

    x = rows(80)
    before, now = (run(labeller(n), {"x": x})[0] for n in (0.0, 0.5))
    found = evaluated(contenders(tmp_path, labeller(0.0), labeller(0.5)), {"x": x, "label": before})
    decision = found.drift["c1"].decision
    assert found.drift["c1"].outputs == ()
    assert decision is not None
    assert decision.flips == decision.lost == int((before != now).sum())
    assert [m.name for m in found.metrics["c1"]] == ["top-1", "f1"]
    assert found.metrics["c1"][0].value == pytest.approx((before == now).mean())


def test_an_only_output_of_integers_is_compared_value_by_value(tmp_path: Path) -> None:
    def masks(bound: float) -> onnx.ModelProto:
        nodes = [node("Greater", ["x", "bound"], ["mask"])]
        types = {"mask": TensorProto.BOOL}
        held = {"bound": np.array(bound, np.float32)}
        return model(graph(nodes, {"x": ["N", 6]}, {"mask": ["N", 6]}, held, types=types))

    x = rows(40)
    found = evaluated(contenders(tmp_path, masks(0.0), masks(0.1)), {"x": x})
    decision = found.drift["c1"].decision
    different = int(((x > 0) != (x > np.float32(0.1))).sum())
    assert decision is not None
    assert (decision.samples, decision.flips) == (240, different)
    assert decision.interval.low < decision.flip_rate < decision.interval.high
    assert any("of its values are float's" in note for note in found.notes)


def test_outputs_of_another_shape_are_told_and_not_compared(tmp_path: Path) -> None:
    def kept(bound: float) -> onnx.ModelProto:
        nodes = [
            node("Greater", ["x", "bound"], ["good"]),
            node("NonZero", ["good"], ["where"]),
            node("Transpose", ["where"], ["places"]),
            node("GatherND", ["x", "places"], ["kept"]),
        ]
        held = {"bound": np.array(bound, np.float32)}
        return model(graph(nodes, {"x": ["N", 6]}, {"kept": ["K"]}, held))

    x = rows(50)
    found = evaluated(contenders(tmp_path, kept(0.0), kept(0.2)), {"x": x})
    other = int(((x > 0).sum(1) != (x > np.float32(0.2)).sum(1)).sum())
    assert other
    assert any(f"another shape than float's on {other} of 50 samples" in n for n in found.notes)
    assert found.drift["c1"].outputs[0].sqnr_db is None
    assert f"on {other} of 50 samples an output has another shape" in found.drift["c1"].sentence


def test_values_that_are_not_finite_are_counted(tmp_path: Path) -> None:
    def logarithm(shift: float) -> onnx.ModelProto:
        nodes = [node("Add", ["x", "shift"], ["moved"]), node("Log", ["moved"], ["y"])]
        held = {"shift": np.array(shift, np.float32)}
        return model(graph(nodes, {"x": ["N", 6]}, {"y": ["N", 6]}, held))

    x = np.abs(rows(20)) + 0.5
    x[3, 2] = -1.0  # float's own
    found = evaluated(contenders(tmp_path, logarithm(0.0), logarithm(-0.6)), {"x": x})
    wrong = int((x < np.float32(0.6)).sum()) - 1
    drift = found.drift["c1"]
    assert wrong > 0
    assert drift.outputs[0].not_finite == wrong
    assert np.isfinite(drift.outputs[0].max_error)
    assert "1 of 20 samples (the first is 'arrays row 3')" in " ".join(found.notes)
    assert drift.worst[0].sqnr_db is None
    assert drift.worst[0].answer == "NaN"


def test_the_embedded_sample(tmp_path: Path) -> None:
    sample = fashion_mnist()
    np.savez(tmp_path / "some.npz", image=sample.images[:200], label=sample.labels[:200])
    models = contenders(tmp_path, onnx.load(sample.model), onnx.load(sample.model))
    found = evaluated(models, tmp_path / "some.npz", DataSettings(limit=100, seed=4))
    assert found.data.order == "100 drawn with seed 4"
    assert (found.data.samples, found.data.available, found.data.kind) == (100, 200, "npz")
    assert found.data.fingerprint
    assert found.data.labels == "10 classes from 'label'"
    assert len(found.feeds) == 16
    assert found.metrics["float"][0].value > 0.85
    assert {s.by for s in found.drift["c1"].slices} == {"class"}


@pytest.mark.parametrize("optimize", [True, False])
def test_a_model_answers_as_it_does_alone(tmp_path: Path, *, optimize: bool) -> None:
    models = contenders(tmp_path, classifier(), classifier(noise=0.3))
    data = labelled(60, classifier())
    found = evaluated(models, data)
    alone = [
        run(models[1].path, {"x": row[None]}, optimize=optimize)[0].argmax() for row in data["x"]
    ]
    expected = float((np.array(alone) == data["label"]).mean())
    assert found.metrics["c1"][0].value == pytest.approx(expected)


def test_a_stream_is_read_once_and_limited(tmp_path: Path) -> None:
    models = contenders(tmp_path, classifier(), classifier(noise=0.1))
    stream = ({"x": row} for row in rows(30))
    found = evaluated(models, stream, DataSettings(limit=20))
    assert (found.data.samples, found.data.order) == (20, "the first 20")
    assert found.data.fingerprint == ""


def test_labels_that_the_float_model_does_not_know_are_noticed(tmp_path: Path) -> None:
    data = labelled(200, classifier())
    data["label"] = rng(9).integers(0, 8, 200)
    found = evaluated(contenders(tmp_path, classifier(), classifier(noise=0.1)), data)
    assert any("no better than guessing among 8 classes" in note for note in found.notes)


def test_text_labels_give_a_note_and_no_metric(tmp_path: Path) -> None:
    data = without(labelled(10, classifier()), "label") | {"label": np.array(["cat"] * 10)}
    found = evaluated(contenders(tmp_path, classifier(), classifier(noise=0.1)), data)
    assert found.metrics["c1"] == ()
    assert found.notes[0].startswith("Labels are texts ('cat', ...): no metric.")


def test_sequences_are_not_compared(tmp_path: Path) -> None:
    def proto(*, tensor: bool) -> onnx.ModelProto:
        nodes = [
            node("MatMul", ["x", "w"], ["logits"]),
            node("SequenceConstruct", ["logits"], ["all"]),
        ]
        outputs: dict[str, list[int | str | None]] = {"logits": ["N", 3]} if tensor else {}
        found = graph(nodes, {"x": ["N", 6]}, outputs, {"w": weight(6, 3)})
        element = onnx.helper.make_tensor_type_proto(TensorProto.FLOAT, None)
        kind = onnx.helper.make_sequence_type_proto(element)
        found.output.append(onnx.helper.make_value_info("all", kind))
        return model(found)

    pair = proto(tensor=True), proto(tensor=True)
    found = evaluated(contenders(tmp_path, *pair), {"x": rows(5)})
    assert "Output 'all' is no tensor (seq(tensor(float))): not compared." in found.notes
    bare = contenders(tmp_path, proto(tensor=False), proto(tensor=False))
    with pytest.raises(ModelError, match=r"No output of .* is a tensor"):
        evaluated(bare, {"x": rows(5)})
