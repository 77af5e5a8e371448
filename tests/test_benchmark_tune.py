"""The benchmark of tune: its table and picture are made of its figures, and what NNCF asks is answered and counted."""

from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import onnx
import pytest
from builders import graph, model, node
from static_jobs import Control
from tune import markdown
from tune_picture import picture

MACHINE = {
    "cpu": "some",
    "cores": 2,
    "flags": {"avx_vnni": True, "avx512_vnni": False},
    "python": "3.11",
    "versions": {"quantkit": "0"},
    "commit": "c",
    "time": "now",
    "load_average": [0.0],
}


def _row(drop: float, time: float, **more: Any) -> dict[str, Any]:
    figures = {"value": 0.8 - drop, "drop": drop, "drop_ends": [drop - 0.01, drop + 0.01]}
    cost = {"time": time, "time_ends": [time - 0.1, time + 0.1], "size": 0.27, "seconds": 90.0}
    return figures | cost | {"metric": "top-1", "sqnr_db": 22.0, "int8": [50, 53]} | more


def _data() -> dict[str, Any]:
    trial = {"name": "01", "made": "static, plan 0", "verdict": "in", "drop": 0.002, "time": 0.6}
    trial |= {"size": 0.27, "samples": 80, "frontier": True, "chosen": True}
    beaten = trial | {"name": "02", "chosen": False, "frontier": False, "drop": None, "time": None}
    points = [{"drop": 0.001 * i, "time": 0.5 + 0.1 * i, "sqnr_db": 30.0} for i in range(6)]
    rows = {
        "quantkit tune": _row(0.002, 0.6, frontier=[trial, beaten], sentence="x", evaluations=3.5),
        "quantkit static": _row(0.008, 0.6),
        "onnxruntime static": _row(0.5, 0.65),
        "NNCF accuracy control": _row(0.004, 4.0, evaluations=31.0, version="3.4.0"),
        "random search": _row(0.004, 0.7, points=points, evaluations=6.0),
        "onnxruntime static, reduced range": {"error": "it & fails"},
    }
    base = {"metric": "top-1", "value": 0.8, "median_ms": 8.9, "samples": 250}
    found = {"title": "A <model>", "drop": "0.5%", "limit": 0.005, "tools": 250}
    return {"machine": MACHINE, "models": {"m": found | {"float": base, "rows": rows}}}


def test_the_table_says_what_was_lost_how_fast_and_how_long_it_took() -> None:
    text = markdown(_data())
    assert (
        "| quantkit tune | 0.798 | 0.0020 [-0.0080, 0.0120] | 22.0 dB | 0.60 [0.50, 0.70]" in text
    )
    assert "| NNCF accuracy control |" in text
    assert "* onnxruntime static, reduced range: it & fails" in text
    assert "static, plan 0 **chosen**" in text
    assert "Of 6 plans drawn at random, 1 are faster than what tune chose (0.60)" in text
    assert "NNCF 3.4.0." in text


def test_the_picture_is_valid_and_marks_stay_inside() -> None:
    svg = picture(_data()["models"])
    root = ET.fromstring(svg)  # noqa: S314 - our own
    width = float(root.get("width", "0"))
    for element in root.iter():
        for key in ("x", "x1", "x2", "cx"):
            assert 0 <= float(element.get(key, "0")) <= width
    assert "NNCF accuracy control at 4.0" in svg
    assert "A &lt;model&gt;" in svg


def _identity(**inputs: list[int]) -> onnx.ModelProto:
    """Return a model whose only result is its input x."""
    return model(graph([node("Identity", ["x"], ["y"])], inputs, {"y": inputs["x"]}))


def test_accuracy_control_gets_hits_and_what_it_ran_is_counted() -> None:
    control = Control()
    rows = np.eye(3, dtype=np.float32)
    items = [({"x": rows[1:2]}, 1), ({"x": rows[:1]}, 2)]
    assert control(_identity(x=[1, 3]), items) == (0.5, [1.0, 0.0])
    assert (control.calls, control.samples) == (1, 2)


def test_likeness_is_a_correlation_and_one_pair_has_none() -> None:
    made = _identity(x=[1, 2, 2], attention_mask=[1, 2])
    mask = np.array([[1.0, 0.0]], np.float32)
    tokens = np.array([[1.0, 0.0], [1.0, 0.5], [1.0, 2.0], [0.0, 1.0]], np.float32)
    texts = [{"x": np.stack([t, 9 * t])[None], "attention_mask": mask} for t in tokens]
    items = [(texts[0], text, 1.0 - 0.2 * i) for i, text in enumerate(texts)]
    likeness, hits = Control()(made, items)
    assert (round(likeness, 6), hits) == (1.0, None)
    with pytest.raises(ValueError, match="one pair"):
        Control()(made, items[:1])
