"""The file of a calibration, and the one of an interrupted run: whole, the same, or not at all."""

import io
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantkit.calibration import MinMaxOf, Request, SketchOf
from quantkit.calibration.container import read_container, write_container
from quantkit.calibration.requests import Observations, pack, unpack
from quantkit.calibration.run import Checkpoint
from quantkit.errors import DataError, OutputError, UsageError

HEADER = {"b": [1, 2.5, "x"], "a": {"deep": None}}
ARRAYS: dict[str, Any] = {
    "z/one": np.arange(5, dtype=np.uint16),
    "a": np.array([[1.5, np.nan, -0.0]]),
    "none": np.empty((0, 3), np.int64),
    "flag": np.array([True, False]),
}
REQUESTS = (Request(tensor="x", statistic=SketchOf()), Request(tensor="y", statistic=MinMaxOf()))


def test_what_was_written_is_read(tmp_path: Path) -> None:
    write_container(tmp_path / "c", HEADER, ARRAYS)
    header, arrays = read_container(tmp_path / "c")
    assert header == HEADER
    assert arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(arrays[name], array)


def test_the_same_contents_are_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_container(tmp_path / "one", HEADER, ARRAYS)
    later = time.time() + 86400
    monkeypatch.setattr(time, "time", lambda: later)
    other_order = dict(reversed(list(HEADER.items())))
    write_container(tmp_path / "two", other_order, dict(reversed(list(ARRAYS.items()))))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_the_file_has_the_rights_that_a_new_file_has(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    write_container(tmp_path / "c", {}, {})
    assert (tmp_path / "c").stat().st_mode == (tmp_path / "plain").stat().st_mode
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c", "plain"]


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_a_data_error(tmp_path: Path, share: float) -> None:
    path = tmp_path / "c"
    write_container(path, HEADER, ARRAYS)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(DataError, match="damaged"):
        read_container(path)


def test_any_damaged_byte_is_a_data_error_or_harmless(tmp_path: Path) -> None:
    path = tmp_path / "c"
    write_container(path, HEADER, {"a": np.arange(3)})
    whole = path.read_bytes()
    surprises = set()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        try:
            read_container(path)
        except DataError:
            continue
        except Exception as e:  # noqa: BLE001 - whatever it is, it should not come out
            surprises.add(f"{type(e).__name__}: {e}")
    assert not surprises


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"There is no file .*gone"):
        read_container(tmp_path / "gone")


@pytest.mark.parametrize("where", ["missing", "file", "proc"])
def test_an_unwritable_folder_is_one_clear_error(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_text("")
    folder = {"missing": tmp_path / "no", "file": tmp_path / "file", "proc": Path("/proc")}[where]
    with pytest.raises((OutputError, UsageError), match=r"Cannot write|does not exist"):
        write_container(folder / "c", HEADER, ARRAYS)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_full_disk_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "c"
    write_container(path, HEADER, ARRAYS)
    before = path.read_bytes()

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(OutputError, match="No space left"):
        write_container(path, {}, ARRAYS)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 9), max_size=3), st.integers(0, 3)),
        min_size=1,
        max_size=5,
    )
)
def test_unpacking_gives_what_was_packed(made: list[tuple[list[int], int]]) -> None:
    states = [{"a": np.array(a, np.int64), "b": np.ones((n, 2))} for a, n in made]
    again = unpack(pack(states))
    assert len(again) == len(states)
    for state, found in zip(states, again, strict=True):
        for name in state:
            np.testing.assert_array_equal(found[name], state[name])


def seen(value: float) -> dict[int, Observations]:
    found = {}
    for segment in range(2):
        found[segment] = Observations.empty(REQUESTS, 1)
        for whats in found[segment].answers.values():
            for statistic in whats.values():
                statistic.observe(np.full(3, value + segment, np.float32))
        found[segment].samples.append(segment)
        found[segment].digests.append(7)
        found[segment].bad = {segment + 10: "broken"}
    return found


DONE = np.array([[True, False, True]])


