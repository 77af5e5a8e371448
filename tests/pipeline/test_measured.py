"""Plans by what was measured: what runs, what is kept with a preparation, what stands in the record."""

import re
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import Array, graph, model, node, rng, save, weight

import quantkit
from quantkit import NodeRule, Prepared, StaticSettings
from quantkit.api.verify import reproduce
from quantkit.errors import UsageError
from quantkit.files import scratch
from quantkit.model.provenance import read_provenance
from quantkit.pipeline import measure, static_repairs
from quantkit.pipeline.measure import costs_of
from quantkit.pipeline.plan_prepared import plan_of
from quantkit.quantize.plan import Mode, Plan
from quantkit.quantize.plan.measured import Costs, predict
from quantkit.result import Interval
from quantkit.runtime import profile
from quantkit.runtime.profile import profile_models
from quantkit.targets import Machine, machine

CHANNELS = 16
MEASURED = StaticSettings(measure=True)


def convs() -> onnx.ModelProto:
    """Four Conv with Relu, and a Gemm."""
    nodes, weights, last = [], {}, "x"
    for i in range(4):
        weights[f"w{i}"] = weight(CHANNELS, CHANNELS, 3, 3, seed=i)
        weights[f"b{i}"] = weight(CHANNELS, seed=i + 5)
        nodes.append(node("Conv", [last, f"w{i}", f"b{i}"], [f"c{i}"], f"conv{i}", pads=[1] * 4))
        nodes.append(node("Relu", [f"c{i}"], [f"r{i}"], f"relu{i}"))
        last = f"r{i}"
    weights["w"] = weight(CHANNELS, 10, seed=9)
    nodes.append(node("GlobalAveragePool", [last], ["pooled"], "pool"))
    nodes.append(node("Flatten", ["pooled"], ["flat"], "flatten"))
    nodes.append(node("Gemm", ["flat", "w"], ["y"], "gemm"))
    return model(graph(nodes, {"x": ["N", CHANNELS, 16, 16]}, {"y": None}, weights))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return save(convs(), tmp_path / "m.onnx")


def images() -> Array:
    return rng(1).standard_normal((12, CHANNELS, 16, 16)).astype(np.float32)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    np.save(tmp_path / "x.npy", images())
    return tmp_path / "x.npy"


def slow(prepared: Prepared, names: Mapping[str, float]) -> Costs:
    """Say that all is twice as fast in integers, but these nodes so much slower."""
    nodes = [n.name for n in prepared.ready.view.nodes]
    return Costs(
        floats=dict.fromkeys(nodes, 1e-3),
        static=dict.fromkeys(nodes, 0.5e-3) | {n: 1e-3 * times for n, times in names.items()},
        total=1e-3 * len(nodes),
    )


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Prepared]:
    """Let conv2 be slow, and say how often that was measured."""
    asked: list[Prepared] = []

    def found(prepared: Prepared, _: Plan) -> Costs:
        asked.append(prepared)
        return slow(prepared, {"conv2": 20.0})

    monkeypatch.setattr(measure, "_measured", found)
    return asked


@pytest.mark.slow
def test_a_model_is_run_and_the_result_says_what_that_showed(
    source: Path, data: Path, tmp_path: Path
) -> None:
    result = quantkit.quantize_static(source, tmp_path / "q.onnx", data, measure=True)
    (said,) = (note for note in result.notes if note.startswith("timing: float"))
    assert re.search(r"int8 \S+ ms.* \(load average", said)


def test_what_is_slower_in_integers_stays_out_with_the_figures(
    source: Path, data: Path, tmp_path: Path, measured: list[Prepared]
) -> None:
    result = quantkit.quantize_static(source, tmp_path / "q.onnx", data, measure=True)
    assert len(measured) == 1
    assert result.plan.node["conv2"].mode is Mode.STORED
    assert result.plan.node["conv2"].why.startswith("slower in int8: 18.50 ms alone")
    assert result.plan.node["conv1"].mode is Mode.STATIC
    assert any("stay out of int8" in note for note in result.notes)


def test_what_is_forced_into_integers_stays_there(
    source: Path, data: Path, measured: list[Prepared]
) -> None:
    forced = replace(MEASURED, nodes=(NodeRule(node="conv2", mode="integer"),))
    plan = quantkit.plan_static(source, data, forced)
    assert measured
    assert plan.node["conv2"].mode is Mode.STATIC


