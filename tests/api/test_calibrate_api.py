"""`quantkit.calibrate`: Python objects of every kind as data, batches, shapes, limits, memory."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import Array, graph, model, node, rng, save, weight
from onnx import TensorProto

import quantkit
from quantkit.calibration import Calibration
from quantkit.errors import DataError, UsageError

K = 6
ROWS = rng().standard_normal((48, K)).astype(np.float32)
ORDERED = quantkit.DataSettings(shuffle=False)


def product(batch: int | str = "N") -> onnx.ModelProto:
    nodes = [node("MatMul", ["x", "w"], ["m"], "mm"), node("Relu", ["m"], ["y"], "r")]
    return model(graph(nodes, {"x": [batch, K]}, {"y": [batch, K]}, {"w": weight(K, K)}))


def exact(rows: Array = ROWS) -> dict[str, tuple[float, float]]:
    y = np.maximum(rows @ weight(K, K), 0)
    return {"x": (rows.min(), rows.max()), "y": (0.0, y.max())}


def assert_ranges(found: Calibration, rows: Array = ROWS) -> None:
    ranges = found.ranges()
    assert set(ranges) == {"x", "y"}
    for tensor, ends in exact(rows).items():
        assert ranges[tensor] == pytest.approx(ends, rel=1e-5)


class Reader:
    """As onnxruntime's CalibrationDataReader."""

    def __init__(self, rows: Array) -> None:
        self.rows = iter(rows)

    def get_next(self) -> dict[str, Array] | None:
        row = next(self.rows, None)
        return None if row is None else {"x": row[None]}


def generator() -> Iterator[dict[str, Array]]:
    for row in ROWS:
        yield {"x": row}


def dataset() -> Any:
    from datasets import Dataset

    return Dataset.from_dict({"x": ROWS.tolist()})


def onnxruntime_reader() -> Any:
    from onnxruntime.quantization import CalibrationDataReader

    class Own(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.rows = iter(ROWS)

        def get_next(self) -> dict[str, Array] | None:
            row = next(self.rows, None)
            return None if row is None else {"x": row[None]}

    return Own()


KINDS: dict[str, Callable[[], Any]] = {
    "list": lambda: [{"x": row} for row in ROWS],
    "list-with-batch-axis": lambda: [{"x": row[None]} for row in ROWS],
    "dict-of-arrays": lambda: {"x": ROWS},
    "array": lambda: ROWS,
    "iterator": generator,
    "duck-typed-reader": lambda: Reader(ROWS),
    "onnxruntime-reader": onnxruntime_reader,
    "dataset": dataset,
}


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_data_gives_the_same_ranges(kind: str, batch: int) -> None:
    found = quantkit.calibrate(product(), KINDS[kind](), method="minmax", batch=batch)
    assert_ranges(found)
    assert found.header["audit"]["samples"] == len(ROWS)
    assert sorted(found.seen.samples) == list(range(len(ROWS)))


def test_a_list_and_an_iterator_in_the_same_order_see_the_same() -> None:
    one = quantkit.calibrate(product(), KINDS["list"](), settings=ORDERED)
    other = quantkit.calibrate(product(), generator())
    for tensor in one.tensors:
        assert one.seen.extremes[tensor] == other.seen.extremes[tensor]
    assert one.ranges() == other.ranges()


def test_a_limit_takes_so_many() -> None:
    for data in (KINDS["list"](), generator(), Reader(ROWS)):
        found = quantkit.calibrate(product(), data, method="minmax", limit=20, settings=ORDERED)
        assert_ranges(found, ROWS[:20])
    found = quantkit.calibrate(product(), {"x": ROWS}, limit=1000)
    assert len(found.seen.samples) == len(ROWS)


def test_the_order_is_mixed_by_the_seed() -> None:
    def first(seed: int) -> tuple[float, float]:
        settings = quantkit.DataSettings(seed=seed)
        found = quantkit.calibrate(product(), {"x": ROWS}, limit=8, settings=settings)
        return found.ranges()["x"]

    assert first(1) == first(1)
    assert len({first(seed) for seed in range(4)}) > 1


@pytest.mark.parametrize("batch", [None, 1, 7])
def test_a_model_of_a_fixed_batch_is_fed_its_own(batch: int | None) -> None:
    found = quantkit.calibrate(product(4), {"x": ROWS}, method="minmax", batch=batch)
    assert_ranges(found)
    found = quantkit.calibrate(product(1), {"x": ROWS}, method="minmax", batch=batch)
    assert_ranges(found)


@pytest.mark.parametrize(
    "batch",
    [
        None,
        3,
    ],
)
def test_a_model_of_a_fixed_batch_takes_a_stream(batch: int | None) -> None:
    assert_ranges(quantkit.calibrate(product(1), generator(), method="minmax", batch=batch))


def pictures(folder: Path, count: int) -> Path:
    from PIL import Image

    folder.mkdir()
    for i in range(count):
        pixels = rng(i).integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")
    return folder


def convolution(batch: int | str) -> onnx.ModelProto:
    shape = [batch, 3, 8, 8]
    nodes = [node("Conv", ["x", "w"], ["y"], "c")]
    return model(graph(nodes, {"x": shape}, {"y": shape}, {"w": weight(3, 3, 1, 1)}))


def test_images_fill_a_fixed_batch_and_the_rest_is_left_out(tmp_path: Path) -> None:
    found = quantkit.calibrate(convolution(4), pictures(tmp_path / "p", 10))
    assert len(found.seen.samples) == 8


def test_too_few_images_for_a_fixed_batch_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="batch"):
        quantkit.calibrate(convolution(4), pictures(tmp_path / "p", 3))


