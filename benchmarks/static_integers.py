"""Proof that the integers of a statically quantized file are the same on every CPU.

For each model and format: no weight has a pair of neighbours, in the order in which kernels sum, that could saturate
(`quantkit.runtime.saturation`); and on real inputs every product, computed by the numpy reference exactly and with the
saturating 16-bit sums of x86 without VNNI, gives the same integers. The row "no constraint" is the same model for a
target without the constraint: it shows that the check finds what there is to find.

Exits with 1 if a file for the default target is not proof. With files, only those are looked at, without data.
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from measure import RESULTS, SHARED, describe, machine, table, write_results
from tasks import Sizes, Task, tasks

from quantkit import DataSettings, quantize_static
from quantkit.evaluate.integer_layers import integer_layers, share, worst_db
from quantkit.model.graph.load import load
from quantkit.runtime.saturation import integer_products, saturating_nodes

_MODELS = ("efficientnet_lite0", "mobilenet_v2", "resnet20_cifar10", "all-MiniLM-L6-v2")
_FREE = "no constraint"
_ROWS: Mapping[str, Mapping[str, Any]] = {
    "QDQ": {"quant_format": "qdq"},
    "QOperator": {"quant_format": "qoperator"},
    _FREE: {"quant_format": "qdq", "target": "x86-vnni"},
}
_TEXT = """\
Files of quantize_static with its defaults, calibrated on {calibration} samples. *Products* have constant int8 weights; *unsafe*
are those in which some activations would make a pair of products exceed 16 bits. On {samples} real samples, at most {positions}
positions each, every product was computed exactly and with saturating 16-bit sums: *outputs* were computed, *differ* do so
between the two, *worst layer* is the power of that difference over the power of the layer's output."""


def checked(path: Path, task: Task, given: argparse.Namespace) -> dict[str, Any]:
    """Check one file on the first samples of a task."""
    layers = integer_layers(path, task.calibration[: given.samples], given.positions)
    return {
        "products": len(layers),
        "unsafe": [layer.node for layer in layers if layer.may_saturate],
        "sums": sum(layer.sums for layer in layers),
        "differing": sum(layer.differing for layer in layers),
        "share": share(layers),
        "worst_db": worst_db(layers),
        "layers": [asdict(layer) for layer in layers],
    }


def is_proof(row: Mapping[str, Any]) -> bool:
    """Say whether nothing can saturate, and nothing did; a file without products proves nothing."""
    return bool(row["products"] and row["sums"] and not row["unsafe"] and not row["differing"])


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Make and check all that was asked for."""
    sizes = Sizes(images=1, small=given.samples, pairs=1, calibration=given.calibration)
    settings = {key: getattr(given, key) for key in ("calibration", "samples", "positions")}
    data: dict[str, Any] = {"machine": machine(), "settings": settings, "models": {}}
    for name in given.models:
        task = tasks(given.shared, sizes)[name]()
        if task is None:
            continue
        rows = data["models"].setdefault(name, {})
        for row, options in _ROWS.items():
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "quantized.onnx"
                quantize_static(
                    task.model,
                    path,
                    list(task.calibration),
                    settings=DataSettings(limit=given.calibration),
                    verify=False,
                    **options,
                )
                rows[row] = checked(path, task, given)
            print(f"{name}, {row}: {rows[row]['differing']} of {rows[row]['sums']} differ")
    return data


def markdown(data: Mapping[str, Any]) -> str:
    """Return the report made from the data."""
    lines = ["# The same integers on every CPU", "", describe(data["machine"]), ""]
    lines.append(_TEXT.format(**data["settings"]))
    header = ["", "products", "unsafe", "outputs", "differ", "worst layer", "proof"]
    for name, rows in data["models"].items():
        lines += ["", f"## {name}", "", *table(header, [_line(k, r) for k, r in rows.items()])]
    return "\n".join(lines) + "\n"


def _line(name: str, row: Mapping[str, Any]) -> list[str]:
    worst = "" if row["worst_db"] is None else f"{row['worst_db']:.1f} dB"
    differ = f"{row['differing']:,}" + f" ({100 * row['share']:.2f} %)" * bool(row["differing"])
    proof = "yes" if is_proof(row) else "no"
    unsafe = str(len(row["unsafe"]))
    return [name, str(row["products"]), unsafe, f"{row['sums']:,}", differ, worst, proof]


def check_files(files: Sequence[Path]) -> bool:
    """Print which nodes of each file may saturate; return whether none may."""
    proof = True
    for file in files:
        model = load(file).model
        offending = saturating_nodes(model)
        count = sum(1 for _ in integer_products(model))
        print(f"{file}: {len(offending)} of {count} products may saturate", *offending, sep="\n  ")
        proof &= not offending
    return proof


def arguments() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, help="quantized files to look at")
    parser.add_argument("--models", nargs="*", default=_MODELS, choices=_MODELS)
    parser.add_argument("--calibration", type=int, default=32, help="samples to calibrate on")
    parser.add_argument("--samples", type=int, default=4, help="samples to compute products on")
    parser.add_argument("--positions", type=int, default=32, help="of each sample")
    parser.add_argument("--shared", type=Path, default=SHARED, help="folder of models and data")
    parser.add_argument("--out", type=Path, default=RESULTS / "static_integers", help="no suffix")
    return parser.parse_args()


def main() -> None:
    """Check; exit with 1 if a file is not proof."""
    given = arguments()
    if given.files:
        sys.exit(0 if check_files(given.files) else 1)
    data = measure(given)
    write_results(given.out.parent, given.out.name, data, markdown(data))
    rows = [r for model in data["models"].values() for name, r in model.items() if name != _FREE]
    sys.exit(0 if rows and all(is_proof(row) for row in rows) else 1)


if __name__ == "__main__":
    main()
