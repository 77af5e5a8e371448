"""Static quantization in tests without calibration: ranges are read off one run of the float model."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from builders import Array, Shape, graph, model, node, rng, run, sqnr, weight

from quantkit.calibration.points import points_of
from quantkit.model.graph.load import load
from quantkit.model.graph.opset import raise_opset
from quantkit.model.graph.save import staged
from quantkit.model.graph.view import view_of
from quantkit.model.ops.view import View
from quantkit.quantize.emit.static import Format, emit_static
from quantkit.quantize.plan import (
    Mode,
    Plan,
    check_fits,
    check_operators,
    plan_static,
    ranges_needed,
)
from quantkit.quantize.plan.solved import SolvedIntegers
from quantkit.quantize.rewrite.simplify import simplify
from quantkit.settings import StaticSettings
from quantkit.targets import target

OpenRanges = Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class Ready:
    """A prepared float model, described."""

    model: ir.Model
    view: View

    def plan(self, ranges: OpenRanges, options: StaticSettings | None = None) -> Plan:
        return plan_static(self.view, ranges, options)


def ready(proto: onnx.ModelProto | Path, opset: int = 13) -> Ready:
    raised = raise_opset(load(proto).model, opset)
    simplify(raised)
    return Ready(raised, view_of(raised))


def observed(prepared: Ready, options: StaticSettings | None = None) -> tuple[str, ...]:
    """The tensors that calibration looks at for a target, and no others."""
    needed = ranges_needed(prepared.view, options or StaticSettings())
    return points_of(prepared.view, needed).tensors


def open_ranges(
    prepared: Ready,
    low: float = -4.0,
    high: float = 4.0,
    options: StaticSettings | None = None,
) -> dict[str, tuple[float, float]]:
    """The same range for every tensor that is observed."""
    return dict.fromkeys(observed(prepared, options), (low, high))


def seen_ranges(
    prepared: Ready, feeds: Mapping[str, Array], options: StaticSettings | None = None
) -> dict[str, tuple[float, float]]:
    """What every tensor that is observed takes in one run."""
    proto = ir.serde.serialize_model(prepared.model)
    there = {o.name for o in proto.graph.output}
    made = [n for item in proto.graph.node for n in item.output if n and n not in there]
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in made)
    values = run(proto, feeds, optimize=False)
    found = dict(zip([o.name for o in proto.graph.output], values, strict=True)) | dict(feeds)
    return {
        name: (float(min(array.min(), 0)), float(max(array.max(), 0)))
        for name in observed(prepared, options)
        if (array := found.get(name)) is not None and array.size  # else inside of a subgraph
    }


@dataclass(frozen=True)
class Written:
    """A quantized model on disk, with the plan behind it."""

    path: Path
    plan: Plan

    def modes(self) -> dict[str, Mode]:
        return {n.node: n.mode for n in self.plan.nodes}


def write(
    proto: onnx.ModelProto,
    path: Path,
    feeds: Mapping[str, Array],
    output_format: Format = Format.QDQ,
    options: StaticSettings | None = None,
    more: OpenRanges | None = None,
) -> Written:
    """Quantize with the ranges of one run; `more`: of tensors inside subgraphs."""
    wide = options is not None and any(
        t is not None and t.bits > 8
        for t in (options.activation, *(o.int_type for o in options.overrides))
    )
    prepared = ready(proto, 21 if wide else 13)
    plan = prepared.plan({**seen_ranges(prepared, feeds, options), **(more or {})}, options)
    check_fits(plan, prepared.view)
    return _emitted(prepared, plan, path, output_format)


def write_plan_of(
    proto: onnx.ModelProto,
    path: Path,
    feeds: Mapping[str, Array],
    output_format: Format = Format.QDQ,
    plan: Plan | None = None,
) -> Written:
    """Apply a plan, or the one that would be made."""
    prepared = ready(proto)
    plan = plan or prepared.plan(seen_ranges(prepared, feeds))
    check_fits(plan, prepared.view)
    return _emitted(prepared, plan, path, output_format)


def _emitted(prepared: Ready, plan: Plan, path: Path, output_format: Format) -> Written:
    check_operators(plan, prepared.view, target(plan.target or ""), output_format)
    emit_static(prepared.model, plan, SolvedIntegers(), output_format)
    prepared.model.ir_version = max(prepared.model.ir_version or 0, 10)
    with staged(path) as stage:
        stage.write(prepared.model)
        stage.commit()
    return Written(path, plan)


X = (rng(5).standard_normal((1, 8, 6, 6))).astype(np.float32)
IMAGE: dict[str, Shape] = {"x": [1, 8, 6, 6]}


def conv(source: str, result: str, name: str, **attributes: Any) -> onnx.NodeProto:
    """3x3, of eight channels to eight, with a bias."""
    return node(
        "Conv", [source, f"{name}_w", f"{name}_b"], [result], name, pads=[1] * 4, **attributes
    )


def conv_weights(*names: str) -> dict[str, Array]:
    found: dict[str, Array] = {}
    for seed, name in enumerate(names):
        found[f"{name}_w"] = weight(8, 8, 3, 3, seed=seed)
        found[f"{name}_b"] = weight(8, seed=seed + 50)
    return found


def chain(
    *between: onnx.NodeProto, constants: Mapping[str, Array] | None = None, opset: int = 17
) -> onnx.ModelProto:
    """x -> Conv 'c1' -> a -> `between` -> b -> Conv 'c2' -> y."""
    nodes = [conv("x", "a", "c1"), *between, conv("b", "y", "c2")]
    weights = {**conv_weights("c1", "c2"), **(constants or {})}
    return model(graph(nodes, IMAGE, {"y": None}, weights), opset=opset)


def planned(
    proto: Any, options: StaticSettings | None = None, /, **ranges: tuple[float, float] | None
) -> Plan:
    """Plan with the same range everywhere, but for `ranges`; None takes one away."""
    prepared = ready(proto, 21)
    given = {**open_ranges(prepared, options=options), **ranges}
    found = {k: v for k, v in given.items() if v is not None}
    plan = prepared.plan(found, options)
    check_fits(plan, prepared.view)
    return plan


def modes(plan: Plan) -> dict[str, Mode]:
    return {n.node: n.mode for n in plan.nodes}


def why(plan: Plan, name: str) -> str:
    return plan.node[name].why


def matmuls(*between: Any, constants: dict[str, Any] | None = None) -> Any:
    nodes = [node("MatMul", ["x", "w1"], ["a"], "m1"), *between]
    nodes.append(node("MatMul", ["b", "w2"], ["y"], "m2"))
    weights = {"w1": weight(16, 16), "w2": weight(16, 16, seed=1), **(constants or {})}
    return model(graph(nodes, {"x": [2, 3, 16]}, {"y": None}, weights))


def check_formats(
    proto: onnx.ModelProto,
    folder: Path,
    feeds: Mapping[str, Array],
    options: StaticSettings | None = None,
    *,
    least: float = 25.0,
    more: OpenRanges | None = None,
) -> dict[Format, Written]:
    """Both formats load and run with and without optimization, near float and alike."""
    expected = run(proto, feeds)
    found: dict[Format, Written] = {}
    results: dict[Format, list[Array]] = {}
    for output_format in Format:
        path = folder / f"{output_format}.onnx"
        found[output_format] = write(proto, path, feeds, output_format, options, more)
        results[output_format] = run(path, feeds)
        plain = run(path, feeds, optimize=False)
        names = [o.name for o in proto.graph.output]
        together = zip(names, expected, results[output_format], plain, strict=True)
        for name, exact, fast, slow in together:
            assert fast.shape == slow.shape == exact.shape
            assert sqnr(exact, fast) > least, (output_format, name)
            assert sqnr(exact, slow) > least, (output_format, name)
    steps = found[Format.QDQ].plan.activation
    for name, one, two in zip(names, results[Format.QDQ], results[Format.QOPERATOR], strict=True):
        step = steps[name].scale if name in steps else 1e-4 * float(np.abs(one).max())
        assert np.abs(one - two).max() <= step * 1.001, name
    return found
