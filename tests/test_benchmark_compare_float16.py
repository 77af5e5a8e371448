"""The table of the benchmark of 16 bits, from figures that are made up."""

from typing import Any

import compare_float16
from measure import machine

ROW: dict[str, Any] = {
    "sqnr_db": 66.9,
    "latency": {"ratio": 1.0, "low": 0.98, "high": 1.02},
    "size": 0.501,
    "modes": {"stored": 39},
    "kept": {},
    "half": None,
}


def test_sizes_errors_and_reasons_stand_on_the_page() -> None:
    kept = {"Add: float16 keeps too little of a weight": 13, "Mul: a": 2, "Pow: b": 2, "Sub: c": 1}
    computed = {**ROW, "modes": {"half": 345, "float": 20}, "kept": kept}
    computed["half"] = {"casts": 54, "products": 48, "half_products": 0}
    rows = {"stored": {**ROW, "with_vectors_db": 61.5}, "computed": computed}
    page = compare_float16.markdown({"machine": machine(), "models": {"encoder": {"rows": rows}}})
    assert (
        "| encoder | float16 in the file | 0.501 | 66.9 dB | 61.5 dB | 1.00 [0.98, 1.02] | 0 / 39 / 0 |  |"
        in page
    )
    assert "| 345 / 0 / 20 | 54 |" in page
    assert (
        "* encoder, float16 arithmetic: 13 Add: float16 keeps too little of a weight; 2 Mul: a; 2 Pow: b; 1 more"
        in page
    )
