"""`quantkit view` and `view_model`: what they write, and refuse in one line."""

import json
import sys
import tempfile
from pathlib import Path

import pytest
import typer
from builders import conv_model, graph, matmul_model, model, node, save, weight
from report_cases import judged_result, with_layers
from result_cases import candidate

from quantkit import QInt8, quantize_dynamic, quantize_static, view_model
from quantkit.cli.app import run
from quantkit.evaluate.report import write_html

HOSTILE = "</script><script>window.hit=1</script><img src=x onerror=alert(1)>"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return save(matmul_model(), tmp_path / "m.onnx")


def call(*arguments: str | Path) -> int:
    return run(["view", *map(str, arguments)])


def test_the_page_is_one_file_and_the_same_each_time(base: Path, tmp_path: Path) -> None:
    assert call(base, "-o", tmp_path / "a.html") == 0
    assert call(base, "-o", tmp_path / "b.html") == 0
    text = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert text == (tmp_path / "b.html").read_text(encoding="utf-8")
    assert "default-src &#39;none&#39;" in text
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in text


def test_names_cannot_leave_their_place(tmp_path: Path) -> None:
    nodes = [node("MatMul", ["x", "w"], ["y"], HOSTILE)]
    proto = model(graph(nodes, {"x": ["N", 4]}, {"y": ["N", 4]}, {"w": weight(4, 4)}))
    view_model(save(proto, tmp_path / "m.onnx"), tmp_path / "g.html")
    assert "<script>window.hit" not in (tmp_path / "g.html").read_text(encoding="utf-8")


