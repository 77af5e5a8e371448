"""Which grid makes the best use of bytes: blocks, and how many multiples of a channel's step they may have.

The signal-to-noise ratio of real weights, rounded by the least squared error, less the 6.02 dB that every bit in the file brings: what is left is what a grid is worth.
Means over layers. Models are in ``../shared`` (``--shared``). Writes ``results/grids.json`` and ``results/grids.md``.
"""

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from measure import RESULTS, SHARED, describe, machine, table, write_results
from numpy.typing import NDArray

from quantkit.numerics.blocks import BlockGrid, fit_blocks

_MODELS = {
    "EfficientNet-Lite0": "models/efficientnet_lite0.onnx",
    "MobileNetV2": "models/mobilenet_v2.onnx",
    "MiniLM": "models/all-MiniLM-L6-v2/model.onnx",
}
_GRIDS = {
    2: ((16, 15), (32, 15)),
    3: ((0, 1), (16, 15), (32, 15)),
    4: ((0, 1), (16, 7), (16, 8), (16, 15), (32, 15), (32, 255)),
    5: ((0, 1), (16, 4), (32, 4), (16, 15), (32, 15)),
    6: ((0, 1), (16, 2), (32, 2), (16, 15), (32, 15)),
    8: ((0, 1), (32, 15)),
}
_LEAST, _EVERY, _MOST = 20000, 6, 9  # values of a weight; which layers, and how many
_BIT = 6.02


def layers(path: Path) -> Iterator[NDArray[Any]]:
    """Yield some large weights as matrices."""
    tensors = onnx.load(path).graph.initializer
    arrays = (onnx.numpy_helper.to_array(t) for t in tensors if len(t.dims) > 1)
    large = [a for a in arrays if a.size >= _LEAST and a.dtype == np.float32]
    for array in large[::_EVERY][:_MOST]:
        yield array.reshape(len(array), -1)


def worth(weights: list[NDArray[Any]], grid: BlockGrid) -> tuple[float, float]:
    """Return the bits of a value, and the mean ratio of signal to noise in dB."""
    found = []
    for weight in weights:
        error = weight - fit_blocks(weight, grid).dequantized()
        found.append(10 * np.log10(np.square(weight).sum() / np.square(error).sum()))
    multiplier = np.ceil(np.log2(grid.largest)) / grid.size if grid.largest > 1 else 0.0
    return grid.bits + float(multiplier), float(np.mean(found))


def markdown(data: Mapping[str, Any]) -> str:
    """Return the report made from the JSON."""
    names = list(data["models"])
    header = ["bits", "block", "multiples", "bits / value", *names, "mean, less 6.02 dB a bit"]
    rows = []
    for i, (bits, size, largest, taken) in enumerate(data["grids"]):
        levels = [data["models"][name][i] for name in names]
        left = np.mean(levels) - _BIT * taken
        block, multiples = str(size or "row"), str(largest if largest > 1 else "-")
        figures = [f"{level:.1f} dB" for level in levels]
        rows.append([str(bits), block, multiples, f"{taken:.2f}", *figures, f"{left:.2f} dB"])
    text = (
        "Symmetric grids, rounded to nearest with steps of least squared error; *multiples* is the largest multiple of a channel's step that a block may have. With an int8 "
        "of at most 64 behind the codes, 3 to 6 bits leave room for 16, 8, 4 and 2 multiples."
    )
    return "\n".join(
        [
            "# Grids of few bits",
            "",
            describe(data["machine"]),
            "",
            text,
            "",
            *table(header, rows),
            "",
        ]
    )


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shared", type=Path, default=SHARED, help="folder of models")
    given = parser.parse_args()
    grids = [
        BlockGrid(bits=bits, size=size, symmetric=True, largest=largest)
        for bits, several in _GRIDS.items()
        for size, largest in several
    ]
    data: dict[str, Any] = {"machine": machine(), "models": {}}
    for name, path in _MODELS.items():
        weights = list(layers(given.shared / path))
        found = [worth(weights, grid) for grid in grids]
        data["models"][name] = [level for _, level in found]
        data["grids"] = [
            (g.bits, g.size, g.largest, taken) for g, (taken, _) in zip(grids, found, strict=True)
        ]
    write_results(RESULTS, "grids", data, markdown(data))


if __name__ == "__main__":
    main()
