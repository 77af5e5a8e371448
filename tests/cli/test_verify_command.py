"""`quantkit verify`: what it prints and how it exits."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import graph, model, node, rng, save, weight

import quantkit
from quantkit.cli.app import run


def call(*arguments: str | Path) -> int:
    return run(["verify", *(str(a) for a in arguments)])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A float model, data, and a static and a dynamic model made of them; the working directory."""
    monkeypatch.chdir(tmp_path)
    nodes = [
        node("MatMul", ["x", "w"], ["m"], "first"),
        node("Relu", ["m"], ["r"], "relu"),
        node("MatMul", ["r", "v"], ["y"], "second"),
    ]
    held = {"w": weight(32, 64), "v": weight(64, 16)}
    save(model(graph(nodes, {"x": ["N", 32]}, {"y": ["N", 16]}, held)), tmp_path / "f.onnx")
    np.save(tmp_path / "x.npy", rng(1).standard_normal((12, 32)).astype(np.float32))
    quantkit.quantize_static("f.onnx", "s.onnx", "x.npy")
    quantkit.quantize_dynamic("f.onnx", "d.onnx")
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_all_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("s.onnx", "--float", "f.onnx", "--data", "x.npy", "--again") == 0
    out = " ".join(capsys.readouterr().out.split())
    for text in ("static, written by quantkit", "content", "again", "ok", "verified"):
        assert text in out
    assert "wrong:" not in out


@pytest.mark.usefixtures("folder")
def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("d.onnx", "--float", "f.onnx", "--again", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is True
    assert found["model"] == "d.onnx"
    assert found["provenance"]["kind"] == "dynamic"
    names = ["content", "record", "float", "data", "runs", "software", "cpu", "again"]
    assert [c["name"] for c in found["checks"]] == names
    assert {c["outcome"] for c in found["checks"]} == {"ok"}


def test_something_is_wrong(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    proto = onnx.load("s.onnx")
    proto.graph.node[0].name = "other"
    save(proto, folder / "t.onnx")
    assert call("t.onnx") == 1
    assert "wrong: content" in capsys.readouterr().out
    assert call("t.onnx", "--json") == 1
    assert json.loads(capsys.readouterr().out)["ok"] is False


def test_wrong_sources(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(folder / "z.npy", rng(2).standard_normal((12, 32)).astype(np.float32))
    assert call("s.onnx", "--float", "d.onnx", "--data", "z.npy") == 1
    assert "wrong: float, data" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["f.onnx"], "before provenance"),
        (["none.onnx"], "does not exist"),
        (["cut.onnx"], "truncated"),
        (["s.onnx", "--float", "none.onnx"], "does not exist"),
        (["s.onnx", "--data", "none.npy"], "none.npy"),
        (["s.onnx", "--again"], "--again needs the float model"),
        ([], "MODEL"),
    ],
)
@pytest.mark.slow
def test_bad_input_is_one_line(
    arguments: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "cut.onnx").write_bytes((folder / "s.onnx").read_bytes()[:-7])
    assert call(*arguments) == 2
    told = capsys.readouterr().err
    assert message in told
    assert "Traceback" not in told


def test_the_recipe_gives_data_and_its_preparation(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "quantkit.toml").write_text('[data]\npath = "x.npy"\n')
    assert call("s.onnx", "--json") == 0
    checks = {c["name"]: c["outcome"] for c in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["data"] == "ok"