def test_the_record_has_what_was_decided_and_the_same_bytes_come_of_it_without_measuring(
    source: Path, data: Path, tmp_path: Path, measured: list[Prepared]
) -> None:
    quantkit.quantize_static(source, tmp_path / "q.onnx", data, measure=True)
    record = read_provenance(tmp_path / "q.onnx")
    assert record is not None
    assert "conv2" in record.options["kept"]["stored"]
    measured.clear()
    check = reproduce(tmp_path / "q.onnx", source, data=data)
    assert (check.outcome, "same bytes" in check.sentence) == ("ok", True)
    assert not measured


def test_a_preparation_is_measured_once_and_saved_with_what_was_found(
    source: Path, data: Path, tmp_path: Path, measured: list[Prepared]
) -> None:
    prepared = quantkit.prepare_static(source, data, MEASURED)
    plan = quantkit.plan_prepared(prepared)
    quantkit.save_prepared(prepared, tmp_path / "kept")
    again = quantkit.load_prepared(tmp_path / "kept")
    assert quantkit.plan_prepared(again) == plan
    assert plan.node["conv2"].mode is Mode.STORED
    assert len(measured) == 1
    quantkit.realize_plan(again, plan, tmp_path / "a.onnx")
    quantkit.quantize_static(source, tmp_path / "b.onnx", data, measure=True)
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


@pytest.mark.parametrize("given", [{"measure": False}, {}])
def test_switched_off_nothing_is_measured(
    given: dict[str, bool], source: Path, data: Path, tmp_path: Path, measured: list[Prepared]
) -> None:
    result = quantkit.quantize_static(
        source, tmp_path / "q.onnx", data, measure=given.get("measure")
    )
    assert not measured  # tests run with QUANTKIT_MEASURE=0
    assert result.plan.node["conv2"].mode is Mode.STATIC
    record = read_provenance(tmp_path / "q.onnx")
    assert record is not None
    assert "kept" not in record.options


def test_a_run_too_short_to_measure_is_left_to_the_rules(
    source: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(measure.SWITCH, "1")
    monkeypatch.setattr(measure, "run_seconds", lambda *_: 40e-6)
    result = quantkit.quantize_static(source, tmp_path / "q.onnx", data)
    assert any("a run takes 40 us" in note for note in result.notes)
    assert result.plan.node["conv2"].mode is Mode.STATIC


@pytest.mark.slow
def test_a_calibration_without_data_is_measured_on_inputs_that_are_made_up(
    source: Path, data: Path, tmp_path: Path
) -> None:
    calibration = quantkit.calibrate(source, data)
    result = quantkit.quantize_static(source, tmp_path / "q.onnx", calibration, measure=True)
    assert any(note.startswith("timing: ") for note in result.notes)


def test_nodes_and_conversions_sum_up_to_what_a_run_takes(source: Path, data: Path) -> None:
    prepared = quantkit.prepare_static(source, data)
    plan, view = plan_of(prepared), prepared.ready.view
    with scratch() as folder:
        paths = [
            measure.write_draft(prepared, None, folder / "float.onnx"),
            measure.write_draft(prepared, plan, folder / "static.onnx"),
        ]
        floats, static = profile_models(paths, [{"x": images()[:1]}], folder, seconds=0.1)
        costs = costs_of(view, plan, floats, static)
    floats_only = replace(plan, nodes=(), activations=())
    assert predict(view, floats_only, costs) == pytest.approx(floats.total)
    assert predict(view, plan, costs) == pytest.approx(static.total, rel=0.05)
    fused = {name for several in costs.fused for name in several}
    assert {"conv1", "relu1"} <= fused


def test_what_is_fused_in_float_costs_nothing_beside_integers(tmp_path: Path) -> None:
    # Conv and LeakyRelu are one kernel in float; where the Conv is in integers, LeakyRelu takes what it takes alone.
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], "conv", pads=[1] * 4),
        node("LeakyRelu", ["c"], ["l"], "leaky", alpha=0.2),
        node("Sub", ["l", "s"], ["d"], "sub"),  # no integers reach LeakyRelu through it
        node("Conv", ["d", "w2", "b"], ["y"], "conv2", pads=[1] * 4),
    ]
    weights = {"w": weight(32, 32, 3, 3), "w2": weight(32, 32, 3, 3, seed=1), "b": weight(32)}
    weights["s"] = np.array([0.5], dtype=np.float32)
    proto = model(graph(nodes, {"x": [1, 32, 24, 24]}, {"y": None}, weights))
    x = rng(1).standard_normal((8, 1, 32, 24, 24)).astype(np.float32)
    prepared = quantkit.prepare_static(save(proto, tmp_path / "m.onnx"), list(x))
    plan, view = plan_of(prepared), prepared.ready.view
    with scratch() as folder:
        paths = [
            measure.write_draft(prepared, None, folder / "float.onnx"),
            measure.write_draft(prepared, plan, folder / "static.onnx"),
        ]
        floats, static = profile_models(paths, [{"x": x[0]}], folder, seconds=0.2)
        costs = costs_of(view, plan, floats, static)
    assert (plan.node["conv"].mode, plan.node["leaky"].mode) == (Mode.STATIC, Mode.FLOAT)
    assert ("conv", "leaky") in costs.fused
    assert costs.floats["conv"] > costs.floats["leaky"]
    assert predict(view, plan, costs) == pytest.approx(static.total, rel=0.1)


