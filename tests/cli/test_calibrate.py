"""`quantkit calibrate`: what it prints, what it writes, how it exits."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import graph, matmul_model, model, node, rng, save, weight
from data.makers import picture
from onnx import TensorProto

import quantkit.samples
from quantkit.calibration import Calibration
from quantkit.cli.app import run

K = 6
SAMPLES = Path(quantkit.samples.__file__).parent


def call(*arguments: str | Path) -> int:
    return run([str(a) for a in arguments])


def product(k: int = K) -> onnx.ModelProto:
    nodes = [node("MatMul", ["x", "w"], ["m"], "mm"), node("Relu", ["m"], ["y"], "r")]
    return model(graph(nodes, {"x": ["N", k]}, {"y": ["N", k]}, {"w": weight(k, k)}))


def rows(samples: int = 40, seed: int = 0) -> Any:
    return rng(seed).standard_normal((samples, K)).astype(np.float32)


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with m.onnx and data/x.npy."""
    monkeypatch.chdir(tmp_path)
    save(product(), tmp_path / "m.onnx")
    (tmp_path / "data").mkdir()
    np.save(tmp_path / "data" / "x.npy", rows())
    return tmp_path


def test_the_sample_model_on_its_own_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with np.load(SAMPLES / "fashion_test.npz") as archive:
        images = archive["image"][:64, None].astype(np.float32) / 255
        np.savez(tmp_path / "images.npz", image=images, label=archive["label"][:64])
    assert call("calibrate", SAMPLES / "fashion_cnn.onnx", "--data", "images.npz") == 0
    captured = capsys.readouterr()
    for text in ("data ", "images.npz: npz, 64 samples", "input ", "image float32[1, 1, 28, 28]"):
        assert text in captured.out
    for text in ("Ranges of", "tensors by mse", "min .. max", "halves", "audit ", "logits"):
        assert text in captured.out
    assert "fashion_cnn.calibration" in captured.out
    assert "error" not in captured.err
    found = Calibration.load(tmp_path / "fashion_cnn.calibration")
    assert found.tensors[0] == "image"
    assert found.ranges()["image"][0] == 0
    assert len(found.tensors) == 6
    assert sorted(p.name for p in tmp_path.iterdir()) == ["fashion_cnn.calibration", "images.npz"]


