"""What is written: never over an input, whole or not at all, with the permissions it had, nothing left behind."""

import errno
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from quantkit import files
from quantkit.errors import OutputError, QuantkitError, UsageError
from quantkit.files import (
    check_folder,
    check_outputs,
    destination,
    make_scratch,
    model_in,
    replace_text,
    scratch,
)
from quantkit.pipeline.partial import only_run


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_of_a_folder_the_likely_model_is_named_first(tmp_path: Path) -> None:
    assert "no .onnx file" in model_in(tmp_path)
    names = ("model_fp16", "model_quantized", "decoder_model", "model", "model_uint8")
    (tmp_path / "onnx").mkdir()
    (tmp_path / ".cache").mkdir()
    for name in names:
        (tmp_path / "onnx" / f"{name}.onnx").touch()
    (tmp_path / ".cache" / "model.onnx").touch()
    said = model_in(tmp_path)
    assert said.startswith(f"did you mean {tmp_path / 'onnx' / 'model.onnx'}? It also holds ")
    assert "decoder_model.onnx" in said
    assert said.endswith("and 1 more.")
    assert ".cache" not in said


def _fifo(path: Path) -> Path:
    os.mkfifo(path)
    return path


def _link(path: Path, target: str) -> Path:
    path.symlink_to(target)
    return path


def _hard_link(path: Path, target: str) -> Path:
    path.hardlink_to(target)
    return path


def _file(path: Path, content: str = "mine") -> Path:
    path.write_text(content)
    return path


@pytest.mark.parametrize(
    "name",
    ["in", "./in", "../{here}/in", "link", "hard", "link-to-link"],
)
def test_an_input_is_never_an_output_by_whatever_name(tmp_path: Path, name: str) -> None:
    _file(Path("in"))
    _link(Path("link"), "in")
    _link(Path("link-to-link"), "link")
    _hard_link(Path("hard"), "in")
    path = Path(name.format(here=tmp_path.name))
    with pytest.raises(UsageError, match="would overwrite the input 'in'"):
        check_outputs([path], [Path("in")])
    with pytest.raises(UsageError, match="would overwrite the input"):
        check_outputs([Path("in")], [path])


@pytest.mark.parametrize("name", ["a.npz", "labels.csv", "deep/er/cat.jpg", "notes"])
def test_files_of_a_folder_that_is_read_are_not_overwritten(name: str) -> None:
    path = Path("data", name)
    path.parent.mkdir(parents=True)
    _file(path)
    with pytest.raises(UsageError, match="would overwrite a file in 'data', which is read"):
        check_outputs([path], [Path("data")])
    check_outputs([Path("data", "new.calibration")], [Path("data")])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("m.int8.onnx", ""),
        ("m.calibration", ""),
        ("plan.json", '{"format": "quantkit.plan.1"}'),
        ("result.json", '{"schema": "quantkit.result/1"}'),
    ],
)
def test_what_an_earlier_run_wrote_beside_the_data_may_be_written_again(
    name: str, content: str
) -> None:
    _file(Path(name), content)
    check_outputs([Path(name)], [Path()])