def test_an_add_that_a_float_conv_computes_has_a_time_of_its_own(tmp_path: Path) -> None:
    # In float one kernel does both, in integers two: the Add may be float although the Conv is not.
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], "conv", pads=[1] * 4),
        node("Relu", ["c"], ["r"], "relu"),
        node("Conv", ["r", "w2", "b"], ["d"], "conv2", pads=[1] * 4),
        node("Add", ["d", "r"], ["a"], "add"),
        node("Conv", ["a", "w", "b"], ["y"], "conv3", pads=[1] * 4),
    ]
    weights = {"w": weight(32, 32, 3, 3), "w2": weight(32, 32, 3, 3, seed=1), "b": weight(32)}
    proto = model(graph(nodes, {"x": [1, 32, 24, 24]}, {"y": None}, weights))
    x = rng(1).standard_normal((8, 1, 32, 24, 24)).astype(np.float32)
    prepared = quantkit.prepare_static(save(proto, tmp_path / "m.onnx"), list(x))
    plan, view = plan_of(prepared), prepared.ready.view
    assert plan.node["add"].mode is Mode.STATIC
    with scratch() as folder:
        paths = [
            measure.write_draft(prepared, None, folder / "float.onnx"),
            measure.write_draft(prepared, plan, folder / "static.onnx"),
        ]
        floats, static = profile_models(paths, [{"x": x[0]}], folder, seconds=0.2)
        costs = costs_of(view, plan, floats, static)
    assert not any("add" in names for names in costs.fused)
    assert costs.floats["add"] < costs.floats["conv2"] / 2
    floats_only = replace(plan, nodes=(), activations=())
    assert predict(view, floats_only, costs) == pytest.approx(floats.total)


@pytest.mark.skipif(profile.CLOCK is time.perf_counter, reason="no clock of a thread's CPU time")
def test_time_that_other_programs_take_does_not_count() -> None:
    class Interrupted:
        def run(self, *_: object) -> None:
            time.sleep(0.05)

    assert profile._timed(Interrupted(), {}) < 0.01


def test_figures_that_do_not_come_true_leave_the_plan_to_the_rules(
    source: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(prepared: Prepared, *_: object) -> Costs:
        found = slow(prepared, {"conv2": 20.0})
        return replace(found, floats={**found.floats, "conv2": 0.0, "relu2": 0.0})

    monkeypatch.setattr(measure, "_profiled", wrong)
    monkeypatch.setattr(measure, "time_models", lambda *_, **__: (1.0, 1.1))
    plan = quantkit.plan_prepared(quantkit.prepare_static(source, data, MEASURED))
    assert plan.node["conv2"].mode is Mode.STATIC


def test_for_another_cpu_figures_are_converted_and_only_large_differences_count(
    source: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "this_machine", lambda: Machine(architecture="arm64", brand=""))
    monkeypatch.setattr(measure, "this_machine", machine.this_machine)
    monkeypatch.setattr(measure, "_confirmed", lambda _prepared, _rules, costs, *_: costs)
    monkeypatch.setattr(
        measure, "_profiled", lambda p, *_: slow(p, {"conv2": 20.0, "conv3": 1.1, "conv0": 0.8})
    )
    prepared = quantkit.prepare_static(source, data, replace(MEASURED, target="x86-avx2"))
    (found,) = prepared.costs.values()
    assert isinstance(found, Costs)
    assert found.source == "table"
    assert found.static["conv0"] == pytest.approx(1.6e-3)
    plan = quantkit.plan_prepared(prepared)
    assert plan.node["conv2"].mode is Mode.STORED
    assert plan.node["conv0"].mode is Mode.STATIC


def test_other_types_of_one_preparation_are_measured_once(
    source: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[str] = []

    def profiled(prepared: Prepared, *_: object) -> Costs:
        counted.append(prepared.job.options.weight.name)
        return slow(prepared, {"conv2": 20.0})

    monkeypatch.setattr(measure, "_profiled", profiled)
    monkeypatch.setattr(measure, "_confirmed", lambda _prepared, _rules, costs, *_: costs)
    prepared = quantkit.prepare_static(source, data, MEASURED)
    other = replace(MEASURED, weight_type="uint8")
    plans = [quantkit.plan_prepared(prepared, other) for _ in range(2)]
    assert plans[0] == plans[1]
    assert len(counted) == len(set(counted)) == 2


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (StaticSettings(measure=True, target="tensorrt"), "tensorrt is no CPU"),
        (StaticSettings(measure=True, coverage="all"), "everything is quantized"),
    ],
)
def test_measuring_is_refused_where_it_decides_nothing(
    settings: StaticSettings, said: str, source: Path, data: Path
) -> None:
    with pytest.raises(UsageError, match=said):
        quantkit.plan_static(source, data, settings)


