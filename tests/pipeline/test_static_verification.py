"""What static quantization says of its result is true, and noise is not written."""

import re
from collections.abc import Sequence
from itertools import count as numbers
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import Array, graph, model, node, rng, run, weight
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto
from static_cases import chain

from quantkit import QuantizeResult, quantize_static
from quantkit.api.evaluate import evaluate_models
from quantkit.api.verify import reproduce
from quantkit.errors import VerifyError
from quantkit.model.provenance import read_provenance
from quantkit.pipeline.checks import _doubts, noise
from quantkit.pipeline.static_repairs import short_of_floor
from quantkit.pipeline.verify_file import attest
from quantkit.quantize.plan import Mode
from quantkit.runtime.check_result import (
    CALIBRATED,
    FLOOR_DB,
    HELD_OUT,
    IN_TURNS,
    NOISE_DB,
    Verification,
)
from quantkit.settings import DataSettings, RecoverSettings

FAST = RecoverSettings(rounding=False, equalize=False, smooth=False)
FEATURES = 12
# Of wildly different size, as in a table that nobody scaled; weights make up for it.
SIZES = np.logspace(-3, 5, FEATURES).astype(np.float32)


def rows(count: int, seed: int) -> Array:
    return (rng(seed).standard_normal((count, FEATURES)) * SIZES).astype(np.float32)


def table(output: str) -> onnx.ModelProto:
    """A perceptron on raw features: numbers y, or their largest as a label."""
    weights = {
        "w1": (weight(FEATURES, 32, seed=1, scale=1) / SIZES[:, np.newaxis]).astype(np.float32),
        "w2": weight(32, 10, seed=2, scale=0.3),
    }
    nodes = [
        node("MatMul", ["x", "w1"], ["h"], "first"),
        node("Relu", ["h"], ["r"], "relu"),
        node("MatMul", ["r", "w2"], ["y"], "second"),
    ]
    if output == "label":
        nodes.append(node("ArgMax", ["y"], ["label"], "best", axis=1))
    types = {"label": TensorProto.INT64}
    return model(graph(nodes, {"x": ["N", FEATURES]}, {output: None}, weights, types=types))


def checked(result: QuantizeResult) -> Verification:
    assert result.verification is not None
    return result.verification


@pytest.mark.parametrize("recover", [RecoverSettings(), FAST], ids=["all", "fast"])
def test_a_product_of_unscaled_features_stays_float_and_the_rest_is_right(
    recover: RecoverSettings, tmp_path: Path
) -> None:
    proto = table("y")
    result = quantize_static(proto, tmp_path / "q.onnx", rows(200, 1), recover=recover)
    assert checked(result).compared["y"] > 20
    assert any("which is noise" in text and "'first'" in text for text in result.warnings)
    assert result.plan.node["first"].mode in {Mode.FLOAT, Mode.STORED}
    assert "dB" in result.plan.node["first"].why
    assert result.plan.node["second"].mode is Mode.STATIC


def test_labels_decide_where_there_is_nothing_else(tmp_path: Path) -> None:
    proto, out = table("label"), tmp_path / "q.onnx"
    result = quantize_static(proto, out, rows(200, 1), recover=FAST)
    assert checked(result).compared == {}
    assert checked(result).agreement["label"].values == 16
    assert any("are those of the float model" in text for text in result.warnings)
    others = rows(64, 2)
    same = run(proto, {"x": others})[0] == run(out, {"x": others})[0]
    assert same.mean() > 0.9


def test_noise_that_a_given_plan_makes_is_refused(tmp_path: Path) -> None:
    proto, data = table("y"), rows(200, 1)
    planned = quantize_static(proto, tmp_path / "q.onnx", data, verify=False, recover=FAST).plan
    assert planned.node["first"].mode is Mode.STATIC
    with pytest.raises(VerifyError, match=r"is noise\. Nothing was written: .*--exclude"):
        quantize_static(proto, tmp_path / "p.onnx", data, plan=planned, recover=FAST)
    assert not (tmp_path / "p.onnx").exists()


