"""Simplify, prove, write: the whole line."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from builders import graph, model, node, op_types, run, save, weight

from quantkit.errors import ModelError, UsageError, VerifyError
from quantkit.pipeline.optimize import optimize_model
from quantkit.quantize.rewrite import simplify as simplification


def conv_model() -> onnx.ModelProto:
    held = {"w": weight(8, 3, 3, 3), **{n: weight(8, seed=i) for i, n in enumerate("sbm")}}
    held["v"] = np.abs(weight(8, seed=9)) + np.float32(0.5)
    nodes = [
        node("Conv", ["x", "w"], ["c"]),
        node("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"]),
        node("Identity", ["n"], ["i"]),
        node("Relu", ["i"], ["y"]),
    ]
    return model(graph(nodes, {"x": ["N", 3, 8, 8]}, {"y": ["N", 8, 6, 6]}, held))


def test_writes_a_simpler_model_and_says_how_far_it_moved(tmp_path: Path) -> None:
    proto, target = conv_model(), tmp_path / "out.onnx"
    result = optimize_model(save(proto, tmp_path / "in.onnx"), target)
    assert op_types(onnx.load(target)) == ["Conv", "Relu"]
    assert result.verification is not None
    assert result.verification.compared["y"] > 100
    assert result.report.changes["batchnorm"] == 1
    assert result.output_bytes == target.stat().st_size
    assert result.warnings == ()
    x = {"x": weight(2, 3, 8, 8, scale=1.0)}
    np.testing.assert_allclose(run(proto, x)[0], run(target, x)[0], atol=1e-5)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.onnx", "out.onnx"]


def test_what_is_only_moved_is_exact(tmp_path: Path) -> None:
    result = optimize_model(conv_model(), tmp_path / "o.onnx", exclude=["batchnorm"])
    assert result.verification is not None
    assert result.verification.compared == {"y": float("inf")}
    assert result.to_json()["verification"]["sqnr_db"] == {"y": None}


def test_nothing_to_do_is_written_too(tmp_path: Path) -> None:
    target = tmp_path / "o.onnx"
    result = optimize_model(
        model(graph([node("Relu", ["x"], ["y"])], {"x": [2]}, {"y": [2]})), target
    )
    assert not result.report.changed
    assert target.exists()


def test_integer_outputs_are_compared_exactly(tmp_path: Path) -> None:
    nodes = [node("Identity", ["x"], ["i"]), node("ArgMax", ["i"], ["y"], axis=1)]
    part = graph(nodes, {"x": [2, 5]}, {"y": [2, 1]}, types={"y": onnx.TensorProto.INT64})
    result = optimize_model(model(part), tmp_path / "o.onnx")
    assert result.verification is not None
    assert result.verification.compared == {"y": float("inf")}


def test_without_verification_it_says_so(tmp_path: Path) -> None:
    result = optimize_model(conv_model(), tmp_path / "o.onnx", verify=False)
    assert result.verification is None
    assert "Not verified" in result.warnings[0]


def test_a_sample_is_what_is_compared_on(tmp_path: Path) -> None:
    sample = {"x": weight(4, 3, 8, 8)}
    result = optimize_model(conv_model(), tmp_path / "o.onnx", sample=sample)
    assert result.verification is not None
    assert result.verification.ran
    with pytest.raises(VerifyError, match="given sample"):
        optimize_model(conv_model(), tmp_path / "p.onnx", sample={"x": weight(4, 2, 8, 8)})


def test_external_data(tmp_path: Path) -> None:
    held = {"w": weight(40, 40)}
    proto = model(graph([node("MatMul", ["x", "w"], ["y"])], {"x": [2, 40]}, {"y": [2, 40]}, held))
    result = optimize_model(proto, tmp_path / "o.onnx", external_data=True)
    assert result.external_data
    assert len(list(tmp_path.glob("o.onnx.*.data"))) == 1


def test_a_pass_that_is_wrong_is_caught_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(built: ir.Model) -> int:
        for item in built.graph:
            if item.op_type == "Relu":
                item.op_type = "Neg"
        return 0

    monkeypatch.setattr(simplification, "PASSES", {"noops": wrong})
    with pytest.raises(VerifyError, match="not rounding; nothing was written"):
        optimize_model(conv_model(), tmp_path / "o.onnx")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("target", "match"),
    [("in.onnx", "overwrite the input"), ("no/o.onnx", "does not exist"), (".", "is a directory")],
)
def test_a_target_that_cannot_be(tmp_path: Path, target: str, match: str) -> None:
    source = save(conv_model(), tmp_path / "in.onnx")
    with pytest.raises(UsageError, match=match):
        optimize_model(source, tmp_path / target)


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        optimize_model(tmp_path / "no.onnx", tmp_path / "o.onnx")
