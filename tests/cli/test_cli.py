"""The command line: what it prints, what it writes, how it exits."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import conv_model, graph, matmul_model, model, node, save, weight
from onnx import TensorProto

from quantkit import __version__
from quantkit.cli.app import run


def call(*arguments: str | Path) -> int:
    return run([str(a) for a in arguments])


@pytest.fixture
def float_model(tmp_path: Path) -> Path:
    return save(matmul_model(), tmp_path / "in.onnx")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--version") == 0
    assert capsys.readouterr().out == f"quantkit {__version__}\n"


@pytest.mark.parametrize(
    "command", [[], ["quantize"], ["quantize", "dynamic"], ["inspect"], ["demo"]]
)
def test_every_command_explains_itself(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*command, "--help") == 0
    assert "Usage" in capsys.readouterr().out


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['quantkit', '--help']\n"
        "from quantkit.cli.app import run\n"
        "run(['--help'])\n"
        "heavy = {'onnx', 'onnx_ir', 'onnxruntime', 'numpy', 'scipy'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_quantize_dynamic_writes_a_model_and_says_what_it_did(
    float_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "out.onnx"
    assert call("quantize", "dynamic", float_model, target) == 0
    out = capsys.readouterr().out
    assert "verified" in out
    assert "MatMul" in out
    assert target.stat().st_size < float_model.stat().st_size


def test_json_is_the_whole_result(
    float_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("quantize", "dynamic", float_model, tmp_path / "o.onnx", "--json") == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["output_bytes"] < plain["input_bytes"]
    assert plain["plan"]["nodes"][0] == {
        "node": "mm",
        "op_type": "MatMul",
        "mode": "integer",
        "why": "runs as MatMulInteger",
        "code": "runs-as",
        "facts": {"kernel": "MatMulInteger"},
        "float_output": False,
    }
    assert plain["verification"]["sqnr_db"]["y"] > 30


@pytest.mark.parametrize(
    ("flags", "dtype"),
    [
        (["--weight-type", "int8"], TensorProto.INT8),
        (["--weight-type", "QInt8"], TensorProto.INT8),
        (["--weight-type", "quint8"], TensorProto.UINT8),
        (["--per-tensor"], TensorProto.UINT8),
        (["--op-types", "MatMul,Gemm"], TensorProto.UINT8),
        (["--include", "mm"], TensorProto.UINT8),
        (["--no-verify"], TensorProto.UINT8),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)
def test_flags(float_model: Path, tmp_path: Path, flags: list[str], dtype: int) -> None:
    target = tmp_path / "out.onnx"
    assert call("quantize", "dynamic", float_model, target, *flags) == 0
    stored = {t.name: t for t in onnx.load(target).graph.initializer}
    assert stored["w_quantized"].data_type == dtype
    assert len(stored["w_scale"].dims) == (0 if "--per-tensor" in flags else 1)


def test_external_data_flag(float_model: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.onnx"
    assert call("quantize", "dynamic", float_model, target, "--external-data") == 0
    assert len(list(tmp_path.glob("out.onnx.*.data"))) == 1


def _truncated(folder: Path) -> Path:
    whole = matmul_model().SerializeToString()
    path = folder / "truncated.onnx"
    path.write_bytes(whole[: len(whole) // 2])
    return path


def _text(folder: Path) -> Path:
    path = folder / "text.onnx"
    path.write_text("this is not a model\n" * 50)
    return path


def _missing_data(folder: Path) -> Path:
    path = folder / "external.onnx"
    onnx.save(
        matmul_model(),
        str(path),
        save_as_external_data=True,
        location="gone.bin",
        size_threshold=100,
    )
    (folder / "gone.bin").unlink()
    return path


def _weightless(folder: Path) -> Path:
    return save(
        model(graph([node("Relu", ["x"], ["y"], "r")], {"x": [1, 4]}, {"y": [1, 4]})),
        folder / "relu.onnx",
    )


BAD_MODELS = {
    "truncated": (_truncated, "truncated"),
    "text": (_text, "not an ONNX model"),
    "missing-external-data": (_missing_data, "gone.bin"),
    "nothing-to-quantize": (_weightless, "Nothing to quantize"),
    "no-such-file": (lambda folder: folder / "nowhere.onnx", "does not exist"),
    "a-directory": (lambda folder: folder, "is a directory"),
}


@pytest.mark.parametrize("case", BAD_MODELS)
def test_bad_model_is_one_line_exit_2_and_nothing_written(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make, expected = BAD_MODELS[case]
    folder = tmp_path / "out"
    folder.mkdir()
    assert call("quantize", "dynamic", make(tmp_path), folder / "o.onnx") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert expected in captured.err
    assert captured.err.count("\n") == 1
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--weight-type", "int3"], "int3"),
        (["--exclude", "nosuch"], "no node 'nosuch'"),
        (["--include", "nosuch"], "no node 'nosuch'"),
        (["--op-types", "Relu"], "Relu"),
        (["--op-types", "Conv, Matmul"], "did you mean 'MatMul'"),
        (["--frobnicate"], "frobnicate"),
    ],
    ids=["weight-type", "exclude", "include", "op-types", "op-type-typo", "unknown-flag"],
)
def test_bad_option_is_exit_2_and_nothing_written(
    float_model: Path,
    tmp_path: Path,
    arguments: list[str],
    expected: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    target = tmp_path / "o.onnx"
    assert call("quantize", "dynamic", float_model, target, *arguments) == 2
    err = capsys.readouterr().err
    assert expected in err
    assert err.count("\n") == 1
    assert "Unexpected" not in err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.onnx"]


def test_output_equal_to_input_is_refused(
    float_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = float_model.read_bytes()
    assert call("quantize", "dynamic", float_model, float_model) == 2
    assert "overwrite the input" in capsys.readouterr().err
    assert float_model.read_bytes() == before


@pytest.mark.parametrize("where", ["folder-is-missing", "folder-is-a-file", "is-a-folder", "proc"])
def test_unwritable_output(
    float_model: Path, tmp_path: Path, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    target = {
        "folder-is-missing": tmp_path / "no" / "o.onnx",
        "folder-is-a-file": tmp_path / "file" / "o.onnx",
        "is-a-folder": tmp_path,
        "proc": Path("/proc/o.onnx"),  # not writable by root either
    }[where]
    assert call("quantize", "dynamic", float_model, target) == 2
    err = capsys.readouterr().err
    assert err.startswith("error:")
    assert err.count("\n") == 1


def test_debug_adds_a_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("inspect", tmp_path / "nowhere.onnx", "--debug") == 2
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.splitlines()[-1].startswith("error: Model file")


def test_inspecting_a_result_says_that_it_is_quantized(
    float_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("quantize", "dynamic", float_model, tmp_path / "o.onnx") == 0
    assert call("inspect", tmp_path / "o.onnx") == 0
    assert "quantized already" in capsys.readouterr().out


def test_inspect_prints_and_writes_json(
    float_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("inspect", float_model, "--nodes", "--weights", "1") == 0
    out = capsys.readouterr().out
    for text in ("opset ai.onnx 17", "weights of MatMul", "Execution plan (dynamic", "mm", "needs"):
        assert text in out
    assert call("inspect", float_model, "--json") == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["operators"] == {"MatMul": 1, "Add": 1}


def test_inspect_ends_with_the_command_to_try_next(
    float_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = save(conv_model(), tmp_path / "images.onnx")
    assert call("inspect", images) == 0
    shown = capsys.readouterr().out
    assert "Execution plan (static" in shown
    assert "Execution plan (dynamic" in shown
    command = f"quantkit quantize static {images} images.int8.onnx --data DIR"
    assert shown.splitlines()[-1] == f"next: {command} (2 of 2 layers can run in int8)"
    assert call("inspect", float_model) == 0  # dynamic needs no data, and reaches as many layers
    command = f"quantkit quantize dynamic {float_model} {float_model.stem}.int8.onnx"
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"next: {command} (1 of 1 layer")


def test_inspect_shows_missing_external_data_as_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("inspect", _missing_data(tmp_path)) == 0
    assert "external data is missing: gone.bin" in capsys.readouterr().out


def test_the_installed_command_runs(float_model: Path, tmp_path: Path) -> None:
    command = Path(sys.executable).with_name("quantkit")
    done = subprocess.run(
        [command, "quantize", "dynamic", float_model, tmp_path / "o.onnx"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "o.onnx").exists()


def test_weight_of_large_value_is_no_surprise(tmp_path: Path) -> None:
    """A weight that float32 holds but whose range overflows naive arithmetic still quantizes."""
    w = weight(128, 192)
    w[0, 0] = 3e38
    proto = model(
        graph([node("MatMul", ["x", "w"], ["y"], "mm")], {"x": ["N", 128]}, {"y": None}, {"w": w})
    )
    path = save(proto, tmp_path / "large.onnx")
    assert call("quantize", "dynamic", path, tmp_path / "o.onnx", "--no-verify") == 0


def test_sample_is_what_the_result_is_verified_with(
    float_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sample = tmp_path / "sample.npz"
    np.savez(sample, x=np.ones((3, 128), np.float32))
    arguments = ("quantize", "dynamic", float_model, tmp_path / "o.onnx", "--sample")
    assert call(*arguments, sample) == 0
    assert "on a given sample" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("kind", ["missing", "text", "wrong-name", "wrong-shape"])
def test_bad_sample_is_exit_2(
    float_model: Path, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sample = tmp_path / "sample.npz"
    if kind == "text":
        sample.write_text("no arrays")
    elif kind == "wrong-name":
        np.savez(sample, z=np.ones((3, 128), np.float32))
    elif kind == "wrong-shape":
        np.savez(sample, x=np.ones((3, 7), np.float32))
    target = tmp_path / "o.onnx"
    assert call("quantize", "dynamic", float_model, target, "--sample", sample) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not target.exists()


def test_names_that_look_like_markup_are_printed_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    proto = matmul_model()
    proto.graph.node[0].name = "a[/b][mask]"
    proto.graph.node[1].output[0] = proto.graph.output[0].name = "y[/x]"
    path = save(proto, tmp_path / "in.onnx")
    assert call("quantize", "dynamic", path, tmp_path / "out[bold].onnx") == 0
    out = capsys.readouterr().out
    assert "y[/x]" in out
    assert "out[bold].onnx" in out
    assert call("inspect", path, "--nodes") == 0
    assert "a[/b][mask]" in capsys.readouterr().out


def test_sample_with_no_verify_is_refused(float_model: Path, tmp_path: Path) -> None:
    arguments = ("quantize", "dynamic", float_model, tmp_path / "o.onnx", "--no-verify")
    assert call(*arguments, "--sample", tmp_path / "s.npz") == 2
