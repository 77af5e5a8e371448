"""What is a source, what is refused, and what is said where a framework is missing; needs none of them."""

import json
import pickle
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import matmul_model, save
from static_cases import X, chain

from quantkit import (
    DataSettings,
    ImageSettings,
    QuantkitError,
    export_model,
    inspect_model,
    optimize,
    quantize_dynamic,
    quantize_float16,
    quantize_static,
    quantize_weights,
    verify_file,
)
from quantkit.cli.app import run
from quantkit.model.provenance import SOURCE, Source, source_of, source_text
from quantkit.settings.record import CARRIED, Carried, carried_by, carried_text


def refused(source: str, said: str, folder: Path, **how: Any) -> None:
    before = sorted(folder.iterdir())
    with pytest.raises(QuantkitError, match=said) as caught:
        export_model(source, folder / "out.onnx", **how)
    assert "\n" not in str(caught.value)
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize("suffix", [".pkl", ".joblib", ".pt", ".pth", ".bin"])
def test_pickles_are_refused_unread(suffix: str, tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return exit, (3,)

    path = tmp_path / f"model{suffix}"
    path.write_bytes(pickle.dumps(Bomb()))
    refused(str(path), "is a pickle.*runs whatever code it holds", tmp_path)


def test_a_zip_of_weights_is_a_pickle_too(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "w.pt", "w") as archive:
        archive.writestr("w/data.pkl", b"\x80\x02.")
    refused(str(tmp_path / "w.pt"), "is a pickle.*--weights", tmp_path)


def test_other_things_are_no_sources(tmp_path: Path) -> None:
    refused("nothing", "'nothing' is no source of a model: give package.module:factory", tmp_path)
    refused("none.pt2", "'none.pt2' does not exist", tmp_path)
    refused(str(tmp_path), "a folder without saved_model.pb", tmp_path)
    (tmp_path / "a.py").write_text("x = 1\n")
    refused(str(tmp_path / "a.py"), r"Which object of .*a.py:NAME", tmp_path)
    save(matmul_model(), tmp_path / "m.onnx")
    refused(str(tmp_path / "m.onnx"), "an ONNX model already", tmp_path)
    (tmp_path / "t.txt").write_text("hello")
    refused(str(tmp_path / "t.txt"), "is no source of a model", tmp_path)


def test_code_that_fails_is_named_by_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = tmp_path / "broken_code.py"
    code.write_text("def model():\n    return 1 / 0\n\n\nvalue = 3\n")
    refused(f"{code}:model", r"broken_code.py:2 'return 1 / 0': ZeroDivisionError", tmp_path)
    refused(f"{code}:value", "gives a int, which is neither", tmp_path)
    refused(f"{code}:none", "has no 'none': there is model", tmp_path)
    refused(f"{code}:modle", r"has no 'modle' \(did you mean 'model'\?\)", tmp_path)
    (tmp_path / "bad_syntax.py").write_text("def model(:\n")
    refused(f"{tmp_path}/bad_syntax.py:model", r"bad_syntax.py:1 .*SyntaxError", tmp_path)
    (tmp_path / "needs_more.py").write_text("import no_such_package_here\n")
    refused(f"{tmp_path}/needs_more.py:model", "needs the module 'no_such_package_here'", tmp_path)
    monkeypatch.chdir(tmp_path)
    refused("no_such_module_here:model", "There is no module 'no_such_module_here'", tmp_path)
    refused("..:model", "is no name of a module", tmp_path)


def test_what_a_factory_lacks_is_named(tmp_path: Path) -> None:
    code = tmp_path / "lacks_something.py"
    code.write_text(
        "def late():\n    import no_such_package_here\n\n\n"
        "def wants(classes, *, width):\n    return classes, width\n\n\n"
        "class Wants:\n    def __init__(self, depth):\n        pass\n"
    )
    refused(f"{code}:late", r"late\(\) needs the module 'no_such_package_here': install", tmp_path)
    refused(f"{code}:wants", r"needs classes, width, .* a function without parameters", tmp_path)
    refused(f"{code}:Wants", r"needs depth, .* a function without parameters", tmp_path)


def test_a_file_of_a_package_is_told_how_to_be_given(tmp_path: Path) -> None:
    folder = tmp_path / "parcel"
    folder.mkdir()
    (folder / "part.py").write_text("from .other import model\n")
    refused(f"{folder}/part.py:model", "give it as package.part:NAME, from the folder", tmp_path)


def test_a_file_called_as_a_module_of_python_leaves_that_alone(tmp_path: Path) -> None:
    code = tmp_path / "pickle.py"
    code.write_text("def model():\n    return 3\n")
    refused(f"{code}:model", "gives a int, which is neither", tmp_path)
    assert sys.modules["pickle"] is pickle
    assert str(tmp_path) not in sys.path


def test_code_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = tmp_path / "my_own_code.py"
    code.write_text("def model():\n    return 3\n")
    for source in (f"{code}:model", "my_own_code.py:model", "my_own_code:model"):
        with pytest.raises(QuantkitError, match="would overwrite the input"):
            export_model(source, "my_own_code.py")
    assert code.read_text().startswith("def model")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"inputs": ["x:float33[1]"]}, "float33"),
        ({"example": "none.npz"}, "does not exist"),
        ({"inputs": ["x:float32[1]"], "weights": "none.safetensors"}, "do not exist"),
    ],
)
def test_arguments_are_checked_before_code_is_run(
    wrong: dict[str, Any], said: str, tmp_path: Path
) -> None:
    code = tmp_path / "slow_to_import.py"
    code.write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\nmodel = None\n")
    with pytest.raises(QuantkitError, match=said):
        export_model(f"{code}:model", tmp_path / "out.onnx", **wrong)
    assert not (tmp_path / "ran").exists()


