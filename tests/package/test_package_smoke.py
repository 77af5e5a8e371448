"""The script `smoke` of a package, against what the image starts: quantkit's own files without onnx and the like."""

import json
import os
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from builders import graph, model, node, save, weight
from data.makers import picture, tokenizer
from onnx import TensorProto
from package_cases import packed, running, smoke
from serve_cases import linear

from quantkit import DataSettings, ImageSettings, ServeSettings
from quantkit.deploy.package.smoke import compared, values


@pytest.mark.slow
def test_it_says_how_far_the_answer_is_from_the_recorded_one(tmp_path: Path) -> None:
    packed(linear(tmp_path), tmp_path / "out")
    with running(tmp_path / "out", token="secret") as address:  # noqa: S106
        code, said = smoke(tmp_path / "out", address, token="secret\n")  # noqa: S106
        assert (code, said[:3]) == (0, "ok:"), said
        assert "differs from the recorded one by" in said
        assert smoke(tmp_path / "out", address)[0] == 1  # no token
        answer = tmp_path / "out/answer.json"
        record = json.loads(answer.read_text())
        record["values"]["logits"][2] += 1.0
        answer.write_text(json.dumps(record))
        code, said = smoke(tmp_path / "out", address, token="secret")  # noqa: S106
        assert code == 1
        assert "'logits'" in said
    code, said = smoke(tmp_path / "out", address, "--wait", "0")
    assert code == 2
    assert "is not ready" in said
    for wrong in ("ftp://here", "http://", "http://here:port", "http://[", "http://a b"):
        code, said = smoke(tmp_path / "out", wrong)
        assert code == 2
        assert "is no address" in said
    answer.write_text("{")
    code, said = smoke(tmp_path / "out", address)
    assert code == 2
    assert "cannot be read" in said


def test_another_server_in_its_place_is_told(tmp_path: Path) -> None:
    """One that says 200 to everything, as a portal before a network does."""
    packed(linear(tmp_path), tmp_path / "out")

    class Portal(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", "0")))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>Welcome")

        do_POST = do_GET  # noqa: N815 - its name

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Portal) as portal:
        thread = Thread(target=portal.serve_forever, daemon=True)
        thread.start()
        code, said = smoke(tmp_path / "out", f"http://127.0.0.1:{portal.server_port}")
        portal.shutdown()
        thread.join()
    assert code == 1
    assert "not of this kind" in said


@pytest.mark.slow
def test_an_image_is_asked_about_with_its_labels(tmp_path: Path) -> None:
    nodes = [
        node("GlobalAveragePool", ["x"], ["p"]),
        node("Flatten", ["p"], ["f"]),
        node("MatMul", ["f", "w"], ["logits"]),
    ]
    net = model(graph(nodes, {"x": ["N", 3, 8, 8]}, {"logits": ["N", 4]}, {"w": weight(3, 4)}))
    picture(tmp_path / "cat.png", (12, 9))
    (tmp_path / "names.txt").write_text("cat\ndog\n\nfox\nowl\n")
    packed(
        save(net, tmp_path / "net.onnx"),
        tmp_path / "out",
        sample=tmp_path / "cat.png",
        serve=ServeSettings(labels=tmp_path / "names.txt", name="Pets & more"),
        data=DataSettings(image=ImageSettings(preset="symmetric")),
    )
    assert (tmp_path / "out/sample.png").read_bytes() == (tmp_path / "cat.png").read_bytes()
    assert "pillow==" in (tmp_path / "out/requirements.lock").read_text()
    record = json.loads((tmp_path / "out/answer.json").read_text())
    assert set(record["values"]) == {
        f"row 0, class {i} {n}" for i, n in enumerate(("cat", "dog", "fox", "owl"))
    }
    with running(tmp_path / "out") as address:
        assert smoke(tmp_path / "out", address)[0] == 0


@pytest.mark.slow
def test_a_text_goes_with_its_tokenizer(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    tokenizer(tmp_path)
    nodes = [
        node("Gather", ["w", "input_ids"], ["e"]),
        node(
            "ReduceMean",
            [
                "e",
            ],
            ["y"],
            axes=[1],
            keepdims=0,
        ),
    ]
    net = graph(
        nodes,
        {"input_ids": ["N", "L"]},
        {"y": ["N", 4]},
        {"w": weight(64, 4)},
        types={"input_ids": TensorProto.INT64},
    )
    (tmp_path / "say.txt").write_text("the cat")
    packed(save(model(net), tmp_path / "text.onnx"), tmp_path / "out", sample=tmp_path / "say.txt")
    (tmp_path / "tokenizer.json").unlink()
    assert "tokenizers==" in (tmp_path / "out/requirements.lock").read_text()
    with running(tmp_path / "out") as address:
        assert smoke(tmp_path / "out", address)[0] == 0


@pytest.mark.slow
def test_large_inputs_are_sent_as_bytes(tmp_path: Path) -> None:
    net = graph([node("Relu", ["x"], ["y"])], {"x": ["N", 3, 80, 80]}, {"y": ["N", 3, 80, 80]}, {})
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "some.npz", x=rng.standard_normal((5, 3, 80, 80)).astype(np.float32))
    packed(save(model(net), tmp_path / "net.onnx"), tmp_path / "out", sample=tmp_path / "some.npz")
    assert (tmp_path / "out/sample.bin").stat().st_size > 3 * 80 * 80 * 4
    assert len(json.loads((tmp_path / "out/answer.json").read_text())["values"]["y"]) <= 10000
    with running(tmp_path / "out") as address:
        assert smoke(tmp_path / "out", address)[0] == 0


def test_values_are_compared_by_their_meaning() -> None:
    recorded = values({"outputs": [{"name": "y", "data": [1.0, -4.0]}, {"name": "i", "data": [3]}]})
    assert compared(recorded, recorded) == (0.0, "nowhere")
    assert compared(recorded, {"y": [1.0, -3.0], "i": [3]}) == (0.25, "'y'")
    assert compared(recorded, {"y": [1.0, -4.0], "i": [4]})[0] == np.inf
    assert compared(recorded, {"y": [1.0], "i": [3]})[0] == np.inf
    assert compared(recorded, {"y": [1.0, None], "i": [3]})[0] == np.inf
    best = values({"predictions": [[{"class": 1, "score": 2.0}, {"class": 0, "score": -1.0}]]})
    other = values({"predictions": [[{"class": 0, "score": -1.0}, {"class": 1, "score": 1.0}]]})
    assert compared(best, other) == (0.5, "'row 0, class 1'")


def test_the_script_is_python_without_packages(tmp_path: Path) -> None:
    packed(linear(tmp_path), tmp_path / "out")
    assert (tmp_path / "out/smoke").read_text().startswith("#!/usr/bin/env python3\n")
    assert os.access(tmp_path / "out/smoke", os.X_OK)
    code, said = smoke(tmp_path / "out", "--help")
    assert code == 0
    assert "QUANTKIT_TOKEN" in said