def test_a_node_in_another_layout_is_not_called_fused(tmp_path: Path) -> None:
    """onnxruntime runs Conv and MaxPool on channels in blocks, and names both anew."""
    nodes = [
        node("Conv", ["x", "w"], ["a"], "conv", pads=[1, 1, 1, 1]),
        node("Relu", ["a"], ["r"], "relu"),
        node("MaxPool", ["r"], ["p"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["p", "v"], ["y"], "last", pads=[1, 1, 1, 1]),
    ]
    weights = {"w": weight(16, 16, 3, 3), "v": weight(16, 16, 3, 3, seed=1)}
    proto = model(graph(nodes, {"x": [1, 16, 8, 8]}, {"y": None}, weights))
    source = save(proto, tmp_path / "m.onnx")
    quantize_static(source, tmp_path / "q.onnx", [{"x": x} for x in weight(4, 1, 16, 8, 8)])
    for file in ("m.onnx", "q.onnx"):
        assert call(tmp_path / file, "-o", tmp_path / "g.html") == 0
        page = (tmp_path / "g.html").read_text(encoding="utf-8")
        assert "fused or folded" not in page


def test_files_for_model_explorer(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quantize_dynamic(base, tmp_path / "q.onnx", QInt8)
    assert call(base, tmp_path / "q.onnx", "--model-explorer", tmp_path / "out") == 0
    plain = {p.name: json.loads(p.read_text()) for p in (tmp_path / "out").iterdir()}
    assert set(plain) == {"graph_float.json", "graph_other.json", "int8.json", "size.json"}
    graphs = [plain[f"graph_{name}.json"]["graphs"][0] for name in ("float", "other")]
    for one in graphs:
        ids = [n["id"] for n in one["nodes"]]
        assert len(ids) == len(set(ids))
        assert all(e["sourceNodeId"] in ids for n in one["nodes"] for e in n["incomingEdges"])
    # Overlays are keyed by the names of nodes, which are those of the float model in both.
    assert "mm" in plain["int8.json"][graphs[1]["id"]]["results"]
    assert "mm" in plain["size.json"][graphs[0]["id"]]["results"]
    assert "--node_data_paths=" in capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    assert call(*arguments) == 2
    said = capsys.readouterr().err.strip()
    assert len(said.splitlines()) == 1
    return said


def test_what_makes_no_sense_is_refused_in_one_line(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "g.html"
    assert "leave out --netron" in refused(capsys, base, base, "--netron")
    assert "give one of them" in refused(capsys, base, base, "--float", base, "-o", page)
    assert "overwrite" in refused(capsys, base, "-o", base)
    refused(capsys, tmp_path / "none.onnx", "-o", page)
    refused(capsys, base, "-o", page, "--result", tmp_path)
    refused(capsys, base, "-o", page, "--calibration", base)
    assert not page.exists()


def test_without_netron_one_line_says_what_to_do(
    base: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "netron", None)
    said = refused(capsys, base, "--netron")
    assert "[view]" in said
    assert "leave out --netron" in said


def test_without_an_output_a_temporary_page_is_written_and_named(
    base: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(typer, "launch", opened.append)
    assert call(base) == 0
    (page,) = tmp_path.glob("quantkit-view-*/*.html")
    assert f"wrote {page}" in capsys.readouterr().out
    assert not opened  # there is no terminal in a test
    assert call(base, "--open") == 0
    assert len(opened) == 1
    refused(capsys, tmp_path / "none.onnx")
    assert len(list(tmp_path.glob("quantkit-view-*"))) == 2


def test_netron_is_served_on_loopback_and_says_that_it_contacts_others(
    base: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []

    class Netron:
        @staticmethod
        def start(file: str, address: tuple[str, int], *, browse: bool) -> None:
            calls.extend([file, address[0], browse])

        @staticmethod
        def wait() -> None:
            raise KeyboardInterrupt

        @staticmethod
        def stop(address: tuple[str, int]) -> None:
            calls.append(("stopped", address[0]))

    monkeypatch.setitem(sys.modules, "netron", Netron)
    assert call(base, "--netron") == 0
    assert calls == [str(base), "127.0.0.1", True, ("stopped", "127.0.0.1")]
    assert "third parties" in capsys.readouterr().out


def test_a_file_that_onnxruntime_does_not_load_is_drawn_with_a_note(tmp_path: Path) -> None:
    proto = conv_model()
    proto.opset_import.add(domain="of.mine", version=1)
    proto.graph.node.append(node("Strange", ["y"], ["z"], "strange", domain="of.mine"))
    proto.graph.output[0].name = "z"
    found = view_model(save(proto, tmp_path / "m.onnx"), tmp_path / "g.html", raw=True)
    assert found.html is not None
    assert found.html.exists()
    assert any("onnxruntime does not load it" in note for note in found.notes)


def test_models_in_the_other_order_are_said(base: Path, tmp_path: Path) -> None:
    quantized = tmp_path / "q.onnx"
    quantize_dynamic(base, quantized, QInt8)
    page = tmp_path / "graph.html"
    swapped = view_model(base, page, float_model=quantized)
    assert any("where the float model belongs" in note for note in swapped.notes)
    assert not view_model(quantized, page, float_model=base).notes


def test_the_report_links_to_graphs_only_where_they_are(tmp_path: Path) -> None:
    result = judged_result(with_layers(candidate("one"), 3))
    without = write_html(result, tmp_path / "r").read_text(encoding="utf-8")
    assert "graph.html" not in without
    (tmp_path / "r" / "graph.html").write_text("")
    assert 'href="graph.html#node=' in write_html(result, tmp_path / "r").read_text(
        encoding="utf-8"
    )


def test_two_models_that_have_nothing_in_common_are_said_to(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = [node("Tanh", ["in"], ["t"], "one"), node("Exp", ["t"], ["out"], "two")]
    other = save(model(graph(nodes, {"in": ["N"]}, {"out": ["N"]}, {})), tmp_path / "c.onnx")
    assert call(base, other, "-o", tmp_path / "g.html") == 0
    printed = capsys.readouterr()
    said = "0 of its 2 layers correspond to one of the 1 of 'm.onnx': it does not seem to be made from that."
    assert said in " ".join((printed.out + printed.err).split())
    assert said.replace("'", "&#39;") in (tmp_path / "g.html").read_text(encoding="utf-8")


def test_kin_are_not_called_strangers(base: Path, tmp_path: Path) -> None:
    quantize_dynamic(base, tmp_path / "q.onnx", QInt8)
    assert not view_model(tmp_path / "q.onnx", tmp_path / "g.html", float_model=base).notes
