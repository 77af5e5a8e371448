"""Each module of the zoo is exported and equal at several sizes, or refused in one line with nothing written."""

import json
import re
import subprocess
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import op_types, run

from quantkit import ExportResult, QuantkitError, export_model, inspect_model, verify_file
from quantkit.cli.app import run as main
from quantkit.settings.record import carried_by

torch = pytest.importorskip("torch", reason="torch is not installed: its exports are not tested")
pytest.importorskip("onnxscript", reason="onnxscript is not installed: exports are not tested")

ROW = ["x:float32[batch,8]"]
IDS = ["ids:int64[batch,seq<=40]{0..49}", "mask:int64[batch,seq]{0..1}"]
IMAGE = ["image:float32[batch,3,height>=6,width>=6]"]
SEQUENCE = ["x:float32[batch,seq,4]"]

# Factory: inputs, outputs of the file, and how often it ran at least.
GOOD: dict[str, tuple[list[str], list[str], int]] = {
    "Mlp": (ROW, ["output"], 6),
    "instance": (ROW, ["output"], 6),
    "cnn": (IMAGE, ["output"], 10),
    "Residual": (ROW, ["output"], 6),
    "Recurrent": (SEQUENCE, ["output"], 9),
    "lstm": (SEQUENCE, ["output"], 9),
    "Transformer": (IDS, ["logits", "hidden"], 10),
    "Masked": (["x:float32[batch,seq,8]", "mask:bool[batch,seq]"], ["output"], 10),
    "TwoInputs": (
        ["left:float32[batch,n]", "right:float32[batch,n]"],
        ["total", "product"],
        9,
    ),
    "Tied": (["ids:int32[batch,seq]{0..19}"], ["output"], 9),
    "InPlace": (ROW, ["output"], 6),
    "Passed": (ROW, ["x_output", "parts"], 6),
    "Large": (["x:float32[batch,64]"], ["output"], 6),
    "Where": (ROW, ["output"], 6),
    "Cond": (ROW, ["output"], 6),
    "Argmax": (ROW, ["best", "positive"], 6),
    "Shrinks": (["image:float32[batch,3,height>=4,width>=4]"], ["output"], 10),
    "Nothing": (ROW, ["output_0"], 6),
    "Padded": (["x:float32[batch,seq,8]", "padding:bool[batch,seq]"], ["output"], 10),
    "AnyNames": (["right:float32[batch,n]", "left:float32[batch,n]"], ["output"], 9),
    "reads_arguments": (ROW, ["output"], 6),
    "compiled": (ROW, ["output"], 6),
    "scripted": (ROW, ["output"], 6),
}

