"""The tables and the picture of the benchmarks of models that nobody looked at, from figures that are made up."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import predicted
import pytest
import zoo
from measure import machine

ROW: dict[str, Any] = {
    "sqnr_db": {"a": 31.0, "b": 22.5},
    "latency": {"ratio": 0.5, "low": 0.45, "high": 0.55},
    "size": 0.27,
    "seconds": 12.0,
    "modes": {"static": 7, "float": 2},
}


def test_the_worst_output_and_what_fails_stand_in_the_table() -> None:
    rows = {"quantkit": ROW, "onnxruntime": {"error": "Fail: no kernel"}}
    data = {"machine": machine(), "models": {"detector": {"rows": rows}}}
    page = zoo.markdown(data, {"detector": {"reported": ["crashes", "", ""]}})
    assert "| **now** | 22.5 dB | 0.50 [0.45, 0.55] | 0.27 | 7 / 0 / 0 / 0 / 2 | 12 s |" in page
    assert "| onnxruntime | fails |" in page
    assert "* detector, onnxruntime: Fail: no kernel" in page
    assert "| detector | before, as reported | crashes |" in page


def test_where_there_are_no_models_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="is not there; nothing was measured"):
        zoo.cases(tmp_path)


def test_predictions_are_drawn_and_correlated() -> None:
    points = [
        {"plan": str(i), "predicted": x, "measured": 1.1 * x} for i, x in enumerate((1, 2, 4))
    ]
    models = {"detector": {"points": points}, "none": {"points": []}}
    assert predicted.correlation(points) == pytest.approx(1)
    page = predicted.markdown({"machine": machine(), "models": models})
    assert "| detector | 3 | 1.000 | 9 % |" in page
    ET.fromstring(predicted.picture(models))  # noqa: S314 - our own text
