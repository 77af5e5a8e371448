"""A small model with a constant in a node, and the ways in which quantkit writes it."""

from pathlib import Path
from typing import Any

import numpy as np
from builders import graph, model, node, rng, save, weight

import quantkit
from quantkit.api.quantize import Task, quantize
from quantkit.settings import StaticSettings

WAYS = ("dynamic", "dynamic external", "qdq", "qoperator", "qdq external", "optimize")


def float_model(path: Path, seed: int = 0) -> Path:
    """Two products with weights above and below the size at which tensors are kept apart."""
    nodes = [
        node("Identity", ["x"], ["i"], "i"),
        node("MatMul", ["i", "w1"], ["m"], "first"),
        node("Add", ["m", "b1"], ["a"], "bias"),
        node("Relu", ["a"], ["r"], "relu"),
        node("MatMul", ["r", "w2"], ["y"], "second"),
    ]
    held = {"w1": weight(64, 96, seed=seed), "b1": weight(96, seed=1), "w2": weight(96, 40, seed=2)}
    proto = model(graph(nodes, {"x": ["N", 64]}, {"y": ["N", 40]}, held), opset=17)
    return save(proto, path)


def data_file(path: Path, seed: int = 3) -> Path:
    np.save(path, rng(seed).standard_normal((24, 64)).astype(np.float32))
    return path


def write(way: str, source: Path, data: Path, target: Path) -> Path:
    """Write `source` in one of `WAYS`."""
    external = way.endswith("external")
    if way.startswith("dynamic"):
        quantkit.quantize_dynamic(source, target, use_external_data_format=external)
    elif way == "optimize":
        quantkit.optimize(source, target)
    else:
        written: Any = way.split(maxsplit=1)[0]
        how = StaticSettings(format=written)
        quantize(Task(source=source, data=data, how=how), target, external_data=external)
    return target


def contents(path: Path) -> dict[str, bytes]:
    """All files of a model, by name."""
    return {f.name: f.read_bytes() for f in sorted(path.parent.glob(f"{path.name}*"))}
