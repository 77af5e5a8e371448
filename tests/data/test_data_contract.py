"""What holds for every kind of data: pickling, threads, fingerprints, the first sample's check."""

import pickle
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from data.makers import IMAGE, KINDS, TEXT, VECTOR, picture, ramp, spec

from quantkit.data import InputSpec, Sample, Samples, open_data
from quantkit.settings import DataSettings, ImageSettings, TextSettings

EACH = pytest.mark.parametrize("kind", KINDS)


def opened(kind: str, folder: Path, settings: DataSettings | None = None) -> Samples:
    make, inputs = KINDS[kind]
    folder.mkdir(exist_ok=True)
    make(folder)
    return cast("Samples", open_data(folder, inputs, settings or DataSettings()))


def same(a: Sample, b: Sample) -> bool:
    return (
        (a.name, a.label, a.padding) == (b.name, b.label, b.padding)
        and set(a.feeds) == set(b.feeds)
        and all(np.array_equal(a.feeds[n], b.feeds[n]) for n in a.feeds)
    )


@EACH
def test_samples_have_the_models_rank_and_dtype(kind: str, tmp_path: Path) -> None:
    samples = opened(kind, tmp_path)
    assert isinstance(samples, Samples)
    assert samples.description.samples == len(samples) > 2
    for i in range(len(samples)):
        for want in KINDS[kind][1]:
            array = samples[i].feeds[want.name]
            assert array.dtype == want.dtype
            assert array.ndim == len(want.shape)
            assert array.flags.c_contiguous


@EACH
def test_a_pickled_copy_reads_the_same(kind: str, tmp_path: Path) -> None:
    samples = opened(kind, tmp_path)
    copy = pickle.loads(pickle.dumps(samples))  # noqa: S301 our own bytes
    assert copy.description == samples.description
    assert copy.fingerprint() == samples.fingerprint()
    assert all(same(copy[i], samples[i]) for i in range(len(samples)))


@EACH
def test_threads_read_what_one_thread_reads(kind: str, tmp_path: Path) -> None:
    samples = opened(kind, tmp_path)
    expected = [samples[i] for i in range(len(samples))]
    order = np.random.default_rng(0).integers(0, len(samples), 100)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda i: samples[int(i)], order))
    assert all(same(f, expected[i]) for f, i in zip(found, order, strict=True))


@EACH
def test_the_fingerprint_survives_a_copy_and_sees_a_change(kind: str, tmp_path: Path) -> None:
    before = opened(kind, tmp_path / "a").fingerprint()
    shutil.copytree(tmp_path / "a", tmp_path / "elsewhere")
    inputs = KINDS[kind][1]
    copy = cast("Samples", open_data(tmp_path / "elsewhere", inputs, DataSettings()))
    assert copy.fingerprint() == before
    assert len(before) == 64
    file = min(p for p in (tmp_path / "elsewhere").rglob("*.*") if p.name != "tokenizer.json")
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(bytes(content))
    assert copy.fingerprint() != before


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("images", DataSettings(image=ImageSettings(preset="symmetric"))),
        ("images", DataSettings(image=ImageSettings(channels="BGR"))),
        ("csv text", DataSettings(text=TextSettings(max_length=2))),
        ("csv text", DataSettings(label="text", text=TextSettings(column=("text",)))),
    ],
    ids=["preset", "channels", "max_length", "label"],
)
def test_settings_that_change_arrays_change_the_fingerprint(
    kind: str, settings: DataSettings, tmp_path: Path
) -> None:
    assert opened(kind, tmp_path, settings).fingerprint() != opened(kind, tmp_path).fingerprint()


def test_choosing_samples_does_not_change_the_fingerprint(tmp_path: Path) -> None:
    chosen = DataSettings(limit=2, batch=3, seed=7, shuffle=False)
    assert opened("npz", tmp_path, chosen).fingerprint() == opened("npz", tmp_path).fingerprint()


def test_the_middle_of_a_large_file_is_not_in_the_fingerprint_its_size_is(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((100_000, 4), np.float32))
    before = cast("Samples", open_data(tmp_path, VECTOR)).fingerprint()
    np.save(tmp_path / "a.npy", np.zeros((100_001, 4), np.float32))
    assert cast("Samples", open_data(tmp_path, VECTOR)).fingerprint() != before


@EACH
def test_an_index_beyond_the_end_is_an_index_error(kind: str, tmp_path: Path) -> None:
    samples = opened(kind, tmp_path)
    with pytest.raises(IndexError):
        samples[len(samples)]
    with pytest.raises(IndexError):
        samples[-1]


@pytest.mark.parametrize(
    ("kind", "labels", "line"),
    [
        ("npz", [0, 1, 2, 0, 1], "3 classes from 'label'"),
        ("npy", [None] * 5, "none"),
        ("images", [0, 0, 1, 1], "2 classes from folder names"),
        ("test sets", [None] * 3, "none"),
        ("csv text", [0, 1, 2, 3], "4 classes from column 'label'"),
        ("saved dataset", [0.5, 1.5, 2.5, 3.5], "numbers from column 'target'"),
    ],
)
def test_labels(kind: str, labels: Sequence[int | float | None], line: str, tmp_path: Path) -> None:
    samples = opened(kind, tmp_path)
    assert sorted((samples[i].label for i in range(len(samples))), key=str) == sorted(
        labels, key=str
    )
    assert samples.description.labels == line


@pytest.mark.parametrize(
    ("kind", "inputs"),
    [("images", IMAGE), ("csv text", TEXT)],
    ids=["images", "text"],
)
def test_a_fixed_batch_is_filled_by_the_caller(
    kind: str, inputs: tuple[InputSpec, ...], tmp_path: Path
) -> None:
    KINDS[kind][0](tmp_path)
    fixed = [spec(i.name, 2, *i.shape[1:], dtype=i.dtype.name) for i in inputs]
    samples = cast("Samples", open_data(tmp_path, fixed))
    assert samples[0].feeds[fixed[0].name].shape[0] == 1


def test_images_say_that_the_batch_is_fixed(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    description = open_data(tmp_path, [spec("input", 4, 3, 8, 8)]).description
    assert any("takes 4 images at once" in w for w in description.warnings)


def test_settings_that_do_nothing_for_this_kind_of_data_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=ramp(3, 4))
    settings = DataSettings(
        image=ImageSettings(preset="imagenet", mean=(1.0,)), text=TextSettings(max_length=5)
    )
    found = open_data(tmp_path / "a.npz", VECTOR, settings)
    assert found.description.warnings == (
        "No effect on npz data: preset, mean (for images).",
        "No effect on npz data: max_length (for text).",
    )
    rows = [{"x": np.zeros((1, 4), np.float32)}]
    assert len(open_data(rows, VECTOR, settings).description.warnings) == 2
    picture(tmp_path / "images" / "a.png")
    pictures = open_data(tmp_path / "images", IMAGE, settings).description.warnings
    assert pictures == ("No effect on image folder data: max_length (for text).",)
