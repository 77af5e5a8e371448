"""A result keeps 20 dB at every output and is no larger than float, or says why not; what loses most is left out first."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import Array, graph, model, node, rng, run, save, sqnr, weight

import quantkit
from quantkit import QuantizeResult, quantize_dynamic, quantize_static
from quantkit.calibration import Calibration
from quantkit.calibration.monitor import Silent
from quantkit.errors import NothingToQuantizeError
from quantkit.pipeline.forms import static as static_form
from quantkit.pipeline.plan_prepared import plan_of
from quantkit.pipeline.static_solving import rounded
from quantkit.quantize.plan import Mode, Plan
from quantkit.quantize.plan.solved import SolvedIntegers
from quantkit.quantize.solve.losses import Meter
from quantkit.runtime.check_result import FLOOR_DB, Excess
from quantkit.settings import NodeRule

CHANNELS = 16
SIDE = 8


def images(count: int, seed: int, *, loud: float = 1.0) -> Array:
    found = rng(seed).standard_normal((count, 3, SIDE, SIDE))
    return (found * loud).astype(np.float32)


def conv(name: str, source: str, result: str, *, relu: bool = True) -> list[onnx.NodeProto]:
    made = f"{result}_" if relu else result
    nodes = [node("Conv", [source, f"{name}_w", f"{name}_b"], [made], name, pads=[1, 1, 1, 1])]
    return [*nodes, node("Relu", [made], [result], f"{name}_relu")] if relu else nodes


def weights(*names: str, first: str = "", seed: int = 1) -> dict[str, Array]:
    found: dict[str, Array] = {}
    for i, name in enumerate(names):
        inputs = 3 if name == first else CHANNELS
        found[f"{name}_w"] = weight(CHANNELS, inputs, 3, 3, seed=seed + i, scale=0.12)
        found[f"{name}_b"] = weight(CHANNELS, seed=seed + 50 + i, scale=0.1)
    return found


def logarithm_in_front() -> onnx.ModelProto:
    """Powers over many decades, of which the logarithm is looked at by a CNN: 8 bits keep the loudest decade."""
    held = weights("front", "a", "b", first="front") | {"two": np.array(2, np.float32)}
    held["front_w"] *= np.logspace(-4, 2, CHANNELS, dtype=np.float32)[:, None, None, None]
    held["front_b"] *= 0
    held["least"] = np.array(1e-12, np.float32)
    nodes = [
        *conv("front", "x", "f", relu=False),
        node("Pow", ["f", "two"], ["p"], "power"),
        node("Add", ["p", "least"], ["q"], "least_of_all"),
        node("Log", ["q"], ["l"], "log"),
        *conv("a", "l", "h"),
        *conv("b", "h", "y", relu=False),
    ]
    return model(graph(nodes, {"x": ["N", 3, SIDE, SIDE]}, {"y": None}, held))


def loud_branch() -> onnx.ModelProto:
    """Two heads; of one a few values are a hundred times larger than all that counts, and taken away again."""
    held = weights("stem", "a", "b", "loud", first="stem")
    peak = np.zeros((CHANNELS, SIDE, SIDE), np.float32)
    peak[0] = 100.0  # of every place, so that it cannot go into the bias
    held |= {"peak": peak, "loud_b": held["loud_b"] + peak[:, 0, 0]}
    nodes = [
        *conv("stem", "x", "s"),
        *conv("a", "s", "h"),
        *conv("b", "h", "y", relu=False),
        *conv("loud", "s", "p", relu=False),
        node("Sub", ["p", "peak"], ["z"], "taken_away"),
    ]
    return model(graph(nodes, {"x": ["N", 3, SIDE, SIDE]}, {"y": None, "z": None}, held))


def modes(result: QuantizeResult) -> Counter[Mode]:
    return Counter(n.mode for n in result.plan.nodes if n.op_type == "Conv")


def worst(proto: onnx.ModelProto, path: Path, data: Array) -> float:
    pairs = zip(run(proto, {"x": data}), run(path, {"x": data}), strict=True)
    return min(sqnr(was, now) for was, now in pairs)


@pytest.mark.parametrize(
    ("proto", "at_fault"),
    [(logarithm_in_front(), "front"), (loud_branch(), "loud")],
    ids=["logarithm", "loud"],
)
def test_what_loses_most_is_left_out_and_the_rest_stays_in_integers(
    proto: onnx.ModelProto, at_fault: str, tmp_path: Path
) -> None:
    blind = quantize_static(proto, tmp_path / "blind.onnx", images(96, 1), verify=False)
    assert blind.plan.node[at_fault].mode is Mode.STATIC
    assert worst(proto, tmp_path / "blind.onnx", images(64, 2)) < FLOOR_DB
    result = quantize_static(proto, tmp_path / "q.onnx", images(96, 1))
    assert worst(proto, tmp_path / "q.onnx", images(64, 2)) > FLOOR_DB
    assert result.plan.node[at_fault].mode in {Mode.STORED, Mode.FLOAT}
    assert "dB of output" in result.plan.node[at_fault].why
    assert modes(result)[Mode.STATIC] >= 2
    said = (*result.notes, *result.warnings)
    assert any(f"'{at_fault}'" in text and "dB from float" in text for text in said)


@pytest.mark.parametrize(("excess", "static"), [(20.0, 2), (300.0, 0)])
def test_noise_of_samples_left_out_in_turn_is_repaired_and_needs_a_range(
    excess: float, static: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = quantkit.prepare_static(loud_branch(), images(12, 1))
    outside = dict.fromkeys(("y", "z"), Excess(1e9, 1e9 * excess))
    monkeypatch.setattr(static_form, "excess_of", lambda *_: (outside,) * 12)
    result = quantkit.realize_plan(prepared, None, tmp_path / "q.onnx")
    assert modes(result)[Mode.STATIC] == static
    assert result.verification is not None
    assert not result.verification.below_floor
    # Where all activations are float, no range can be exceeded: the figure is that of any other samples.
    others = worst(loud_branch(), tmp_path / "q.onnx", images(64, 2))
    assert bool(static) or result.verification.worst == pytest.approx(others, abs=1.5)


def test_a_model_that_keeps_the_floor_is_left_as_the_rules_have_it(tmp_path: Path) -> None:
    proto = loud_branch()
    peak = next(t for t in proto.graph.initializer if t.name == "loud_b")
    quiet = onnx.numpy_helper.to_array(peak) * 0
    peak.CopyFrom(onnx.numpy_helper.from_array(quiet, "loud_b"))
    blind = quantize_static(proto, tmp_path / "blind.onnx", images(96, 1), verify=False)
    result = quantize_static(proto, tmp_path / "q.onnx", images(96, 1))
    assert result.plan == blind.plan


def test_what_the_user_wants_in_integers_stays_there_and_the_result_says_what_it_loses(
    tmp_path: Path,
) -> None:
    rule = NodeRule(node="loud", mode="integer")
    result = quantize_static(loud_branch(), tmp_path / "q.onnx", images(96, 1), nodes=[rule])
    assert result.plan.node["loud"].mode is Mode.STATIC
    assert any("dB from float" in text for text in result.warnings)


def _solved(prepared: quantkit.Prepared, plan: Plan) -> SolvedIntegers:
    return rounded(prepared, plan, Silent(), lambda: prepared.moments.held)


def test_the_meter_tells_what_comes_of_a_plan_before_it_is_emitted(tmp_path: Path) -> None:
    prepared = quantkit.prepare_static(loud_branch(), images(96, 1))
    plan = plan_of(prepared)
    ready = prepared.ready
    meter = Meter(ready.model, ready.view, plan, _solved(prepared, plan), prepared.judged)
    expected = meter.noise_of(plan)
    checked = quantkit.realize_plan(prepared, plan, tmp_path / "q.onnx").verification
    assert checked is not None
    for name, noise in expected.items():
        assert -10 * np.log10(noise) == pytest.approx(checked.compared[name], abs=1.0)
    losses = meter.losses(0.01)
    at = losses.outputs.index("z")
    loudest = max(losses.tensors, key=lambda name: losses.tensors[name][at])
    assert loudest == "p"
    assert losses.tensors["p"][losses.outputs.index("y")] == 0
    assert sum(found[at] for found in losses.tensors.values()) == pytest.approx(
        expected["z"], rel=0.5
    )


def test_a_plan_that_is_too_noisy_is_not_run_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = quantkit.prepare_static(loud_branch(), images(96, 1))
    plan, ready = plan_of(prepared), prepared.ready
    meter = Meter(ready.model, ready.view, plan, _solved(prepared, plan), prepared.judged)
    whole = max(meter.noise_of(plan).values())
    runs = list[object]()
    plain = Meter._run

    def counted(self: Meter, *arguments: Any) -> list[Array]:
        runs.append(arguments)
        return plain(self, *arguments)

    monkeypatch.setattr(Meter, "_run", counted)
    assert whole / 1000 < max(meter.noise_of(plan, enough=whole / 1000).values()) < whole
    assert len(runs) == 1
    # One that keeps to what is allowed is measured on all, with the same figure.
    assert max(meter.noise_of(plan, enough=whole).values()) == whole
    assert len(runs) == 1 + len(prepared.judged[:8])
    meter.noise_of(plan, enough=whole)  # is known
    assert len(runs) == 1 + len(prepared.judged[:8])


def test_ranges_are_found_once_for_all_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = quantkit.prepare_static(loud_branch(), images(96, 1))
    plan = plan_of(prepared)
    monkeypatch.setattr(Calibration, "range", None)
    assert plan_of(prepared) == plan


def many_small(count: int, width: int = 8) -> onnx.ModelProto:
    """Many small weights: scales and conversions take more than 8 bits save."""
    names = [
        f"a_rather_long_name_of_a_layer_as_exporters_make_them/{i}/dense" for i in range(count)
    ]
    held = {f"{name}_w": weight(width, width, seed=i, scale=0.35) for i, name in enumerate(names)}
    held["large"] = weight(width, 1500, seed=99)
    nodes = list[onnx.NodeProto]()
    for name in names:
        nodes += [
            node("MatMul", ["x", f"{name}_w"], [f"{name}_y"], name),
            node("Tanh", [f"{name}_y"], [f"{name}_t"], f"{name}_tanh"),
        ]
    nodes.append(node("Sum", [f"{name}_t" for name in names], ["sum"], "sum"))
    nodes.append(node("MatMul", ["sum", "large"], ["y"], "large"))
    return model(graph(nodes, {"x": ["N", width]}, {"y": None}, held))


@pytest.mark.slow
def test_no_file_grows(tmp_path: Path) -> None:
    source, data = save(many_small(200), tmp_path / "m.onnx"), rng(1).standard_normal((96, 8))
    size = source.stat().st_size
    rows = data.astype(np.float32)
    prepared = quantkit.prepare_static(source, rows)
    blind = quantkit.realize_plan(prepared, plan_of(prepared), tmp_path / "blind.onnx")
    assert blind.output_bytes > size
    result = quantize_static(source, tmp_path / "q.onnx", rows)
    assert result.output_bytes == (tmp_path / "q.onnx").stat().st_size < size
    assert any("not smaller than float" in text for text in (*result.notes, *result.warnings))
    assert result.plan.node["large"].mode is Mode.STATIC


def test_dynamic_files_do_not_grow_either(tmp_path: Path) -> None:
    source = save(many_small(200, 16), tmp_path / "m.onnx")
    result = quantize_dynamic(source, tmp_path / "d.onnx")
    assert result.output_bytes == (tmp_path / "d.onnx").stat().st_size < source.stat().st_size
    assert any("small weights stayed float" in text for text in result.warnings)


@pytest.mark.parametrize("verb", ["static", "dynamic"])
def test_where_nothing_gains_nothing_is_written_and_one_line_says_so(
    verb: str, tmp_path: Path
) -> None:
    proto = many_small(150)
    del proto.graph.node[-1]
    proto.graph.node[-1].output[0] = "y"
    held = [t for t in proto.graph.initializer if t.name != "large"]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(held)
    source, out = save(proto, tmp_path / "m.onnx"), tmp_path / "q.onnx"
    rows = rng(1).standard_normal((96, 8)).astype(np.float32)
    with pytest.raises(NothingToQuantizeError) as caught:
        quantize_static(source, out, rows) if verb == "static" else quantize_dynamic(source, out)
    assert "\n" not in str(caught.value)
    assert "Nothing was written" in str(caught.value)
    assert not out.exists()
