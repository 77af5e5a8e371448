"""Ranges of activations by their effect on the outputs."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import Array, graph, model, node, rng, save, sqnr, weight
from static_cases import Ready, X, chain, conv_weights, ready, seen_ranges

import quantkit
from calibrators import Peaks, Sketch
from quantkit import Prepared, RecoverSettings, StaticSettings
from quantkit.quantize.plan.solved import SolvedIntegers
from quantkit.quantize.solve.folds import numbers_without, observe_parts
from quantkit.quantize.solve.losses import Meter
from quantkit.quantize.solve.ranges import Observed, clip_weights, fit_ranges
from quantkit.runtime.check_result import Excess
from quantkit.runtime.session import make_session
from quantkit.runtime.taps import TensorReader, read_tensors

LOUD = 40.0
RELU = node("Relu", ["a"], ["b"], "relu")


def deaf(*, to: int = 0) -> dict[str, Array]:
    """Weights of a chain whose first channel is loud, and read by nobody."""
    found = conv_weights("c1", "c2")
    found["c1_w"][to] *= LOUD
    found["c2_w"][:, to] = 0
    return found


class Fitted:
    """A chain with the clip weight and the range of the tensor between its layers."""

    def __init__(self, constants: dict[str, Array], samples: int = 8) -> None:
        self.prepared: Ready = ready(chain(RELU, constants=constants))
        model, view = self.prepared.model, self.prepared.view
        self.plan = self.prepared.plan(seen_ranges(self.prepared, {"x": X}))
        self.feeds = [
            {"x": X + rng(i).standard_normal(X.shape).astype(np.float32)} for i in range(samples)
        ]
        sketch, peaks = Sketch(), Peaks()
        for values in read_tensors(model, ["b"], self.feeds):
            sketch.observe(values["b"])
            peaks.observe(values["b"])
        self.observed = {"b": (sketch, peaks)}
        self.meter = Meter(model, view, self.plan, SolvedIntegers(), self.feeds)
        self.weights = clip_weights(
            self.meter, TensorReader(model, self.observed), self.plan, self.observed, self.feeds
        )
        self.ranges = fit_ranges(self.observed, self.weights)
        self.highest = float(peaks.high[0])


def test_a_channel_that_no_layer_reads_does_not_make_a_range_wide() -> None:
    found = Fitted(deaf())
    assert found.weights["b"] < 0.1
    assert found.ranges["b"][1] < 0.6 * fit_ranges(found.observed, {})["b"][1]


def test_a_range_whose_values_count_leaves_room_for_other_samples() -> None:
    weights = conv_weights("c1", "c2")
    weights["c2_w"] = np.abs(weights["c2_w"])  # every clipped value is missed
    found = Fitted(weights)
    assert found.weights["b"] > 1
    assert found.ranges["b"][1] > found.highest


def test_other_scales_are_tried_in_one_session() -> None:
    found = Fitted(conv_weights("c1", "c2"))
    planned = found.plan.activation["b"]
    as_planned = found.meter.tallies_with({}, 3)["y"]
    same = found.meter.tallies_with({"b": (planned.scale, planned.zero_point)}, 3)["y"]
    clipped = found.meter.tallies_with({"b": (planned.scale / 8, planned.zero_point)}, 3)["y"]
    assert same == as_planned
    assert clipped.noise > 4 * as_planned.noise


@pytest.mark.parametrize("more", [0, 50])
def test_a_range_is_set_without_the_samples_that_it_judges(more: int) -> None:
    found = Fitted(conv_weights("c1", "c2"))
    sketch, peaks = found.observed["b"]
    for _ in range(more):  # of many samples only some are left out
        peaks.observe(np.zeros((2, 2), np.float32))
    peaks.observe(np.full((2, 2), LOUD, np.float32))

    def highest(observed: Observed) -> dict[str, tuple[float, float]]:
        return {tensor: (0.0, float(own.high[0])) for tensor, (_, own) in observed.items()}

    loud = {**found.feeds[2], "x": found.feeds[2]["x"] * 10}
    feeds = [*found.feeds[:2], loud, *found.feeds[3:]]
    model = found.prepared.model
    highs = [float(values["b"].max()) for values in read_tensors(model, ["b"], feeds)]
    for high in highs:
        peaks.observe(np.full(2, high, np.float32))
    observed, parts = (
        {"b": (sketch, peaks)},
        observe_parts(TensorReader(model, ["b"]), ["b"], feeds),
    )
    scales = [
        numbers_without(part, found.plan, highest, observed, parts)["b"][0] for part in range(4)
    ]
    assert scales[2] < min(scales[:2] + scales[3:]) / 2


# -- the whole pipeline --------------------------------------------------------------------------


def matrices(*, loud: float = 30.0) -> onnx.ModelProto:
    """Two Gemm with a Relu between; equalization has no say, and one feature of 16 is loud and hardly read."""
    first, second = weight(12, 16, seed=1), weight(16, 5, seed=2)
    first[:, 3] *= loud
    second[3] = 1e-4
    nodes = [
        node("Gemm", ["x", "w1", "b1"], ["a"], "g1"),
        node("Relu", ["a"], ["r"], "relu"),
        node("Gemm", ["r", "w2", "b2"], ["y"], "g2"),
    ]
    constants = {"w1": first, "b1": weight(16, seed=3), "w2": second, "b2": weight(5, seed=4)}
    return model(graph(nodes, {"x": ["N", 12]}, {"y": None}, constants))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return save(matrices(), tmp_path / "m.onnx")


def rows(count: int = 40, seed: int = 0) -> Array:
    return rng(seed).standard_normal((count, 12)).astype(np.float32)


def prepared_with(source: Path, **given: Any) -> Prepared:
    recover = RecoverSettings(smooth=False, **given.pop("recover", {}))
    return quantkit.prepare_static(source, rows(), StaticSettings(recover=recover, **given))


def test_fitted_ranges_bring_the_file_nearer_to_float(source: Path, tmp_path: Path) -> None:
    figures = {}
    for name, switch in {"plain": False, "fitted": "auto"}.items():
        recover = RecoverSettings(smooth=False, activation_ranges=switch)  # type: ignore[arg-type]
        path = tmp_path / f"{name}.onnx"
        quantkit.quantize_static(source, path, rows(), recover=recover)
        outputs = [make_session(str(p)).run(None, {"x": rows(seed=9)})[0] for p in (source, path)]
        figures[name] = sqnr(*outputs)
    assert figures["fitted"] > figures["plain"] + 3


def test_fitted_ranges_are_for_the_default_method_and_8_bits(source: Path) -> None:
    assert "r" in prepared_with(source).fitted
    assert not prepared_with(source, recover={"activation_ranges": False}).fitted
    assert not prepared_with(source, coverage="all").fitted
    assert not prepared_with(source, activation_type="uint16").fitted


def test_a_method_that_the_user_names_gives_the_range(source: Path) -> None:
    whole = prepared_with(source)
    fitted = quantkit.plan_prepared(whole).activation["r"]
    rule = quantkit.TensorRule(tensor="r", method="minmax")
    static = StaticSettings(recover=whole.job.options.recover, tensors=(rule,))
    assert quantkit.plan_prepared(whole, static).activation["r"].high > 1.5 * fitted.high
    static = StaticSettings(recover=whole.job.options.recover, method="minmax")
    assert quantkit.plan_prepared(whole, static).activation["r"].high > 1.5 * fitted.high


def heavy(count: int, seed: int) -> list[dict[str, Array]]:
    """Samples of very different loudness, as images and recordings are."""
    found = rng(seed)
    return [
        {"x": (found.standard_normal((1, 12)) * np.exp(found.normal(0, 0.6))).astype(np.float32)}
        for _ in range(count)
    ]


def test_the_verified_figure_predicts_that_of_other_samples(tmp_path: Path) -> None:
    source = save(matrices(loud=1.0), tmp_path / "m.onnx")
    result = quantkit.quantize_static(source, tmp_path / "q.onnx", heavy(24, 0))
    checked = result.verification
    assert checked is not None
    assert "left out of calibration in turn" in str(checked)
    sessions = [make_session(str(p)) for p in (source, tmp_path / "q.onnx")]
    runs = [[s.run(None, one)[0] for one in heavy(200, 1)] for s in sessions]
    assert checked.compared["y"] < sqnr(*(np.concatenate(run) for run in runs)) + 5


def test_a_range_is_fitted_to_what_is_moved_before_it_is_rounded(tmp_path: Path) -> None:
    nodes = [
        node("Gemm", ["x", "w1", "b1"], ["a"], "g1"),
        node("Relu", ["a"], ["r"], "relu"),
        node("Flatten", ["r"], ["f"], "flatten"),
        node("Gemm", ["f", "w2", "b2"], ["y"], "g2"),
    ]
    constants = {"w1": weight(12, 16, seed=1), "b1": weight(16, seed=3)}
    constants |= {"w2": weight(16, 5, seed=2), "b2": weight(5, seed=4)}
    source = save(
        model(graph(nodes, {"x": ["N", 12]}, {"y": None}, constants)), tmp_path / "m.onnx"
    )
    prepared = prepared_with(source, exclude=("g1",))
    assert prepared.turns is not None
    assert all(numbers.keys() == {"f"} for numbers in prepared.turns.numbers)
    assert "r" not in quantkit.plan_prepared(prepared).activation
    # Ranges with room are four times noisier here on samples that set neither: plain ones stay.
    assert not prepared.fitted


def test_excess_is_never_larger_than_the_result_explains() -> None:
    excess = Excess(inside=2.0, outside=6.0)
    assert excess.beyond(4.0) == 4.0  # the weights' noise does not grow
    assert excess.beyond(1.0) == 2.0  # the plan rounds less than was simulated
    assert excess.beyond(0.0) == 0.0
    assert Excess(inside=2.0, outside=1.0).beyond(4.0) == 0.0
    assert Excess(inside=0.0, outside=1.0).beyond(4.0) == 0.0


def test_smoothing_leaves_other_samples_room_in_every_channel(tmp_path: Path) -> None:
    """Each of 288 features has one value in a sample: the largest of a few tells little about the next."""
    nodes = [
        node("Gemm", ["x", "w1", "b1"], ["a"], "g1"),
        node("Relu", ["a"], ["r"], "relu"),
        node("Gemm", ["r", "w2", "b2"], ["y"], "g2"),
    ]
    spread = np.geomspace(0.1, 1.0, 288, dtype=np.float32)
    constants = {"w1": weight(12, 288, seed=1) * spread, "b1": weight(288, seed=3, scale=0.01)}
    constants |= {"w2": weight(288, 5, seed=2) / spread[:, None], "b2": weight(5, seed=4)}
    proto = model(graph(nodes, {"x": ["N", 12]}, {"y": None}, constants))
    source, target = save(proto, tmp_path / "m.onnx"), tmp_path / "q.onnx"
    quantkit.quantize_static(source, target, rows(60), recover=RecoverSettings(smooth=True))
    outputs = [make_session(str(p)).run(None, {"x": rows(200, 9)})[0] for p in (source, target)]
    assert sqnr(*outputs) > 29.7  # 28.6 where factors follow the largest values


def test_noise_is_the_same_whether_or_not_the_first_layers_run_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weights = conv_weights("c1", "c2")
    whole = Fitted(weights)
    monkeypatch.setattr("quantkit.quantize.solve.losses._PLACES", 1)
    cut = Fitted(weights)
    assert len(cut.meter._segments.starts) > len(whole.meter._segments.starts) == 1
    assert cut.weights == whole.weights
    assert cut.meter.losses(0.01) == whole.meter.losses(0.01)
    assert cut.meter._states
