"""Runs command lines on hostile inputs, and says what must hold for every one of them.

`check("inspect", path, folder=tmp_path)` runs ``quantkit inspect path`` in a process of its own, with a limit of
time and memory, and asserts the contract:

- the exit code is 0, 1 or 2, within the time, by no signal;
- neither "Unexpected" nor a traceback nor a line of a library's log is printed, nor a control character;
- exit code 2 comes with exactly one error, as the last line of stderr, and nothing is written;
- every file in `folder` that was there is as it was, unless it is named in `writes`; no file is new but those;
- no temporary file or folder and no process is left.

Commands run in forks of one warm process, which takes milliseconds; `cold=True` starts a new interpreter, as users do.
Tests take their seeds from `seeds(40)`; the environment variable QUANTKIT_FUZZ_RUNS asks for more (`make fuzz`).
"""

import atexit
import hashlib
import importlib
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Outcome", "chance", "check", "mutated", "run_command", "seeds", "violations"]

SECONDS = 60.0
MEMORY = 6 << 30  # of address space: onnxruntime and numpy reserve some without using it

_LOG = re.compile(
    r"Unexpected |Traceback|^\s+File \"|\[[EWF]:onnxruntime|^(\w+(Error|Warning|Exception)|Exception)\b"
    r"|^(WARNING|ERROR|CRITICAL)\b|leaked|core dumped|Segmentation",
    re.MULTILINE,
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_LEFTOVER = re.compile(r"^\.quantkit-|^quantkit-|^tmp|^\..*\.[a-z0-9_]{8}$|dask")


def seeds(default: int = 40) -> range:
    """The seeds of a fuzz test: `default` of them, or as many as QUANTKIT_FUZZ_RUNS says."""
    return range(int(os.environ.get("QUANTKIT_FUZZ_RUNS") or default))


def chance(seed: int) -> random.Random:
    """The source of everything that a fuzz test draws."""
    return random.Random(seed)  # noqa: S311 - the same for the same seed, which is the point


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one command line.

    Attributes:
        arguments: What was run.
        code: The exit code; negative if a signal ended it.
        out: What it printed.
        err: What it complained of.
        seconds: How long it took.
        late: Whether it was ended for want of time.
        orphans: Whether it left processes.
        temporary: What it left in the folder for temporary files.
        peak: Bytes resident in its largest process.
    """

    arguments: tuple[str, ...]
    code: int
    out: str
    err: str
    seconds: float
    late: bool
    orphans: bool
    temporary: tuple[str, ...]
    peak: int


def run_command(
    *arguments: str | Path,
    folder: Path,
    cold: bool = False,
    seconds: float = SECONDS,
    memory: int = MEMORY,
    env: Mapping[str, str] | None = None,
) -> Outcome:
    """Run one command line in `folder`, within limits; see the module's docstring."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as private:
        (temporary := Path(private, "tmp")).mkdir()
        texts = [os.fspath(a) for a in arguments]
        job = {
            "arguments": texts,
            "folder": str(folder),
            "private": private,
            "cold": cold,
            "seconds": seconds,
            "memory": memory,
            "env": {"TMPDIR": str(temporary), **(env or {})},
        }
        found = _server().run(job)
        return Outcome(
            arguments=tuple(texts),
            out=Path(private, "out").read_text("utf-8", "replace"),
            err=Path(private, "err").read_text("utf-8", "replace"),
            temporary=tuple(sorted(p.name for p in temporary.iterdir())),
            **found,
        )


def check(
    *arguments: str | Path,
    folder: Path,
    writes: Iterable[str | Path] = (),
    cold: bool = False,
    seconds: float = SECONDS,
    memory: int = MEMORY,
    env: Mapping[str, str] | None = None,
) -> Outcome:
    """Run one command line and assert the contract; return what became of it.

    Args:
        arguments: The command line, without ``quantkit``.
        folder: The working directory, in which all inputs and outputs lie.
        writes: Files and folders that the command may write or change.
        cold: In a new interpreter.
        seconds: It must end within this time.
        memory: Of address space, in bytes.
        env: Environment variables to set.
    """
    before = _contents(folder)
    found = run_command(
        *arguments, folder=folder, cold=cold, seconds=seconds, memory=memory, env=env
    )
    wrong = violations(found) + _changes(folder, before, found.code, writes)
    said = f"\nstdout:\n{found.out[-3000:]}\nstderr:\n{found.err[-3000:]}"
    assert not wrong, f"quantkit {' '.join(map(repr, found.arguments))}: {'; '.join(wrong)}{said}"
    return found


def violations(found: Outcome) -> list[str]:
    """Return what an outcome does against the contract, apart from files."""
    wrong = []
    if found.late:
        wrong.append(f"did not end within {found.seconds:.0f} s")
    elif found.code not in {0, 1, 2}:
        wrong.append(f"ended with {found.code}")
    if found.orphans:
        wrong.append("left processes")
    if found.temporary:
        wrong.append(f"left temporary files: {', '.join(found.temporary)}")
    for name, text in (("stdout", found.out), ("stderr", found.err)):
        if match := _LOG.search(text):
            wrong.append(f"{name} says {match[0]!r}")
        if match := _CONTROL.search(text):
            wrong.append(f"{name} holds the control character {match[0]!r}")
    lines = found.err.splitlines()
    complaints = [line for line in lines if line.startswith("error:")]
    if found.code == 2 and (len(complaints) != 1 or lines[-1] != complaints[0]):
        wrong.append(f"{len(complaints)} errors, or not the last line")
    return wrong


def mutated(data: bytes, source: random.Random, changes: int = 3) -> bytes:
    """Change a few places of some bytes: flipped, cut, copied, put in, or overwritten by extremes."""
    result = bytearray(data)
    for _ in range(source.randint(1, changes)):
        at = source.randrange(len(result) + 1)
        length = source.choice((1, 1, 2, 4, 8, 64))
        piece = bytes(result[at : at + length])
        change = source.choice(("flip", "random", "extreme", "delete", "repeat", "insert", "cut"))
        if change == "flip" and piece:
            result[at] ^= 1 << source.randrange(8)
        elif change == "random":
            result[at : at + length] = source.randbytes(len(piece))
        elif change == "extreme":
            result[at : at + length] = source.choice((b"\0", b"\xff", b"\x7f", b"\x80")) * length
        elif change == "delete":
            del result[at : at + length]
        elif change == "repeat":
            result[at:at] = piece * source.choice((1, 2, 100))
        elif change == "insert":
            result[at:at] = source.randbytes(length)
        elif source.random() < 0.3:
            del result[at:]
    return bytes(result)


def _contents(folder: Path) -> dict[str, str]:
    """Return a digest of every file, and what else there is, by path."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = os.fspath(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"link to {path.readlink()}"
        elif path.is_file():
            found[name] = hashlib.blake2b(path.read_bytes()).hexdigest()
        else:
            found[name] = "folder" if path.is_dir() else "special"
    return found


def _changes(
    folder: Path, before: Mapping[str, str], code: int, writes: Iterable[str | Path]
) -> list[str]:
    """Return which files changed against the contract."""
    after = _contents(folder)
    allowed = [os.path.relpath(Path(folder, w), folder) for w in writes] if code != 2 else []

    def may_change(name: str) -> bool:
        return any(name == a or name.startswith(f"{a}/") for a in allowed)

    wrong = [
        f"{'removed' if name not in after else 'changed'} {name!r}"
        for name, digest in before.items()
        if after.get(name) != digest and not may_change(name)
    ]
    for name in after.keys() - before.keys():
        leftover = any(_LEFTOVER.match(part) for part in Path(name).parts)
        if leftover or not may_change(name):
            wrong.append(f"left {name!r}")
    return sorted(wrong)


class _Server:
    """A process that has everything imported, and forks for each command."""

    def __init__(self) -> None:
        # onnxruntime's telemetry writes to the folder for temporary files; whether quantkit switches it off
        # is tested elsewhere.
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"ORT_DISABLE_TELEMETRY": "1"},
        )

    def run(self, job: Mapping[str, Any]) -> dict[str, Any]:
        to, back = self._process.stdin, self._process.stdout
        assert to is not None
        assert back is not None
        to.write(json.dumps(job).encode() + b"\n")
        to.flush()
        found: dict[str, Any] = json.loads(back.readline())
        return found

    def stop(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


_SERVERS: dict[int, _Server] = {}


def _server() -> _Server:
    if os.getpid() not in _SERVERS:
        _SERVERS[os.getpid()] = _Server()
        atexit.register(_SERVERS[os.getpid()].stop)
    return _SERVERS[os.getpid()]


def _serve() -> None:
    """Answer jobs, one a line, until there are no more."""
    importlib.import_module("quantkit.cli.app")
    quantkit = importlib.import_module("quantkit")
    for name in quantkit.__all__:  # imports what commands import when they run
        getattr(quantkit, name)
    for line in sys.stdin.buffer:
        sys.stdout.write(json.dumps(_supervised(json.loads(line))) + "\n")
        sys.stdout.flush()


def _supervised(job: Mapping[str, Any]) -> dict[str, Any]:
    """Run one job in a fork that leads its own group of processes, and wait for its end."""
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        _become(job)
    end, late = started + job["seconds"], False
    while True:
        pid, status, usage = os.wait4(child, 0 if late else os.WNOHANG)
        if pid:
            break
        if time.monotonic() > end:
            late = True
            _end_group(child)
        time.sleep(0.002)
    return {
        "code": os.waitstatus_to_exitcode(status),
        "seconds": time.monotonic() - started,
        "late": late,
        "orphans": not late and _has_orphans(child),
        "peak": usage.ru_maxrss * 1024,
    }


def _become(job: Mapping[str, Any]) -> None:
    """Turn this fork into the command; never returns."""
    code = 70  # of a harness that is itself wrong
    try:
        os.setsid()
        os.chdir(job["folder"])
        os.environ.update(job["env"])
        tempfile.tempdir = job["env"]["TMPDIR"]
        for descriptor, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(Path(job["private"], name), os.O_CREAT | os.O_WRONLY), descriptor)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        resource.setrlimit(resource.RLIMIT_AS, (job["memory"], job["memory"]))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if job["cold"]:
            command = "import sys; from quantkit.cli import main; main()"
            # -P: the working directory is hostile, and no place to import from.
            flags = [sys.executable, "-P", "-c", command, *job["arguments"]]
            os.execv(sys.executable, [os.fsencode(f) for f in flags])  # noqa: S606 - no shell, on purpose
        run: Callable[[Sequence[str]], int] = sys.modules["quantkit.cli.app"].run
        code = run(job["arguments"])
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # noqa: BLE001 - a fork must not go on with its parent's work
        traceback.print_exc()
    finally:
        os._exit(code)


def _end_group(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        os.kill(leader, signal.SIGKILL)


def _has_orphans(leader: int, grace: float = 3.0) -> bool:
    """Say whether processes of an ended command live on; then end them."""
    end = time.monotonic() + grace
    while time.monotonic() < end:
        try:
            os.killpg(leader, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.02)
    _end_group(leader)
    return True


if __name__ == "__main__":
    _serve()
