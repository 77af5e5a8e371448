"""Boxes: COCO's mean average precision, where detections are found, how labels lie in the model's input.

On 400 random cases (crowds, equal scores, overlaps at the very limit) both figures are those of COCO's own tool to 1e-9.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import graph, model, node, save
from PIL import Image as Picture

from quantkit import evaluate_models
from quantkit.data import Boxes, InputSpec, open_data
from quantkit.errors import DataError
from quantkit.evaluate.accuracy.detection import (
    AveragePrecision,
    Detections,
    matched,
    overlaps,
)
from quantkit.evaluate.gate import judge, rules_of
from quantkit.result import Metric, Result
from quantkit.settings import DataSettings, GateSettings, ImageSettings

SKIP = ("latency", "memory", "layers", "runtime", "fidelity")


def _label(*boxes: tuple[float, float, float, float], crowd: bool = False) -> Boxes:
    count = len(boxes)
    return Boxes(
        boxes=boxes,
        classes=(1,) * count,
        crowd=(crowd,) * count,
        width=100,
        height=100,
        known=(1, 2),
    )


def _image(*rows: tuple[float, float, float, float, float]) -> Detections:
    table = np.array(rows, np.float64).reshape(-1, 5)
    classes = np.ones(len(table), np.int64)
    return Detections(boxes=table[:, :4], scores=table[:, 4], classes=classes)


def _value(images: list[Detections], labels: list[Boxes]) -> float:
    found = matched(images, labels, (0.5,))
    return AveragePrecision(found=(found,), images=len(images), name="map-50").value(0)


def test_average_precision_by_hand() -> None:
    labels = [_label((0, 0, 10, 10)), _label((0, 0, 10, 10))]
    images = [_image((0, 0, 10, 10, 0.9)), _image((50, 50, 60, 60, 0.8), (0, 0, 10, 10, 0.7))]
    # Precision 1 up to a recall of a half (51 of 101 levels), then 2/3; the second class has no boxes.
    assert _value(images, labels) == pytest.approx((51 + 50 * 2 / 3) / 101)
    assert _value([_image(), _image()], labels) == 0
    assert _value(labels_as_images := [_image((0, 0, 10, 10, 0.9))] * 2, labels) == 1
    assert len(labels_as_images) == 2


def test_one_box_is_hit_once() -> None:
    twice = [_image((0, 0, 10, 10, 0.9), (0, 0, 10, 9, 0.8))]
    two = [_label((0, 0, 10, 10), (0, 40, 10, 50))]
    assert _value(twice, two) == pytest.approx(51 / 101)


def test_a_crowd_is_neither_hit_nor_mistake() -> None:
    labels = [_label((0, 0, 10, 10)), _label((0, 0, 100, 100), crowd=True)]
    images = [_image((0, 0, 10, 10, 0.5)), _image((5, 5, 20, 20, 0.9), (30, 30, 50, 50, 0.8))]
    assert _value(images, labels) == 1


def test_overlap() -> None:
    one, other = np.array([[0.0, 0, 10, 10]]), np.array([[5.0, 0, 15, 10], [20, 20, 30, 30]])
    np.testing.assert_allclose(overlaps(one, other), [[50 / 150, 0]])


def test_intervals_are_paired_and_never_of_zero_width() -> None:
    rng = np.random.default_rng(0)
    labels, good, worse = [], [], []
    for _ in range(60):
        x, y = rng.uniform(0, 60, 2)
        labels.append(_label((x, y, x + 30, y + 30)))
        good.append(_image((x + 1, y + 1, x + 30, y + 30, rng.uniform(0.5, 1))))
        shift = 6 if rng.random() < 0.3 else 1
        worse.append(_image((x + shift, y + shift, x + 30, y + 30, rng.uniform(0.5, 1))))
    found = tuple(matched(images, labels) for images in (good, worse, good))
    figure = AveragePrecision(found=found, images=60, name="map")
    drop = figure.value(0) - figure.value(1)
    bounds = figure.drop_interval(1, 0.95, 0)
    assert bounds is not None
    assert 0 < bounds[0] < drop < bounds[1] < 0.5
    same = figure.drop_interval(2, 0.95, 0)
    assert same is not None
    assert same[0] < -0.05
    assert same[1] > 0.05  # as for hits: 3.8 of 60 images
    assert figure.contributions(1).mean() == pytest.approx(drop)
    half = figure.only(np.arange(0, 60, 2))
    assert half.samples == 30
    assert half.value(0) == AveragePrecision(
        found=(matched(good[::2], labels[::2]),), images=30, name="map"
    ).value(0)


def test_one_lost_box_is_not_sure_to_be_the_only_one() -> None:
    labels = [_label((0.0, 0.0, 10.0, 10.0))] * 100
    good = [_image((0, 0, 10, 10, 0.9))] * 100
    figure = AveragePrecision(
        found=(matched(good, labels), matched([_image(), *good[1:]], labels)),
        images=100,
        name="map",
    )
    drop = figure.value(0) - figure.value(1)
    low, high = figure.drop_interval(1, 0.95, 0) or (0.0, 0.0)
    assert drop == pytest.approx(0.01, abs=0.002)
    assert -0.05 < low < 0
    assert 0.04 < high < 0.08  # of one hit lost in 100: -2.7 to 5.4 points


def _coco(
    folder: Path, boxes: dict[str, list[tuple[list[float], int]]], size: tuple[int, int]
) -> None:
    """Write images and instances.json; categories are 3, 5 and 9."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number, (name, found) in enumerate(boxes.items()):
        pixels = rng.integers(0, 256, (size[1], size[0], 3), np.uint8)
        Picture.fromarray(pixels).save(folder / name)
        images.append({"id": number, "file_name": name, "width": size[0], "height": size[1]})
        annotations += [
            {"id": len(annotations) + i, "image_id": number, "bbox": box, "category_id": kind}
            for i, (box, kind) in enumerate(found)
        ]
    categories = [{"id": i, "name": f"kind {i}"} for i in (3, 5, 9)]
    plain = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "instances.json").write_text(json.dumps(plain))


