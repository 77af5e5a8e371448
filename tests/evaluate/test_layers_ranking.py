"""A layer that was made worse on purpose is the first of the ranking, whichever it is."""

from pathlib import Path

import numpy as np
import pytest
from layer_cases import (
    CNN_NODES,
    FASHION_NODES,
    Feeds,
    activation_scales,
    before_relu,
    float_model,
    quantized,
    rescaled,
    weight_of,
)

from quantkit.evaluate.layers import layers_of
from quantkit.evaluate.match import ModelPair

Case = tuple[Path, Path, list[Feeds]]
KINDS = ("qdq", "qoperator", "ort qdq u8", "ort qdq s8", "ort qoperator u8")
LAYERS = [("cnn", name) for name in CNN_NODES] + [("fashion", name) for name in FASHION_NODES]


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Case]:
    folder = tmp_path_factory.mktemp("layers")
    found = {}
    for name in ("cnn", "fashion"):
        source, feeds = float_model(name, folder)
        for kind in KINDS:
            found[name, kind] = (source, quantized(kind, source, folder, feeds), feeds[:3])
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "node"), LAYERS)
def test_wrong_scales_of_weights_are_found(
    cases: dict[tuple[str, str], Case], kind: str, name: str, node: str, tmp_path: Path
) -> None:
    source, candidate, feeds = cases[name, kind]
    scale = f"{weight_of(source, node)}_scale"
    worse = rescaled(candidate, tmp_path / "worse.onnx", scale, 4)
    first = layers_of(ModelPair.of(source, worse), feeds).layers[0]
    assert first.node == node
    assert first.share > 0.9
    assert "their scale is wrong" in first.fix


@pytest.mark.parametrize("kind", ["qdq", "ort qdq u8", "ort qdq s8"])
@pytest.mark.parametrize("name", ["cnn", "fashion"])
def test_wrong_scales_of_activations_are_found(
    cases: dict[tuple[str, str], Case], kind: str, name: str, tmp_path: Path
) -> None:
    """Steps 32 times as wide as needed; the layers that read the tensor differ least from what float makes of it."""
    source, candidate, feeds = cases[name, kind]
    for scale, tensors in activation_scales(candidate):
        worse = rescaled(candidate, tmp_path / "worse.onnx", scale, 32)
        first = layers_of(ModelPair.of(source, worse), feeds).layers[0]
        assert before_relu(source, first.tensor) & tensors, scale
        assert "calibrate again" in first.fix, scale


@pytest.mark.parametrize("kind", ["qdq", "ort qdq u8"])
def test_steps_four_times_as_wide_cost_twelve_decibels(
    cases: dict[tuple[str, str], Case], kind: str, tmp_path: Path
) -> None:
    source, candidate, feeds = cases["cnn", kind]
    before = {
        layer.tensor: layer for layer in layers_of(ModelPair.of(source, candidate), feeds).layers
    }
    for scale in ("r1_scale", "r3_scale"):
        worse = rescaled(candidate, tmp_path / "worse.onnx", scale, 4)
        found = layers_of(ModelPair.of(source, worse), feeds).layers
        losses = [(before[x.tensor].input_db or 0) - (x.input_db or 0) for x in found]
        assert 8 < max(losses) < 16


def test_steps_four_times_as_wide_are_found_where_no_layer_was_bad(
    cases: dict[tuple[str, str], Case], tmp_path: Path
) -> None:
    source, candidate, feeds = cases["fashion", "qdq"]
    for scale, tensors in activation_scales(candidate):
        worse = rescaled(candidate, tmp_path / "worse.onnx", scale, 4)
        first = layers_of(ModelPair.of(source, worse), feeds).layers[0]
        assert before_relu(source, first.tensor) & tensors, scale
        assert first.alone_db is not None
        # Where even that leaves 40 dB there is nothing to mend.
        assert ("times what the data needs" in first.fix) == (first.alone_db < 40)


@pytest.mark.parametrize("kind", KINDS)
def test_ranked_by_noise_and_shares_add_up(cases: dict[tuple[str, str], Case], kind: str) -> None:
    source, candidate, feeds = cases["cnn", kind]
    found = layers_of(ModelPair.of(source, candidate), feeds)
    powers = [10 ** -((layer.alone_db or np.inf) / 10) for layer in found.layers]
    assert powers == sorted(powers, reverse=True)
    assert sum(layer.share for layer in found.layers) == pytest.approx(1)
    assert found.samples == 3
    assert not found.note
    assert {"stem", "wide", "deep", "narrow", "head", "add"} <= {x.node for x in found.layers}


def test_the_same_files_give_the_same_numbers(cases: dict[tuple[str, str], Case]) -> None:
    source, candidate, feeds = cases["cnn", "qdq"]
    first, again = (layers_of(ModelPair.of(source, candidate), feeds) for _ in range(2))
    assert first == again
