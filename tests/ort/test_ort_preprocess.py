"""`quantkit.ort.quant_pre_process`: what onnxruntime's does before quantization, and that the model stays the same."""

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import graph, model, node, op_types, rng, run, save, weight
from onnxruntime.quantization.quant_utils import model_has_pre_process_metadata

from quantkit import ort
from quantkit.errors import UsageError
from quantkit.workflows.reproduce import reproduce


def network(channels: int = 8) -> onnx.ModelProto:
    """x [N, 3, 8, 8] -> Conv -> Identity -> Relu -> y."""
    nodes = [
        node("Conv", ["x", "w"], ["c"], "c"),
        node("Identity", ["c"], ["i"], "i"),
        node("Relu", ["i"], ["y"], "r"),
    ]
    held = {"w": weight(channels, 3, 3, 3)}
    return model(graph(nodes, {"x": ["N", 3, 8, 8]}, {"y": ["N", channels, 6, 6]}, held))


def upsample(opset: int, mode: str = "nearest") -> onnx.ModelProto:
    more: dict[str, Any] = {"scales": [1.0, 1.0, 2.0, 3.0]} if opset < 9 else {}
    reads = ["x"] if opset < 9 else ["x", "s"]
    held = {} if opset < 9 else {"s": np.array([1, 1, 2, 3], np.float32)}
    nodes = [node("Upsample", reads, ["y"], "u", mode=mode, **more)]
    made = model(graph(nodes, {"x": [1, 2, 4, 5]}, {"y": [1, 2, 8, 15]}, held))
    made.opset_import[0].version = opset
    made.ir_version = 4
    made.graph.input.extend(
        onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, a.shape)
        for n, a in held.items()
    )
    return made


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return save(network(), tmp_path / "in.onnx")


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("opset", [7, 9])
def test_upsample_becomes_a_resize_that_does_the_same(
    opset: int, mode: str, tmp_path: Path
) -> None:
    old, new = save(upsample(opset, mode), tmp_path / "a.onnx"), tmp_path / "b.onnx"
    ort.quant_pre_process(old, new)
    made = onnx.load(new)
    assert "Resize" in op_types(made)
    assert "Upsample" not in op_types(made)
    assert made.opset_import[0].version == 11
    feeds = {"x": rng().standard_normal((1, 2, 4, 5)).astype(np.float32)}
    np.testing.assert_allclose(run(new, feeds)[0], run(old, feeds)[0], rtol=1e-6)


