"""Every file that quantkit writes: asked about before anything runs, whole or not at all, nothing left behind.

What is being written has a name that tells which process writes it, in the folder of what it will replace. A process that was
killed cannot tidy up; the next one that writes into the same folder does (`sweep`).
"""

import os
import re
import shutil
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import blake2b, file_digest
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from quantkit.errors import OutputError, QuantkitError, UsageError, as_os_error

# Kinds of files that quantkit writes and no data is made of.
_OWN_SUFFIXES = frozenset(
    {".onnx", ".data", ".calibration", ".partial", ".html", ".md", ".svg", ".xml"}
)
_HEAD = 4096  # bytes in which files of ours without such a suffix name quantkit
_LEFT = re.compile(r"\.quantkit-(?P<host>[0-9a-f]{8})-(?P<pid>\d+)-(?P<start>[0-9a-f]{8})-")
_WEEK = 7 * 24 * 3600  # seconds; no run of another machine lasts so long
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


_VARIANT = re.compile(
    r"(int8|uint8|quant|fp16|float16|half|q4|bnb|merged|with_past)", re.IGNORECASE
)
_DEPTH, _FOLDERS, _LISTED = 3, 200, 3  # levels and folders to look into, and models to list


def model_in(folder: Path) -> str:
    """Return which .onnx files a folder holds, the likely one first, as the end of a message about it.

    Exports of one model keep their variants together (``onnx/model.onnx``, ``onnx/model_quantized.onnx``): the plain
    name in the upper folder is the likely one. Hidden folders and those behind links are left out.
    """
    found: list[Path] = []
    for at, folders, files in islice(os.walk(folder), _FOLDERS):
        deep = len(Path(at).relative_to(folder).parts) >= _DEPTH
        folders[:] = [] if deep else sorted(f for f in folders if not f.startswith("."))
        found += [Path(at) / name for name in files if name.endswith(".onnx")]
    if not found:
        return "it holds no .onnx file; give the path of a model."
    found.sort(key=lambda p: (bool(_VARIANT.search(p.stem)), p.stem != "model", len(p.parts), p))
    first, *others = (str(path) for path in found)
    more = len(others) - _LISTED
    listed = ", ".join(others[:_LISTED]) + (f" and {more} more" if more > 0 else "")
    return f"did you mean {first}?{f' It also holds {listed}.' if others else ''}"