IMAGES: dict[str, list[tuple[list[float], int]]] = {
    f"{i}.png": [([20.0 + i, 10.0, 40.0, 20.0], 5), ([80.0, 10.0 + i, 20.0, 20.0], 9)]
    for i in range(8)
}


def test_labels_lie_where_the_image_lies_in_the_input(tmp_path: Path) -> None:
    _coco(tmp_path / "d", IMAGES, (128, 64))
    spec = InputSpec(name="x", dtype=np.dtype(np.float32), shape=(1, 3, 32, 32))
    stretched = open_data(
        tmp_path / "d", [spec], DataSettings(image=ImageSettings(resize=(32, 32)))
    )
    found: Any = stretched
    assert found.description.labels == "16 boxes on 8 images from instances.json"
    label = found[0].label
    assert label.boxes == ((5.0, 5.0, 15.0, 15.0), (20.0, 5.0, 25.0, 15.0))
    assert (label.width, label.height) == (32, 32)
    # The shorter side to 32, then the middle 32 of 64 columns: half of the scale, 16 columns less.
    cropped: Any = open_data(tmp_path / "d", [spec], DataSettings(image=ImageSettings(resize=32)))
    assert cropped[0].label.boxes == ((0.0, 5.0, 14.0, 15.0), (24.0, 5.0, 32.0, 15.0))
    # A quarter of the size, between borders of 8 above and below.
    boxed: Any = open_data(tmp_path / "d", [spec], DataSettings(image=ImageSettings(letterbox=32)))
    assert boxed[0].label.boxes == ((5.0, 10.5, 15.0, 15.5), (20.0, 10.5, 25.0, 15.5))


def _detector(path: Path, tables: dict[str, np.ndarray[Any, Any]]) -> Path:
    """A model that answers every image alike."""
    nodes = [node("ReduceMean", ["x"], ["m"], keepdims=0), node("Mul", ["m", "zero"], ["z"])]
    held: dict[str, Any] = {"zero": np.zeros((), np.float32)}
    outputs: dict[str, Any] = {}
    for name, table in tables.items():
        held[f"{name}_table"] = table.astype(np.float32)
        nodes.append(node("Add", [f"{name}_table", "z"], [name]))
        outputs[name] = table.shape
    return save(model(graph(nodes, {"x": (1, 3, 32, 32)}, outputs, held)), path)


