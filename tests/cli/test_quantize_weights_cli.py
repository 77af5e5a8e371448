"""`quantkit quantize weights`: what it prints, what it writes, how it exits; and other commands on what it wrote."""

import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from block_cases import chain, data_file
from builders import graph, model, node, op_types, save, weight
from onnx import TensorProto

from quantkit.cli.app import run
from quantkit.quantize.plan import Mode, read_plan
from quantkit.settings import WeightsSettings, load_recipe


def call(*arguments: str | Path) -> int:
    return run([str(a) for a in arguments])


def quantize(*arguments: str | Path) -> int:
    return call("quantize", "weights", *arguments)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """m.onnx, x.npy and o.onnx, which was made of them."""
    folder = tmp_path_factory.mktemp("made")
    save(chain(3, 96), folder / "m.onnx")
    data_file(chain(3, 96), folder / "x.npy")
    assert quantize(folder / "m.onnx", folder / "o.onnx", "--data", folder / "x.npy") == 0
    return folder


@pytest.fixture
def work(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with m.onnx and x.npy."""
    for name in ("m.onnx", "x.npy"):
        shutil.copy(made / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


@pytest.mark.usefixtures("work")
def test_it_writes_a_smaller_file_and_says_what_it_did(capsys: pytest.CaptureFixture[str]) -> None:
    assert quantize("m.onnx", "o.onnx", "--data", "x.npy") == 0
    out = " ".join(capsys.readouterr().out.split())
    for text in (
        "weights in blocks",
        "of float)",
        "verified: valid, loads and runs",
        "wrote o.onnx",
    ):
        assert text in out
    assert Path("o.onnx").stat().st_size < 0.25 * Path("m.onnx").stat().st_size


def test_json_is_the_whole_result(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert quantize("m.onnx", "o.onnx", "--bits", "5", "--json") == 0
    captured = capsys.readouterr()
    plain = json.loads(captured.out)
    assert captured.err == ""
    assert (plain["input"], plain["output"]) == ("m.onnx", "o.onnx")
    assert plain["output_bytes"] == (work / "o.onnx").stat().st_size
    assert {n["mode"] for n in plain["plan"]["nodes"]} == {"blocks"}
    assert {w["blocks"]["bits"] for w in plain["plan"]["weights"]} == {5}


def test_the_default_name_tells_the_bits(work: Path) -> None:
    assert quantize("m.onnx", "--bits", "3") == 0
    assert names(work) == ["m.int3.onnx", "m.onnx", "x.npy"]


def test_a_plan_that_was_saved_makes_the_same_file(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--data", "x.npy", "--bits", "5", "--exclude", "layer1", "--save-plan", "p.json")
    assert quantize("m.onnx", "a.onnx", *flags) == 0
    assert [n.mode for n in read_plan(work / "p.json").nodes] == [
        Mode.BLOCKS,
        Mode.FLOAT,
        Mode.BLOCKS,
    ]
    assert quantize("m.onnx", "b.onnx", "--data", "x.npy", "--plan", "p.json") == 0
    one, other = (onnx.load(work / name).graph for name in ("a.onnx", "b.onnx"))
    assert one == other
    assert call("plan", "p.json") == 0
    assert quantize("m.onnx", "c.onnx", "--plan", "p.json", "--bits", "4") == 2
    assert "--bits" in capsys.readouterr().err.splitlines()[-1]
    assert not (work / "c.onnx").exists()


@pytest.mark.parametrize("flags", [("--target-size", "20%"), ("--target-size", "21kB")])
def test_a_target_size_is_kept(flags: tuple[str, str], work: Path) -> None:
    assert quantize("m.onnx", "o.onnx", "--data", "x.npy", *flags) == 0
    limit = 21_000 if "kB" in flags[1] else 0.2 * (work / "m.onnx").stat().st_size
    assert (work / "o.onnx").stat().st_size <= limit


@pytest.mark.usefixtures("work")
def test_target_bits_say_how_they_were_spread(capsys: pytest.CaptureFixture[str]) -> None:
    assert quantize("m.onnx", "o.onnx", "--data", "x.npy", "--target-bits", "6") == 0
    assert "bits per value on average" in " ".join(capsys.readouterr().out.split())


def test_quantkit_toml_is_read_and_flags_go_over_it(work: Path) -> None:
    text = 'model = "m.onnx"\n[data]\npath = "x.npy"\n[weights]\nbits = 6\nexclude = ["layer1"]\n'
    (work / "quantkit.toml").write_text(text)
    assert load_recipe().weights == WeightsSettings(bits=6, exclude=("layer1",))
    assert quantize("--save-plan", "a.json") == 0
    assert quantize("--bits", "3", "--save-plan", "b.json") == 0
    for name, bits in (("a.json", 6), ("b.json", 3)):
        plan = read_plan(work / name)
        assert {w.blocks.bits for w in plan.weights if w.blocks is not None} == {bits}
        assert plan.node["layer1"].mode is Mode.FLOAT
    assert {"m.int6.onnx", "m.int3.onnx"} <= set(names(work))


def test_plain_onnx_and_external_data(work: Path) -> None:
    assert quantize("m.onnx", "o.onnx", "--format", "onnx", "--external-data") == 0
    assert len(list(work.glob("o.onnx.*.data"))) == 1
    assert "DequantizeLinear" in op_types(onnx.load(work / "o.onnx", load_external_data=False))


# --------------------------------------------------------------------------------------------- mistakes


def refused(folder: Path, capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """Check that a command is refused, in one line, and changes nothing; return the line."""
    before = {p.name: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    folders = names(folder)
    assert quantize(*arguments) == 2
    captured = capsys.readouterr()
    # The data is described before the model is found wanting.
    assert all(line.startswith(("data ", "input ")) for line in captured.out.splitlines())
    last = captured.err.splitlines()[-1]
    assert last.startswith("error: ")
    assert captured.err.count("error: ") == 1
    assert "Traceback" not in captured.err
    assert {p.name: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before
    assert names(folder) == folders
    return last


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--bits", "1"], "--bits takes a whole number, at least 2"),
        (["--bits", "9"], "at least 2 and at most 8"),
        (["--bits", "four"], "--bits"),
        (["--embedding-bits", "16"], "at least 2 and at most 8"),
        (["--block", "48"], "--block '48' is unknown"),
        (["--block", "0"], "block '0'"),
        (["--accuracy-level", "7"], "at least 0 and at most 4"),
        (["--target-bits", "1"], "--target-bits takes a number"),
        (["--target-bits", "2"], "out of reach"),
        (["--target-size", "1%"], "out of reach"),
        (["--target-size", "0"], "--target-size takes"),
        (["--target-bits", "5", "--target-size", "20%"], "twice"),
        (["--exclude", "layr1"], "no node 'layr1'"),
        (["--include", "nowhere*"], "nowhere*"),
        (["--op-types", "MatMull"], "MatMull"),
        (["--format", "qdq"], "qdq"),
        (["--range-method", "gptq"], "gptq"),
        (["--data", "none"], "none"),
        (["--data", "empty"], "empty"),
        (["--data", "wide.npy"], "wide.npy"),
        (["--data", "nan.npy"], "NaN or infinity"),
        (["--plan", "none.json"], "none.json"),
        (["--plan", "text.json"], "text.json"),
        (["--save-plan", "m.onnx"], "overwrite"),
        (["--save-plan", "o.onnx"], "o.onnx"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_bad_flags_are_one_line_and_nothing_is_written(
    flags: list[str], says: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (work / "empty").mkdir()
    (work / "text.json").write_text("no plan")
    np.save(work / "wide.npy", np.zeros((4, 100), np.float32))
    spoilt = np.load(work / "x.npy")
    spoilt[:, 3] = np.nan
    np.save(work / "nan.npy", spoilt)
    assert says in refused(work, capsys, "m.onnx", "o.onnx", *flags)


@pytest.mark.parametrize(
    "what", ["truncated", "text", "empty", "external", "nan", "weightless", "quantized", "absent"]
)
def test_bad_models_are_one_line_and_nothing_is_written(
    what: str, made: Path, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, whole = work / "bad.onnx", chain(2, 96)
    match what:
        case "truncated":
            path.write_bytes(whole.SerializeToString()[:-1000])
        case "text":
            path.write_text("no model\n" * 20)
        case "empty":
            path.write_bytes(b"")
        case "external":
            tensor = whole.graph.initializer[0]
            tensor.ClearField("raw_data")
            tensor.external_data.add(key="location", value="gone.bin")
            tensor.data_location = TensorProto.EXTERNAL
            save(whole, path)
        case "nan":
            array = np.full((96, 96), np.nan, np.float32)
            for tensor in whole.graph.initializer:
                tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
            save(whole, path)
        case "weightless":
            relu = node("Relu", ["x"], ["y"])
            save(model(graph([relu], {"x": ["N", 96]}, {"y": ["N", 96]})), path)
        case "quantized":
            shutil.copy(made / "o.onnx", path)
    said = refused(work, capsys, "bad.onnx", "o.onnx", "--data", "x.npy")
    assert "bad.onnx" in said or what == "external"
    if what == "external":
        assert "gone.bin" in said


def test_outputs_that_cannot_be_written_are_refused_at_once(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "does not exist" in refused(work, capsys, "m.onnx", "none/o.onnx")
    assert "overwrite" in refused(work, capsys, "m.onnx", "m.onnx")
    assert "overwrite" in refused(work, capsys, "m.onnx", "x.npy", "--data", "x.npy")
    (work / "folder").mkdir()
    assert "folder" in refused(work, capsys, "m.onnx", "folder")
    (work / "o.onnx.partial").write_text("mine")
    assert "not quantkit's" in refused(work, capsys, "m.onnx", "o.onnx")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_refused(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (work / "closed").mkdir(mode=0o500)
    assert "Cannot write" in refused(work, capsys, "m.onnx", "closed/o.onnx")


def test_an_unwritable_folder_is_refused(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if not Path("/proc/self").exists():
        pytest.skip("there is no /proc, into which nobody writes")
    assert quantize("m.onnx", "/proc/self/o.onnx") == 2
    assert "Cannot write" in capsys.readouterr().err
    assert names(work) == ["m.onnx", "x.npy"]


@pytest.mark.usefixtures("work")
def test_some_nan_in_data_is_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    some = np.load("x.npy")
    some[3, 5] = np.nan
    np.save("some.npy", some)
    assert quantize("m.onnx", "o.onnx", "--data", "some.npy") == 0
    assert "which are left out" in " ".join(capsys.readouterr().out.split())


# ------------------------------------------------------------------------------- commands on a result


def test_verify_again(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ("verify", made / "o.onnx", "--float", made / "m.onnx", "--data", made / "x.npy")
    assert call(*line, "--again") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "weights, written by quantkit" in out
    assert "same bytes" in out
    assert "verified" in out
    assert call(*line, "--again", "--json") == 0
    checks = {c["name"]: c["outcome"] for c in json.loads(capsys.readouterr().out)["checks"]}
    assert {checks[n] for n in ("content", "record", "float", "data", "runs", "again")} == {"ok"}


def test_verify_tells_another_model_and_other_data(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = save(chain(3, 96, seed=5), tmp_path / "f.onnx")
    data = data_file(chain(3, 96), tmp_path / "z.npy", 9)
    assert call("verify", made / "o.onnx", "--float", other, "--data", data) == 1
    assert "wrong: float, data" in capsys.readouterr().out


def test_inspect(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("inspect", made / "o.onnx") == 0
    assert "MatMulNBits" in capsys.readouterr().out
    assert call("inspect", made / "o.onnx", "--json") == 0
    plain = json.loads(capsys.readouterr().out)
    assert sum(part["nbytes"] for part in plain["size"]) == (made / "o.onnx").stat().st_size


def test_inspect_of_the_float_model_says_what_would_come_of_it(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("inspect", made / "m.onnx") == 0
    assert "MatMul" in capsys.readouterr().out


def test_evaluate(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ("evaluate", made / "m.onnx", made / "o.onnx", "--data", made / "x.npy")
    assert call(*line, "-o", tmp_path / "r") == 0
    out = capsys.readouterr().out
    assert "SQNR" in out or "dB" in out
    assert (tmp_path / "r" / "result.json").exists()


def test_diff_of_a_result_and_itself(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("diff", made / "o.onnx", made / "o.onnx") == 0
    assert "the same: equal byte for byte" in capsys.readouterr().out


@pytest.mark.parametrize(("bits", "least"), [(2, 5), (3, 11), (4, 17), (6, 29), (8, 40)])
def test_diff_reads_weights_of_any_bits(
    bits: int, least: float, made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert quantize(made / "m.onnx", tmp_path / "b.onnx", "--bits", str(bits)) == 0
    capsys.readouterr()
    assert call("diff", made / "m.onnx", tmp_path / "b.onnx") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "3 MatMul -> MatMulNBits" in out
    assert f"3 float32 -> {bits}.0 bits" in out
    furthest = re.search(r"furthest apart: w\d ([\d.]+) dB", out)
    assert furthest is not None
    assert least < float(furthest[1]) < least + 10
    assert call("diff", made / "o.onnx", tmp_path / "b.onnx") == 0


def test_a_result_is_not_quantized_once_more_by_others(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("quantize", "dynamic", made / "o.onnx", tmp_path / "p.onnx") == 2
    assert "quantized already" in capsys.readouterr().err


def test_a_model_of_one_small_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody multiplies by it, and it is too small to be looked up in blocks: it becomes float at load."""
    nodes = [node("Gather", ["table", "ids"], ["y"], "look_up")]
    types = {"ids": TensorProto.INT64}
    held = {"table": weight(300, 64)}
    proto = model(graph(nodes, {"ids": ["N"]}, {"y": ["N", 64]}, held, types=types))
    path = save(proto, tmp_path / "m.onnx")
    assert quantize(path, tmp_path / "o.onnx") == 0
    assert "wrote" in capsys.readouterr().out
    assert (tmp_path / "o.onnx").stat().st_size < 0.5 * path.stat().st_size