def test_a_result_that_turns_out_slower_than_float_is_computed_in_float_at_last(
    source: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    measured: list[Prepared],
) -> None:
    monkeypatch.setattr(static_repairs, "ratio_to_float", lambda *_: 1.5)
    result = quantkit.quantize_static(source, tmp_path / "q.onnx", data, measure=True)
    assert measured
    assert not any(n.mode in {Mode.STATIC, Mode.INTEGER} for n in result.plan.nodes)
    assert any("took 1.50x float's time" in said for said in result.notes)
    (timing,) = (note for note in result.notes if note.startswith("timing: "))
    assert re.search(r"float \S+ ms; \d+ of \d+ nodes stay out of int8", timing)


def test_the_times_are_those_of_the_plan_that_is_written(
    source: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    costs: list[Costs] = []

    def found(prepared: Prepared, _: Plan) -> Costs:
        costs.append(slow(prepared, {"conv2": 0.98}))  # too little to leave it out
        return costs[0]

    ratios = iter([1.05, 0.75])
    monkeypatch.setattr(measure, "_measured", found)
    monkeypatch.setattr(static_repairs, "ratio_to_float", lambda *_: next(ratios))
    result = quantkit.quantize_static(source, tmp_path / "q.onnx", data, measure=True)
    assert result.plan.node["conv2"].why.startswith("slower in int8")
    (timing,) = (note for note in result.notes if note.startswith("timing: "))
    assert f"int8 {0.75e3 * costs[0].total:.3g} ms" in timing
    assert "no node is slower" not in timing


@pytest.mark.parametrize("wrong", [{"steady": False}, {"total": 58102.0}])
@pytest.mark.slow
def test_times_that_cannot_be_are_measured_again_and_then_left_to_the_rules(
    wrong: dict[str, Any],
    source: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def profiled(*args: Any, **options: Any) -> list[profile.Profile]:
        asked.append(args)
        *others, static = profile_models(*args, **options)
        return [*others, replace(static, **wrong)]

    monkeypatch.setattr(measure, "profile_models", profiled)
    result = quantkit.quantize_static(source, tmp_path / "q.onnx", data, measure=True)
    assert len(asked) == 2
    assert any(
        note.startswith("Planned by rules: timings are unstable (load") for note in result.notes
    )
    assert result.plan.node["conv2"].mode is Mode.STATIC


def test_a_ratio_that_cannot_be_decides_nothing(
    source: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    measured: list[Prepared],
) -> None:
    asked = []

    def ratios(*_: Any, **__: Any) -> list[tuple[float, Interval]]:
        asked.append(1)
        return [(58102.0, Interval(low=58000.0, high=58200.0))]

    monkeypatch.setattr(measure, "time_ratios", ratios)
    result = quantkit.quantize_static(source, tmp_path / "q.onnx", data, measure=True)
    assert measured
    assert len(asked) == 2
    assert result.plan.node["conv1"].mode is Mode.STATIC
    assert any("timings are unstable (load" in note for note in result.notes)
    assert not any("58102" in text for text in (*result.notes, *result.warnings))


def test_a_result_that_is_as_fast_as_was_expected_stays(
    source: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    measured: list[Prepared],
) -> None:
    monkeypatch.setattr(static_repairs, "ratio_to_float", lambda *_: 0.9)
    result = quantkit.quantize_static(source, tmp_path / "q.onnx", data, measure=True)
    assert measured
    assert result.plan.node["conv1"].mode is Mode.STATIC
    assert not any("of float's time" in said for said in result.notes)
