"""External data is read from the model's own folder only, whatever a link says."""

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import graph, matmul_model, model, node, save, weight
from onnx import TensorProto, helper, numpy_helper

from quantkit import optimize
from quantkit.cli.app import run
from quantkit.errors import ModelError
from quantkit.model.graph.load import load

SECRET = weight(128, 192, seed=5).tobytes()


def linked(folder: Path) -> Path:
    """A model whose weight is in 'w.bin'."""
    proto = matmul_model()
    point_at(proto.graph.initializer[0], "w.bin")
    return save(proto, folder / "m.onnx")


def point_at(tensor: TensorProto, location: str) -> None:
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "in").mkdir()
    path = tmp_path / "elsewhere" / "secret"
    path.write_bytes(SECRET)
    return path


@pytest.mark.parametrize("of", ["file", "folder"])
def test_a_link_that_leaves_the_folder_is_refused(of: str, outside: Path, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    path = linked(folder)
    if of == "file":
        (folder / "w.bin").symlink_to(outside)
    else:
        (folder / "sub").symlink_to(outside.parent)
        proto = onnx.load(path, load_external_data=False)
        proto.graph.initializer[0].external_data[0].value = "sub/secret"
        save(proto, path)
    with pytest.raises(
        ModelError, match=r"a link to .*secret' outside the model's folder.*Copy the"
    ):
        optimize(path, tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()


def test_a_link_is_followed_when_asked(
    outside: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = linked(tmp_path / "in")
    (tmp_path / "in" / "w.bin").symlink_to(outside)
    monkeypatch.setenv("QUANTKIT_ALLOW_LINKS", "1")
    optimize(path, tmp_path / "out.onnx")
    assert SECRET in (tmp_path / "out.onnx").read_bytes()


def test_a_link_within_the_folder_is_followed(tmp_path: Path) -> None:
    path = linked(tmp_path)
    (tmp_path / "real.bin").write_bytes(SECRET)
    (tmp_path / "w.bin").symlink_to("real.bin")
    optimize(path, tmp_path / "out.onnx")
    assert SECRET in (tmp_path / "out.onnx").read_bytes()


def test_a_hugging_face_cache_is_read(tmp_path: Path) -> None:
    """There the model and its data are links to files of other names, side by side elsewhere."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "main" / "onnx"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    linked(tmp_path).rename(blobs / "aaaa")
    (blobs / "bbbb").write_bytes(SECRET)
    (snapshot / "m.onnx").symlink_to(os.path.relpath(blobs / "aaaa", snapshot))
    (snapshot / "w.bin").symlink_to(os.path.relpath(blobs / "bbbb", snapshot))
    optimize(snapshot / "m.onnx", tmp_path / "out.onnx")
    assert SECRET in (tmp_path / "out.onnx").read_bytes()


@pytest.mark.parametrize("listed", [False, True], ids=["tensor", "list of tensors"])
def test_tensors_in_attributes_are_looked_at_too(
    *, listed: bool, outside: Path, tmp_path: Path
) -> None:
    tensor = numpy_helper.from_array(np.frombuffer(SECRET, np.float32), "k")
    point_at(tensor, "w.bin")
    attribute = helper.make_attribute("value", [tensor] if listed else tensor)
    one = node("Custom" if listed else "Constant", [], ["k"], "k", domain="own" if listed else "")
    one.attribute.append(attribute)
    nodes = [one, node("Add", ["x", "k"], ["y"], "add")]
    proto = model(graph(nodes, {"x": [1]}, {"y": [128 * 192]}), domains={"own": 1})
    path = save(proto, tmp_path / "in" / "m.onnx")
    (tmp_path / "in" / "w.bin").symlink_to(outside)
    with pytest.raises(ModelError, match="outside the model's folder"):
        load(path)


@pytest.mark.parametrize(
    "command", [["quantize", "dynamic"], ["calibrate", "--data", "x.npz", "-o"]]
)
@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("n" * 300, "missing"),
        ("loop", "missing"),
        (".", "missing"),
        ("pipe", "missing"),
        ("quantkit:tensor", "too short"),
        ("/etc/hostname", "refused"),
        ("../m.onnx", "refused"),
    ],
)
def test_odd_places_are_one_clear_line(
    location: str,
    expected: str,
    command: list[str],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("x.npz", x=np.ones((2, 128), np.float32))
    proto = matmul_model()
    proto.graph.initializer[0].dims[0] = 4096
    point_at(proto.graph.initializer[0], location)
    path = save(proto, tmp_path / "m.onnx")
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    given = [*command, "out.onnx"]
    given.insert(2 if command[0] == "quantize" else 1, str(path))
    assert run(given) == 2
    err = capfd.readouterr().err
    assert expected in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda p: p.write_bytes(b""), "is empty"),
        (lambda p: p.write_bytes(b"PK\x03\x04" + b"\0" * 99), "not an ONNX model"),
        (lambda p: p.write_text("hello\n" * 99), "not an ONNX model"),
        (lambda p: p.mkdir(), "is a directory"),
        (os.mkfifo, "is no regular file"),
        (lambda p: p.symlink_to("/dev/null"), "is no regular file"),
        (lambda p: p.symlink_to("nowhere"), "does not exist"),
        (lambda p: p.symlink_to(p.name), "cannot be read"),
        (lambda _: None, "does not exist"),
    ],
    ids=["empty", "zip", "text", "folder", "pipe", "device", "broken link", "loop", "nothing"],
)
@pytest.mark.parametrize("command", ["inspect", "optimize", "dynamic", "static", "calibrate"])
def test_what_is_no_model_file_is_one_clear_line(
    command: str, make: object, expected: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert callable(make)
    make(tmp_path / "m.onnx")
    path, out, data = str(tmp_path / "m.onnx"), str(tmp_path / "out"), str(tmp_path / "x.npz")
    np.savez(data, x=np.ones((4, 128), np.float32))
    line = {
        "inspect": ["inspect", path],
        "optimize": ["optimize", path, out],
        "dynamic": ["quantize", "dynamic", path, out],
        "static": ["quantize", "static", path, out, "--data", data],
        "calibrate": ["calibrate", path, "--data", data, "-o", out],
    }[command]
    assert run(line) == 2
    err = capfd.readouterr().err
    assert expected in err
    assert err.count("\n") == 1