def _table(*, scale: float, shift: float = 0.0, first: int = 0) -> np.ndarray[Any, Any]:
    """The two boxes of `IMAGES` as they lie in an input of 32 x 32, of the classes 1 and 2 of 0, 1, 2."""
    boxes = np.array([[6.0, 5, 16, 15], [20, 6, 25, 16]]) + shift
    rest = np.array([[0.9, 1 + first], [0.8, 2 + first]])
    padding = [[0.0, 0, 0, 0, 0, -1]]
    return np.concatenate([np.concatenate([boxes * scale, rest], 1), padding])[None]


def _evaluated(tmp_path: Path, *tables: dict[str, np.ndarray[Any, Any]], **other: Any) -> Result:
    _coco(tmp_path / "d", IMAGES, (128, 64))
    paths = [_detector(tmp_path / f"{i}.onnx", tables) for i, tables in enumerate(tables)]
    how = DataSettings(image=ImageSettings(resize=(32, 32), preset="unit"))
    return evaluate_models(paths[0], paths[1:], tmp_path / "d", skip=SKIP, settings=how, **other)


def _metrics(result: Result, place: int) -> dict[str, Metric]:
    return {m.name: m for m in result.models[place].metrics}


@pytest.mark.parametrize(
    "form", ["table", "table of parts", "from 1", "seven columns", "three outputs", "tensorflow"]
)
def test_detections_are_found_in_the_usual_outputs(form: str, tmp_path: Path) -> None:
    scale = 1 / 32 if form in {"table of parts", "tensorflow"} else 1.0
    both = []
    for shift in (0.0, 3.0):
        table = _table(scale=scale, shift=shift, first=int(form == "from 1"))
        if form == "seven columns":
            table = np.concatenate([np.zeros((1, 3, 1)), table[..., [0, 1, 2, 3, 5, 4]]], 2)
        outputs = {"detections": table}
        if form == "three outputs":
            outputs = {"boxes": table[..., :4], "labels": table[..., 5], "scores": table[..., 4]}
        elif form == "tensorflow":
            outputs = {
                "detection_boxes": table[..., [1, 0, 3, 2]],
                "detection_classes": table[..., 5],
                "detection_scores": table[..., 4],
                "num_detections": np.array([3.0]),
            }
        both.append(outputs)
    result = _evaluated(tmp_path, *both)
    float_metrics, metrics = _metrics(result, 0), _metrics(result, 1)
    assert float_metrics["map"].main
    assert float_metrics["map-50"].value > 0.9
    assert float_metrics["iou"].value > 0.8
    assert float_metrics["map"].is_guess  # it says the same of every image
    drop = metrics["map"].drop
    assert drop is not None
    assert drop > 0.4
    numbering = "from 1" if form == "from 1" else "from 0"
    assert any(f"places among the categories, {numbering}" in note for note in result.notes)


def test_a_longer_list_of_boxes_is_no_contradiction(tmp_path: Path) -> None:
    table = _table(scale=1.0)
    longer = np.concatenate(
        [table[:, ::-1], table[:, -1:]], axis=1
    )  # other order, one empty row more
    result = _evaluated(tmp_path, {"detections": table}, {"detections": table[:, ::-1]})
    assert longer.shape == (1, 4, 6)
    (verdict,) = judge(result, rules_of(GateSettings(max_drop=0.99)))
    assert "contradiction" not in [o.kind for o in verdict.objections]
    assert _metrics(result, 1)["map"].drop == 0


