"""No command writes over what it reads, by whichever flag: refused in one line before anything runs."""

import os
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import graph, matmul_model, model, node, rng, save, weight
from result_cases import example_result

from quantkit.cli.app import run
from quantkit.result import save_result

K = 6
_DATA = ("--data", "d")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model that has external data, data, a plan, a calibration, a recipe and a result."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        _fill(folder)
    return folder


def test_out_and_the_option_say_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save(matmul_model(), tmp_path / "in.onnx")
    for command in (
        ["quantize", "dynamic"],
        ["quantize", "weights"],
        ["quantize", "float16"],
        ["optimize"],
    ):
        assert run([*command, "in.onnx", "out.onnx"]) == 0
        assert run([*command, "in.onnx", "-o", "out.onnx"]) == 0
        assert run([*command, "in.onnx", "out.onnx", "-o", "other.onnx"]) == 2
    assert not Path("other.onnx").exists()


def test_calibrate_takes_its_output_as_others_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save(matmul_model(), tmp_path / "in.onnx")
    np.save("x.npy", rng(0).standard_normal((20, 128)).astype(np.float32))
    assert run(["calibrate", "in.onnx", "mine.calibration", "--data", "x.npy"]) == 0
    assert Path("mine.calibration").exists()


def test_tune_explains_that_it_writes_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tune", "m.onnx", "out.onnx", "--data", "x.npy", "--max-drop", "1%"]) == 2
    said = capsys.readouterr().err
    assert "tune writes a folder with every candidate, not 'out.onnx': add -o DIR" in said


