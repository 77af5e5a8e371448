"""`quantkit trim` shows sizes, coverage and proof, writes JSON, and fails in one line."""

import json
from pathlib import Path

import numpy as np
import pytest
from builders import graph, model, node, save, weight
from onnx import TensorProto

from quantkit.cli.app import run

tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("datasets")

WORDS = [f"w{i}" for i in range(60)]
UNKNOWN = "[UNK]"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    vocabulary = {word: i for i, word in enumerate([UNKNOWN, *WORDS])}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, UNKNOWN))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    words.save("tokenizer.json")
    head = {"table": weight(61, 8), "head": weight(8, 61, seed=1)}
    nodes = [
        node("Gather", ["table", "input_ids"], ["x"]),
        node("MatMul", ["x", "head"], ["logits"]),
    ]
    types = {"input_ids": TensorProto.INT64}
    proto = graph(nodes, {"input_ids": ["B", "S"]}, {"logits": ["B", "S", 61]}, head, types=types)
    save(model(proto), tmp_path / "m.onnx")
    lines = [f"w{i % 10} w{(i + 1) % 10}" for i in range(120)]
    Path("t.csv").write_text("\n".join(["text", *lines]) + "\n")
    Path("out").mkdir()
    return tmp_path


@pytest.mark.usefixtures("place")
def test_sizes_coverage_and_proof_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trim", "m.onnx", "out/m.onnx", "--data", "t.csv"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for text in (
        "11 of 61 tokens kept",
        "100.0% of the next texts covered (95 % interval 96.9% to 100.0%; 120 texts)",
        "output 'logits': a value for each kept token, in the order of new ids",
        "120 of 120 texts cut into the same pieces",
        "against the full model on 40 texts of the corpus: logits",
        "wrote out/m.onnx, m.kept_ids.json, tokenizer.json",
    ):
        assert text in shown
    for part in ("table", "head", "rest", "total"):
        assert part in shown


def test_json_has_parts_coverage_and_files(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run(["trim", "m.onnx", "out/m.onnx", "--data", "t.csv", "--keep-tokenizer", "--json"]) == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert found["parts"]["table"] == {"before": 61 * 32, "after": 11 * 32}
    assert found["parts"]["head"] == {"before": 61 * 32, "after": 11 * 32}
    assert found["plan"]["coverage"]["share"] == 1.0
    assert found["plan"]["logits"] == ["logits"]
    assert found["files"] == ["m.kept_ids.json"]
    assert not (place / "out" / "tokenizer.json").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["m.onnx", "--data", "t.csv"], "Where to write? quantkit trim IN OUT --data TEXTS."),
        (["m.onnx", "out/m.onnx"], "Which data? Add --data DIR"),
        (["m.onnx", "out/m.onnx", "--data", "x.npz"], "holds no text: give a table"),
        (["m.onnx", "m2.onnx", "--data", "t.csv"], "would overwrite the input"),
        (["m.onnx", "out/m.onnx", "--data", "t.csv", "--min-coverage", "99%"], "below 99%"),
    ],
)
def test_errors_are_one_line(
    place: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    np.savez("x.npz", input_ids=np.zeros((1, 3), np.int64))
    assert run(["trim", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("error:") == 1
    assert said in " ".join(error.split())
    assert not list((place / "out").iterdir())
