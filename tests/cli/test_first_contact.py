"""What a new user types first: module, -h, completion, `quantize IN OUT`."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from builders import matmul_model, save

from quantkit import __version__
from quantkit.cli.app import run

COMMANDS = [
    [],
    ["demo"],
    ["export"],
    ["inspect"],
    ["quantize"],
    ["quantize", "static"],
    ["quantize", "dynamic"],
    ["calibrate"],
    ["plan"],
    ["optimize"],
    ["evaluate"],
    ["report"],
    ["gate"],
    ["diff"],
    ["verify"],
    ["targets"],
]
SHELLS = ("bash", "zsh", "fish")


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "quantkit", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
    )


def test_the_module_is_the_command() -> None:
    done = python("--version")
    assert (done.returncode, done.stdout) == (0, f"quantkit {__version__}\n")
    assert "Usage: quantkit" in python("-h").stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_help_in_short_and_in_words(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert run([*command, "-h"]) == 0
    short = capsys.readouterr().out
    assert run([*command, "--help"]) == 0
    assert capsys.readouterr().out == short
    assert "--debug" in short or command == ["quantize"]
    # Python's types; choices such as <html|md|both> are words.
    assert re.findall(r"<(?:bool|str|path|int|float|list\[)[^>]*>", short) == []


def test_quantize_stands_among_the_first_commands(capsys: pytest.CaptureFixture[str]) -> None:
    run(["-h"])
    out = capsys.readouterr().out
    assert out.index("│ quantize ") < out.index("│ calibrate ") < out.index("│ evaluate ")


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_is_shown_for_a_named_shell(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["--show-completion", shell]) == 0
    assert "_QUANTKIT_COMPLETE" in capsys.readouterr().out


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_is_installed_for_a_named_shell(
    shell: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert run(["--install-completion", shell]) == 0
    out = capsys.readouterr().out
    file = Path(out.split(" written to ")[1].split(";")[0])
    assert "_QUANTKIT_COMPLETE" in file.read_text()


def test_a_shell_that_cannot_be_told_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("quantkit.cli.app._running_shell", lambda: "")
    assert run(["--install-completion"]) == 2
    assert "name it, as in quantkit --install-completion bash" in capsys.readouterr().err
    assert run(["--show-completion", "csh"]) == 2
    assert "'csh' is not one of them" in capsys.readouterr().err


def test_completion_that_cannot_be_written_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".config").write_text("a file where a folder should be")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert run(["--install-completion", "fish"]) == 2
    assert "Completion for fish cannot be installed" in capsys.readouterr().err


def test_the_shells_are_answered() -> None:
    bash = python(_QUANTKIT_COMPLETE="complete_bash", COMP_WORDS="quantkit qu", COMP_CWORD="1")
    assert (bash.returncode, bash.stdout.split()) == (0, ["quantize"])
    zsh = python(_QUANTKIT_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS="quantkit inspect --no")
    assert "--nodes" in zsh.stdout


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save(matmul_model(), tmp_path / "in.onnx")
    shape = (16, 128)
    np.savez(tmp_path / "d.npz", x=np.random.default_rng(0).normal(size=shape).astype("float32"))
    return tmp_path


@pytest.mark.parametrize("arguments", [["in.onnx", "out.onnx"], ["in.onnx"]])
def test_quantize_without_a_mode_says_which_two_there_are(
    arguments: list[str], files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["quantize", *arguments]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert said.startswith("error: static or dynamic?")
    out = "out.onnx" if len(arguments) > 1 else "OUT"
    assert f"'quantkit quantize static in.onnx {out} --data DIR'" in said
    assert f"'quantkit quantize dynamic in.onnx {out}' needs no data" in said
    assert sorted(p.name for p in files.iterdir()) == ["d.npz", "in.onnx"]


@pytest.mark.parametrize(
    "arguments",
    [["in.onnx", "out.onnx", "--data", "d.npz"], ["--data=d.npz", "in.onnx", "out.onnx"]],
)
def test_quantize_with_data_is_static(arguments: list[str], files: Path) -> None:
    assert run(["quantize", *arguments]) == 0
    assert (files / "out.onnx").exists()


def test_quantize_with_data_in_quantkit_toml_is_static(files: Path) -> None:
    (files / "quantkit.toml").write_text('[data]\npath = "d.npz"\n')
    assert run(["quantize", "in.onnx", "out.onnx"]) == 0
    assert (files / "out.onnx").exists()


def test_a_mistyped_mode_is_still_a_mistyped_mode(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["quantize", "statik", "a.onnx", "b.onnx"]) == 2
    assert "Did you mean 'static'?" in capsys.readouterr().err