def offset(by: float) -> onnx.ModelProto:
    """Two Convs, with a constant added to all outputs."""
    proto = chain(node("Relu", ["a"], ["b"], "relu"))
    bias = next(t for t in proto.graph.initializer if t.name == "c2_b")
    far = onnx.numpy_helper.to_array(bias) + np.float32(by)
    bias.CopyFrom(onnx.numpy_helper.from_array(far, "c2_b"))
    return proto


def test_a_constant_in_front_of_the_signal_does_not_hide_noise(tmp_path: Path) -> None:
    proto = offset(1e4)
    data = rng(1).standard_normal((48, 8, 6, 6)).astype(np.float32)
    blind = quantize_static(proto, tmp_path / "b.onnx", data, verify=False, recover=FAST)
    result = quantize_static(proto, tmp_path / "q.onnx", data, recover=FAST, plan=blind.plan)
    assert checked(result).about_zero["y"] > 40
    assert checked(result).compared["y"] < 5
    assert any("which is noise" in text for text in result.warnings)
    mended = quantize_static(proto, tmp_path / "m.onnx", data, recover=FAST)
    assert checked(mended).compared["y"] > 25
    assert mended.plan.node["c2"].mode is Mode.STORED


@pytest.mark.parametrize("by", [0.0, 3.0, 10.0, 20.0, 30.0, 60.0, 200.0])
@pytest.mark.slow
def test_the_printed_figure_is_the_one_that_the_floor_applies_to(by: float, tmp_path: Path) -> None:
    proto, data = offset(by), rng(1).standard_normal((48, 8, 6, 6)).astype(np.float32)
    plan = quantize_static(proto, tmp_path / "b.onnx", data, verify=False, recover=FAST).plan
    result = quantize_static(proto, tmp_path / "q.onnx", data, recover=FAST, plan=plan)
    assert_printed_is_judged(checked(result), result.warnings)
    mended = quantize_static(proto, tmp_path / "m.onnx", data, recover=FAST)
    assert_printed_is_judged(checked(mended), mended.warnings)


@given(
    st.lists(st.floats(-30, 60) | st.floats(19.8, 20.2) | st.floats(4.8, 5.2), min_size=1),
    st.sampled_from([HELD_OUT, IN_TURNS, CALIBRATED]),
)
@settings(max_examples=300)
def test_a_floor_is_missed_if_and_only_if_a_printed_figure_is_below_it(
    figures: list[float], on: str
) -> None:
    compared = {f"y{i}": db for i, db in enumerate(figures)}
    found = Verification(compared=compared, note="", ran=True, samples=8, on=on)
    assert_printed_is_judged(found, list(_doubts(found)))
    assert (short_of_floor(found) > 0) == (min(printed(found)) < FLOOR_DB + 0.5)


def printed(found: Verification) -> list[float]:
    return [float(db) for db in re.findall(r"(\S+) dB", found.figures())]


def assert_printed_is_judged(found: Verification, warned: Sequence[str]) -> None:
    lowest = min(printed(found))
    below = [text for text in warned if "20 are wanted." in text or "which is noise." in text]
    assert bool(below) == (lowest < FLOOR_DB)
    assert all(float(text.split(" dB")[0].split()[-1]) == lowest for text in below)
    assert (found.heading == "noise") == (lowest < NOISE_DB)


def images(folder: Path, count: int) -> Path:
    np.save(folder / "x.npy", rng(1).standard_normal((count, 8, 6, 6)).astype(np.float32))
    return folder / "x.npy"


PLAIN = chain(node("Relu", ["a"], ["b"], "relu"))


@pytest.mark.parametrize(
    ("count", "limit", "used", "judged", "on"),
    [
        (100, None, 90, 40, IN_TURNS),
        (257, None, 241, 40, IN_TURNS),
        (400, None, 256, 40, HELD_OUT),
        (400, 350, 350, 40, HELD_OUT),
        (100, 50, 50, 40, HELD_OUT),
        (20, None, 20, 20, IN_TURNS),
    ],
)
def test_samples_are_held_out_where_there_are_enough_else_left_out_in_turn(
    count: int, limit: int | None, used: int, judged: int, on: str, tmp_path: Path
) -> None:
    data, out = images(tmp_path, count), tmp_path / "q.onnx"
    found = checked(quantize_static(PLAIN, out, data, limit=limit, recover=FAST))
    made = read_provenance(out)
    assert made is not None
    assert made.data is not None
    assert made.data.samples == used
    assert found.samples == judged
    assert found.on == on
    assert f"{judged} {found.on}" in str(found)
    assert found.to_json()["on"] == found.on