@pytest.mark.parametrize("names", [("a", "a"), ("a", "./a"), ("a", "link"), ("a", "A")])
def test_two_outputs_are_two_files(names: tuple[str, str]) -> None:
    _link(Path("link"), "a")
    with pytest.raises(UsageError, match="would overwrite each other"):
        check_outputs([Path(name) for name in names], [])


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Path("/dev/null"), "device or a pipe; give a file name"),
        (lambda: _fifo(Path("fifo")), "device or a pipe; give a file name"),
        (lambda: _link(Path("l"), "/dev/null"), "device or a pipe; give a file name"),
        (lambda: _link(Path("loop"), "loop"), "Cannot write 'loop'"),
        (Path, "directory; give a file name"),
        (lambda: Path("none/at/all"), r"folder 'none/at' does not exist"),
        (lambda: _file(Path("f")) / "x", "folder 'f' does not exist"),
        (lambda: Path("x" * 300), "Cannot write 'xxx.*name too long"),
    ],
)
def test_what_is_no_place_for_a_file_is_refused_and_untouched(make: Any, why: str) -> None:
    path: Path = make()
    before = path.lstat() if os.path.lexists(path) and path != Path() else None
    with pytest.raises(QuantkitError, match=why):
        check_outputs([path], [])
    with pytest.raises(QuantkitError, match=why):
        replace_text(path, "text")
    if before is not None:
        assert path.lstat().st_ino == before.st_ino
        assert path.lstat().st_mode == before.st_mode


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anything")
def test_a_write_protected_file_is_not_replaced() -> None:
    _file(Path("f")).chmod(0o444)
    with pytest.raises(OutputError, match="write-protected"):
        check_outputs([Path("f")], [])


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666, 0o755], ids=oct)
def test_a_file_that_is_replaced_keeps_its_permissions(mode: int) -> None:
    path = _file(Path("f"))
    path.chmod(mode)
    replace_text(path, "new")
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_link_stays_and_what_it_points_to_is_replaced() -> None:
    Path("elsewhere").mkdir()
    _file(Path("elsewhere/f"))
    link = _link(Path("l"), "elsewhere/f")
    replace_text(link, "new")
    assert link.is_symlink()
    assert Path("elsewhere/f").read_text() == "new"
    dangling = _link(Path("d"), "elsewhere/g")
    replace_text(dangling, "new too")
    assert dangling.is_symlink()
    assert Path("elsewhere/g").read_text() == "new too"
    assert destination(dangling) == Path("elsewhere/g").resolve()
    assert sorted(p.name for p in Path("elsewhere").iterdir()) == ["f", "g"]


