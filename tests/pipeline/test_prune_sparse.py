"""Zeros and low rank from a file to a file: what is written, what is reported, what is refused, what is made again."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from block_cases import chain, pictures
from builders import Array, graph, model, node, rng, run, save, sqnr, weight
from onnx import numpy_helper

import quantkit
from quantkit.api.verify import reproduce
from quantkit.cli.app import run as quantkit_command
from quantkit.errors import NothingToPruneError, UnreachableError, UsageError
from quantkit.pipeline.forms import low_rank
from quantkit.settings import PruneSettings
from quantkit.text import human


def images(folder: Path, count: int = 60) -> Path:
    data = folder / "x.npy"
    np.save(data, rng(3).standard_normal((count, 3, 12, 12)).astype(np.float32))
    return data


def weights(path: Path) -> dict[str, Array]:
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


@pytest.mark.parametrize("options", [{"sparsity": "50%"}, {"pattern": "2:4"}], ids=str)
def test_zeros_are_made_up_for_and_both_sizes_are_reported(
    options: dict[str, Any], tmp_path: Path
) -> None:
    source, out, data = save(pictures(), tmp_path / "m.onnx"), tmp_path / "o.onnx", images(tmp_path)
    result: Any = quantkit.prune(source, out, data, **options)
    found = weights(out)
    assert {w.tensor for w in result.plan.weights} == {"point_w", "wide_w", "head_w"}
    for name in ("point_w", "wide_w", "head_w"):
        assert (found[name] == 0).mean() == 0.5
    if "pattern" in options:
        groups = found["wide_w"].transpose(0, 2, 3, 1).reshape(-1, 4)
        assert ((groups == 0).sum(axis=1) == 2).all()
    assert (found["depthwise_w"] != 0).all()
    assert result.zipped < 0.75 * result.zipped_float
    assert any("gains no time from zeros" in text for text in result.notes)
    assert f"zipped: {human(result.zipped)}" in str(result)


def test_the_others_make_up_for_zeros(tmp_path: Path) -> None:
    source, out, data = save(pictures(), tmp_path / "m.onnx"), tmp_path / "o.onnx", images(tmp_path)
    quantkit.prune(source, out, data, sparsity=0.5)
    plain = onnx.load(source)
    for tensor in plain.graph.initializer:
        if tensor.name in {"point_w", "wide_w", "head_w"}:
            array = numpy_helper.to_array(tensor)
            kept = np.abs(array) > np.median(np.abs(array))
            tensor.CopyFrom(numpy_helper.from_array(array * kept, tensor.name))
    feed = {"x": rng(9).standard_normal((20, 3, 12, 12)).astype(np.float32)}
    exact = run(source, feed)[0]
    assert sqnr(exact, run(out, feed)[0]) > sqnr(exact, run(plain, feed)[0]) + 3


def test_zeros_stay_zeros_behind_int8(tmp_path: Path) -> None:
    source, out, data = save(pictures(), tmp_path / "m.onnx"), tmp_path / "o.onnx", images(tmp_path)
    quantkit.prune(source, out, data, pattern="2:4")
    quantkit.quantize_static(out, tmp_path / "q.onnx", data, measure=False)
    zeros = weights(out)["wide_w"] == 0
    (stored,) = (w for w in weights(tmp_path / "q.onnx").values() if w.shape == zeros.shape)
    assert stored.dtype == np.int8
    assert (stored[zeros] == 0).all()


def test_the_same_file_is_made_again(tmp_path: Path) -> None:
    source, out, data = save(pictures(), tmp_path / "m.onnx"), tmp_path / "o.onnx", images(tmp_path)
    quantkit.prune(source, out, data, sparsity=0.6)
    assert reproduce(out, source, data=data).outcome == "ok"


def test_the_command_reports_both_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, data = save(pictures(), tmp_path / "m.onnx"), images(tmp_path)
    common = [str(source), str(tmp_path / "o.onnx"), "--data", str(data), "--pattern", "2:4"]
    assert quantkit_command(["prune", *common, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["plan"]["sparsity"] == "2:4"
    assert found["zipped"] < found["output_bytes"]


def test_a_model_without_a_weight_to_thin_out_is_refused(tmp_path: Path) -> None:
    held = {"w": weight(8, 3, 3, 3), "b": weight(8)}
    proto = graph(
        [node("Conv", ["x", "w", "b"], ["y"], "conv")], {"x": ["N", 3, 12, 12]}, {"y": None}, held
    )
    source = save(model(proto), tmp_path / "m.onnx")
    with pytest.raises(NothingToPruneError, match="No weight takes 50% zeros"):
        quantkit.prune(source, tmp_path / "o.onnx", images(tmp_path), sparsity=0.5)
    assert not (tmp_path / "o.onnx").exists()


def test_one_way_to_have_fewer_weights_is_asked_for() -> None:
    with pytest.raises(UsageError, match="give one"):
        PruneSettings(sparsity=0.5, speed=0.8)
    with pytest.raises(UsageError, match="give one"):
        PruneSettings(pattern="2:4", low_rank=True)


def thin(folder: Path) -> tuple[Path, Path]:
    """Return a model whose second layer has rank 4, and its data."""
    proto = chain(3, 96)
    for tensor in proto.graph.initializer:
        if tensor.name == "w1":
            made = weight(96, 4, seed=7) @ weight(4, 96, seed=8) / 8
            tensor.CopyFrom(numpy_helper.from_array(made.astype(np.float32), "w1"))
    data = folder / "x.npy"
    np.save(data, rng(3).standard_normal((300, 96)).astype(np.float32))
    return save(proto, folder / "m.onnx"), data


@pytest.mark.parametrize("ratio", [0.8, 1.1])
def test_a_layer_of_low_rank_becomes_two_if_that_gains_time(
    ratio: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(low_rank, "time_ratios", lambda *_: [(ratio, None)])
    source, data = thin(tmp_path)
    out = tmp_path / "o.onnx"
    if ratio > 1:
        with pytest.raises(UnreachableError, match=r"No layer gains .* 1.10 of float's latency"):
            quantkit.prune(source, out, data, low_rank=True)
        return
    result: Any = quantkit.prune(source, out, data, low_rank=True)
    assert result.plan.gains == ("layer1",)
    assert result.speed == ratio
    assert out.stat().st_size < source.stat().st_size
    feed = {"x": rng(9).standard_normal((20, 96)).astype(np.float32)}
    assert sqnr(run(source, feed)[0], run(out, feed)[0]) > 60


def test_where_4_bits_are_better_no_layer_gains(tmp_path: Path) -> None:
    source = save(pictures(), tmp_path / "m.onnx")
    with pytest.raises(UnreachableError, match=r"No layer gains from a low rank: of 2 none"):
        quantkit.prune(source, tmp_path / "o.onnx", images(tmp_path), low_rank=True)
    assert not (tmp_path / "o.onnx").exists()