def test_what_was_held_out_counts_as_unseen_in_an_evaluation(tmp_path: Path) -> None:
    source, data, out = tmp_path / "m.onnx", images(tmp_path, 100), tmp_path / "q.onnx"
    source.write_bytes(PLAIN.SerializeToString())
    quantize_static(source, out, data, recover=FAST)
    skip = ["latency", "memory", "layers", "runtime", "fidelity"]
    result = evaluate_models(source, out, data, hold_out=True, skip=skip)
    assert result.data is not None
    assert result.data.samples == 10
    checks = {c.name: c for c in attest(out, float_model=source, data=data).checks}
    assert "10 samples that it was not calibrated with" in checks["runs"].sentence


def test_data_in_its_own_order_is_calibrated_with_whole(tmp_path: Path) -> None:
    result = quantize_static(
        PLAIN,
        tmp_path / "q.onnx",
        images(tmp_path, 100),
        settings=DataSettings(shuffle=False),
        recover=FAST,
    )
    assert checked(result).on == IN_TURNS


def test_a_file_of_many_samples_is_made_again_from_as_many(tmp_path: Path) -> None:
    source, data, out = tmp_path / "m.onnx", images(tmp_path, 300), tmp_path / "q.onnx"
    source.write_bytes(PLAIN.SerializeToString())
    quantize_static(source, out, data, recover=FAST)
    assert reproduce(out, source, data=data).outcome == "ok"
    checks = {c.name: c for c in attest(out, float_model=source, data=data).checks}
    assert "40 samples that it was not calibrated with" in checks["runs"].sentence


def test_of_an_endless_iterator_only_the_first_samples_are_read(tmp_path: Path) -> None:
    draw = rng(1)
    stream = ({"x": draw.standard_normal((1, 8, 6, 6)).astype(np.float32)} for _ in numbers())
    out = tmp_path / "q.onnx"
    found = checked(quantize_static(PLAIN, out, stream, recover=FAST))
    made = read_provenance(out)
    assert made is not None
    assert made.data is not None
    assert (made.data.samples, found.on) == (256, HELD_OUT)


@pytest.mark.parametrize(("count", "judged", "on"), [(30, 1, CALIBRATED), (100, 7, HELD_OUT)])
def test_of_an_iterator_every_tenth_is_held_out_once_there_were_enough(
    count: int, judged: int, on: str, tmp_path: Path
) -> None:
    arrays = rng(1).standard_normal((count, 1, 8, 6, 6)).astype(np.float32)
    stream = ({"x": array} for array in arrays)
    found = checked(quantize_static(PLAIN, tmp_path / "q.onnx", stream, recover=FAST))
    assert (found.samples, found.on) == (judged, on)


def test_a_model_with_a_fixed_batch_is_judged_on_whole_batches(tmp_path: Path) -> None:
    proto = chain(node("Relu", ["a"], ["b"], "relu"))
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 4
    found = checked(quantize_static(proto, tmp_path / "q.onnx", images(tmp_path, 400)))
    assert (found.samples, found.on) == (40, IN_TURNS)  # of 100 batches, of which 10 are held out
    assert found.compared["y"] > 25


@pytest.mark.parametrize(
    ("figure", "said"),
    [
        (20.2, "is 20.2 dB from float on 6 samples that it was not calibrated with, and 20 are wanted with some"),
        (19.96, "is 20.0 dB from float on 6 samples that it was not calibrated with, and 20 are wanted with some"),
        (18.0, "is 18.0 dB from float on 6 samples that it was not calibrated with, and 20 are wanted."),
    ],
)  # fmt: skip
def test_the_limit_is_named_with_the_figure_that_misses_it(figure: float, said: str) -> None:
    found = Verification(compared={"y": figure}, note="", ran=True, samples=6, on=HELD_OUT)
    assert said in noise(found)
