"""Ranges of activations by what those who read them lose."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import Array, graph, model, node, rng, save, sqnr, weight
from hypothesis import given, settings
from hypothesis import strategies as st
from static_cases import Ready, X, chain, conv_weights, ready, seen_ranges

import quantkit
from quantkit import Prepared, RecoverSettings, StaticSettings
from quantkit.graph.products import products_of
from quantkit.runtime.session import make_session
from quantkit.solve.ranges import RATIOS, narrowed_ranges

LOUD = 40.0
RELU = node("Relu", ["a"], ["b"], "relu")


def deaf(*, to: int = 0) -> dict[str, Array]:
    """Weights of a chain whose first channel is loud, and read by nobody."""
    found = conv_weights("c1", "c2")
    found["c1_w"][to] *= LOUD
    found["c2_w"][:, to] = 0
    return found


def narrowed(proto: onnx.ModelProto, samples: int = 6) -> tuple[Ready, dict[str, Any]]:
    prepared = ready(proto)
    plan = prepared.plan(seen_ranges(prepared, {"x": X}))
    feeds = [{"x": X + rng(i).standard_normal(X.shape).astype(np.float32)} for i in range(samples)]
    found = narrowed_ranges(prepared.model, prepared.view, plan, products_of(prepared.view), feeds)
    return prepared, found


def test_a_channel_that_nobody_listens_to_does_not_make_a_range_wide() -> None:
    _, found = narrowed(chain(RELU, constants=deaf()))
    whole = seen_ranges(ready(chain(RELU, constants=deaf())), {"x": X})["b"]
    assert set(found) == {"b"}
    assert found["b"][0] == 0
    assert 0 < found["b"][1] < 0.55 * whole[1]


def test_a_range_that_its_readers_need_stays() -> None:
    weights = conv_weights("c1", "c2")
    weights["c2_w"] = np.abs(weights["c2_w"])  # all that is clipped is missed
    assert narrowed(chain(RELU, constants=weights))[1] == {}


def test_an_addition_and_a_relu_between_tensor_and_product_are_looked_through() -> None:
    weights = {**deaf(), "c3_w": weight(8, 8, 3, 3, seed=9), "c3_b": weight(8, seed=10)}
    weights["c3_w"][0] *= LOUD
    third = node("Conv", ["x", "c3_w", "c3_b"], ["d"], "c3", pads=[1] * 4)
    between = [third, node("Add", ["a", "d"], ["s"], "sum"), node("Relu", ["s"], ["b"], "relu")]
    _, found = narrowed(chain(*between, constants=weights))
    assert {"a", "d", "b"} <= set(found)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 100), loud=st.floats(1, 100))
def test_narrowed_ranges_lie_within_those_before_and_hold_zero(seed: int, loud: float) -> None:
    weights = {
        name: rng(seed + i).standard_t(2, array.shape).astype(np.float32)
        for i, (name, array) in enumerate(conv_weights("c1", "c2").items())
    }
    weights["c1_w"][0] *= np.float32(loud)
    prepared = ready(chain(RELU, constants=weights))
    plan = prepared.plan(seen_ranges(prepared, {"x": X}))
    found = narrowed_ranges(
        prepared.model, prepared.view, plan, products_of(prepared.view), [{"x": X}] * 2
    )
    for tensor, (low, high) in found.items():
        decided = plan.activation[tensor]
        assert decided.low <= low <= 0 <= high < decided.high
        assert high >= min(RATIOS) * decided.high


# -- the whole line ------------------------------------------------------------------------------


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


def test_ranges_are_narrowed_where_less_noise_comes_out_and_the_file_is_nearer_to_float(
    source: Path, tmp_path: Path
) -> None:
    figures = {}
    for name, switch in {"plain": False, "narrowed": "auto"}.items():
        recover = RecoverSettings(smooth=False, activation_ranges=switch)  # type: ignore[arg-type]
        path = tmp_path / f"{name}.onnx"
        quantkit.quantize_static(source, path, rows(), recover=recover)
        outputs = [make_session(str(p)).run(None, {"x": rows(seed=9)})[0] for p in (source, path)]
        figures[name] = sqnr(*outputs)
    assert figures["narrowed"] > figures["plain"] + 3


def test_narrowed_ranges_are_for_the_default_method_and_8_bits(source: Path) -> None:
    assert "r" in prepared_with(source).narrowed
    assert not prepared_with(source, recover={"activation_ranges": False}).narrowed
    assert not prepared_with(source, coverage="all").narrowed
    assert not prepared_with(source, activation_type="uint16").narrowed


def test_a_method_that_is_asked_for_gives_the_range(source: Path) -> None:
    whole = prepared_with(source)
    narrow = quantkit.plan_prepared(whole).activation["r"]
    rule = quantkit.TensorRule(tensor="r", method="minmax")
    static = StaticSettings(recover=whole.job.recover, tensors=(rule,))
    assert quantkit.plan_prepared(whole, static).activation["r"].high > 1.5 * narrow.high
    static = StaticSettings(recover=whole.job.recover, method="minmax")
    assert quantkit.plan_prepared(whole, static).activation["r"].high > 1.5 * narrow.high


def test_a_saved_preparation_keeps_narrowed_ranges(source: Path, tmp_path: Path) -> None:
    before = prepared_with(source)
    quantkit.save_prepared(before, tmp_path / "saved")
    after = quantkit.load_prepared(tmp_path / "saved")
    assert after.narrowed == before.narrowed
    assert quantkit.plan_prepared(after) == quantkit.plan_prepared(before)


def test_few_samples_narrow_nothing(source: Path) -> None:
    few = quantkit.prepare_static(source, rows(3), StaticSettings())
    assert not few.narrowed
