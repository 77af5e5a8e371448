"""Folders with links, pipes and names that no data set should have."""

import os
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data.makers import IMAGE, VECTOR, picture, ramp, test_set

from quantkit.data import detect as detecting
from quantkit.data import open_data
from quantkit.data.detect import detect, natural
from quantkit.errors import DataError


def test_links_to_folders_are_not_followed_and_that_is_said(tmp_path: Path) -> None:
    data = tmp_path / "data"
    picture(data / "in" / "a.png")
    picture(tmp_path / "outside" / "b.png")
    (data / "out").symlink_to(tmp_path / "outside")
    (data / "in" / "loop").symlink_to(data)
    found: Any = open_data(data, IMAGE)
    assert [found[i].name for i in range(len(found))] == ["in/a.png"]
    assert "Links to folders are not followed: 'loop' and 'out'." in found.description.warnings


def test_a_folder_of_links_alone_says_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "all").symlink_to("/")
    with pytest.raises(DataError, match="links to folders are not followed: 'all'"):
        open_data(tmp_path, IMAGE)


def test_a_link_to_a_file_is_a_file_and_a_link_to_the_data_is_the_data(tmp_path: Path) -> None:
    picture(tmp_path / "store" / "a.png")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x.png").symlink_to(tmp_path / "store" / "a.png")
    (tmp_path / "link").symlink_to(tmp_path / "data")
    assert len(open_data(tmp_path / "link", IMAGE)) == 1  # type: ignore[arg-type]


def test_the_number_of_files_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(12):
        picture(tmp_path / "in" / f"{i}.png")
    assert len(detect(tmp_path).files) == 12
    monkeypatch.setattr(detecting, "_MOST", 5)
    with pytest.raises(DataError, match="holds more than 5 files: point --data at a part"):
        detect(tmp_path)


@pytest.mark.parametrize("name", ["b.npz", "b.csv", "in/b.png", "labels.csv", "input_0.pb"])
def test_pipes_and_sockets_are_never_opened(name: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    os.mkfifo(tmp_path / name)
    with pytest.raises(DataError, match="no data that quantkit reads"):
        detect(tmp_path)
    with pytest.raises(DataError, match="is neither a file nor a directory"):
        detect(tmp_path / name)


def test_what_is_no_regular_file_is_passed_over_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path must be short
    np.savez("a.npz", x=ramp(3, 4))
    os.mkfifo("pipe.npz")
    Path("gone.npz").symlink_to("nowhere")
    Path("loop.npz").symlink_to("loop.npz")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("s.npz")
        found: Any = open_data(".", VECTOR)
    says = "No regular files, so passed over: 'gone.npz', 'loop.npz', 'pipe.npz' and 's.npz'."
    assert (len(found), found.description.warnings) == (3, (says,))


def test_a_pipe_beside_images_is_no_table_of_labels(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    os.mkfifo(tmp_path / "labels.csv")
    found: Any = open_data(tmp_path, IMAGE)
    assert found[0].label is None


def test_a_pipe_in_a_test_set_is_passed_over(tmp_path: Path) -> None:
    test_set(tmp_path / "test_data_set_0", {"x": ramp(1, 4)})
    os.mkfifo(tmp_path / "test_data_set_0" / "input_1.pb")
    assert len(open_data(tmp_path, VECTOR)) == 1  # type: ignore[arg-type]


def test_folders_named_like_files_are_no_files(tmp_path: Path) -> None:
    (tmp_path / "a.npz").mkdir()
    with pytest.raises(DataError, match="holds no data that quantkit reads"):
        open_data(tmp_path, VECTOR)


def test_names_that_are_no_utf8_can_be_written_down(tmp_path: Path) -> None:
    name = os.fsdecode(b"a\xff\xfe.npz")
    np.savez(tmp_path / "a.npz", x=ramp(3, 4))
    (tmp_path / "a.npz").rename(tmp_path / name)
    found: Any = open_data(tmp_path, VECTOR)
    assert found[1].name == r"a\udcff\udcfe.npz row 1"
    assert found[1].name.encode()
    assert found.description.location.encode()
    assert len(found.fingerprint()) == 64


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "n" * 5000])
def test_impossible_names_are_one_clear_line(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"There is no data|Cannot look into"):
        open_data(tmp_path / name, VECTOR)


def test_digits_that_are_no_numbers_are_sorted_as_text() -> None:
    assert min([Path("a10"), Path("a²"), Path("a9")], key=natural) == Path("a9")


def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root reads everything")
    picture(tmp_path / "a.png")
    (tmp_path / "shut").mkdir(mode=0)
    found: Any = open_data(tmp_path, IMAGE)
    assert any("cannot be looked into" in words for words in found.description.warnings)