def _fill(folder: Path) -> None:
    nodes = [node("MatMul", ["x", "w"], ["m"], "mm"), node("Relu", ["m"], ["y"], "r")]
    proto = model(graph(nodes, {"x": ["N", K]}, {"y": ["N", K]}, {"w": weight(K, K)}))
    onnx.save(proto, "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    onnx.save(proto, "q.onnx")
    (folder / "d").mkdir()
    np.savez("d/a.npz", x=rng().standard_normal((40, K)).astype(np.float32))
    np.savez("sample.npz", x=np.ones((1, K), np.float32))
    (folder / "quantkit.toml").write_text("[gate]\nmax_drop = 0.01\n")
    save_result(example_result(), folder / "result.json")
    assert run(["calibrate", "m.onnx", *_DATA, "-o", "m.calibration"]) == 0
    assert run(["plan", "m.onnx", *_DATA, "-o", "plan.json"]) == 0


@pytest.fixture
def work(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory of its own with all that is in `made`."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


STATIC = ["quantize", "static", "m.onnx"]
CASES = {
    "calibrate-model": ["calibrate", "m.onnx", *_DATA, "-o", "m.onnx"],
    "calibrate-weights": ["calibrate", "m.onnx", *_DATA, "-o", "w.bin"],
    "calibrate-data": ["calibrate", "m.onnx", *_DATA, "-o", "d/a.npz"],
    "calibrate-data-file": ["calibrate", "m.onnx", "--data", "d/a.npz", "-o", "d/a.npz"],
    "calibrate-recipe": ["calibrate", "m.onnx", *_DATA, "-o", "quantkit.toml"],
    "export-model": ["calibrate", "m.onnx", *_DATA, "-o", "c", "--export", "m.onnx"],
    "export-weights": ["calibrate", "m.onnx", *_DATA, "-o", "c", "--export", "w.bin"],
    "export-output": ["calibrate", "m.onnx", *_DATA, "-o", "c", "--export", "./c"],
    "export-shown": ["calibrate", "--show", "m.calibration", "--export", "m.calibration"],
    "plan-model": ["plan", "m.onnx", *_DATA, "-o", "m.onnx"],
    "plan-data": ["plan", "m.onnx", *_DATA, "-o", "d/a.npz"],
    "plan-calibration": ["plan", "m.onnx", "--calibration", "m.calibration", "-o", "m.calibration"],
    "plan-plan": ["plan", "plan.json", "-o", "plan.json"],
    "dynamic-model": ["quantize", "dynamic", "m.onnx", "m.onnx"],
    "dynamic-weights": ["quantize", "dynamic", "m.onnx", "w.bin"],
    "dynamic-sample": ["quantize", "dynamic", "m.onnx", "sample.npz", "--sample", "sample.npz"],
    "static-model": [*STATIC, "m.onnx", *_DATA],
    "static-data": [*STATIC, "d/a.npz", *_DATA],
    "static-calibration": [*STATIC, "m.calibration", "--calibration", "m.calibration"],
    "static-plan": [*STATIC, "plan.json", "--plan", "plan.json", *_DATA],
    "save-plan-model": [*STATIC, "o.onnx", *_DATA, "--save-plan", "m.onnx"],
    "save-plan-weights": [*STATIC, "o.onnx", *_DATA, "--save-plan", "w.bin"],
    "save-plan-output": [*STATIC, "o.onnx", *_DATA, "--save-plan", "o.onnx"],
    "save-plan-plan": [
        *STATIC,
        "o.onnx",
        *_DATA,
        "--plan",
        "plan.json",
        "--save-plan",
        "plan.json",
    ],
    "optimize-model": ["optimize", "m.onnx", "m.onnx"],
    "optimize-weights": ["optimize", "m.onnx", "w.bin"],
    "junit-result": ["gate", "result.json", "--junit", "result.json"],
    "badge-result-folder": ["gate", ".", "--badge", "result.json"],
    "badge-recipe": ["gate", "result.json", "--badge", "quantkit.toml"],
    "junit-badge": ["gate", "result.json", "--junit", "v", "--badge", "v"],
    "report-result": ["report", "report.html", "-o", "."],
    "picture-folder": ["report", "result.json", "--picture", "report.svg/x.svg"],
    "evaluate-data": ["evaluate", "m.onnx", "q.onnx", "--data", "result.json", "-o", "."],
    "evaluate-model": ["evaluate", "report.md", "q.onnx", *_DATA, "-o", "."],
}


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()
    }


@pytest.mark.parametrize("name", CASES)
def test_nothing_that_is_read_is_overwritten(
    name: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copyfile("result.json", "report.html")
    shutil.copyfile("m.onnx", "report.md")
    before = contents(work)
    capsys.readouterr()
    assert run(CASES[name]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
    assert any(t in said.err for t in ("would overwrite", "does not exist")), said.err
    assert said.out == ""  # nothing ran
    assert contents(work) == before


@pytest.mark.parametrize(
    "command",
    [
        ["calibrate", "m.onnx", *_DATA, "-o", "{}"],
        ["calibrate", "m.onnx", *_DATA, "-o", "c", "--export", "{}"],
        ["calibrate", "--show", "m.calibration", "--export", "{}"],
        ["plan", "m.onnx", *_DATA, "-o", "{}"],
        ["plan", "plan.json", "-o", "{}"],
        ["quantize", "dynamic", "m.onnx", "{}"],
        [*STATIC, "{}", *_DATA],
        [*STATIC, "o.onnx", *_DATA, "--save-plan", "{}"],
        ["optimize", "m.onnx", "{}"],
        ["gate", "result.json", "--junit", "{}"],
        ["gate", "result.json", "--badge", "{}"],
        ["report", "result.json", "--picture", "{}"],
    ],
    ids=lambda c: "-".join(a for a in c if not a.count(".")),
)
def test_devices_and_pipes_stay_what_they_are(
    command: list[str], work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(work / "pipe.svg")
    before = contents(work)
    capsys.readouterr()
    assert run([a.format("pipe.svg") for a in command]) == 2
    assert "'pipe.svg' is a device or a pipe; give a file name" in capsys.readouterr().err
    assert (work / "pipe.svg").is_fifo()
    assert contents(work) == before


def test_the_demo_does_not_overwrite_what_is_not_its_own(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(work)
    assert run(["demo", "-o", "."]) == 2
    assert "would overwrite 'quantkit.toml', which is not its own" in capsys.readouterr().err
    assert contents(work) == before


def test_a_checkpoint_is_not_written_over_the_model(work: Path) -> None:
    (work / "m.onnx").rename("c.partial")
    before = contents(work)
    assert run(["calibrate", "c.partial", *_DATA, "-o", "c"]) == 2
    assert contents(work) == before


def test_a_file_that_is_named_like_a_checkpoint_and_is_none_stays(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (work / "c.partial").write_text("a download that goes on")
    assert run(["calibrate", "m.onnx", *_DATA, "-o", "c"]) == 2
    assert "'c.partial' is in the way" in capsys.readouterr().err
    assert (work / "c.partial").read_text() == "a download that goes on"


# What a cloned repository may hold, and the command that its owner hopes for.
_UNASKED: dict[str, tuple[str, list[tuple[str, str]], str]] = {
    "calibrate-outside": ("[calibrate]\noutput = '../home/bashrc'", [], "calibrate"),
    "calibrate-new": ("[calibrate]\noutput = '../home/new'", [], "calibrate"),
    "calibrate-absolute": ("[calibrate]\noutput = '{home}/bashrc'", [], "calibrate"),
    "calibrate-link": ("[calibrate]\noutput = 'c'", [("c", "bashrc")], "calibrate"),
    "calibrate-dangling": ("[calibrate]\noutput = 'c'", [("c", "new")], "calibrate"),
    "calibrate-folder": ("[calibrate]\noutput = 'l/bashrc'", [("l", "")], "calibrate"),
    "calibrate-partial": ("[calibrate]\noutput = 'c'", [("c.partial", "new")], "calibrate"),
    "calibrate-default": ("", [("m.calibration", "bashrc")], "calibrate"),
    "calibrate-foreign": ("[calibrate]\noutput = 'mine.txt'", [], "calibrate"),
    "evaluate-outside": ("[evaluate]\noutput = '../home'", [], "evaluate"),
    "evaluate-link": ("[evaluate]\noutput = 'e'", [("e", "")], "evaluate"),
    "evaluate-default": ("", [("evaluation", "")], "evaluate"),
    "evaluate-inner": ("", [("evaluation/report.md", "bashrc")], "evaluate"),
    "evaluate-foreign": ("[evaluate]\noutput = 'mine'", [], "evaluate"),
    "tune-outside": ("[tune]\noutput = '../home/new'", [], "tune"),
    "tune-inner": ("", [("tuned/candidates", "")], "tune"),
    "tune-deep": ("", [("tuned/work/prepared", "")], "tune"),
    "report-link": ("", [("report.html", "bashrc")], "report"),
}


@pytest.mark.parametrize("name", _UNASKED)
def test_a_cloned_folder_does_not_choose_what_is_overwritten(
    name: str, work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, links, command = _UNASKED[name]
    home, cloned = work / "home", work / "cloned"
    (home / "prepared").mkdir(parents=True)
    (home / "bashrc").write_text("mine")
    cloned.mkdir()
    for one in ("m.onnx", "w.bin", "q.onnx", "d", "result.json"):
        (work / one).rename(cloned / one)
    monkeypatch.chdir(cloned)
    (cloned / "m.calibration").unlink(missing_ok=True)
    Path("mine.txt").write_text("mine")
    Path("mine").mkdir()
    Path("mine/report.md").write_text("mine")
    Path("quantkit.toml").write_text(recipe.format(home=home))
    for link, target in links:
        Path(link).parent.mkdir(parents=True, exist_ok=True)
        Path(link).symlink_to(home / target)
    before = contents(work)
    commands = {
        "calibrate": ["calibrate", "m.onnx", *_DATA],
        "evaluate": ["evaluate", "m.onnx", "q.onnx", *_DATA],
        "tune": ["tune", "m.onnx", *_DATA, "--max-drop", "1%"],
        "report": ["report", "result.json"],
    }
    capsys.readouterr()
    assert run(commands[command]) == 2
    said = capsys.readouterr()
    assert said.err.count("\n") == 1
    assert any(t in said.err for t in ("outside of", "not written by", "not quantkit's")), said.err
    assert contents(work) == before


def test_what_quantkit_wrote_inside_the_folder_is_written_again(work: Path) -> None:
    (work / "quantkit.toml").write_text(
        "[calibrate]\noutput = 'c.bin'\n[evaluate]\noutput = 'e/deep'"
    )
    for _ in range(2):
        assert run(["calibrate", "m.onnx", *_DATA]) == 0
        assert run(["evaluate", "m.onnx", "q.onnx", *_DATA, "--skip", "latency"]) == 0
    (work / "elsewhere").mkdir()
    (work / "e2").symlink_to(work / "elsewhere")
    assert run(["evaluate", "m.onnx", "q.onnx", *_DATA, "--skip", "latency", "-o", "e2"]) == 0