# Factory: inputs, and what the one line says.
BAD: dict[str, tuple[list[str], str]] = {
    "Median": (
        ROW,
        r"torch cannot export this model: .*aten.median.*nor can its older exporter",
    ),
    "Loop": (
        ROW,
        r"'batch' of input 'x' is frozen at 2 at .*export_zoo.py:\d+ .*for row in x.*a loop over it",
    ),
    "ViewNumber": (
        ROW,
        r"'batch'.* frozen at 2 at .*export_zoo.py:\d+ 'return x.view.*-1 or x.shape",
    ),
    "ViewEight": (
        ROW,
        r"runs at batch=8 and not at batch=2.*'batch' is no dynamic dimension.*export_zoo.py:\d+",
    ),
    "FixedParameter": (
        ROW,
        r"'batch'.* frozen at 2 at .*export_zoo.py:\d+ 'return x \+ self.bias'.*parameter",
    ),
    "fixed_buffer_of_five": (
        ROW,
        r"runs at batch=.*5.* and not at batch=2.*parameter or buffer of that size",
    ),
    "Expand": (ROW, r"'batch'.* frozen at 2 at .*expand\(2, 8\).*-1 or x.shape"),
    "IntOfShape": (ROW, r"'batch'.* frozen at 2 at .*'rows = int\(x.shape\[0\]\)'.*as it is"),
    "NumpyShape": (ROW, r"'batch'.* frozen at 2 at .*np.prod.*numpy make a number"),
    "Branch": (
        ROW,
        r"Values decide .* at .*export_zoo.py:\d+ 'if x.sum\(\) > 0:'.*torch.where.*torch.cond",
    ),
    "SizeBranch": (
        ROW,
        r"size of 'batch' decides at .*export_zoo.py:\d+ 'if x.shape\[0\] > 4:'.*batch=2",
    ),
    "Item": (ROW, r"Python number of a value at .*export_zoo.py:\d+ .*keep it a tensor"),
    "Numpy": (ROW, r"left 0 of 1 inputs.*export_zoo.py:\d+ .*x.numpy\(\)"),
    "DropoutByHand": (
        ROW,
        r"two answers for one input: noise comes from forward\(\) of DropoutByHand",
    ),
    "Stubborn": (
        ROW,
        r"still in training mode: 'the model itself' \(Stubborn\), 'drop' \(Dropout\).*super\(\).train",
    ),
    "Noisy": (ROW, r"two answers for one input: noise comes from 'noise' \(Noise\)"),
    "Counts": (ROW, r"two answers for one input: 'calls' changes whenever it runs"),
    "CountsInPython": (ROW, r"two answers for one input.*state in an attribute"),
    "no_statistics": (ROW, r"'1' \(BatchNorm1d\) has no running statistics"),
    "BatchNormByHand": (
        ROW,
        r"batch_norm runs as in training at .*export_zoo.py:\d+ .*training=self.training",
    ),
    "Complex": (ROW, r"^Output 'output' is complex.*return torch.view_as_real"),
    "empty": (ROW, r"^'weight' is on the meta device, which holds no values: make the model"),
    "quantized_by_torch": (ROW, r"^'0' \(Linear\) was quantized by torch.*give the float model"),
    "Bfloat16Inside": (
        ROW,
        r"its weights are bfloat16, which each runtime rounds.*model.float\(\)",
    ),
    "AnyNames": (
        ["left:float32[batch,n]", "right:float32[batch,twice]"],
        r"runs at n=1, 5 and not at n=3.*another dimension does.*one name for both",
    ),
    "GivesText": (ROW, r"^The model gives a str as 'name', which is no tensor"),
    "Raises": (
        ROW,
        r"forward\(\) fails on x float32\[2, 8\]: .*export_zoo.py:\d+ .*ValueError: no 2 axes here",
    ),
    "factory_raises": (ROW, r"export_zoo:factory_raises\(\) fails: .*export_zoo.py:\d+ .*KeyError"),
    "exits": (ROW, r"export_zoo:exits\(\) fails: .*SystemExit: 3"),
    "not_a_module": (
        ROW,
        r"'export_zoo:not_a_module' gives a dict, which is neither a torch.nn.Module",
    ),
    "absent": (ROW, r"'export_zoo' has no 'absent'"),
    "TwoInputs": (["left:float32[batch,8]"], r"forward\(\) also needs right"),
    "Residual": (["a:float32[batch,8]", "b:float32[batch,8]"], r"forward\(\) fails"),
    "Mlp": (
        ["x:float32[batch,9]"],
        r"forward\(\) fails on x float32\[2, 9\]: .*RuntimeError: mat1 and mat2",
    ),
    "double": (ROW, r"forward\(\) fails on x .*Double; its weights are float64: write 'x:float64"),
    "bfloat16": (ROW, r"its weights are bfloat16, which inputs cannot be: return model.float\(\)"),
    "Transformer": (
        ["ids:int64[batch,seq]{50..60}", "mask:int64[batch,seq]"],
        r"forward\(\) fails .*IndexError: index out of range",
    ),
}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Export each factory once, when it is first asked for."""
    folder, done = tmp_path_factory.mktemp("exported"), dict[str, tuple[Path, ExportResult]]()

    def get(name: str) -> tuple[Path, ExportResult]:
        if name not in done:
            path = folder / f"{name}.onnx"
            done[name] = path, export_model(f"export_zoo:{name}", path, inputs=GOOD[name][0])
        return done[name]

    return get


@pytest.mark.parametrize("name", GOOD)
def test_good_modules_are_equal_at_several_sizes(name: str, exported: Any) -> None:
    path, result = exported(name)
    _, outputs, runs = GOOD[name]
    assert list(result.outputs) == outputs
    assert len(result.proof.trials) >= runs
    assert all(d.ok for trial in result.proof.trials for d in trial.differences)
    proto = onnx.load(path)
    assert [o.name for o in proto.graph.output] == outputs
    onnx.checker.check_model(proto, full_check=True)


@pytest.mark.parametrize("name", BAD)
def test_traps_are_one_line_and_nothing_is_written(name: str, tmp_path: Path) -> None:
    inputs, said = BAD[name]
    with pytest.raises(QuantkitError, match=said) as caught:
        export_model(f"export_zoo:{name}", tmp_path / "out.onnx", inputs=inputs)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_nodes_are_called_after_the_part_of_the_module_that_they_are_in(exported: Any) -> None:
    names = [node.name for node in onnx.load(exported("Padded")[0]).graph.node]
    assert len(set(names)) == len(names)
    assert any(name.startswith("/encoder/layers/0/self_attn/") for name in names)
    assert "/encoder/layers/0/norm1/LayerNormalization" in names


def test_notes_say_what_became_of_special_modules(exported: Any) -> None:
    assert any("at padded places torch's fast path" in n for n in exported("Padded")[1].notes)
    assert (
        "the older exporter was used: it alone reads TorchScript" in exported("scripted")[1].notes
    )
    assert {t.name for t in onnx.load(exported("compiled")[0]).graph.initializer} >= {"bias"}


def test_axes_and_values_are_named_as_the_user_does(exported: Any) -> None:
    proto = onnx.load(exported("Transformer")[0])
    shapes = {
        v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim]
        for v in (*proto.graph.input, *proto.graph.output)
    }
    assert shapes["ids"] == shapes["mask"] == ["batch", "seq"]
    assert shapes["logits"] == ["batch", 3]
    assert shapes["hidden"] == ["batch", "seq", 16]
    assert {"words.weight", "places.weight"} <= {t.name for t in proto.graph.initializer}


def test_sizes_beyond_a_table_are_said_not_written_wrong(exported: Any) -> None:
    result = exported("Transformer")[1]
    seen = {trial.sizes["seq"] for trial in result.proof.trials}
    assert {1, 2, 3, 7, 32, 40} <= seen


def test_nothing_of_this_machine_is_in_the_file(exported: Any) -> None:
    path = exported("cnn")[0]
    content = path.read_bytes()
    assert str(Path.cwd()).encode() not in content
    assert b"stack_trace" not in content
    assert b".py" not in content.replace(b"export_zoo.py", b"")
    assert "Dropout" not in op_types(onnx.load(path))


def test_the_same_source_gives_the_same_bytes(exported: Any, tmp_path: Path) -> None:
    again = tmp_path / "again.onnx"
    export_model("export_zoo:Mlp", again, inputs=ROW)
    assert again.read_bytes() == exported("Mlp")[0].read_bytes()


def test_large_outputs_are_judged_by_the_frameworks_own_error(exported: Any) -> None:
    found = exported("Large")[1].proof.worst()["output"]
    assert found.largest > found.allowed
    assert found.own is not None
    assert found.against is not None
    assert found.against <= 10 * found.own


def test_torch_and_the_file_agree_on_values_that_nobody_has_seen(exported: Any) -> None:
    from export_zoo import Mlp

    torch.manual_seed(0)
    model = Mlp().eval()
    x = np.random.default_rng(99).normal(size=(11, 8)).astype(np.float32)
    with torch.no_grad():
        expected = model(torch.from_numpy(x)).numpy()
    assert np.abs(run(exported("Mlp")[0], {"x": x})[0] - expected).max() < 1e-5


@pytest.mark.parametrize(
    ("name", "said"),
    [("Loop", r"frozen at batch=2 by the exporter: at batch=1"), ("Branch", r"Values decide")],
)
def test_the_older_exporter_passes_the_same_proof(name: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(QuantkitError, match=said):
        export_model(f"export_zoo:{name}", tmp_path / "out.onnx", inputs=ROW, legacy=True)
    assert list(tmp_path.iterdir()) == []


def test_old_opsets_come_from_the_older_exporter_which_is_said(tmp_path: Path) -> None:
    result = export_model("export_zoo:Residual", tmp_path / "o.onnx", inputs=ROW, opset=14)
    assert result.opset == 14
    assert any("the older exporter was used" in note for note in result.notes)


def test_an_opset_that_nobody_reads_is_refused(tmp_path: Path) -> None:
    with pytest.raises(QuantkitError, match="newer than the installed onnxruntime reads"):
        export_model("export_zoo:Mlp", tmp_path / "o.onnx", inputs=ROW, opset=99)


def test_inputs_are_told_from_forward(tmp_path: Path) -> None:
    with pytest.raises(
        QuantkitError, match=r"add --input 'ids:int64\[batch,seq\]\{0..30521\}' --input 'mask:"
    ):
        export_model("export_zoo:Transformer", tmp_path / "o.onnx")


def test_an_example_says_what_the_inputs_are(tmp_path: Path) -> None:
    x = np.random.default_rng(3).uniform(5, 6, (4, 8)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x)
    free = export_model("export_zoo:Mlp", tmp_path / "a.onnx", example=tmp_path / "x.npz")
    assert free.inputs == ("x:float32[batch,8]",)
    assert {"batch": 4} in [dict(t.sizes) for t in free.proof.trials]
    fixed = export_model(
        "export_zoo:Loop", tmp_path / "b.onnx", example=tmp_path / "x.npz", fixed_batch=True
    )
    assert fixed.inputs == ("x:float32[4,8]",)


def test_weights_are_loaded_as_tensors_alone(tmp_path: Path) -> None:
    from export_zoo import Mlp

    torch.manual_seed(7)
    model = Mlp().eval()
    torch.save(
        {"state_dict": {f"module.{k}": v for k, v in model.state_dict().items()}}, tmp_path / "w.pt"
    )
    result = export_model(
        "export_zoo:Mlp", tmp_path / "m.onnx", inputs=ROW, weights=tmp_path / "w.pt"
    )
    assert any("'module.'" in note for note in result.notes)
    x = np.ones((3, 8), np.float32)
    with torch.no_grad():
        expected = model(torch.from_numpy(x)).numpy()
    assert np.abs(run(tmp_path / "m.onnx", {"x": x})[0] - expected).max() < 1e-5
    torch.save(model, tmp_path / "whole.pt")
    with pytest.raises(QuantkitError, match="cannot be read as tensors alone"):
        export_model(
            "export_zoo:Mlp", tmp_path / "n.onnx", inputs=ROW, weights=tmp_path / "whole.pt"
        )
    torch.save({"fc1.weight": torch.zeros(2)}, tmp_path / "other.pt")
    with pytest.raises(QuantkitError, match="do not fit the model"):
        export_model(
            "export_zoo:Mlp", tmp_path / "n.onnx", inputs=ROW, weights=tmp_path / "other.pt"
        )
    assert not (tmp_path / "n.onnx").exists()


def test_exported_programs_bring_their_inputs(tmp_path: Path) -> None:
    from export_zoo import Mlp

    dynamic = ({0: torch.export.Dim.DYNAMIC},)
    program = torch.export.export(Mlp().eval(), (torch.ones(3, 8),), dynamic_shapes=dynamic)
    torch.export.save(program, tmp_path / "m.pt2")
    result = export_model(tmp_path / "m.pt2", tmp_path / "m.onnx", outputs=["logits"])
    assert result.inputs == ("x:float32[batch,8]",)
    assert result.outputs == ("logits",)
    fixed = torch.export.export(Mlp().eval(), (torch.ones(3, 8),))
    torch.export.save(fixed, tmp_path / "f.pt2")
    with pytest.raises(QuantkitError, match="'batch' was fixed when it was exported"):
        export_model(tmp_path / "f.pt2", tmp_path / "f.onnx", inputs=ROW)


def test_torchscript_goes_through_the_older_exporter(tmp_path: Path) -> None:
    from export_zoo import Mlp

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated
        torch.jit.trace(Mlp().eval(), torch.ones(2, 8)).save(tmp_path / "s.pt")
    with pytest.raises(
        QuantkitError, match=r"Missing input description of .*: add --input 'x:float32"
    ):
        export_model(tmp_path / "s.pt", tmp_path / "s.onnx")
    result = export_model(tmp_path / "s.pt", tmp_path / "s.onnx", inputs=ROW)
    assert result.exporter == "torch's older exporter"
    assert result.proof.worst()["output"].largest < 1e-5


def test_a_model_of_python_is_a_source_too(tmp_path: Path) -> None:
    from export_zoo import Mlp

    result = export_model(Mlp(), tmp_path / "m.onnx", inputs=ROW, sizes={"batch": [4, 9]})
    assert {trial.sizes["batch"] for trial in result.proof.trials} == {4, 9}
    assert result.source.code == "export_zoo:Mlp"


def test_a_file_of_code_with_its_commit(tmp_path: Path) -> None:
    code = tmp_path / "committed.py"
    code.write_text("from torch import nn\n\n\ndef model():\n    return nn.Linear(4, 2)\n")
    settings = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "committed.py"], [*settings, "commit", "-qm", "one"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)  # noqa: S607
    result = export_model(f"{code}:model", tmp_path / "m.onnx", inputs=["x:float32[n,4]"])
    assert re.fullmatch(r"[0-9a-f]{40}", result.source.commit)
    assert result.source.code == "committed.py:model"
    assert not result.source.changed
    assert str(tmp_path).encode() not in (tmp_path / "m.onnx").read_bytes()
    code.write_text(f"{code.read_text()}\n# changed\n")
    again = export_model(f"{code}:model", tmp_path / "m.onnx", inputs=["x:float32[n,4]"])
    assert again.source.changed


def test_the_file_says_where_it_comes_from(exported: Any) -> None:
    path, result = exported("Mlp")
    found = verify_file(path)
    assert found.ok
    assert found.provenance.kind == "export"
    assert any("Exported from export_zoo:Mlp (torch" in check.sentence for check in found.checks)
    assert inspect_model(path).source == str(result.source)


def test_one_line_goes_on_to_int8_and_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
    np.savez("d.npz", x=rows, labels=np.zeros(40, np.int64))
    Path("names.txt").write_text("a\nb\nc\nd\n")
    words = [
        "export",
        "export_zoo:Mlp",
        "-o",
        "m.onnx",
        "--input",
        ROW[0],
        "--classes",
        "names.txt",
    ]
    words += ["--quantize", "static", "--data", "d.npz", "--evaluate", "--report", "r", "--json"]
    assert main(words) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["quantized"]["output"] == "m.int8.onnx"
    assert sorted(p.name for p in Path("r").iterdir()) == [
        "graph.html",
        "report.html",
        "report.md",
        "result.json",
    ]
    for name in ("m.onnx", "m.int8.onnx"):
        metadata = {e.key: e.value for e in onnx.load(name).metadata_props}
        carried = carried_by(metadata)
        assert carried is not None
        assert carried.labels == ("a", "b", "c", "d")


def test_layers_that_the_new_exporter_freezes_go_through_the_older_one(tmp_path: Path) -> None:
    result = export_model(
        "export_zoo:largest_of_row", tmp_path / "m.onnx", inputs=["x:float32[batch,1,n>=32]"]
    )
    assert "the older exporter was used: the new one freezes 'n'" in result.notes
    assert len({trial.sizes["n"] for trial in result.proof.trials}) > 1


def test_a_model_that_gives_nan_is_said(tmp_path: Path) -> None:
    result = export_model("export_zoo:broken_weight", tmp_path / "m.onnx", inputs=ROW)
    assert any("the model itself gives NaN in 'output': look at its w" in n for n in result.notes)


def test_what_forward_prints_does_not_mix_with_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = str(tmp_path / "m.onnx")
    assert main(["export", "export_zoo:Prints", "--input", ROW[0], "--json", "-o", target]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["outputs"] == ["output"]
    assert "forward" in printed.err


def test_the_older_exporter_prints_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(QuantkitError):
        export_model("export_zoo:Median", tmp_path / "m.onnx", inputs=ROW)
    assert capfd.readouterr() == ("", "")


def test_what_was_exported_is_kept_where_nothing_is_there_to_quantize(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["export", "export_zoo:Where", "--input", ROW[0], "--quantize", "dynamic"]
    assert main([*words, "-o", str(tmp_path / "m.onnx")]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert (
        "m.onnx' is exported, proved and kept, and was not quantized: Nothing to quantize" in said
    )
    assert "m.int8.onnx' was not written" in said
    assert "Nothing was written" not in said
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


@pytest.mark.parametrize("fixed", [False, True])
def test_values_that_nobody_can_make_up_come_from_the_example(
    *, fixed: bool, tmp_path: Path
) -> None:
    first = np.arange(40, dtype=np.int64).reshape(10, 4)
    np.savez(tmp_path / "x.npz", first=first, last=first + 3)
    how: dict[str, Any] = {"example": tmp_path / "x.npz", "fixed_batch": fixed}
    result = export_model("export_zoo:Ordered", tmp_path / "m.onnx", **how)
    assert any("proved on rows of the example alone" in note for note in result.notes)
    assert len(result.proof.trials) >= (2 if fixed else 6)
    pair = ["first:int64[9,9]", "last:int64[9,9]"]
    with pytest.raises(QuantkitError, match=r"first > last.*or give --example"):
        export_model("export_zoo:Ordered", tmp_path / "n.onnx", inputs=pair)