def test_nodes_of_another_opset_than_is_declared(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wrong, right = upsample(10), upsample(9)
    onnx.save(wrong, tmp_path / "wrong.onnx")
    ort.quant_pre_process(tmp_path / "wrong.onnx", tmp_path / "a.onnx", skip_optimization=True)
    assert "says opset 10, and its nodes are of 9" in caplog.text
    feeds = {"x": rng().standard_normal((1, 2, 4, 5)).astype(np.float32)}
    expected = run(save(right, tmp_path / "right.onnx"), feeds)[0]
    np.testing.assert_array_equal(run(tmp_path / "a.onnx", feeds)[0], expected)

    nodes = [node("Clip", ["x", "low", "high"], ["y"], "c")]
    held = {"low": np.float32(-0.5), "high": np.float32(0.5)}
    clip = model(
        graph(nodes, {"x": [2, 3]}, {"y": [2, 3]}, {n: np.array(v) for n, v in held.items()})
    )
    clip.opset_import[0].version = 6
    ort.quant_pre_process(clip, tmp_path / "b.onnx")
    assert clip.opset_import[0].version == 6
    feeds = {"x": rng().standard_normal((2, 3)).astype(np.float32)}
    np.testing.assert_array_equal(run(tmp_path / "b.onnx", feeds)[0], feeds["x"].clip(-0.5, 0.5))


def test_what_is_valid_in_no_opset_is_refused(tmp_path: Path) -> None:
    nodes = [node("Clip", ["x", "x", "x", "x"], ["y"], "c")]
    made = model(graph(nodes, {"x": [2, 3]}, {"y": [2, 3]}))
    with pytest.raises(Exception, match="not valid ONNX"):
        ort.quant_pre_process(made, tmp_path / "b.onnx")
    assert not (tmp_path / "b.onnx").exists()


def test_steps_can_be_left_out(source: Path, tmp_path: Path) -> None:
    def made(**given: Any) -> onnx.ModelProto:
        ort.quant_pre_process(source, tmp_path / "o.onnx", **given)
        return onnx.load(tmp_path / "o.onnx")

    both = {"skip_onnx_shape": True, "skip_symbolic_shape": True}
    assert op_types(made()) == ["Conv", "Relu"]
    kept = made(skip_optimization=True)
    assert op_types(kept) == ["Conv", "Identity", "Relu"]
    assert {value.name for value in kept.graph.value_info} == {"c", "i"}
    assert not made(skip_optimization=True, **both).graph.value_info
    assert not made(**both).graph.value_info
    assert model_has_pre_process_metadata(made())


def test_every_keyword_of_onnxruntime_is_taken(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "p.onnx"
    ort.quant_pre_process(
        input_model=source,
        output_model_path=target,
        skip_optimization=True,
        auto_merge=True,
        int_max=100,
        guess_output_rank=True,
        verbose=1,
        all_tensors_to_one_file=True,
        external_data_size_threshold=0,
    )
    ort.quant_pre_process(input_model_path=str(source), output_model_path=target)
    with pytest.raises(UsageError, match="output_model_path"):
        ort.quant_pre_process(source)
    with pytest.raises(UsageError, match="no parameter 'foo'"):
        ort.quant_pre_process(source, target, foo=1)


def test_weights_go_where_they_are_asked_for(
    source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    big = save(network(512), tmp_path / "big.onnx")
    folder = tmp_path / "out"
    folder.mkdir()
    target, feeds = folder / "p.onnx", {"x": rng().standard_normal((1, 3, 8, 8)).astype("f")}
    for _ in range(2):  # a second run replaces the first
        ort.quant_pre_process(
            big, target, save_as_external_data=True, external_data_location="weights.bin"
        )
        assert {path.name for path in folder.iterdir()} == {"p.onnx", "weights.bin"}
        np.testing.assert_array_equal(run(target, feeds)[0], run(big, feeds)[0])
    for threshold, count in ((1 << 30, 0), (1 << 20, 0), (1 << 10, 1)):
        ort.quant_pre_process(
            big,
            tmp_path / "q.onnx",
            save_as_external_data=True,
            external_data_size_threshold=threshold,
        )
        assert len(list(tmp_path.glob("q.onnx.*"))) == count
    with pytest.raises(UsageError, match="no file name"):
        ort.quant_pre_process(
            big, target, save_as_external_data=True, external_data_location="../w.bin"
        )
    with pytest.raises(UsageError, match="overwrite"):
        ort.quant_pre_process(
            big, tmp_path / "p.onnx", save_as_external_data=True, external_data_location="big.onnx"
        )
    with caplog.at_level(logging.WARNING):
        ort.quant_pre_process(source, target, external_data_location="weights.bin")
    assert "no effect" in caplog.text


def test_axes_in_another_file_are_read(tmp_path: Path) -> None:
    """onnxruntime itself does not load such a model."""
    nodes = [node("ReduceMean", ["x", "axes"], ["m"], "mean"), node("Sub", ["x", "m"], ["y"], "s")]
    made = model(graph(nodes, {"x": [2, 3]}, {"y": [2, 3]}, {"axes": np.array([1])}), opset=18)
    source, target = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save_model(made, source, save_as_external_data=True, location="in.bin", size_threshold=0)
    with pytest.raises(Exception, match="external"):
        run(source, {})
    ort.quant_pre_process(source, target)
    x = rng().random((2, 3)).astype(np.float32)
    found = run(target, {"x": x})[0]
    np.testing.assert_allclose(found, x - x.mean(1, keepdims=True), atol=1e-6)


def test_the_result_can_be_made_again_from_its_record(tmp_path: Path) -> None:
    old = save(upsample(9), tmp_path / "a.onnx")
    ort.quant_pre_process(old, tmp_path / "b.onnx")
    assert reproduce(tmp_path / "b.onnx", old).outcome == "ok"


def test_the_command_is_onnxruntimes(source: Path, tmp_path: Path) -> None:
    def call(*given: object) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "quantkit.ort.preprocess", "--input", str(source)]
        return subprocess.run(
            [*line, *map(str, given)], capture_output=True, text=True, check=False
        )

    target = tmp_path / "o.onnx"
    assert call("--output", target, "--skip_optimization", "True").returncode == 0
    assert op_types(onnx.load(target)) == ["Conv", "Identity", "Relu"]
    assert call("--output", target, "--skip_optimization", "False", "--auto_merge").returncode == 0
    assert op_types(onnx.load(target)) == ["Conv", "Relu"]
    failed = call("--output", source)
    assert failed.returncode == 1
    assert failed.stderr.startswith("error: ")
