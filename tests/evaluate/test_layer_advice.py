"""Advice is tried before it is given: it keeps what it promises, and is not given again once it was followed."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders import run, sqnr
from layer_cases import float_model, quantized, rescaled, weight_of

from quantkit.api.quantize import Task, quantize
from quantkit.evaluate.layers import layers_of
from quantkit.evaluate.match import ModelPair
from quantkit.settings import DynamicSettings, StaticSettings, TensorRule

# What 'deep' reads, with steps as coarse as a few outliers would make them.
COARSE = StaticSettings(tensors=(TensorRule(tensor="r2", range=(0.0, 150.0)),))


def output_db(source: Path, candidate: Path, feeds: list[dict[str, np.ndarray]]) -> float:
    pairs = [(run(source, f)[0], run(candidate, f)[0]) for f in feeds]
    float_, ours = (np.concatenate(each) for each in zip(*pairs, strict=True))
    return sqnr(float_, ours)


def test_advice_keeps_its_promise_and_is_not_repeated(tmp_path: Path) -> None:
    source, feeds = float_model("cnn", tmp_path)
    job, few = Task(source=source, data=feeds, how=COARSE), feeds[:4]
    quantize(job, tmp_path / "before.onnx")
    found = layers_of(ModelPair.of(source, tmp_path / "before.onnx"), few)
    best = found.advice[0]
    assert best.nodes == ("deep",)
    assert best.option == "--exclude deep"
    assert "In float: +" in found.layers[0].fix
    followed = replace(job, how=replace(COARSE, exclude=("deep",)))
    quantize(followed, tmp_path / "after.onnx")
    before, after = (
        output_db(source, tmp_path / f"{name}.onnx", few) for name in ("before", "after")
    )
    assert best.gain_db > 3
    assert after - before == pytest.approx(best.gain_db, abs=1.5)
    again = layers_of(ModelPair.of(source, tmp_path / "after.onnx"), few)
    assert not any("deep" in advice.nodes for advice in again.advice)
    assert not any("deep" in layer.fix for layer in again.layers)


def test_what_others_need_in_integers_is_not_promised_to_be_exact(tmp_path: Path) -> None:
    """Both 'wide' and 'add' read r1, which stays rounded for one if the other is excluded."""
    source, feeds = float_model("cnn", tmp_path)
    coarse = StaticSettings(tensors=(TensorRule(tensor="r1", range=(0.0, 150.0)),))
    job, few = Task(source=source, data=feeds, how=coarse), feeds[:4]
    quantize(job, tmp_path / "before.onnx")
    found = layers_of(ModelPair.of(source, tmp_path / "before.onnx"), few)
    before = output_db(source, tmp_path / "before.onnx", few)
    for advice in found.advice:
        quantize(replace(job, how=replace(coarse, exclude=advice.nodes)), tmp_path / "after.onnx")
        gain = output_db(source, tmp_path / "after.onnx", few) - before
        assert gain > advice.gain_db / 2
    # Only both together free it.
    assert [set(advice.nodes) >= {"add", "wide"} for advice in found.advice] == [True]


def test_layers_are_tried_together_where_none_is_enough(tmp_path: Path) -> None:
    source, feeds = float_model("cnn", tmp_path)
    candidate = quantized("qdq", source, tmp_path, feeds)
    for node in ("wide", "narrow"):
        candidate = rescaled(candidate, candidate, f"{weight_of(source, node)}_scale", 1.3)
    first, both = layers_of(ModelPair.of(source, candidate), feeds[:3]).advice
    assert len(first.nodes) == 1
    assert {"wide", "narrow"} <= set(both.nodes)
    assert both.gain_db > first.gain_db + 1


def test_a_good_model_gets_no_advice(tmp_path: Path) -> None:
    source, feeds = float_model("fashion", tmp_path)
    found = layers_of(ModelPair.of(source, quantized("qdq", source, tmp_path, feeds)), feeds[:3])
    assert found.advice == ()
    assert not any(layer.fix for layer in found.layers)


def test_what_a_dynamic_file_excluded_is_not_advised_and_other_tools_get_no_flag(
    tmp_path: Path,
) -> None:
    source, feeds = float_model("cnn", tmp_path)
    ort = quantized("ort qdq u8", source, tmp_path, feeds)
    worse = rescaled(ort, tmp_path / "worse.onnx", f"{weight_of(source, 'deep')}_scale", 4)
    best = layers_of(ModelPair.of(source, worse), feeds[:3]).advice[0]
    assert (best.nodes, best.option) == (("deep",), "")
    assert best.sentence.startswith("Keep deep in float: +")
    quantize(Task(source=source, how=DynamicSettings(exclude=("deep",))), tmp_path / "d.onnx")
    found = layers_of(ModelPair.of(source, tmp_path / "d.onnx"), feeds[:3])
    assert not any("deep" in advice.nodes for advice in found.advice)