def test_json_is_the_whole_result(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("calibrate", "m.onnx", "--data", "data", "--json", "-o", "c") == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["file"] == "c"
    assert plain["method"] == {"name": "mse"}
    assert set(plain["ranges"]) == {"x", "y"}
    assert plain["audit"]["samples"] == 40
    assert plain["data"]["kind"] == "npy"
    assert (work / "c").exists()


def test_a_file_is_shown_with_any_method(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("calibrate", "m.onnx", "--data", "data", "-o", "c") == 0
    (work / "m.onnx").unlink()
    shutil.rmtree(work / "data")
    capsys.readouterr()
    assert call("calibrate", "--show", "c") == 0
    assert "tensors by mse" in capsys.readouterr().out
    shown = {}
    for method in ("minmax", "percentile", "entropy", "mse"):
        assert call("calibrate", "--show", "c", "--method", method, "--json") == 0
        shown[method] = json.loads(capsys.readouterr().out)["ranges"]
    assert shown["minmax"]["x"] == [rows().min(), rows().max()]
    assert shown["minmax"] != shown["entropy"]
    assert call("calibrate", "--show", "c", "--percentile", "90", "--json") == 0
    low, high = json.loads(capsys.readouterr().out)["ranges"]["x"]
    assert rows().min() < low < high < rows().max()


def test_showing_what_was_not_collected_says_so(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del work
    assert call("calibrate", "m.onnx", "--data", "data", "-o", "c") == 0
    capsys.readouterr()
    assert call("calibrate", "--show", "c", "--method", "moving_average") == 2
    err = capsys.readouterr().err
    assert "moving_average" in err
    assert "only minimum and maximum" not in err


@pytest.mark.parametrize("shown", [False, True], ids=["with-the-run", "from-the-file"])
def test_the_exported_table_is_onnxruntimes(work: Path, *, shown: bool) -> None:
    from onnxruntime.quantization.calibrate import load_tensors_data

    arguments = ["m.onnx", "--data", "data", "-o", "c"]
    if shown:
        assert call("calibrate", *arguments) == 0
        arguments = ["--show", "c"]
    assert call("calibrate", *arguments, "--export", "table.json") == 0
    read = load_tensors_data(work / "table.json")
    ranges = Calibration.load(work / "c").ranges()
    assert {t: tuple(float(v) for v in read[t].range_value) for t in read} == ranges


def recipe(folder: Path, text: str) -> None:
    (folder / "quantkit.toml").write_text(text)


def method_of(path: Path) -> tuple[str, dict[str, float]]:
    found = Calibration.load(path)
    return found.method.name, dict(found.method.settings)


def test_a_recipe_leaves_only_the_data_to_say(work: Path) -> None:
    text = (
        'model = "m.onnx"\n[data]\nlimit = 20\nshuffle = false\n[calibrate]\nmethod = "entropy"\n'
    )
    recipe(work, text + 'output = "out.calibration"\n')
    assert call("calibrate", "--data", "data/") == 0
    found = Calibration.load(work / "out.calibration")
    assert found.method.name == "entropy"
    assert len(found.seen.samples) == 20
    assert found.header["order"]["shuffle"] is False


def test_a_recipe_may_say_everything(work: Path) -> None:
    recipe(work, 'model = "m.onnx"\n[data]\npath = "data"\n[calibrate]\nmethod = "minmax"\n')
    assert call("calibrate") == 0
    assert method_of(work / "m.calibration") == ("minmax", {})


def test_flags_override_the_recipe(work: Path) -> None:
    text = 'model = "gone.onnx"\n[data]\npath = "gone"\nlimit = 3\nbatch = 2\nseed = 5\n'
    recipe(work, text + '[calibrate]\nmethod = "entropy"\noutput = "gone/c"\n')
    flags = ("--data", "data", "--limit", "12", "--batch", "4", "--seed", "1", "--method", "minmax")
    assert call("calibrate", "m.onnx", *flags, "-o", "c") == 0
    found = Calibration.load(work / "c")
    assert found.method.name == "minmax"
    assert found.header["order"] == {"batch": 4, "limit": 12, "shuffle": True, "seed": 1}


def test_a_method_given_as_a_flag_overrides_a_percentile_of_the_recipe(work: Path) -> None:
    recipe(work, 'model = "m.onnx"\n[calibrate]\nmethod = "percentile"\npercentile = 99.0\n')
    assert call("calibrate", "--data", "data", "--method", "minmax") == 0
    assert method_of(work / "m.calibration") == ("minmax", {})


def test_a_percentile_of_the_recipe_chooses_the_method_as_the_flag_does(work: Path) -> None:
    recipe(work, 'model = "m.onnx"\n[calibrate]\npercentile = 99.0\n')
    assert call("calibrate", "--data", "data") == 0
    assert method_of(work / "m.calibration") == ("percentile", {"keep": 99.0})


def test_a_percentile_chooses_the_method(work: Path) -> None:
    assert call("calibrate", "m.onnx", "--data", "data", "--percentile", "99") == 0
    assert method_of(work / "m.calibration") == ("percentile", {"keep": 99.0})


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(
            (),
            id="default",
        ),
        pytest.param(("--method", "minmax"), id="minmax"),
    ],
)
def test_minima_and_maxima_alone(
    work: Path, method: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("calibrate", "m.onnx", "--data", "data", "--minmax-only", *method) == 0
    assert "Ranges of 2 tensors" in capsys.readouterr().out
    found = Calibration.load(work / "m.calibration")
    assert found.ranges()["x"] == (rows().min(), rows().max())
    capsys.readouterr()
    assert call("calibrate", "--show", "m.calibration", "--method", "entropy") == 2
    assert "--minmax-only" in capsys.readouterr().err


def test_every_value_flag_counts_all(work: Path) -> None:
    assert call("calibrate", "m.onnx", "--data", "data", "--every-value") == 0
    sketch = Calibration.load(work / "m.calibration").sketch("x")
    assert sketch is not None
    assert sketch.most is None
    assert sketch.count[0] == rows().size


def image_model(folder: Path) -> Path:
    nodes = [node("Conv", ["x", "w"], ["y"], "c")]
    shape: list[int | str | None] = ["N", 3, 8, 8]
    proto = model(graph(nodes, {"x": shape}, {"y": shape}, {"w": weight(3, 3, 1, 1)}))
    return save(proto, folder / "conv.onnx")


@pytest.fixture
def images(work: Path) -> Path:
    image_model(work)
    for i in range(6):
        picture(work / "pictures" / f"{i}.png", seed=i)
    (work / "pictures" / "4.png").write_bytes(b"this is no picture")
    return work


def test_an_unreadable_image_is_named(images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(p.name for p in images.iterdir())
    assert call("calibrate", "conv.onnx", "--data", "pictures", "--preset", "unit") == 2
    assert_one_error(capsys, "4.png")
    assert sorted(p.name for p in images.iterdir()) == before


def test_bad_samples_are_skipped_on_demand_and_reported(
    images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("conv.onnx", "--data", "pictures", "--preset", "unit", "--skip-bad")
    assert call("calibrate", *arguments) == 0
    captured = capsys.readouterr()
    note = " ".join(captured.err.split())
    assert "1 of 6 samples could not be read" in note
    assert "4.png" in note
    found = Calibration.load(images / "conv.calibration")
    assert len(found.seen.samples) == 5
    assert len(found.seen.bad) == 1


def test_preprocessing_is_printed_and_used(
    images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (images / "pictures" / "4.png").unlink()
    flags = ("--mean", "127.5", "--std", "127.5", "--resize", "8x8", "--layout", "NCHW")
    assert call("calibrate", "conv.onnx", "--data", "pictures", *flags, "--method", "minmax") == 0
    assert "prepared" in capsys.readouterr().out
    low, high = Calibration.load(images / "conv.calibration").ranges()["x"]
    assert -1 <= low < -0.9
    assert 0.9 < high <= 1


def assert_one_error(capsys: pytest.CaptureFixture[str], expected: str) -> None:
    err = capsys.readouterr().err
    lines = err.splitlines()
    assert len([line for line in lines if line.startswith("error:")]) == 1
    assert len(lines) == 1, err
    assert expected.lower() in err.lower()
    assert "Unexpected" not in err
    assert "Traceback" not in err


def _empty(work: Path) -> list[str]:
    (work / "empty").mkdir()
    return ["m.onnx", "--data", "empty"]


def _shape(work: Path) -> list[str]:
    np.save(work / "data" / "x.npy", np.ones((4, K + 1), np.float32))
    return ["m.onnx", "--data", "data"]


def _dtype(work: Path) -> list[str]:
    np.save(work / "data" / "x.npy", np.ones((4, K), np.uint8))
    return ["m.onnx", "--data", "data"]


def _name(work: Path) -> list[str]:
    np.savez(work / "z.npz", other=rows(), another=rows())
    return ["m.onnx", "--data", "z.npz"]


def _nan(work: Path) -> list[str]:
    nodes = [node("Sqrt", ["x"], ["s"]), node("MatMul", ["s", "w"], ["y"])]
    proto = model(graph(nodes, {"x": ["N", K]}, {"y": ["N", K]}, {"w": weight(K, K)}))
    save(proto, work / "nan.onnx")
    np.save(work / "data" / "x.npy", -np.abs(rows()) - 1)
    return ["nan.onnx", "--data", "data"]


def _mixed(work: Path) -> list[str]:
    np.savez(work / "data" / "more.npz", x=rows())
    return ["m.onnx", "--data", "data"]


def _text(work: Path) -> list[str]:
    types = dict.fromkeys(("input_ids", "attention_mask"), TensorProto.INT64)
    nodes = [
        node("Gather", ["table", "input_ids"], ["e"]),
        node("MatMul", ["e", "w"], ["y"]),
        node("Cast", ["attention_mask"], ["z"], to=TensorProto.FLOAT),
    ]
    inputs = {name: ["N", "L"] for name in types}
    weights = {"table": weight(9, K), "w": weight(K, K)}
    outputs = {"y": None, "z": None}
    save(model(graph(nodes, inputs, outputs, weights, types=types)), work / "text.onnx")
    (work / "rows.csv").write_text("text,label\nthe cat,0\na dog,1\n")
    return ["text.onnx", "--data", "rows.csv"]


def _nothing(work: Path) -> list[str]:
    save(
        model(graph([node("Exp", ["x"], ["y"])], {"x": ["N", K]}, {"y": ["N", K]})),
        work / "exp.onnx",
    )
    return ["exp.onnx", "--data", "data"]


def _truncated(work: Path) -> list[str]:
    whole = matmul_model().SerializeToString()
    (work / "cut.onnx").write_bytes(whole[: len(whole) // 2])
    return ["cut.onnx", "--data", "data"]


def _toml(work: Path) -> list[str]:
    recipe(work, "model = [broken\n")
    return ["m.onnx", "--data", "data"]


def _toml_key(work: Path) -> list[str]:
    recipe(work, "[calibrate]\nmetod = 'mse'\n")
    return ["m.onnx", "--data", "data"]


def _folder_output(work: Path) -> list[str]:
    (work / "folder").mkdir()
    return ["m.onnx", "--data", "data", "-o", "folder"]


def _damaged(work: Path) -> list[str]:
    (work / "bad.calibration").write_text("this is no calibration")
    return ["--show", "bad.calibration"]


def flags(*arguments: str) -> Callable[[Path], list[str]]:
    return lambda _: ["m.onnx", "--data", "data", *arguments]


BAD: dict[str, tuple[Callable[[Path], list[str]], str]] = {
    "empty-directory": (_empty, "it is empty"),
    "missing-directory": (lambda _: ["m.onnx", "--data", "nowhere"], "There is no data"),
    "wrong-shape": (_shape, "does not fit the input 'x'"),
    "wrong-dtype": (_dtype, "0..255"),
    "missing-input-name": (_name, "no array for the model's input 'x"),
    "all-nan": (_nan, "no finite value"),
    "mixed-formats": (_mixed, "mixes kinds"),
    "text-without-tokenizer": (_text, "tokenizer"),
    "nothing-to-quantize": (_nothing, "nothing to calibrate"),
    "truncated-model": (_truncated, "truncated"),
    "missing-model": (lambda _: ["gone.onnx", "--data", "data"], "does not exist"),
    "no-model": (lambda _: ["--data", "data"], "Which model?"),
    "no-data": (lambda _: ["m.onnx"], "Which data?"),
    "broken-toml": (_toml, "no TOML"),
    "unknown-key-in-toml": (_toml_key, "did you mean 'method'"),
    "output-is-a-directory": (_folder_output, "is a directory"),
    "output-folder-is-missing": (flags("-o", "no/c"), "does not exist"),
    "output-folder-is-not-writable": (flags("-o", "/proc/c"), "/proc"),
    "unknown-method": (flags("--method", "entropi"), "did you mean 'entropy'"),
    "percentile-of-another-method": (
        flags("--method", "minmax", "--percentile", "99"),
        "--percentile is for",
    ),
    "mean-is-no-number": (flags("--mean", "a,b"), "--mean"),
    "size-is-no-number": (flags("--resize", "axb"), "--resize"),
    "unknown-preset": (flags("--preset", "imagenett"), "did you mean 'imagenet'"),
    "limit-of-zero": (flags("--limit", "0"), "limit"),
    "no-such-scheduler": (flags("--scheduler", "nonsense://x"), "No dask scheduler answers"),
    "show-a-missing-file": (lambda _: ["--show", "gone"], "There is no file"),
    "show-a-damaged-file": (_damaged, "no calibration file"),
    "percentile-of-200": (flags("--percentile", "200"), "200"),
    "percentile-of-0": (flags("--percentile", "0"), "percentile"),
}


@pytest.mark.parametrize(
    "case",
    BAD,
)
def test_what_cannot_work_is_one_line_exit_2_and_nothing_written(
    case: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make, expected = BAD[case]
    arguments = make(work)
    before = {p for p in work.rglob("*") if p.is_file()}
    assert call("calibrate", *arguments) == 2
    assert_one_error(capsys, expected)
    assert {p for p in work.rglob("*") if p.is_file()} == before


def test_names_that_look_like_markup_are_printed_as_they_are(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    proto = product()
    proto.graph.node[1].output[0] = proto.graph.output[0].name = "y[/x]"
    save(proto, work / "m.onnx")
    assert call("calibrate", "m.onnx", "--data", "data", "-o", "c[bold]") == 0
    out = capsys.readouterr().out
    assert "y[/x]" in out
    assert "c[bold]" in out


def test_calibrate_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("calibrate", "--help") == 0
    out = capsys.readouterr().out
    for text in ("Usage", "--data", "--method", "--skip-bad", "--workers", "--show"):
        assert text in out


def test_a_second_run_replaces_the_file(work: Path) -> None:
    assert call("calibrate", "m.onnx", "--data", "data", "-o", "c") == 0
    first = (work / "c").read_bytes()
    assert call("calibrate", "m.onnx", "--data", "data", "-o", "c") == 0
    assert (work / "c").read_bytes() == first
    np.save(work / "data" / "x.npy", rows(seed=1))
    assert call("calibrate", "m.onnx", "--data", "data", "-o", "c") == 0
    assert (work / "c").read_bytes() != first


@pytest.mark.parametrize("kept", [True, False])
def test_a_run_that_is_broken_off_says_what_it_left(
    work: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    kept: bool,
) -> None:
    def broken_off(*_: object) -> None:
        if kept:
            (work / "c.partial").write_text("what was seen")
        raise KeyboardInterrupt

    monkeypatch.setattr("quantkit.api.calibrate.calibrate_model", broken_off)
    assert call("calibrate", "m.onnx", "--data", "data", "-o", "c") == 130
    said = capsys.readouterr().err
    assert ("'c.partial' keeps what was seen" in said) == kept
    assert ("nothing was written" in said) != kept
