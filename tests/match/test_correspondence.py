"""Which tensor of a candidate stands for which of the float model."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import graph, initializers, model, node, save, weight
from hypothesis import given
from hypothesis import strategies as st
from layer_cases import cnn, float_model, quantized

from quantkit.evaluate.layers import layers_of
from quantkit.evaluate.match import ModelPair
from quantkit.evaluate.match.correspondence import Correspondence, Match, Quantizer, correspondence
from quantkit.evaluate.match.regions import same_form
from quantkit.model.graph.channel_factors import (
    KEY,
    Divisor,
    Divisors,
    read_divisors,
    rounded,
    write_divisors,
)
from quantkit.runtime.pieces import read_structure

KINDS = (
    "qdq",
    "qoperator",
    "dynamic",
    "ort qdq u8",
    "ort qdq s8",
    "ort qoperator u8",
    "ort qoperator s8",
)


def matched(reference: Path, candidate: Path) -> Correspondence:
    return correspondence(read_structure(reference), read_structure(candidate))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["cnn", "fashion"])
def test_what_is_matched_is_alike(name: str, kind: str, tmp_path: Path) -> None:
    """A Relu too many or too few, or a factor of channels forgotten, would leave a few dB."""
    source, feeds = float_model(name, tmp_path)
    layers = layers_of(
        ModelPair.of(source, quantized(kind, source, tmp_path, feeds)), feeds[:2]
    ).layers
    found = [layer.accumulated_db for layer in layers if layer.accumulated_db is not None]
    assert len(found) >= 3
    assert min(found) > 25


def test_an_absorbed_relu_leaves_its_name_on_what_it_read(tmp_path: Path) -> None:
    source, feeds = float_model("cnn", tmp_path)
    found = matched(source, quantized("qdq", source, tmp_path, feeds))
    assert found.matches["r1"].tensor == "c1"
    assert found.matches["r2"].tensor == "c2"
    assert found.matches["c4"].tensor == "c4"
    found = matched(source, quantized("ort qdq u8", source, tmp_path, feeds))
    assert found.matches["r1"].tensor == "c1"
    assert "c1" not in found.matches


def test_integers_stand_for_what_is_behind_the_relu_that_their_range_does(tmp_path: Path) -> None:
    source, feeds = float_model("cnn", tmp_path)
    for kind, name in (("qoperator", "r1_quantized"), ("ort qoperator u8", "c1_quantized")):
        found = matched(source, quantized(kind, source, tmp_path, feeds)).matches[name]
        assert found.tensor == "r1"
        assert found.quantizer is not None
        assert found.quantizer.zero_point == 0


def test_channels_that_were_evened_out_are_known(tmp_path: Path) -> None:
    source, feeds = float_model("cnn", tmp_path)
    path = quantized("qdq", source, tmp_path, feeds)
    found = matched(source, path).matches
    assert {name for name, match in found.items() if match.divisor is not None} == {"r3"}
    assert KEY in read_structure(path).properties


def test_a_static_model_that_does_not_say_its_factors_is_not_compared(tmp_path: Path) -> None:
    source, feeds = float_model("cnn", tmp_path)
    path = quantized("qdq", source, tmp_path, feeds)
    proto = onnx.load(path)
    kept = [p for p in proto.metadata_props if p.key != KEY]
    del proto.metadata_props[:]
    proto.metadata_props.extend(kept)
    found = matched(source, save(proto, path))
    assert not found.matches
    assert "quantize it again" in found.note


def test_weights_and_what_is_made_of_constants_alone_are_no_activations(tmp_path: Path) -> None:
    """A stored weight has its old name on the result of a Mul."""
    source, feeds = float_model("fashion", tmp_path)
    path = quantized("dynamic", source, tmp_path, feeds)
    weights = initializers(onnx.load(source)).keys()
    assert weights & read_structure(path).maker.keys()
    assert not weights & matched(source, path).matches.keys()


def test_models_without_a_common_name_have_only_their_inputs_in_common(tmp_path: Path) -> None:
    other = model(graph([node("Relu", ["x"], ["z"], "r")], {"x": [1]}, {"z": [1]}))
    found = matched(save(cnn(), tmp_path / "a.onnx"), save(other, tmp_path / "b.onnx"))
    assert found.matches.keys() == {"x"}


def test_tensors_of_another_shape_are_left_out(tmp_path: Path) -> None:
    def linear(size: int) -> onnx.ModelProto:
        nodes = [
            node("MatMul", ["x", "w"], ["m"], "one"),
            node("ReduceSum", ["m"], ["y"], "sum", keepdims=0),
        ]
        weights = {"w": weight(4, size)}
        return model(graph(nodes, {"x": [2, 4]}, {"y": []}, weights))

    a, b = (save(linear(n), tmp_path / f"{n}.onnx") for n in (3, 5))
    pair = ModelPair.of(a, b)
    matches = pair.tensors.matches
    theirs, ours = (side.survey(matches, {"x": weight(2, 4)}) for side in pair.sides)
    assert {name: same_form(m, theirs, ours) for name, m in matches.items() if name != "x"} == {
        "m": False,
        "y": True,
    }


FACTORS = st.lists(st.floats(0.01, 100), min_size=1, max_size=20)


@given(FACTORS, st.integers(-1, 1))
def test_divisors_come_back_exactly_as_they_were_noted(values: list[float], axis: int) -> None:
    numbers = rounded(np.array(values))
    np.testing.assert_allclose(numbers, values, rtol=1 / 32)
    properties: dict[str, str] = {}
    divisor = Divisor(axis, numbers.astype(np.float32))
    write_divisors(properties, [Divisors(tensors=("a", "b"), divisor=divisor)])
    found = read_divisors(properties)
    assert found is not None
    assert found.keys() == {"a", "b"}
    assert found["a"].axis == axis
    np.testing.assert_array_equal(found["b"].values, numbers)


@pytest.mark.parametrize("text", ["", "{", "[1]", '[{"tensors":["a"],"axis":1,"by":"!"}]'])
def test_a_damaged_note_says_nothing(text: str) -> None:
    assert read_divisors({KEY: text}) is None


@given(
    st.lists(st.floats(-50, 50, width=32), min_size=4, max_size=4),
    st.floats(2**-6, 2, width=32),
    st.integers(0, 255),
)
def test_what_is_given_is_restored_to_half_a_step(
    values: list[float], scale: float, zero: int
) -> None:
    array = np.array(values, np.float32).reshape(2, 2)
    divisor = Divisor(1, np.array([0.5, 4.0], np.float32))
    match = Match(
        tensor="a", candidate="b", divisor=divisor, quantizer=Quantizer(scale, zero, "uint8")
    )
    low, high = -zero * scale, (255 - zero) * scale
    inside = np.clip(match.divided(array), low, high) * divisor.shaped(2)
    restored = match.restored(match.given(array))
    assert (np.abs(restored - inside) <= scale / 2 * divisor.shaped(2) * (1 + 1e-4) + 1e-5).all()