def test_a_checkpoint_is_read_back(tmp_path: Path) -> None:
    Checkpoint(tmp_path / "p", "key").save(seen(1), DONE)
    loaded = Checkpoint(tmp_path / "p", "key").load({0: REQUESTS, 1: REQUESTS})
    assert loaded is not None
    np.testing.assert_array_equal(loaded[1], DONE)
    for segment, expected in seen(1).items():
        found, wanted = loaded[0][segment].to_arrays(), expected.to_arrays()
        assert all(found[k].tobytes() == wanted[k].tobytes() for k in wanted)
        assert loaded[0][segment].bad == expected.bad


def test_a_checkpoint_of_another_job_is_ignored(tmp_path: Path) -> None:
    Checkpoint(tmp_path / "p", "key").save(seen(1), DONE)
    assert Checkpoint(tmp_path / "p", "other").load({0: REQUESTS, 1: REQUESTS}) is None


@pytest.mark.parametrize("contents", [b"", b"no container", None], ids=["empty", "text", "cut"])
def test_a_damaged_checkpoint_is_ignored(tmp_path: Path, contents: bytes | None) -> None:
    path = tmp_path / "p"
    Checkpoint(path, "key").save(seen(1), DONE)
    path.write_bytes(path.read_bytes()[:-30] if contents is None else contents)
    assert Checkpoint(path, "key").load({0: REQUESTS, 1: REQUESTS}) is None


def test_no_checkpoint_is_none(tmp_path: Path) -> None:
    assert Checkpoint(tmp_path / "p", "key").load({0: REQUESTS, 1: REQUESTS}) is None


def test_a_checkpoint_is_written_when_it_is_due_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    checkpoint = Checkpoint(tmp_path / "p", "key")
    checkpoint.save_if_due(seen(1), DONE)
    assert not checkpoint.path.exists()
    now[0] += 60
    checkpoint.save_if_due(seen(1), DONE)
    assert checkpoint.path.exists()
    checkpoint.remove()
    checkpoint.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_in_an_unwritable_folder_is_an_output_error() -> None:
    with pytest.raises(OutputError):
        Checkpoint(Path("/proc/p"), "key").save(seen(1), DONE)


def zipped(file: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name.replace("_", "."), content)
    return file


def npy(shape: tuple[int, ...], content: bytes) -> bytes:
    out = io.BytesIO()
    what: Any = {"descr": "<f8", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(out, what)
    return out.getvalue() + content


@pytest.mark.parametrize(
    "members",
    [
        {"header_json": b"[" * 100_000},
        {"header_json": b"[]"},
        {"header_json": b"\xff\xfe"},
        {"a_npy": npy((1,), bytes(8))},
        {"header_json": b"{}", "a_npy": npy((10**9,), bytes(8))},
        {"header_json": b"{}", "a_npy": npy((1,), bytes(16))},
        {"header_json": b"{}", "a_npy": b"\x93NUMPY\x01\x00\x05\x00(((((" + bytes(8)},
    ],
    ids=["nested", "a list", "no text", "no header", "a billion rows", "too long", "no npy"],
)
def test_crafted_files_are_one_clear_line(members: dict[str, bytes], tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"is no calibration file, or it is damaged \(") as e:
        read_container(zipped(tmp_path / "c", **members))
    assert "\n" not in str(e.value)


def test_what_unpacks_to_more_than_memory_is_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quantkit.calibration.container.memory_of", lambda _: 1_000_000)
    file = zipped(tmp_path / "c", header_json=b"{}", a_npy=npy((4_000_000,), bytes(32_000_000)))
    with pytest.raises(DataError, match="it unpacks to 32 MB"):
        read_container(file)


def test_a_crafted_checkpoint_is_not_taken_up(tmp_path: Path) -> None:
    header = {"format": "quantkit.partial.1", "key": "k", "bad": {"0": []}}
    for arrays in (
        {},
        {"done": np.zeros(3, bool)},
        {"done": np.zeros(3, bool), "0/samples": ARRAYS["a"]},
    ):
        write_container(tmp_path / "c", header, arrays)
        assert Checkpoint(tmp_path / "c", "k").load({0: REQUESTS}) is None