def test_bad_images_are_left_out_of_a_fixed_batch(tmp_path: Path) -> None:
    folder = pictures(tmp_path / "p", 9)
    (folder / "5.png").write_text("no image")
    found = quantkit.calibrate(convolution(4), folder, skip_bad=True)
    assert len(found.seen.samples) >= 4


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "list"])
@pytest.mark.parametrize("batch", [1, 4])
def test_samples_of_different_shapes(batch: int, *, stream: bool) -> None:
    nodes = [node("MatMul", ["x", "w"], ["m"], "mm"), node("Relu", ["m"], ["y"], "r")]
    shape: list[int | str | None] = ["N", "L", K]
    proto = model(graph(nodes, {"x": shape}, {"y": shape}, {"w": weight(K, K)}))
    arrays = [rng(i).standard_normal((1 + i % 3, K)).astype(np.float32) for i in range(12)]
    feeds = [{"x": a} for a in arrays]
    data = iter(feeds) if stream else feeds
    found = quantkit.calibrate(proto, data, method="minmax", batch=batch)
    assert_ranges(found, np.concatenate(arrays))


def test_a_model_with_two_inputs_of_different_types() -> None:
    nodes = [node("Gather", ["table", "ids"], ["e"]), node("MatMul", ["e", "w"], ["m"])]
    nodes.append(node("Add", ["m", "x"], ["y"]))
    types = {"ids": TensorProto.INT64}
    weights = {"table": weight(9, K), "w": weight(K, K)}
    proto = model(
        graph(nodes, {"ids": ["N"], "x": ["N", K]}, {"y": ["N", K]}, weights, types=types)
    )
    data = [{"ids": np.array([i % 9]), "x": ROWS[i : i + 1]} for i in range(12)]
    found = quantkit.calibrate(proto, data, batch=3)
    assert "ids" not in found.tensors
    assert {"x", "y"} <= set(found.tensors)


def test_a_path_and_a_model_in_memory_give_the_same(tmp_path: Path) -> None:
    path = save(product(), tmp_path / "m.onnx")
    before = path.read_bytes()
    found = quantkit.calibrate(str(path), {"x": ROWS}, str(tmp_path / "c"))
    assert found.ranges() == quantkit.calibrate(product(), {"x": ROWS}).ranges()
    assert found.ranges() == quantkit.Calibration.load(tmp_path / "c").ranges()
    assert path.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c", "m.onnx"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"method": "mini"}, "mini"),
        ({"percentile": 200.0}, "200"),
        ({"limit": 0}, "limit"),
        ({"batch": 0}, "batch"),
    ],
    ids=["method", "percentile", "limit", "batch"],
)
def test_arguments_that_make_no_sense(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        quantkit.calibrate(product(), {"x": ROWS}, **given)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ([], DataError),
        (iter([]), DataError),
        (3, UsageError),
        ([1, 2], DataError),
        ([{"z": ROWS[0]}], DataError),
        ([{"x": ROWS[0], "z": ROWS[0]}], DataError),
    ],
    ids=["empty-list", "empty-iterator", "number", "list-of-numbers", "wrong-name", "extra"],
)
def test_data_that_makes_no_sense(data: Any, error: type[Exception], tmp_path: Path) -> None:
    with pytest.raises(error):
        quantkit.calibrate(product(), data, tmp_path / "c")
    assert list(tmp_path.iterdir()) == []