def _exists(path: Path) -> bool:
    """Say whether a file is there; a name that no file can have is none."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def check_outputs(outputs: Iterable[Path | None], inputs: Iterable[Path | None]) -> None:
    """Refuse, before anything runs, what cannot be written, or would overwrite what is read or written beside it.

    Args:
        outputs: Every file that a command is to write; None is not asked for.
        inputs: Every file and folder that it reads. In a folder any file may be data, except for what quantkit itself writes.

    Raises:
        UsageError: An output is an input, another output, a folder, or no file at all.
        OutputError: It cannot be written there.
    """
    read = [path for path in inputs if path is not None and _exists(path)]
    written: dict[str, Path] = {}
    for path in outputs:
        if path is None:
            continue
        real = destination(path)
        _try_writing(real.parent)
        for source in read:
            _refuse_overwriting(path, real, source)
        other = written.setdefault(str(real).casefold(), path)
        if other is not path:
            raise UsageError(
                f"'{other}' and '{path}' are one file and would overwrite each other; choose two names."
            )


def _try_writing(folder: Path) -> None:
    try:
        with tempfile.TemporaryFile(dir=folder):  # permissions alone do not tell
            pass
    except OSError as e:
        said = f"Cannot write into '{folder}': {e.strerror or e}; nothing was run."
        raise as_os_error(OutputError(said), e) from e


def _refuse_overwriting(path: Path, real: Path, source: Path) -> None:
    if not real.exists():
        return
    if real.samefile(source):
        raise UsageError(
            f"Writing '{path}' would overwrite the input '{source}'; choose another output."
        )
    if source.is_dir() and real.is_relative_to(source.resolve()) and not _is_own(real):
        raise UsageError(
            f"Writing '{path}' would overwrite a file in '{source}', which is read; choose another output."
        )


def _is_own(path: Path) -> bool:
    """Say whether a file looks like one that quantkit wrote: a plan or a result may stand beside the data."""
    return path.suffix.lower() in _OWN_SUFFIXES or _names_quantkit(path)


def _names_quantkit(path: Path) -> bool:
    with path.open("rb") as file:
        return b"quantkit" in file.read(_HEAD)


def check_unasked(
    outputs: Iterable[Path], folder: Path, is_own: Callable[[Path], bool] = _names_quantkit
) -> None:
    """Refuse outputs whose path the user did not type, if they lie outside `folder` or would replace a foreign file.

    A quantkit.toml and links next to it may come with a cloned repository: they must not choose what is overwritten.

    Args:
        outputs: Files, and folders with all that is in them.
        folder: Where quantkit.toml is, or would be.
        is_own: Tells whether quantkit wrote an existing file.

    Raises:
        UsageError: An output is not in the folder, or quantkit did not write the file that it would replace.
    """
    home = Path(os.path.realpath(folder))
    for output in outputs:
        inner = output.rglob("*") if output.is_dir() else ()
        for path in (output, *(place for place in inner if place.is_symlink())):
            real = Path(os.path.realpath(path))
            if not real.is_relative_to(home):
                raise UsageError(
                    f"Writing '{path}' would write '{real}', outside of '{home}', and only a path that you type may do so: "
                    f"give -o, or change output in quantkit.toml."
                )
        if output.is_file() and not is_own(output):
            raise UsageError(
                f"'{output}' was not written by quantkit, and only a path that you type may replace it: give -o, or move the file."
            )


def check_folder(folder: Path, names: Sequence[str], inputs: Iterable[Path | None]) -> None:
    """Refuse, before anything runs, a folder that cannot be made, or into which these files cannot be written.

    Args:
        folder: Where files will be written.
        names: Of the files.
        inputs: What is read, and must not be overwritten; None: not a file.

    Raises:
        UsageError: A file in it is an input, or no file at all.
        OutputError: It cannot be written.
    """
    if folder.is_dir():
        check_outputs([folder / name for name in names], inputs)
        return
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not there.is_dir():
        raise OutputError(f"Cannot make the folder '{folder}': '{there}' is a file.")
    _try_writing(there)


def destination(path: Path) -> Path:
    """Return the file that is replaced when `path` is written: what a link points to.

    Raises:
        UsageError: It is a folder, in none, or no file at all.
        OutputError: It cannot be written.
    """
    real = Path(os.path.realpath(path))
    try:
        mode = real.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        mode = 0
        if not real.parent.is_dir():
            said = f"The output's folder '{path.parent}' does not exist."
            raise as_os_error(UsageError(said), FileNotFoundError) from None
    except OSError as e:
        raise as_os_error(OutputError(f"Cannot write '{path}': {e.strerror or e}."), e) from e
    if stat.S_ISDIR(mode):
        said = f"The output '{path}' is a directory; give a file name."
        raise as_os_error(UsageError(said), IsADirectoryError)
    if mode and not stat.S_ISREG(mode):
        raise UsageError(f"The output '{path}' is a device or a pipe; give a file name.")
    if mode and not os.access(real, os.W_OK):
        said = f"Cannot write '{path}': it is write-protected; nothing was run."
        raise as_os_error(OutputError(said), PermissionError)
    return real


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file that takes the place of `path` when the block ends: whole or not at all.

    Raises:
        UsageError: `path` is no place for a file.
        OutputError: It cannot be written; what was there before is untouched.
    """
    real = destination(path)
    temporary = None
    try:
        sweep(real.parent)
        handle, name = tempfile.mkstemp(dir=real.parent, prefix=f".{_signature()}-")
        temporary = Path(name)
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        put(temporary, real)
    except QuantkitError:
        raise
    except OSError as e:
        raise as_os_error(OutputError(f"Cannot write '{path}': {e.strerror or e}."), e) from e
    finally:
        if temporary is not None:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def replace_text(path: Path, text: str) -> None:
    """Write a text, whole or not at all.

    Raises:
        UsageError: `path` is no place for a file.
        OutputError: It cannot be written; what was there before is untouched.
    """
    with replacing(path) as file:
        file.write(text.encode())


