"""Noise that kernels for weights in blocks add by themselves: they round activations to 8 bits."""

from pathlib import Path

import onnx

from quantkit.runtime.check_result import Reference
from quantkit.runtime.runs import run_session
from quantkit.runtime.session import make_session
from quantkit.runtime.tally import Tally


def rounding_noted(path: Path, reference: Reference) -> list[str]:
    """Say what the kernels' own rounding of activations adds: the file is run once more with float activations.

    Args:
        path: The quantized model, in a folder of its own.
        reference: Samples that it was compared with float on.
    """
    structure = onnx.load(path, load_external_data=False)
    kernels = [n for n in structure.graph.node if n.op_type == "MatMulNBits"]
    levels = [a for n in kernels for a in n.attribute if a.name == "accuracy_level" and a.i]
    if not levels:
        return []
    for level in levels:
        level.i = 0
    feeds = reference.runs[0][0]
    exact = path.with_name(f"exact_{path.name}")  # beside it: external data must not be elsewhere
    exact.write_bytes(structure.SerializeToString())
    try:
        outputs = [run_session(make_session(str(p)), feeds) for p in (exact, path)]
    finally:
        exact.unlink()
    tallies = {name: Tally() for name in outputs[0]}
    for name, tally in tallies.items():
        tally.add(outputs[0][name], outputs[1][name])
    said = ", ".join(f"{n} {t.sqnr:.1f} dB" for n, t in tallies.items() if t.power)
    if not said:
        return []
    return [
        f"MatMulNBits rounds activations to 8 bits, block by block (accuracy_level 4); that alone: {said}."
    ]
