"""The process of a command: printing that fails fails nothing else, and a request to end leaves nothing behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from builders import matmul_model, save

pytestmark = pytest.mark.all_cores

MAIN = "from quantkit.cli import main; main()"
# Says so when the staging folder is there, and waits in it.
WAITING = """
import sys, time
import quantkit.pipeline.form as pipeline

def wait(*_, **__):
    print("ready", file=sys.stderr, flush=True)
    time.sleep(60)

pipeline.run_float = wait
from quantkit.cli import main
main()
"""
DYNAMIC = ["quantize", "dynamic", "m.onnx", "q.onnx"]


@pytest.fixture(autouse=True)
def _work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save(matmul_model(), tmp_path / "m.onnx")


def shell(command: list[str], redirected: str) -> subprocess.CompletedProcess[str]:
    """Run a command of quantkit in a shell, which can close and redirect what Python cannot."""
    line = f'"$0" -c "{MAIN}" {" ".join(command)} {redirected}'
    return subprocess.run(
        ["/bin/bash", "-o", "pipefail", "-c", line, sys.executable],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("redirected", ["> /dev/full", "| true", ">&-", ">&- 2>&- <&-"])
@pytest.mark.parametrize("flag", [[], ["--json"]], ids=["table", "json"])
@pytest.mark.slow
def test_what_was_written_is_a_success_whatever_becomes_of_the_words(
    redirected: str, flag: list[str]
) -> None:
    done = shell([*DYNAMIC, *flag], redirected)
    assert done.returncode == 0, done.stderr
    assert Path("q.onnx").stat().st_size < Path("m.onnx").stat().st_size
    full = (
        "note: the output could not be printed: No space left on device; everything else was done\n"
    )
    assert done.stderr == (full if "full" in redirected else "")


def test_what_is_only_printed_fails_on_a_full_disk() -> None:
    done = shell(["inspect", "m.onnx"], "> /dev/full")
    assert done.returncode == 2
    assert done.stderr == "error: the output could not be printed: No space left on device\n"


@pytest.mark.parametrize(
    "command", [["inspect", "m.onnx"], ["--help"], ["inspect", "m.onnx", "--json"]]
)
@pytest.mark.slow
def test_a_reader_that_has_seen_enough_is_no_error(command: list[str]) -> None:
    done = shell(command, "| head -1")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_errors_are_errors_also_where_nobody_can_read_them() -> None:
    assert shell(["inspect", "none.onnx"], "2> /dev/full").returncode == 2
    assert shell(["inspect", "none.onnx"], "2>&-").returncode == 2


def test_letters_that_a_terminal_does_not_have_are_written_out() -> None:
    Path("m.onnx").rename("mod\u00e8le\u2713.onnx")
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            MAIN,
            "quantize",
            "dynamic",
            "mod\u00e8le\u2713.onnx",
            "q\u2713.onnx",
        ],
        env=os.environ | {"PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert b"q\\u2713.onnx" in done.stdout


# Ctrl-Break of Windows, which has no such number here.
BREAK = "import signal\nsignal.SIGBREAK = signal.SIGUSR1\n"


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, 130),
        (signal.SIGTERM, 143),
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.linux),
        (signal.SIGUSR1, 138),
    ],
    ids=lambda v: v.name if isinstance(v, signal.Signals) else "",
)
@pytest.mark.parametrize("background", [False, True], ids=["", "background"])
@pytest.mark.slow
def test_a_request_to_end_leaves_nothing_behind(
    number: signal.Signals, code: int, *, background: bool
) -> None:
    if background and number is signal.SIGINT:
        pytest.skip("a shell's background ignores it")
    before = Path("m.onnx").read_bytes()
    program = (
        f"{BREAK}{'signal.signal(signal.SIGINT, signal.SIG_IGN)' if background else ''}\n{WAITING}"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, *DYNAMIC],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert process.stderr.readline() == "ready\n"
    assert len(list(Path().iterdir())) == 2
    process.send_signal(number)
    said = process.stderr.read()
    process.stderr.close()
    assert process.wait() == code
    assert said == "interrupted; nothing was written\n"
    assert [p.name for p in Path().iterdir()] == ["m.onnx"]
    assert Path("m.onnx").read_bytes() == before
