"""Smoothing is done where it helps samples that did not set its factors."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import Array, graph, model, node, rng, save

import quantkit

WIDTH, HIDDEN = 140, 250


def rarely_loud() -> onnx.ModelProto:
    """Layers whose hidden channels are zero on most samples: the calibration shows few of their values."""
    found, nodes, x = rng(0), [], "x"
    constants: dict[str, Array] = {}
    for k in range(4):
        constants |= {
            f"a{k}": found.normal(0, 1.5 / np.sqrt(WIDTH), (WIDTH, HIDDEN)).astype(np.float32),
            f"b{k}": -np.abs(found.normal(0, 2.5, HIDDEN)).astype(np.float32),
            f"c{k}": found.normal(0, 3 / np.sqrt(HIDDEN), (HIDDEN, WIDTH)).astype(np.float32),
        }
        nodes += [
            node("MatMul", [x, f"a{k}"], [f"m{k}"], f"first{k}"),
            node("Add", [f"m{k}", f"b{k}"], [f"s{k}"], f"add{k}"),
            node("Relu", [f"s{k}"], [f"r{k}"], f"relu{k}"),
            node("MatMul", [f"r{k}", f"c{k}"], [f"y{k}"], f"second{k}"),
        ]
        x = f"y{k}"
    return model(graph(nodes, {"x": [1, "t", WIDTH]}, {x: None}, constants))


def clips(count: int, seed: int) -> list[dict[str, Array]]:
    found = rng(seed)
    return [
        {
            "x": (
                found.normal(size=(1, 47, WIDTH)) * np.exp(found.normal(0, 0.5, (1, 47, 1)))
            ).astype(np.float32)
        }
        for _ in range(count)
    ]


@pytest.mark.slow
def test_smoothing_that_makes_other_samples_noisier_is_left_out(tmp_path: Path) -> None:
    source = save(rarely_loud(), tmp_path / "m.onnx")
    prepared = quantkit.prepare_static(source, clips(24, 0))
    assert not prepared.ready.divided
    assert any("did not set the factors" in note for note in prepared.ready.notes)


@pytest.mark.slow
def test_too_few_samples_to_measure_leave_it_as_it_is(tmp_path: Path) -> None:
    source = save(rarely_loud(), tmp_path / "m.onnx")
    assert quantkit.prepare_static(source, clips(3, 0)).ready.divided
