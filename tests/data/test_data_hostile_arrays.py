"""npy and npz files that declare what they do not hold, or that unpack to more than memory has."""

import io
import struct
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data.makers import VECTOR, ramp, spec
from hypothesis import given, settings
from hypothesis import strategies as st

from quantkit.data import batches, open_data, order
from quantkit.data.stored import ArrayFiles, npz_arrays
from quantkit.errors import DataError, UsageError
from quantkit.settings import DataSettings

SMALL = DataSettings(memory=1_000_000)


def header(*shape: int, descr: str = "<f4", fortran: bool = False) -> bytes:
    out = io.BytesIO()
    what: Any = {"descr": descr, "fortran_order": fortran, "shape": shape}
    np.lib.format.write_array_header_1_0(out, what)
    return out.getvalue()


def archive(file: Path, method: int = zipfile.ZIP_STORED, **members: bytes) -> Path:
    with zipfile.ZipFile(file, "w", method) as out:
        for name, content in members.items():
            out.writestr(f"{name}.npy", content)
    return file


def patched(file: Path, local: int, central: int, value: int) -> Path:
    """Change a byte of the first member's header, and the same one in the list of members."""
    content = bytearray(file.read_bytes())
    content[content.find(b"PK\3\4") + local] = value
    content[content.find(b"PK\1\2") + central] = value
    file.write_bytes(content)
    return file


def refusal(path: Path, inputs: Any = VECTOR, how: DataSettings | None = None) -> str:
    with pytest.raises(DataError) as e:
        open_data(path, inputs, how)
    assert "\n" not in str(e.value)
    return str(e.value)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_an_array_is_never_read_beyond_its_own_bytes(method: int, tmp_path: Path) -> None:
    file = archive(
        tmp_path / "f.npz", method, x=header(50, 4) + bytes(32), z=header(9, 9) + bytes(324)
    )
    assert "'x' of" in refusal(file)
    assert "declares 800 bytes and holds 32 bytes: it was cut off" in refusal(file)


def test_a_billion_rows_that_are_not_there_are_refused_before_memory_is_taken(
    tmp_path: Path,
) -> None:
    (tmp_path / "f.npy").write_bytes(header(10**9, 4) + bytes(64))
    assert "declares 16 GB and holds 64 bytes" in refusal(tmp_path / "f.npy")
    file = archive(tmp_path / "f.npz", zipfile.ZIP_DEFLATED, x=header(10**9, 4) + bytes(64))
    assert "declares 16 GB and holds 64 bytes" in refusal(file)


def test_a_file_that_is_cut_off_later_is_an_error_and_no_signal(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", ramp(2000, 4))
    found: Any = open_data(tmp_path, VECTOR)
    with (tmp_path / "x.npy").open("r+b") as stream:
        stream.truncate(4096)
    assert found[0].feeds["x"].tolist() == [[0, 1, 2, 3]]
    with pytest.raises(DataError, match="it ends before its values do"):
        found[1999]


def test_encrypted_and_strangely_packed_archives_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "f.npz", x=ramp(3, 4))
    assert "it is encrypted" in refusal(patched(tmp_path / "f.npz", 6, 8, 1))
    np.savez(tmp_path / "f.npz", x=ramp(3, 4))
    assert "packed in a way that NumPy does not read" in refusal(
        patched(tmp_path / "f.npz", 8, 10, 97)
    )


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_methods_of_zip_are_read_where_the_array_is_small(
    method: int, tmp_path: Path
) -> None:
    small = archive(tmp_path / "f.npz", method, x=header(3, 4) + ramp(3, 4).tobytes())
    found: Any = open_data(small, VECTOR, SMALL)
    assert found[1].feeds["x"].tolist() == [[4, 5, 6, 7]]
    large = archive(tmp_path / "f.npz", method, x=header(90_000, 4) + bytes(1_440_000))
    assert "save it with np.savez" in refusal(large, how=SMALL)


def test_two_arrays_of_one_name_are_refused(tmp_path: Path) -> None:
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(tmp_path / "f.npz", "w") as out:
        for rows in (3, 4):
            out.writestr("x.npy", header(rows, 4) + bytes(16 * rows))
    assert "it holds two arrays named 'x'" in refusal(tmp_path / "f.npz")