def test_a_stream_that_breaks_half_way_is_a_data_error(tmp_path: Path) -> None:
    def broken() -> Iterator[dict[str, Array]]:
        yield from generator()
        yield {"x": ROWS[0, :-1]}

    with pytest.raises(DataError, match="sample 48"):
        quantkit.calibrate(product(), broken(), tmp_path / "c")
    assert list(tmp_path.iterdir()) == []


_WATCH = """
import re, sys
from pathlib import Path
import numpy as np
import quantkit

class Rows:
    def __init__(self, count): self.count = count
    def __len__(self): return self.count
    def __getitem__(self, i): return {"x": np.full(6, i, np.float32)}

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

for count in (10_000, 100_000):
    quantkit.calibrate(sys.argv[1], Rows(count), batch=256, workers=int(sys.argv[2]))
    print(peak())
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's peak memory")
def test_memory_does_not_grow_with_the_number_of_samples(tmp_path: Path) -> None:
    path = save(product(), tmp_path / "m.onnx")
    command = [sys.executable, "-c", _WATCH, str(path), "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    few, many = (int(line) for line in done.stdout.split())
    assert many - few < 24_000  # KB


def test_a_detector_that_takes_any_size_says_which_size_to_set(tmp_path: Path) -> None:
    from data.makers import picture

    nodes = [
        node("Conv", ["x", "w"], ["small"], "down", strides=[2, 2], pads=[1, 1, 1, 1]),
        node("Resize", ["small", "", "twice"], ["large"], "up"),
        node("Concat", ["x", "large"], ["y"], "both", axis=1),
    ]
    weights = {"w": weight(3, 3, 3, 3), "twice": np.array([1, 1, 2, 2], np.float32)}
    detector = model(graph(nodes, {"x": ["N", 3, "H", "W"]}, {"y": None}, weights))
    picture(tmp_path / "a.png", (41, 21))
    picture(tmp_path / "b.png", (40, 20))
    with pytest.raises(DataError, match=r"own size: set --letterbox 640x640 or --resize 640x640"):
        quantkit.calibrate(detector, tmp_path)
    boxed = quantkit.DataSettings(image=quantkit.ImageSettings(preset="unit", letterbox=32))
    assert quantkit.calibrate(detector, tmp_path, settings=boxed).ranges()


def test_only_minima_and_maxima_as_on_the_command_line() -> None:
    found = quantkit.calibrate(product(), {"x": ROWS}, minmax_only=True, threads=2)
    assert_ranges(found)
    with pytest.raises(UsageError, match="minmax_only takes what the method 'minmax' needs, not"):
        quantkit.calibrate(product(), {"x": ROWS}, minmax_only=True, method="mse")
    with pytest.raises(UsageError, match="not 'percentile'"):
        quantkit.calibrate(product(), {"x": ROWS}, minmax_only=True, percentile=99.0)


def test_every_value_is_counted_on_request() -> None:
    rows = rng().standard_normal((4, 3_000_000 // K)).astype(np.float32)
    nodes = [node("MatMul", ["x", "w"], ["y"], "mm")]
    size = rows.shape[1]
    wide = model(graph(nodes, {"x": ["N", size]}, {"y": ["N", 2]}, {"w": weight(size, 2)}))
    for every in (False, True):
        found = quantkit.calibrate(wide, {"x": rows}, every_value=every)
        seen = next(t for t in found.header["audit"]["tensors"] if t["tensor"] == "x")
        assert (seen["counted"] == seen["seen"]) == every
