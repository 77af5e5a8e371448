"""`quantkit plan weights`, `quantkit plan float16`, and what `quantkit inspect` says of weights of few bits."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from block_cases import language_model, layers
from builders import rng, save
from onnx import helper

from quantkit import inspect_model, quantize_dynamic, quantize_weights
from quantkit.cli.app import run
from quantkit.errors import UsageError


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with m.onnx and x.npy."""
    monkeypatch.chdir(tmp_path)
    save(layers(256, 256), tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", rng(0).standard_normal((40, 256)).astype(np.float32))
    return tmp_path


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ("weights", ("weights in blocks", "runs as MatMulNBits", "2 weights: 2 of 4 bits")),
        ("float16", ("2 tensors in 16 bits", "become float32 when it is loaded")),
    ],
)
def test_plans_of_every_form(
    form: str, said: tuple[str, ...], work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", form, "m.onnx"]) == 0
    out = capsys.readouterr().out
    assert all(text in out for text in said), out
    assert sorted(p.name for p in work.iterdir()) == ["m.onnx", "x.npy"]


@pytest.mark.usefixtures("work")
def test_a_plan_of_weights_is_written_shown_and_done(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "weights", "m.onnx", "--bits", "3", "-o", "p.json", "--nodes"]) == 0
    assert "w1  3 bits, blocks of 32, with zero points" in capsys.readouterr().out
    assert run(["quantize", "weights", "m.onnx", "o.onnx", "--plan", "p.json"]) == 0
    assert run(["plan", "p.json", "--json"]) == 0
    out = capsys.readouterr().out
    plain = json.loads(out[out.index("{") :])
    assert plain["block_format"] == "contrib"
    assert [w["blocks"]["bits"] for w in plain["weights"]] == [3, 3]


@pytest.mark.usefixtures("work")
def test_a_plan_is_not_written_over_what_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "weights", "m.onnx", "--data", "x.npy", "-o", "x.npy"]) == 2
    assert "x.npy" in capsys.readouterr().err


def test_inspect_says_what_each_form_would_weigh(tmp_path: Path) -> None:
    source = save(language_model(), tmp_path / "m.onnx")
    found = inspect_model(source)
    assert found.foreseen["weights"] < found.foreseen["dynamic"] < found.foreseen["float16"]
    made = {
        "weights": quantize_weights(source, tmp_path / "w.onnx"),
        "dynamic": quantize_dynamic(source, tmp_path / "d.onnx"),
    }
    for form, result in made.items():
        assert result.output_bytes == pytest.approx(found.foreseen[form], rel=0.05)


def test_inspect_finds_the_slow_path(tmp_path: Path) -> None:
    made = tmp_path / "o.onnx"
    quantize_weights(save(layers(256, 256), tmp_path / "m.onnx"), made)
    assert inspect_model(made).stored["MatMulNBits: 4 bits, blocks of 32, accuracy level 4"] == 2
    slow = onnx.load(made)
    for node in slow.graph.node:
        if node.op_type == "MatMulNBits":
            others = [a for a in node.attribute if a.name not in {"bits", "accuracy_level"}]
            del node.attribute[:]
            node.attribute.extend([*others, helper.make_attribute("bits", 8)])
    found = inspect_model(slow)
    assert any("slow path" in text for text in found.hazards)


def test_calls_take_fewer_bits_and_sizes(work: Path) -> None:
    few = quantize_dynamic(work / "m.onnx", work / "few.onnx", weight_bits=4)
    plain = quantize_dynamic(work / "m.onnx", work / "plain.onnx")
    assert few.output_bytes < 0.62 * plain.output_bytes
    small = quantize_dynamic(work / "m.onnx", work / "small.onnx", target_size="20%")
    assert small.output_bytes <= 0.2 * small.input_bytes
    with pytest.raises(UsageError, match="target_size takes"):
        quantize_dynamic(work / "m.onnx", work / "o.onnx", target_size="small")
    with pytest.raises(UsageError, match="weight_bits=4"):
        quantize_dynamic(work / "m.onnx", work / "o.onnx", "QInt4")


def test_few_samples_are_said(work: Path) -> None:
    result = quantize_weights(work / "m.onnx", work / "o.onnx", work / "x.npy")
    assert any("Few samples" in note for note in result.notes)
