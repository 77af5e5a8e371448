"""`quantkit quantize float16`: what it prints, what it writes, how it exits."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import graph, matmul_model, model, node, rng, save, weight
from half_cases import network, saved
from onnx import TensorProto

from quantkit.cli.app import run
from quantkit.quantize.plan import Mode, read_plan
from quantkit.settings import Float16Settings, load_recipe


def call(*arguments: str | Path) -> int:
    return run([str(a) for a in arguments])


@pytest.fixture
def float_model(tmp_path: Path) -> Path:
    return save(matmul_model(), tmp_path / "in.onnx")


def test_it_writes_half_and_says_what_it_did(
    float_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "out.onnx"
    assert call("quantize", "float16", float_model, target) == 0
    out = capsys.readouterr().out
    assert "weights only" in out
    assert "become float32 when it is loaded (MatMul 1)" in out
    assert (
        "verified: valid, loads and runs in onnxruntime; SQNR vs float on random inputs: y" in out
    )
    assert f"wrote {target}" in out
    assert target.stat().st_size < 0.6 * float_model.stat().st_size


def test_arithmetic_prints_what_runs(
    float_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", rng().standard_normal((8, 128)).astype(np.float32))
    line = ("quantize", "float16", float_model, tmp_path / "o.onnx", "--compute")
    assert call(*line, "--data", tmp_path / "x.npy", "--save-plan", tmp_path / "p.json") == 0
    out = capsys.readouterr().out
    assert "float16" in out
    assert "layers (Conv, Gemm, MatMul, ...)" in out
    assert "on this CPU" in out
    assert {n.mode for n in read_plan(tmp_path / "p.json").nodes} == {Mode.HALF}
    assert call("plan", tmp_path / "p.json", "--nodes") == 0
    shown = capsys.readouterr().out
    assert "2 tensors in 16 bits, opset 6 or newer" in shown
    assert "w  float16  only float16 nodes read it" in shown
    assert "8 bits" not in shown


def test_json_is_the_whole_result(
    float_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ("quantize", "float16", float_model, tmp_path / "o.onnx", "--json")
    assert call(*line) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["plan"]["halves"] == [
        {
            "tensor": "w",
            "dtype": "float16",
            "why": "it becomes float32 at load",
            "code": "half-at-load",
        }
    ]
    assert "half" not in plain
    assert call(*line, "--compute") == 0
    assert json.loads(capsys.readouterr().out)["half"]["products"] == 1


@pytest.mark.parametrize(
    ("flags", "dtype"),
    [
        ([], TensorProto.FLOAT16),
        (["--type", "bfloat16"], TensorProto.BFLOAT16),
        (["--type", "FLOAT16"], TensorProto.FLOAT16),
        (["--no-verify"], TensorProto.FLOAT16),
    ],
)
def test_flags(float_model: Path, tmp_path: Path, flags: list[str], dtype: int) -> None:
    target = tmp_path / "out.onnx"
    assert call("quantize", "float16", float_model, target, *flags) == 0
    assert {t.name: t.data_type for t in onnx.load(target).graph.initializer}["w"] == dtype


def test_quantkit_toml_is_read_and_flags_go_over_it(
    float_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save(tmp_path / "x.npy", rng().standard_normal((8, 128)).astype(np.float32))
    text = '[data]\npath = "x.npy"\n[float16]\ntype = "bfloat16"\nexclude = ["add"]\n'
    (tmp_path / "quantkit.toml").write_text(text)
    assert load_recipe().float16 == Float16Settings(dtype="bfloat16", exclude=("add",))
    assert call("quantize", "float16", float_model, "a.onnx") == 0
    assert call("quantize", "float16", float_model, "b.onnx", "--type", "float16", "--compute") == 0
    kinds = [
        {t.name: t.data_type for t in onnx.load(tmp_path / name).graph.initializer}
        for name in ("a.onnx", "b.onnx")
    ]
    assert [k["w"] for k in kinds] == [TensorProto.BFLOAT16, TensorProto.FLOAT16]
    assert kinds[1]["b"] == TensorProto.FLOAT  # of the node that the file leaves out


def broken(folder: Path, what: str) -> Path:
    path = folder / "bad.onnx"
    whole = matmul_model()
    match what:
        case "truncated":
            path.write_bytes(whole.SerializeToString()[:-1000])
        case "text":
            path.write_text("no model\n" * 20)
        case "empty":
            path.write_bytes(b"")
        case "half":
            save(network("float16"), path)
        case "external":
            tensor = whole.graph.initializer[0]
            tensor.ClearField("raw_data")
            tensor.external_data.add(key="location", value="gone.bin")
            tensor.data_location = TensorProto.EXTERNAL
            save(whole, path)
        case "nan":
            array = weight(128, 192)
            array[0, 0] = np.nan
            whole.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(array, "w"))
            save(whole, path)
        case "weightless":
            save(model(graph([node("Relu", ["x"], ["y"])], {"x": [4]}, {"y": [4]})), path)
    return path


@pytest.mark.parametrize(
    "what", ["truncated", "text", "empty", "half", "external", "nan", "weightless"]
)
@pytest.mark.parametrize("flags", [[], ["--compute"]], ids=["stored", "computed"])
def test_bad_models_are_one_line_and_nothing_is_written(
    what: str, flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = broken(tmp_path, what)
    before = sorted(p.name for p in tmp_path.iterdir())
    assert call("quantize", "float16", path, tmp_path / "out.onnx", *flags) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--type", "float8"], "--type 'float8' is unknown"),
        (["--type", "bfloat16", "--half-inputs"], "bfloat16 is for the file alone"),
        (["--data", "{t}/nothing"], "nothing"),
        (["--data", "{t}/folder"], "folder"),
        (["--data", "{t}/wide.npy", "--compute"], "wide.npy"),
        (["--exclude", "mn"], "no node 'mn'"),
        (["--save-plan", "{m}"], "would overwrite"),
    ],
    ids=["type", "bfloat16", "no data", "empty data", "other shape", "node", "plan over input"],
)
def test_bad_flags_are_one_line_and_nothing_is_written(
    flags: list[str],
    says: str,
    float_model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "folder").mkdir()
    np.save(tmp_path / "wide.npy", np.zeros((4, 100), np.float32))
    before = sorted(p.name for p in tmp_path.iterdir())
    given = [flag.format(t=tmp_path, m=float_model) for flag in flags]
    assert call("quantize", "float16", float_model, tmp_path / "out.onnx", *given) == 2
    errors = capsys.readouterr().err
    assert says in errors.splitlines()[-1]
    assert errors.splitlines()[-1].startswith("error: ")
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_the_output_over_the_input_is_refused(
    float_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = float_model.read_bytes()
    assert call("quantize", "float16", float_model, float_model) == 2
    assert "would overwrite" in capsys.readouterr().err
    assert float_model.read_bytes() == before


def test_verify_again(
    float_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "o.onnx"
    assert call("quantize", "float16", float_model, out) == 0
    capsys.readouterr()
    assert call("verify", out, "--float", float_model, "--again", "--json") == 0
    checks = {c["name"]: c["outcome"] for c in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["again"] == checks["content"] == checks["float"] == "ok"


def test_inspect_says_what_would_come_of_it(
    float_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("inspect", float_model) == 0
    out = capsys.readouterr().out
    assert "quantize float16" in out
    assert "about 50.1 kB" in out
    huge = matmul_model()
    array = weight(128, 192) * np.float32(1e7)
    huge.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(array, "w"))
    assert call("inspect", save(huge, tmp_path / "huge.onnx")) == 0
    assert "quantize float16" not in capsys.readouterr().out
    assert call("inspect", saved(tmp_path, "bfloat16")[0]) == 0
    out = capsys.readouterr().out
    assert "it is a bfloat16 model" in out
    assert "no kernels for bfloat16" in out


def test_inspect_of_a_result_counts_halves_as_weights(
    float_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "o.onnx"
    assert call("quantize", "float16", float_model, out) == 0
    capsys.readouterr()
    assert call("inspect", out, "--json") == 0
    plain = json.loads(capsys.readouterr().out)
    assert {p["cause"]: p["nbytes"] for p in plain["size"]}["weights of MatMul"] == 2 * 128 * 192
    assert plain["plans"]["float16"]["nodes"] == []
    assert not any("quantized already" in text for text in plain["hazards"])
    assert any("it is a float16 model" in text for text in plain["hazards"])
