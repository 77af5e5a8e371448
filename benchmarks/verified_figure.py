"""The figure that static quantization prints, next to what other samples get.

Each model is quantized with few and with many calibration samples (``--samples 24 128``); the printed SQNR of its worst output is
compared with that of the evaluation samples of ``zoo.py``. Planning by time is off, so that plans do not depend on the load.
``--only`` names models. Run it with another quantkit on the path for the figures to compare with.
"""

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from measure import SHARED, session, sqnr
from zoo import cases

_MODELS_FIRST = "| model | samples | printed | found | too good by |\n|---|--:|--:|--:|--:|"


def row_of(name: str, case: Any, samples: int) -> str:
    """Quantize a model; return its row of the table."""
    import quantkit

    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "q.onnx"
        calibration = [dict(one) for one in case.calibration[:samples]]
        checked = quantkit.quantize_static(case.model, target, calibration).verification
        printed = float("nan") if checked is None or checked.worst is None else checked.worst
        outputs = [case.outputs(session(path)) for path in (case.model, target)]
    expected, actual = outputs
    found = min(
        _sqnr(expected[n], actual[n]) for n in expected if expected[n].shape == actual[n].shape
    )
    return f"| {name} | {len(calibration)} | {printed:.1f} | {found:.1f} | {printed - found:+.1f} |"


def _sqnr(expected: Any, actual: Any) -> float:
    """Return the SQNR as quantkit prints it: the mean adds 10 dB at most."""
    mean = np.mean(expected)
    return min(sqnr(expected, actual), sqnr(expected - mean, actual - mean) + 10)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shared", type=Path, default=SHARED)
    parser.add_argument("--samples", type=int, nargs="+", default=[24, 128])
    parser.add_argument("--only", nargs="*", default=[])
    given = parser.parse_args()
    os.environ["QUANTKIT_MEASURE"] = "0"
    print(_MODELS_FIRST)
    for name, load in cases(given.shared).items():
        if given.only and name not in given.only:
            continue
        case = load()
        for samples in given.samples:
            print(row_of(name, case, samples), flush=True)


if __name__ == "__main__":
    main()
