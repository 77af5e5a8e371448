"""Hostile data of every kind: mutated bytes, and things that no folder should hold. A result, or one clear error."""

import json
import os
import random
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from builders import Shape, graph, model, node, save, weight
from data.makers import KINDS, TEXTS, picture, ramp, tokenizer
from fuzzing import chance, check, mutated, seeds
from onnx import TensorProto

from quantkit import calibrate


def _compressed(folder: Path) -> None:
    np.savez_compressed(folder / "a.npz", x=ramp(50, 4), label=np.arange(50))


def _photographs(folder: Path) -> None:
    for suffix in ("jpg", "webp", "gif", "tif", "bmp"):
        picture(folder / f"a.{suffix}", (24, 16))
    (folder / "labels.csv").write_text("file,label\na.jpg,1\na.gif,2\na.tif,0\n")


def _boxes(folder: Path) -> None:
    for i in range(3):
        picture(folder / f"{i}.png", (24, 16))
    sizes = [{"id": i, "file_name": f"{i}.png", "width": 24, "height": 16} for i in range(3)]
    boxes = [{"image_id": i, "category_id": 1, "bbox": [1, 2, 3, 4]} for i in range(3)]
    plain = {"images": sizes, "annotations": boxes, "categories": [{"id": 1, "name": "cat"}]}
    (folder / "instances.json").write_text(json.dumps(plain))


def _numbers(folder: Path) -> None:
    rows = "".join(f"{i},{i / 2},{-i},0.25,{i % 2}\n" for i in range(20))
    (folder / "rows.csv").write_text("a,b,c,d,label\n" + rows)


def _parquet(folder: Path) -> None:
    from datasets import Dataset

    rows = {"x": [[float(i)] * 4 for i in range(20)], "label": [f"c{i % 3}" for i in range(20)]}
    Dataset.from_dict(rows).to_parquet(str(folder / "rows.parquet"))


def _arrow(folder: Path) -> None:
    import pyarrow as pa

    table = pa.table({"x": [[float(i)] * 4 for i in range(20)], "label": list("abcde" * 4)})
    with pa.OSFile(str(folder / "rows.arrow"), "wb") as out:
        kind = pa.ipc.new_stream if len(folder.name) % 2 else pa.ipc.new_file
        with kind(out, table.schema) as stream:
            stream.write_table(table)


def _image_column(folder: Path) -> None:
    from datasets import Dataset, Features, Image

    picture(folder / "0.png")
    content = {"bytes": (folder / "0.png").read_bytes(), "path": None}
    (folder / "0.png").unlink()
    features = Features({"image": Image()})
    rows = Dataset.from_dict({"image": [content] * 3}, features=features)
    rows.to_parquet(str(folder / "rows.parquet"))


def _pairs(folder: Path) -> None:
    rows = [{"a": a, "b": b, "score": 0.5} for a, b in pairwise(TEXTS)]
    (folder / "rows.json").write_text(json.dumps(rows))
    tokenizer(folder)


MAKERS: dict[str, tuple[str, Callable[[Path], None]]] = {
    **{kind: ("vector", make) for kind, (make, _) in KINDS.items()},
    "images": ("image", KINDS["images"][0]),
    "csv text": ("text", KINDS["csv text"][0]),
    "compressed": ("vector", _compressed),
    "photographs": ("image", _photographs),
    "boxes": ("image", _boxes),
    "numbers": ("vector", _numbers),
    "parquet": ("vector", _parquet),
    "arrow": ("vector", _arrow),
    "image column": ("image", _image_column),
    "pairs": ("text", _pairs),
}


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Good data of each kind, and a model for it."""
    root = tmp_path_factory.mktemp("templates")
    mm = node("MatMul", ["x", "w"], ["y"], "mm")
    vector = graph([mm], {"x": ["N", 4]}, {"y": ["N", 8]}, {"w": weight(4, 8)})
    save(model(vector), root / "vector.onnx")
    conv = node("Conv", ["input", "w"], ["y"], "conv")
    picture_in: dict[str, Shape] = {"input": ["N", 3, 8, 8]}
    save(
        model(graph([conv], picture_in, {"y": None}, {"w": weight(4, 3, 3, 3)})),
        root / "image.onnx",
    )
    words = [
        node("Gather", ["table", "input_ids"], ["words"], "gather"),
        node("MatMul", ["words", "w"], ["y"], "mm"),
        node("Identity", ["attention_mask"], ["mask"], "keep"),
    ]
    texts = {"input_ids": ["N", "L"], "attention_mask": ["N", "L"]}
    weights = {"table": weight(9, 4), "w": weight(4, 8)}
    save(
        model(
            graph(
                words,
                texts,
                {"y": None, "mask": ["N", "L"]},
                weights,
                types=dict.fromkeys((*texts, "mask"), TensorProto.INT64),
            )
        ),
        root / "text.onnx",
    )
    for kind, (_, make) in MAKERS.items():
        (root / kind).mkdir()
        make(root / kind)
    calibrate(root / "vector.onnx", root / "npz", root / "good.calibration", workers=1)
    return root


def hostile(folder: Path, source: random.Random) -> None:
    """Do to one or two files of a folder what attackers, editors and broken disks do."""
    for _ in range(source.choice((1, 1, 2))):
        files = [f for f in sorted(folder.rglob("*")) if f.is_file() and not f.is_symlink()]
        if not files:
            return
        file = source.choice(files)
        match source.choice(
            ("mutate",) * 12 + ("empty", "pipe", "folder", "gone", "loop", "name", "copy")
        ):
            case "mutate":
                file.write_bytes(mutated(file.read_bytes(), source))
            case "empty":
                file.write_bytes(b"")
            case "copy":
                file.write_bytes(source.choice(files).read_bytes())
            case "name":
                odd = (b"\xff\xfe", b"\x1b[31m", "²".encode(), b"x" * 240, b"a\nb", b"[bold]")
                name = source.choice(odd) + os.fsencode(file.suffix)
                file.rename(file.parent / os.fsdecode(name))
            case what:
                file.unlink()
                if what == "pipe":
                    os.mkfifo(file)
                elif what == "folder":
                    file.mkdir()
                else:
                    file.symlink_to("nowhere" if what == "gone" else file.name)


@pytest.mark.parametrize("seed", seeds(20))
def test_hostile_data(seed: int, templates: Path, tmp_path: Path) -> None:
    source = chance(seed)
    kind = source.choice(sorted(MAKERS))
    shutil.copytree(templates / kind, tmp_path / "data")
    network = f"{MAKERS[kind][0]}.onnx"
    shutil.copy(templates / network, tmp_path / network)
    hostile(tmp_path / "data", source)
    extra = ["--column", "a", "--column", "b"] if kind == "pairs" else []
    check(
        "calibrate",
        network,
        "--data",
        "data",
        "--limit",
        "8",
        "--workers",
        "1",
        "-o",
        "c.calibration",
        *extra,
        *(["--skip-bad"] if source.random() < 0.3 else []),
        folder=tmp_path,
        writes=("c.calibration", "c.calibration.partial"),
    )


@pytest.mark.parametrize("seed", seeds(8))
def test_hostile_calibrations(seed: int, templates: Path, tmp_path: Path) -> None:
    source = chance(seed)
    content = mutated((templates / "good.calibration").read_bytes(), source)
    (tmp_path / "c.calibration").write_bytes(content)
    shutil.copy(templates / "vector.onnx", tmp_path / "vector.onnx")
    check(
        "plan",
        "vector.onnx",
        "--calibration",
        "c.calibration",
        "-o",
        "p.json",
        folder=tmp_path,
        writes=("p.json",),
    )