@pytest.mark.parametrize(
    "text",
    [
        b"{'descr': '<f4', 'shape': (4, 4, ",
        b"(" * 5000,
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (-4, 4), }",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (1" + b"0" * 40 + b", 4), }",
        b"{'descr': 'nonsense', 'fortran_order': False, 'shape': (4, 4), }",
        b"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (4, 4), }",
        b"{'descr': '|O', 'fortran_order': False, 'shape': (4, 4), }",
        b"\xff\xfe",
        b"",
    ],
)
def test_headers_that_make_no_sense_are_refused(text: bytes, tmp_path: Path) -> None:
    content = b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text
    (tmp_path / "f.npy").write_bytes(content)
    assert "Cannot read" in refusal(tmp_path / "f.npy")
    assert "Cannot read" in refusal(archive(tmp_path / "f.npz", x=content))


def test_an_unknown_version_of_the_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f.npy").write_bytes(b"\x93NUMPY\7\0" + header(3, 4)[8:] + bytes(48))
    assert "its format is 7.0" in refusal(tmp_path / "f.npy")


def test_an_archive_with_an_endless_list_of_members_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "f.npz", x=ramp(3, 4))
    content = bytearray((tmp_path / "f.npz").read_bytes())
    struct.pack_into("<I", content, content.rfind(b"PK\5\6") + 12, 200 << 20)
    (tmp_path / "f.npz").write_bytes(content)
    assert "its list of members is too long" in refusal(tmp_path / "f.npz")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_rows_of_an_archive_are_right_in_any_order(save: Any, tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((60_000, 4)).astype(np.float32)
    save(tmp_path / "f.npz", x=rows, label=np.arange(60_000))
    found: Any = open_data(tmp_path, VECTOR, DataSettings(memory=2_000_000))
    for batch in batches(found, size=8, limit=200, shuffle=True):
        for sample in batch:
            np.testing.assert_array_equal(sample.feeds["x"][0], rows[int(str(sample.label))])


@given(place=st.lists(st.tuples(st.integers(0, 3999), st.integers(0, 40)), max_size=20))
@settings(max_examples=30, deadline=None)
def test_packed_rows_come_in_any_order(place: list[tuple[int, int]], packed: Any) -> None:
    array, rows, reader = packed
    for start, count in place:
        stop = min(start + count, len(rows))
        np.testing.assert_array_equal(reader.rows(array, start, stop), rows[start:stop])


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    rows = np.random.default_rng(1).integers(0, 3, (4000, 257))
    file = tmp_path_factory.mktemp("packed") / "f.npz"
    np.savez_compressed(file, x=rows)
    return npz_arrays(file)["x"], rows, ArrayFiles(10_000_000)


def test_what_unpacks_to_more_than_memory_is_refused_at_once(tmp_path: Path) -> None:
    content = header(2_000_000, 4) + bytes(32_000_000)
    file = archive(tmp_path / "f.npz", zipfile.ZIP_DEFLATED, x=content)
    says = refusal(file, how=SMALL)
    assert "takes 32 MB and quantkit may hold 1 MB: save it with np.savez" in says
    assert "allow more with --memory" in says
    assert len(open_data(file, VECTOR, DataSettings(memory=40_000_000))) == 2_000_000  # type: ignore[arg-type]


def test_labels_do_not_unpack_what_is_beside_them(tmp_path: Path) -> None:
    bomb = header(2_000_000, 4) + bytes(32_000_000)
    labels = header(3, descr="<i8") + np.arange(3).tobytes()
    rows = header(3, 4) + ramp(3, 4).tobytes()
    file = archive(tmp_path / "f.npz", zipfile.ZIP_DEFLATED, x=rows, label=labels, other=bomb)
    found: Any = open_data(file, VECTOR, SMALL)
    assert [found[i].label for i in range(3)] == [0, 1, 2]


def test_one_sample_larger_than_memory_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((2, 300_000), np.float32))
    says = refusal(tmp_path, [spec("x", None, None)], SMALL)
    assert (
        "takes 1.2 MB for one sample and quantkit may hold 1 MB: allow more with --memory" in says
    )


def test_a_billion_samples_take_a_limit_and_no_list(tmp_path: Path) -> None:
    assert len(set(order(10**9, limit=50, shuffle=True).tolist())) == 50
    assert order(10**9, limit=3).tolist() == [0, 1, 2]
    with pytest.raises(UsageError, match=r"There are 1,000,000,000 samples.*: set --limit"):
        order(10**9)
    with (tmp_path / "x.npy").open("wb") as stream:
        stream.write(header(10**9, 4))
        stream.truncate(stream.tell() + 16 * 10**9)
    found: Any = open_data(tmp_path, VECTOR, SMALL)
    assert len(found) == 10**9
    assert len(list(batches(found, limit=5, shuffle=True))) == 5
