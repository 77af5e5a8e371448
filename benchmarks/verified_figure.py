"""The figure that static quantization prints, next to what other samples get.

Models with real data (those of ``zoo.py``), three CNNs with unbounded activations, and random graphs are quantized with few and
with many calibration samples; up to 200 other samples are then compared with float. Planning by time is off, so that plans do not
depend on the load. Both figures are defined as the measured version defines them.

Writes ``results/verified_figure.json`` and ``.md``. ``--column`` names the figures of a run: "now", "plain" (with ranges of the default method alone), or any other name for a quantkit
that is put on the path. ``--also model.onnx samples.npy`` adds a model of your own, ``--only`` leaves others out.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from measure import RESULTS, SHARED, machine, session, table
from onnx import TensorProto, helper, numpy_helper
from tasks import Sizes, tasks
from zoo import cases

Feeds = dict[str, Any]
Pool = tuple[Path, list[Feeds]]
Row = dict[str, Any]

_TESTS = Path(__file__).resolve().parents[1] / "tests" / "helpers"
_README = ("mobilenet_v2", "efficientnet_lite0", "resnet20_cifar10", "all-MiniLM-L6-v2")
_POOL, _OTHERS, _FEWEST = 328, 200, 12
_WITHIN, _TOO_GOOD = 2.0, 5.0
_PLAIN = "plain"


def pools(shared: Path, folder: Path, graphs: int) -> Iterator[tuple[str, Callable[[], Pool]]]:
    """Yield models by name; each with a call that returns its file and its samples."""
    for name, load in cases(shared).items():
        if name not in _README:
            yield name, partial(_zoo, load)
    known = tasks(shared, Sizes(images=1, small=1, pairs=1, calibration=_POOL))
    for name in _README:
        yield name, partial(_readme, known[name])
    images = partial(_cifar, known["resnet20_cifar10"])
    for depth in (6, 12, 18):
        yield f"Relu CNN, {depth} layers", partial(_unbounded, depth, images, folder)
    for seed in range(graphs):
        yield f"graph {seed}", partial(_random, seed, folder)


def _readme(load: Callable[[], Any]) -> Pool:
    task = load()
    return task.model, list(task.calibration)


def _zoo(load: Callable[[], Any]) -> Pool:
    case = load()
    samples = [dict(one) for one in case.calibration]
    return case.model, [*samples, *(dict(one) for one in case.outputs.args[0])]


def _cifar(load: Callable[[], Any]) -> np.ndarray[Any, Any]:
    return np.concatenate([next(iter(one.values())) for one in load().calibration])


def _unbounded(depth: int, images: Callable[[], Any], folder: Path) -> Pool:
    """Return a residual CNN with random weights, whose sums no Clip bounds, and small photographs."""
    draw, nodes, held, source = np.random.default_rng(depth), [], [], "x"
    for i in range(depth):
        shape = (16, 3 if i == 0 else 16, 3, 3)
        array = draw.normal(0, np.sqrt(2 / np.prod(shape[1:])), shape).astype(np.float32)
        held.append(numpy_helper.from_array(array, f"w{i}"))
        stride = [2, 2] if i in {2, 5} else [1, 1]
        conv = helper.make_node(
            "Conv", [source, f"w{i}"], [f"c{i}"], f"conv{i}", pads=[1] * 4, strides=stride
        )
        nodes.append(conv)
        if i > 0 and stride == [1, 1]:
            nodes.append(helper.make_node("Add", [f"c{i}", source], [f"s{i}"], f"add{i}"))
        last = nodes[-1].output[0]
        nodes.append(helper.make_node("Relu", [last], [f"r{i}"], f"relu{i}"))
        source = f"r{i}"
    head = draw.normal(0, 0.25, (16, 10)).astype(np.float32)
    held.append(numpy_helper.from_array(head, "head_w"))
    nodes.append(helper.make_node("GlobalAveragePool", [source], ["pooled"], "pool"))
    nodes.append(helper.make_node("Flatten", ["pooled"], ["flat"], "flatten"))
    nodes.append(helper.make_node("Gemm", ["flat", "head_w"], ["y"], "head"))
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 32, 32])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 10])]
    graph = helper.make_graph(nodes, "cnn", inputs, outputs, held)
    path = folder / f"cnn{depth}.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path, [{"x": image[np.newaxis]} for image in images()]


def _random(seed: int, folder: Path) -> Pool:
    """Return a random graph; samples of every other one differ in loudness."""
    sys.path.append(str(_TESTS))
    from random_graphs import random_graph

    proto, path, draw = (
        random_graph(seed),
        folder / f"graph{seed}.onnx",
        np.random.default_rng(seed),
    )
    onnx.save(proto, path)
    gains = np.exp(draw.normal(0, 0.25 * (seed % 2), _POOL))
    values = draw.standard_normal((_POOL, 1, 8, 6, 6)) * gains[:, None, None, None, None]
    return path, [{proto.graph.input[0].name: one} for one in values.astype(np.float32)]


def measured(pool: Pool, samples: int, folder: Path, *, plain: bool) -> Row:
    """Quantize a model with some of its samples; return the printed figure and that of others, both in dB."""
    import quantkit
    from quantkit.runtime.check_result import Tally
    from quantkit.runtime.session import float_session, load_model

    model, feeds = pool
    order = np.random.default_rng(1).permutation(len(feeds))
    chosen = [feeds[i] for i in order[:samples]]
    others = [feeds[i] for i in order[samples : samples + _OTHERS]]
    if len(others) < _FEWEST:
        return {"error": "too few samples"}
    target = folder / "q.onnx"
    recover = quantkit.RecoverSettings(activation_ranges=False if plain else "auto")
    try:
        result = quantkit.quantize_static(model, target, chosen, recover=recover)
    except quantkit.QuantkitError as e:
        return {"error": str(e).splitlines()[0].replace(str(folder), "")[:200]}
    checked = result.verification
    sessions = float_session(load_model(model)), session(target, threads=1)
    tallies: dict[str, list[Tally]] = {o.name: [] for o in sessions[0].get_outputs()}
    for feed in others:
        for name, one, other in zip(tallies, *(s.run(None, feed) for s in sessions), strict=True):
            tallies[name].append(Tally())
            if getattr(one, "shape", None) == getattr(other, "shape", None):
                tallies[name][-1].add(one, other)
    found = {name: _figure(_sum(own)) for name, own in tallies.items() if _sum(own).power > 0}
    if checked is None or not checked.compared or not found:
        return {"error": "nothing to compare"}
    worst = min(found, key=lambda name: found[name])
    each = [_figure(one, _sum(tallies[worst])) for one in tallies[worst] if one.power > 0]
    told = ("other inputs may get", "samples differ widely", "Evaluate it before")
    return {
        "printed": _finite(min(checked.compared.values())),
        "found": _finite(found[worst]),
        "median": _finite(float(np.median(each))),
        "worst": _finite(min(each)),
        "others": len(others),
        "warned": any(text in warning for warning in result.warnings for text in told),
        "in sample": "calibrated with" in checked.judged_on and "not" not in checked.judged_on,
    }


def _sum(tallies: list[Any]) -> Any:
    """Return the sums of tallies about zero; older versions of quantkit cannot add them."""
    whole = type(tallies[0])()
    for one in tallies:
        for name in ("count", "power", "noise"):
            setattr(whole, name, getattr(whole, name) + getattr(one, name))
        moved = one.near
        whole.total += one.total + one.count * moved
        whole.spread += one.spread + 2 * moved * one.total + one.count * moved**2
    return whole


def _figure(tally: Any, whole: Any = None) -> float:
    """Return the SQNR as the measured quantkit defines it: about the mean, or with 10 dB for the mean at most."""
    if callable(tally.sqnr):
        return float(tally.sqnr(centred=True))
    return float(tally.about_zero - (tally if whole is None else whole).withheld)


def _finite(figure: float) -> float:
    return min(float(figure), 200.0)


def summary(rows: dict[str, Row]) -> str:
    """Return how well the printed figures predict, in a sentence."""
    known = [row for row in rows.values() if "error" not in row]
    off = np.array([row["printed"] - row["found"] for row in known])
    silent = sum(
        bool(d > _TOO_GOOD and not row["warned"]) for d, row in zip(off, known, strict=True)
    )
    return (
        f"{len(known)} cases: {np.mean(np.abs(off) <= _WITHIN):.0%} within {_WITHIN:g} dB, "
        f"{np.mean(off > _TOO_GOOD):.0%} more than {_TOO_GOOD:g} dB too good ({silent} of them without a warning), "
        f"worst {off.max():+.1f} dB, median {np.median(off):+.1f} dB"
    )


def write(columns: dict[str, dict[str, Row]], about: dict[str, Any]) -> None:
    """Write the figures, and a table of the models with a summary of all."""
    RESULTS.mkdir(exist_ok=True)
    whole = {"machine": about, "columns": columns}
    (RESULTS / "verified_figure.json").write_text(json.dumps(whole, indent=1) + "\n")
    names = list(columns)
    parts = ["# Printed and found", "", *(__doc__ or "").replace("``", "`").split("\n\n")[1:2], ""]
    for few in (True, False):
        for kind, wanted in (("models", False), ("random graphs", True)):
            for name in names:
                rows = {k: r for k, r in columns[name].items() if k.startswith("graph") is wanted}
                rows = {k: r for k, r in rows.items() if (int(k.rsplit("/")[-1]) < 100) is few}
                if any("error" not in row for row in rows.values()):
                    parts.append(
                        f"- {'few' if few else 'many'} samples, {kind}, {name}: {summary(rows)}"
                    )
    cells = []
    for key in dict.fromkeys(
        k for own in columns.values() for k in own if not k.startswith("graph")
    ):
        model, samples = key.rsplit("/", 1)
        cells.append([model, samples, *(_cell(columns[name].get(key)) for name in names)])
    head = ["model", "samples", *(f"{name}: printed -> found (median, worst)" for name in names)]
    parts += ["", *table(head, cells)]
    (RESULTS / "verified_figure.md").write_text("\n".join(parts) + "\n")


def _cell(row: Row | None) -> str:
    if row is None or "error" in row:
        return "-" if row is None else row["error"]
    warned = " (warned)" if row["warned"] else ""
    return f"{row['printed']:.1f} -> {row['found']:.1f} ({row['median']:.1f}, {row['worst']:.1f}){warned}"


def main() -> None:
    """Measure a column, and write the table of all that were measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shared", type=Path, default=SHARED)
    parser.add_argument("--samples", type=int, nargs="+", default=[24, 128])
    parser.add_argument("--graphs", type=int, default=100)
    parser.add_argument("--column", default="now")
    parser.add_argument("--also", nargs=2, action="append", default=[])
    parser.add_argument("--only", nargs="*", default=[])
    given = parser.parse_args()
    os.environ["QUANTKIT_MEASURE"] = "0"
    stored = RESULTS / "verified_figure.json"
    columns = json.loads(stored.read_text())["columns"] if stored.exists() else {}
    rows = columns.setdefault(given.column, {})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = dict(pools(given.shared, folder, given.graphs))
        found |= {Path(model).stem: partial(_own, Path(model), data) for model, data in given.also}
        for model, load in found.items():
            if given.only and model not in given.only:
                continue
            pool = load()
            for samples in given.samples:
                row = measured(pool, samples, folder, plain=given.column == _PLAIN)
                rows[f"{model}/{samples}"] = row
                print(f"{model:24} {samples:4} {_cell(row)}", flush=True)
            write(columns, machine())


def _own(model: Path, data: str) -> Pool:
    name = onnx.load(model, load_external_data=False).graph.input[0].name
    return model, [{name: one[np.newaxis]} for one in np.load(data, mmap_mode="r")]


if __name__ == "__main__":
    main()