@pytest.mark.parametrize("call", ["fsync", "chmod", "replace"])
def test_what_fails_while_writing_leaves_the_old_file_and_nothing_else(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = _file(Path("f"))
    monkeypatch.setattr(os, "fsync", full) if call == "fsync" else monkeypatch.setattr(
        Path, call, full
    )
    with pytest.raises(OutputError, match="Cannot write 'f': No space left on device"):
        replace_text(path, "new")
    assert [p.name for p in Path().iterdir()] == ["f"]
    assert path.read_text() == "mine"


def test_a_file_that_grows_too_large_leaves_the_old_one() -> None:
    _file(Path("f"))
    code = (
        "import resource, signal\nfrom pathlib import Path\n"
        "from quantkit.files import replace_text\nfrom quantkit.errors import OutputError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try:\n    replace_text(Path('f'), 'x' * 100_000)\nexcept OutputError as e:\n    print(e)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "Cannot write 'f': File too large.\n", done.stderr
    assert [p.name for p in Path().iterdir()] == ["f"]
    assert Path("f").read_text() == "mine"


def test_a_folder_is_asked_about_before_it_is_made() -> None:
    check_folder(Path("a/b/c"), ["result.json"], [])
    assert not Path("a").exists()
    _file(Path("file"))
    with pytest.raises(OutputError, match="file' is a file"):
        check_folder(Path("file/b"), ["result.json"], [])
    Path("e").mkdir()
    _file(Path("e/result.json"))
    with pytest.raises(UsageError, match=r"would overwrite the input 'e/result\.json'"):
        check_folder(Path("e"), ["result.json"], [Path("e/result.json")])


_KILLED = """
import os, sys, time
from pathlib import Path
from quantkit.files import make_scratch, replacing
folder = make_scratch(Path(sys.argv[1]) if sys.argv[1] else None)
(folder / "half").write_text("half")
with replacing(Path("f")) as file:
    file.write(b"half")
    print(folder, flush=True)
    time.sleep(60)
"""


def _killed(parent: str) -> Path:
    """Return the folder that a process left which was killed while it wrote there and to 'f'."""
    process = subprocess.Popen(
        [sys.executable, "-c", _KILLED, parent], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    folder = Path(process.stdout.readline().strip())
    assert (folder / "half").exists()
    with scratch(Path(parent) if parent else None):
        assert (folder / "half").exists()  # it is alive
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    return folder


@pytest.mark.linux
def test_what_a_killed_process_left_goes_with_the_next_run(tmp_path: Path) -> None:
    _file(Path("f"))
    folder = _killed(str(tmp_path))
    assert len(list(tmp_path.iterdir())) == 3
    with scratch(tmp_path):
        assert not folder.exists()
    assert [p.name for p in tmp_path.iterdir()] == ["f"]
    assert Path("f").read_text() == "mine"


@pytest.mark.linux
def test_so_does_what_it_left_in_the_systems_place(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path_factory.mktemp("tmp")
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr("tempfile.tempdir", None)
    folder = _killed("")
    assert folder.parent == place
    made = make_scratch()
    assert list(place.iterdir()) == [made]
    made.rmdir()


@pytest.mark.parametrize(
    "name",
    [
        "quantkit-demo",
        ".quantkit-notes",
        ".quantkit-00000000-1-00000000-another-machine",
        "x.quantkit-00000000-999999999-00000000-y",
    ],
)
def test_nothing_else_is_ever_swept_away(name: str, tmp_path: Path) -> None:
    _file(Path(name))
    with scratch(tmp_path):
        assert Path(name).exists()


@pytest.mark.linux
def test_a_link_that_is_named_like_a_leftover_is_not_followed(tmp_path: Path) -> None:
    made = make_scratch(tmp_path)
    name = made.name.replace(f"-{os.getpid()}-", "-999999999-")
    made.rmdir()
    Path("precious").mkdir()
    _file(Path("precious/f"))
    _link(Path(name), "precious")
    with scratch(tmp_path):
        pass
    assert Path("precious/f").exists()
    assert not os.path.lexists(name)


def test_files_are_replaced_where_the_system_knows_no_owners(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr("os.chown")
    replace_text(_file(Path("f")), "new")
    assert Path("f").read_text() == "new"


# ------------------------------------------------------------------------------------ one run per output

HOLDS = """
import sys
from pathlib import Path
from quantkit.pipeline.partial import only_run
with only_run(Path("o.onnx")):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.linux
def test_another_process_that_writes_the_same_output_is_named(tmp_path: Path) -> None:
    link = _link(Path("link.onnx"), "o.onnx")
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        for path in (Path("o.onnx"), tmp_path / "o.onnx", link):
            with pytest.raises(UsageError, match="Another run is writing"), only_run(path):
                pass
        with only_run(Path("p.onnx")):
            pass
        other.kill()
    with only_run(Path("o.onnx")):
        pass
    assert [p.name for p in tmp_path.iterdir()] == ["link.onnx"]


@pytest.mark.linux
def test_a_lock_does_not_follow_links_and_needs_no_fcntl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _link(Path(".o.onnx.lock"), "elsewhere")
    with pytest.raises(OutputError), only_run(Path("o.onnx")):
        pass
    Path(".o.onnx.lock").unlink()
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with only_run(Path("o.onnx")):
        pass
    assert not [*tmp_path.iterdir()]


# --------------------------------------------------------------------------- machines and threads that share


def test_machines_with_one_name_do_not_sweep_what_the_other_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot = _file(tmp_path / "boot_id", "another kernel")
    with monkeypatch.context() as patched:
        patched.setattr(files, "_BOOT", boot)
        files._host.cache_clear()
        theirs = make_scratch(tmp_path)
    files._host.cache_clear()
    with scratch(tmp_path):
        assert theirs.exists()


def test_permissions_are_found_without_changing_them_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changed(mask: int) -> int:
        raise AssertionError(mask)

    monkeypatch.setattr(os, "umask", changed)
    replace_text(tmp_path / "new", "text")
    assert [p.name for p in tmp_path.iterdir()] == ["new"]