def _head(form: str, shift: float) -> np.ndarray[Any, Any]:
    """The same two boxes as YOLO's heads have them: each found at three places that overlap, the rest empty."""
    table = _table(scale=1.0, shift=shift)[0]
    head = np.zeros((400, 4 + 3))
    for place, (x1, y1, x2, y2, score, kind) in enumerate(table[:2]):
        for again in range(3):
            row = head[20 * place + again]
            row[:4] = (x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1 + 0.1 * again
            row[4 + int(kind)] = score - 0.1 * again
    if form == "columns":
        return head.T[None]
    sure = (head[:, 4:].max(axis=1, keepdims=True) > 0).astype(np.float64)
    return np.concatenate([head[:, :4], sure, head[:, 4:]], axis=1)[None]


@pytest.mark.parametrize("form", ["columns", "rows"])
def test_heads_of_yolo_are_suppressed(form: str, tmp_path: Path) -> None:
    heads = [{"output0": _head(form, shift)} for shift in (0.0, 3.0)]
    result = _evaluated(tmp_path, *heads)
    metrics = _metrics(result, 0)
    assert metrics["map-50"].value > 0.9  # copies would be mistakes
    assert metrics["iou"].value > 0.8
    assert (_metrics(result, 1)["map"].drop or 0) > 0.4


def test_outputs_of_another_kind_are_refused_with_what_to_do(tmp_path: Path) -> None:
    raw = {"output0": np.zeros((1, 3, 20, 20))}
    with pytest.raises(DataError, match=r"'output0' \[1, 3, 20, 20\]: export it with suppression"):
        _evaluated(tmp_path, raw, raw)


def test_labels_that_are_no_boxes_are_refused(tmp_path: Path) -> None:
    table = {"detections": _table(scale=1.0)}
    paths = [_detector(tmp_path / name, table) for name in ("a.onnx", "b.onnx")]
    images = np.zeros((3, 3, 32, 32), np.float32)
    np.savez(tmp_path / "d.npz", x=images, label=np.arange(3))
    with pytest.raises(DataError, match="map needs boxes, and the label of"):
        evaluate_models(paths[0], paths[1], tmp_path / "d.npz", metric="map", skip=SKIP)


def _one(**changed: Any) -> str:
    """A COCO file with one image and one box, and something else in it."""
    image = {"id": 1, "file_name": "0.png", "width": 128, "height": 64}
    box = {"image_id": 1, "category_id": 3, "bbox": [1, 2, 3, 4]}
    for key, value in changed.items():
        (image if key in image else box)[key] = value
    return json.dumps({"images": [image], "annotations": [box], "categories": [{"id": 3}]})


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ("[]", "it holds a list"),
        ("{", "is not JSON"),
        ('{"images": [], "annotations": []}', "'categories' is missing"),
        ('{"images": [{"id": 1}], "annotations": [], "categories": []}', "'file_name' is missing"),
        ("[" * 100_000, "is not JSON"),
        (_one(width=0), "an image of 0x64 pixels"),
        (_one(width=1e400), "is no COCO file"),
        (_one(bbox=[1, 2, 3]), "is no COCO file"),
        (_one(bbox=[1, 2, 3, float("nan")]), "a box of"),
        (_one(bbox="1234"), None),
        (_one(image_id=[1]), "is no COCO file"),
        (_one(category_id="x"), "is no COCO file"),
    ],
)
def test_what_is_no_coco_file_is_said(plain: str, message: str | None, tmp_path: Path) -> None:
    _coco(tmp_path / "d", IMAGES, (128, 64))
    (tmp_path / "d" / "instances.json").write_text(plain)
    spec = InputSpec(name="x", dtype=np.dtype(np.float32), shape=(1, 3, 32, 32))
    if message is None:
        open_data(tmp_path / "d", [spec])
        return
    with pytest.raises(DataError, match=message):
        open_data(tmp_path / "d", [spec])


def test_boxes_that_memory_does_not_hold_are_not_read(tmp_path: Path) -> None:
    _coco(tmp_path / "d", IMAGES, (128, 64))
    (tmp_path / "d" / "instances.json").write_text(_one() + " " * 3_000_000)
    spec = InputSpec(name="x", dtype=np.dtype(np.float32), shape=(1, 3, 32, 32))
    with pytest.raises(DataError, match=r"take about .* of memory: set --memory"):
        open_data(tmp_path / "d", [spec], DataSettings(memory=20_000_000))
    with pytest.raises(DataError, match=r"no file of boxes 'other\.json'"):
        open_data(tmp_path / "d", [spec], DataSettings(label="other.json"))