def test_without_torch_one_line_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    (tmp_path / "p.pt2").write_bytes(b"PK")
    with pytest.raises(
        QuantkitError, match="needs PyTorch, which is not installed: install its CPU build"
    ) as caught:
        export_model(tmp_path / "p.pt2", tmp_path / "out.onnx")
    assert "http" not in str(caught.value)
    assert "[export]" in str(caught.value)
    code = tmp_path / "wants_torch.py"
    code.write_text("import torch\n")
    refused(f"{code}:model", "needs PyTorch, which is not installed", tmp_path)


@pytest.mark.parametrize("name", ["m.keras", "m.tflite", "saved"])
def test_without_a_converter_one_line_says_what_to_install(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tf2onnx", None)
    if name == "saved":
        (tmp_path / name).mkdir()
        (tmp_path / name / "saved_model.pb").write_bytes(b"x")
    else:
        (tmp_path / name).write_bytes(b"\x1c\0\0\0TFL3")
    refused(str(tmp_path / name), "pip install tensorflow-cpu tf2onnx", tmp_path)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--input", "x:float33[2]"], "type 'float33' is unknown"),
        (["--input", "x:float32[2]", "--example", "x.npz"], "both say what the inputs are"),
        (["--fixed-batch"], "--fixed-batch is for --example"),
        (["--output", "model.onnx"], "the file to write is -o model.onnx"),
        (["--evaluate"], "add --quantize static or dynamic"),
        (["--quantize", "half"], "--quantize 'half' is unknown"),
        (["--quantize", "static"], "Which data"),
        (["--quantize", "dynamic", "--evaluate"], "Which data"),
        (["--opset", "3"], "--opset"),
        (["--classes", "none.txt"], "classes in 'none.txt' cannot be read"),
    ],
)
def test_flags_that_make_no_sense_are_said_before_anything_runs(
    flags: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    (tmp_path / "mine_here.py").write_text("def model():\n    return 3\n")
    assert run(["export", "mine_here.py:model", *flags]) == 2
    assert re.search(said, capsys.readouterr().err)
    assert [p.name for p in tmp_path.iterdir() if p.suffix == ".onnx"] == []


ORIGIN = Source(
    framework="torch", version="2", code="models:net", weights="ab" * 32, commit="c" * 40
)
PREPARED = Carried(data=DataSettings(image=ImageSettings(preset="imagenet")), labels=("cat", "dog"))


def carrying(way: str, folder: Path) -> Path:
    proto = chain(onnx.helper.make_node("Relu", ["a"], ["b"], name="relu"))
    if way == "weights":
        proto = matmul_model()
    for key, value in ((SOURCE, source_text(ORIGIN)), (CARRIED, carried_text(PREPARED))):
        proto.metadata_props.add(key=key, value=value)
    return save(proto, folder / "float.onnx")


WAYS: dict[str, Any] = {
    "optimize": optimize,
    "dynamic": lambda i, o: quantize_dynamic(i, o, nodes_to_quantize=["*"]),
    "static": lambda i, o: quantize_static(i, o, [{"x": X}] * 3),
    "float16": quantize_float16,
    "weights": quantize_weights,
}


@pytest.mark.parametrize("way", WAYS)
def test_every_rewriting_keeps_source_and_preprocessing(way: str, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    WAYS[way](carrying(way, tmp_path), out)
    metadata = {e.key: e.value for e in onnx.load(out).metadata_props}
    assert source_of(metadata) == ORIGIN
    assert carried_by(metadata) == PREPARED
    assert inspect_model(out).source == str(ORIGIN)
    assert any(
        "exported from models:net (torch 2, git cccc" in c.sentence for c in verify_file(out).checks
    )


def test_a_damaged_source_is_none() -> None:
    assert source_of({}) is None
    assert source_of({SOURCE: "{"}) is None
    assert source_of({SOURCE: json.dumps({"framework": 3})}) is None


def test_what_code_prints_does_not_mix_with_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "prints_here.py").write_text("print('hello')\n\n\ndef model():\n    return 3\n")
    assert run(["export", f"{tmp_path}/prints_here.py:model", "--json"]) == 2
    assert capsys.readouterr().out == ""


def test_estimators_tell_their_own_inputs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    pytest.importorskip("skl2onnx", reason="skl2onnx is not installed")
    code = tmp_path / "estimators_here.py"
    code.write_text(
        "import numpy as np\nfrom sklearn.linear_model import LogisticRegression\n"
        "from sklearn.pipeline import make_pipeline\nfrom sklearn.preprocessing import StandardScaler\n"
        "X = np.random.default_rng(0).normal(size=(60, 5))\n\n\n"
        "def fitted():\n    return make_pipeline(StandardScaler(), LogisticRegression()).fit(X, X[:, 0] > 0)\n\n\n"
        "def raw():\n    return LogisticRegression()\n"
    )
    out = tmp_path / "m.onnx"
    assert run(["export", f"{code}:fitted", "-o", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["inputs"] == ["input:float32[batch,5]"]
    assert found["outputs"] == ["label", "probabilities"]
    assert np.isfinite(
        [d["largest"] for t in found["proof"]["trials"] for d in t["differences"].values()]
    ).all()
    refused(f"{code}:raw", "LogisticRegression is not fitted", tmp_path)
    refused(f"{code}:fitted", "one input of 5 features", tmp_path, inputs=["x:float32[n,4]"])


FITTED = """
import numpy as np
X = np.random.default_rng(0).normal(size=(60, 5)).astype("f4")

def clusters():
    from sklearn.cluster import KMeans
    return KMeans(3, n_init=1, random_state=0).fit(X)

def outliers():
    from sklearn.ensemble import IsolationForest
    return IsolationForest(n_estimators=5, random_state=0).fit(X)

def fewer():
    from sklearn.decomposition import PCA
    return PCA(2).fit(X)

def several():
    from sklearn.ensemble import RandomForestClassifier
    return RandomForestClassifier(3, random_state=0).fit(X, (X[:, :2] > 0).astype(int))

def logarithm():
    from sklearn.linear_model import LinearRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer
    return make_pipeline(FunctionTransformer(np.log), LinearRegression()).fit(abs(X), X[:, 0])
"""


def test_clusters_outliers_and_transformers_are_estimators_too(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    pytest.importorskip("skl2onnx", reason="skl2onnx is not installed")
    code = tmp_path / "fitted_here.py"
    code.write_text(FITTED)
    for name, outputs in (
        ("clusters", ("label", "scores")),
        ("outliers", ("label", "scores")),
        ("fewer", ("output",)),
    ):
        assert export_model(f"{code}:{name}", tmp_path / f"{name}.onnx").outputs == outputs
    refused(f"{code}:several", "predicts 2 targets at once.*an estimator for each", tmp_path)
    refused(f"{code}:logarithm", r"if the values are at fault, add their range, such as", tmp_path)


def test_trees_are_in_the_opset_that_is_asked_for(tmp_path: Path) -> None:
    xgboost = pytest.importorskip("xgboost", reason="XGBoost is not installed")
    pytest.importorskip("onnxmltools", reason="onnxmltools is not installed")
    rows = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32)
    model = xgboost.XGBRegressor(n_estimators=3).fit(rows, rows[:, 0])
    found = export_model(model, tmp_path / "m.onnx")
    assert found.opset == 21
    assert found.notes == ()
    with pytest.raises(QuantkitError, match="give an XGBClassifier or XGBRegressor"):
        export_model(model.get_booster(), tmp_path / "n.onnx")


def test_help_shows_how_inputs_are_written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert run(["export", "--help"]) == 0
    assert "'input:float32[batch,3,224,224]'" in capsys.readouterr().out
