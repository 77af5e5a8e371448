"""Small data of every kind, made in a temporary folder."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantkit.data import InputSpec

Array = NDArray[Any]
TEXTS = ("the cat sat", "a dog", "the dog sat on the mat", "cat")
VOCABULARY = ("[PAD]", "[UNK]", "the", "cat", "sat", "a", "dog", "on", "mat")


def spec(name: str, *shape: int | None, dtype: str = "float32", axis: str = "") -> InputSpec:
    return InputSpec(name=name, dtype=np.dtype(dtype), shape=shape, axis=axis)


IMAGE = (spec("input", None, 3, 8, 8),)
VECTOR = (spec("x", None, 4),)
TEXT = tuple(spec(n, None, None, dtype="int64") for n in ("input_ids", "attention_mask"))


def ramp(*shape: int, dtype: str = "float32") -> Array:
    return np.arange(np.prod(shape), dtype=dtype).reshape(shape)


def picture(file: Path, size: tuple[int, int] = (8, 8), seed: int = 0, mode: str = "RGB") -> Array:
    """Write noise of (width, height); return its pixels."""
    from PIL import Image

    file.parent.mkdir(parents=True, exist_ok=True)
    shape = size[::-1] if mode == "L" else (*size[::-1], len(mode))
    pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    Image.fromarray(pixels, mode).save(file)
    return pixels


def tokenizer(folder: Path, **padding: Any) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers

    made = Tokenizer(
        models.WordLevel({w: i for i, w in enumerate(VOCABULARY)}, unk_token=VOCABULARY[1])
    )
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    if padding:
        made.enable_padding(**padding)
    file = folder / "tokenizer.json"
    made.save(str(file))
    return file


def test_set(folder: Path, arrays: dict[str, Array]) -> None:
    from onnx import numpy_helper

    folder.mkdir(parents=True)
    for i, (name, array) in enumerate(arrays.items()):
        tensor = numpy_helper.from_array(array, name)
        (folder / f"input_{i}.pb").write_bytes(tensor.SerializeToString())


test_set.__test__ = False  # type: ignore[attr-defined]


def _npz(folder: Path) -> None:
    np.savez(folder / "a.npz", x=ramp(3, 4), label=np.arange(3))
    np.savez_compressed(folder / "b.npz", x=ramp(2, 4) + 100, label=np.arange(2))


def _npy(folder: Path) -> None:
    np.save(folder / "a.npy", ramp(3, 4))
    np.save(folder / "b.npy", ramp(2, 4))


def _images(folder: Path) -> None:
    for i in range(4):
        picture(folder / f"{'cat' if i % 2 else 'dog'}/{i}.png", seed=i)


def _test_sets(folder: Path) -> None:
    for i in range(3):
        test_set(folder / f"test_data_set_{i}", {"x": ramp(2, 4) + i})


def _csv(folder: Path) -> None:
    rows = "".join(f'"{text}",{i}\n' for i, text in enumerate(TEXTS))
    (folder / "rows.csv").write_text("text,label\n" + rows)
    tokenizer(folder)


def _jsonl(folder: Path) -> None:
    lines = [json.dumps({"x": [float(i)] * 4, "label": i}) for i in range(4)]
    (folder / "rows.jsonl").write_text("\n".join(lines))


def _saved(folder: Path) -> None:
    from datasets import Dataset

    rows = {"x": [[float(i)] * 4 for i in range(4)], "target": [0.5, 1.5, 2.5, 3.5]}
    Dataset.from_dict(rows).save_to_disk(str(folder))


Maker = Callable[[Path], None]
KINDS: dict[str, tuple[Maker, tuple[InputSpec, ...]]] = {
    "npz": (_npz, VECTOR),
    "npy": (_npy, VECTOR),
    "images": (_images, IMAGE),
    "test sets": (_test_sets, VECTOR),
    "csv text": (_csv, TEXT),
    "jsonl arrays": (_jsonl, VECTOR),
    "saved dataset": (_saved, VECTOR),
}
"""Kind -> what writes a folder of it, and the inputs of a model that takes it."""