def put(made: Path, path: Path) -> None:
    """Rename a finished file to its place, with the permissions of what it replaces; new files get those of all new files."""
    try:
        before = path.stat()
    except FileNotFoundError:
        made.chmod(_new_mode(path.parent))
    else:
        if hasattr(os, "chown"):  # files have no such owner on Windows
            with suppress(PermissionError):  # only root gives files away
                os.chown(made, before.st_uid, before.st_gid)
        made.chmod(stat.S_IMODE(before.st_mode))
    made.replace(path)


def _new_mode(folder: Path) -> int:
    """Return the permissions of a new file in a folder.

    A file is made to see them: reading the process's umask changes it for a moment, and files of other threads would be
    open to everyone.
    """
    path = folder / f".{_signature()}-{threading.get_ident()}"
    number = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    try:
        return stat.S_IMODE(os.fstat(number).st_mode)
    finally:
        os.close(number)
        path.unlink()


@contextmanager
def scratch(parent: Path | None = None) -> Iterator[Path]:
    """Make a folder for what is not finished; always remove it. See `make_scratch`.

    Raises:
        OutputError: No folder can be made there.
    """
    folder = make_scratch(parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def make_scratch(parent: Path | None = None) -> Path:
    """Make a folder for what is not finished, and remove what killed processes left beside it.

    Args:
        parent: Where; None: in the system's place for temporary files.

    Raises:
        OutputError: No folder can be made there.
    """
    place = Path(tempfile.gettempdir()) if parent is None else parent
    sweep(place)
    try:
        return Path(tempfile.mkdtemp(prefix=f".{_signature()}-", dir=place))
    except OSError as e:
        other = "; set TMPDIR to another folder" if parent is None else ""
        said = f"Cannot write to '{place}': {e.strerror or e}{other}; nothing was written."
        raise as_os_error(OutputError(said), e) from e


def sweep(folder: Path) -> None:
    """Remove what quantkit's processes left in a folder when they were killed."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            found = _LEFT.match(entry.name)
            if found is None or not _is_left(found, entry):
                continue
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                Path(entry.path).unlink(missing_ok=True)


def _is_left(found: re.Match[str], entry: os.DirEntry[str]) -> bool:
    """Say whether the process that made something is gone. Of another machine's, and on Windows, only the time can tell."""
    about = entry.stat(follow_symlinks=False)
    if hasattr(os, "getuid") and about.st_uid != os.getuid():
        return False
    if found["host"] != _host() or os.name == "nt":  # Windows does not say who has a number now
        return time.time() - about.st_mtime > _WEEK
    return _start_of(int(found["pid"])) != found["start"]


def _signature() -> str:
    """Return how the names of this process's unfinished files begin."""
    return f"quantkit-{_host()}-{os.getpid()}-{_start_of(os.getpid())}"


@cache
def _host() -> str:
    """Return what tells machines apart that share a folder, and containers that count processes on their own.

    Names of hosts and of process namespaces are often the same on two machines; what a kernel drew when it started is not. So
    what a process left before a restart counts as another machine's.
    """
    space = ""
    with suppress(OSError):
        space = os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - what it says is no path
    kernel = _boot()
    if not kernel:
        import uuid

        kernel = str(uuid.getnode())
    return _short(f"{socket.gethostname()}{space}{kernel}")


def _boot() -> str:
    """Return what the kernel drew when it started; "" if it tells nothing."""
    try:
        return _BOOT.read_text(encoding="ascii")
    except OSError:
        return ""


def _start_of(pid: int) -> str:
    """Return what tells a process from others that had or will have its number; "" if there is none now."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "" if Path("/proc/self/stat").exists() else _running(pid)
    after_name = fields.rpartition(")")[2].split()  # a name may hold anything
    gone = after_name[0] in {"Z", "X"}
    return "" if gone else _short(f"{_boot()}{after_name[19]}")


def _running(pid: int) -> str:
    """Return the same where the system does not tell when a process began."""
    if os.name == "posix":  # elsewhere it would end the process
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return ""
        except OSError:
            pass
    return "0" * 8


def _short(text: str) -> str:
    return blake2b(text.encode(), digest_size=4).hexdigest()
