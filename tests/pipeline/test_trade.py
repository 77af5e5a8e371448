"""What is nearly free in float stays float: by noise on samples that did not choose, and by time measured in turns."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import graph, model, node, rng, save, weight

import quantkit
from quantkit import Prepared
from quantkit.api.verify import reproduce
from quantkit.pipeline import measure, plan_search, static_repairs
from quantkit.quantize.plan import Mode, Plan
from quantkit.quantize.plan.measured import Costs
from quantkit.result import Interval

CHANNELS = 96


def convs() -> onnx.ModelProto:
    """A small Conv whose weight 8 bits hold badly, and two large ones."""
    coarse = weight(16, 2, 3, 3, seed=1)
    coarse[:, 1] *= 12  # of a channel that is next to nothing: all that they do is widen the range
    weights = {"w0": coarse, "w1": weight(CHANNELS, 16, 3, 3, seed=2)}
    weights["w2"] = weight(CHANNELS, CHANNELS, 3, 3, seed=3)
    nodes = [
        node("Conv", ["x", "w0"], ["c0"], "conv0", pads=[1] * 4),
        node("Relu", ["c0"], ["r0"], "relu0"),
        node("Conv", ["r0", "w1"], ["c1"], "conv1", pads=[1] * 4),
        node("Relu", ["c1"], ["r1"], "relu1"),
        node("Conv", ["r1", "w2"], ["y"], "conv2", pads=[1] * 4),
    ]
    return model(graph(nodes, {"x": ["N", 2, 12, 12]}, {"y": None}, weights))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return save(convs(), tmp_path / "m.onnx")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    x = rng(1).standard_normal((60, 2, 12, 12)) ** 3  # few values are large: 8 bits hold it badly
    x[:, 1] *= 1e-3
    np.save(tmp_path / "x.npy", x.astype(np.float32))
    return tmp_path / "x.npy"


def costs_with(monkeypatch: pytest.MonkeyPatch, conv0: float) -> None:
    """Let integers take half of float's millisecond, but conv0 as long as this."""

    def found(prepared: Prepared, _: Plan) -> Costs:
        nodes = [n.name for n in prepared.ready.view.nodes]
        static = dict.fromkeys(nodes, 0.5e-3) | {"conv0": conv0, "relu0": 0.0}
        floats = dict.fromkeys(nodes, 1e-3) | {"relu0": 0.0}
        return Costs(floats=floats, static=static, total=1e-3 * len(nodes))

    monkeypatch.setattr(measure, "_measured", found)
    monkeypatch.setattr(static_repairs, "ratio_to_float", lambda *_: 0.5)


def timed_as(monkeypatch: pytest.MonkeyPatch, ratio: float, high: float) -> None:
    monkeypatch.setattr(
        plan_search,
        "time_ratios",
        lambda models, *_, **__: [(ratio, Interval(low=ratio, high=high))] * (len(models) - 1),
    )


def kept_notes(result: quantkit.QuantizeResult) -> list[str]:
    return [note for note in result.notes if note.startswith("Kept")]


@pytest.mark.slow
def test_small_weights_of_what_computes_in_float_stay_float(
    source: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs_with(monkeypatch, conv0=10e-3)
    result = quantkit.quantize_static(source, tmp_path / "q.onnx", data, measure=True)
    assert result.plan.node["conv0"].mode is Mode.FLOAT
    assert result.plan.node["conv1"].mode is Mode.STATIC
    assert result.plan.node["conv0"].why.startswith("slower in int8")
    (note,) = kept_notes(result)
    assert note.startswith("Kept 1 small weight in float: +")
    assert note.endswith(" dB, no more time.")
    check = reproduce(tmp_path / "q.onnx", source, data=data)
    assert (check.outcome, "same bytes" in check.sentence) == ("ok", True)


@pytest.mark.slow
def test_a_loud_tensor_stays_float_where_that_takes_little_time(
    source: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs_with(monkeypatch, conv0=0.99e-3)
    timed_as(monkeypatch, 1.012, 1.02)
    result = quantkit.quantize_static(source, tmp_path / "q.onnx", data, measure=True)
    assert result.plan.node["conv0"].mode is not Mode.STATIC
    assert result.plan.node["conv1"].mode is Mode.STATIC
    (note,) = (note for note in kept_notes(result) if "tensor" in note)
    assert note.endswith(" dB for 1.2 % more time.")
    without = quantkit.quantize_static(source, tmp_path / "r.onnx", data, measure=False)
    assert result.verification is not None
    assert without.verification is not None
    assert result.verification.compared["y"] > without.verification.compared["y"] + 0.5


@pytest.mark.parametrize(("ratio", "high"), [(1.03, 1.04), (1.01, 1.2)])
@pytest.mark.slow
def test_what_takes_longer_or_is_not_known_well_enough_is_not_traded(
    ratio: float,
    high: float,
    source: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    costs_with(monkeypatch, conv0=0.99e-3)
    timed_as(monkeypatch, ratio, high)
    result = quantkit.quantize_static(source, tmp_path / "q.onnx", data, measure=True)
    assert result.plan.node["conv0"].mode is Mode.STATIC
    assert not kept_notes(result)


def test_nothing_is_traded_without_measuring(
    source: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_search, "Meter", None)  # nothing may be measured
    result = quantkit.quantize_static(source, tmp_path / "q.onnx", data)
    assert result.plan.node["conv0"].mode is Mode.STATIC
