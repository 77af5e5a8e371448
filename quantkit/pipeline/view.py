"""`quantkit view`: load -> ask onnxruntime, results, plans, calibrations -> fold, group, lay out -> one page, or files for Model Explorer.

And the folder of an evaluation: its result, the report, and a graph of each candidate beside the float model.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import onnx
import onnx_ir as ir

from quantkit.calibration import Calibration
from quantkit.deploy.view import render_page
from quantkit.deploy.view.collect import Known, boxes_of
from quantkit.deploy.view.compare import float_names, side_by_side
from quantkit.deploy.view.facts import Box, Drawing, Page, Pair
from quantkit.deploy.view.fold import Folded, fold
from quantkit.deploy.view.groups import group_boxes, lay_out
from quantkit.errors import ModelError, OutputError, QuantkitError, UsageError
from quantkit.evaluate.match import ModelPair, NamedModel, SharedModel
from quantkit.evaluate.report import graph_name, write_pages
from quantkit.files import replace_text, scratch
from quantkit.model.graph.shapes import shapes
from quantkit.model.graph.view import view_of
from quantkit.model.ops.integer_ops import quantized_among
from quantkit.quantize.plan import NodePlan, Plan, plan_dynamic
from quantkit.result import Evaluated, NodeRuns, Result, Runtime, save_result
from quantkit.runtime.kernels.truth import PRODUCTS, bare_names
from quantkit.runtime.profile import node_seconds, profile_models
from quantkit.runtime.runs import run_made_up
from quantkit.runtime.session import RUNTIME_ERRORS, first_line, make_session

_FAILURES: tuple[type[Exception], ...] = (QuantkitError, *RUNTIME_ERRORS)
_TIMED = 0.6  # seconds to spend on each model
_KIN = 0.5  # of the layers of the smaller model
_WOULD = "what quantize dynamic would do"
WRITTEN = ("result.json", "report.html", "report.md")
"""What `write_evaluation` writes into a folder, beside graphs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewOptions:
    """What is known of the models beside their files.

    Attributes:
        result: An evaluation of them: where the drift comes from.
        calibration: Ranges and distributions of the float model's tensors.
        plan: What a plan does to the float model.
        time: Measure what each layer takes here, on made-up inputs.
        foresee: Without a plan, say what `quantize dynamic` would do to a float model.
        raw: Draw every node as a box.
    """

    result: Result | None = None
    calibration: Calibration | None = None
    plan: Plan | None = None
    time: bool = False
    foresee: bool = True
    raw: bool = False


def view(
    models: Sequence[SharedModel],
    options: ViewOptions | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Page:
    """Draw one model, or two beside each other: the float model first.

    Args:
        models: One or two models.
        options: What else is known.
        progress: Called with what is being done.

    Raises:
        QuantkitError: A model cannot be read, or a result is not about it.
    """
    options = options or ViewOptions()
    seen = [_look(model, options, progress) for model in models]
    progress("Drawing")
    candidate = _evaluated(seen, options.result)
    layers = {} if candidate is None or candidate.layers is None else candidate.layers.layers
    by_name = {layer.node: layer for layer in layers}
    seen = [replace(one, known=replace(one.known, layers=by_name)) for one in seen]
    title = " and ".join(model.path.name for model in models)
    if len(seen) == 1:
        one = seen[0]
        drawings: tuple[Drawing, ...] = (_drawing(one, boxes_of(one.folded, one.known)),)
        return Page(title=title, drawings=drawings, plan=one.plan_words)
    drawings, pairs = _beside(seen[0], seen[1])
    return Page(title=title, drawings=drawings, pairs=pairs, plan=seen[0].plan_words)


def _beside(a: "_Seen", b: "_Seen") -> tuple[tuple[Drawing, ...], tuple[Pair, ...]]:
    """Draw two models, the float model first, and say what became of each box."""
    if _is_quantized(a.file.model) and not _is_quantized(b.file.model):
        said = f"It stands where the float model belongs, which '{b.file.path.name}' seems to be: give that one first."
        a = replace(a, notes=(*a.notes, said))
    nodes = ModelPair(a.file, b.file).nodes
    first = boxes_of(a.folded, a.known)
    scopes = {box.name: box.scope for box in first if box.role == "layer"}
    names = float_names(nodes, b.folded)
    second = boxes_of(b.folded, replace(b.known, names=names, scopes=scopes))
    both = side_by_side((a.folded, b.folded), (first, second), nodes)
    layers = [sum(box.value is None for box in one.folded) for one in (a, b)]
    if both.kin < _KIN * min(layers):  # then what changed means nothing
        said = (
            f"{both.kin} of its {layers[1]} layers correspond to one of the {layers[0]} of '{a.file.path.name}': "
            "it does not seem to be made from that."
        )
        b = replace(b, notes=(*b.notes, said))
    return (_drawing(a, both.first), _drawing(b, second)), both.pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """One model, folded, and what is known of it."""

    file: SharedModel
    folded: list[Folded]
    known: Known
    plan_words: str
    notes: tuple[str, ...]


def _look(file: SharedModel, options: ViewOptions, progress: Callable[[str], None]) -> _Seen:
    path = file.path
    progress(f"Reading {path}")
    loaded, model = file.loaded, file.model
    with suppress(ModelError):  # then no shapes are shown
        shapes(model)
    notes: list[str] = []
    runs: dict[str, NodeRuns] = {}
    kernels: dict[str, str] | None = None
    seconds: Mapping[str, float] = {}
    progress(f"What runs in integers: {path}")
    if loaded.missing:
        notes.append(f"Its external data is missing: {', '.join(loaded.missing)}.")
    else:
        try:
            runs = {node.node: node for node in (_runtime(file, options.result)).nodes}
            kernels = _kernels(file.optimized)
        except _FAILURES as e:
            notes.append(f"onnxruntime does not load it: {first_line(e)}")
    if options.time and kernels is not None:
        progress(f"Timing {path}")
        seconds = _seconds(path, model)
    quantized = _is_quantized(model) or bool(loaded.missing)
    plan, words = _planned(model, options, quantized=quantized)
    known = Known(
        runs=runs, kernels=kernels, seconds=seconds, plan=plan, calibration=options.calibration
    )
    return _Seen(
        file=file,
        folded=fold(model, raw=options.raw),
        known=known,
        plan_words=words,
        notes=tuple(notes),
    )


def _is_quantized(model: ir.Model) -> bool:
    return bool(quantized_among(node.op_type for node in model.graph.all_nodes()))


def _runtime(file: SharedModel, result: Result | None) -> Runtime:
    """Return how products run, as an evaluation of the same file found out already."""
    known = () if result is None else result.models
    found = (m.runtime for m in known if m.runtime and m.file.sha256 == file.sha256)
    return next(found, None) or file.runtime


def _kernels(nodes: Sequence[onnx.NodeProto]) -> dict[str, str]:
    """Return the operators that run by their names and by the tensors that they make."""
    found: dict[str, str] = {}
    for node in nodes:
        for name in (node.name, *node.output):
            if name:
                found.setdefault(name, node.op_type)
    # A node in another layout is named anew ("pool_nchwc"). A layer goes by the tensor of what is fused into it: that is
    # no name of an operator that runs.
    for node in (n for n in nodes if n.op_type not in PRODUCTS):
        for name in bare_names(node.name):
            found.setdefault(name, node.op_type)
    return found


def _planned(
    model: ir.Model, options: ViewOptions, *, quantized: bool
) -> tuple[Mapping[str, NodePlan], str]:
    if options.plan is not None:
        return options.plan.node, "what the plan does"
    if quantized or not options.foresee:
        return {}, ""
    return plan_dynamic(view_of(model, read_weights=False)).node, _WOULD


def _seconds(path: Path, model: ir.Model) -> Mapping[str, float]:
    """Return what nodes take, on made-up inputs.

    Raises:
        UsageError: None could be made up that the model takes.
    """
    feeds = run_made_up(make_session(str(path), threads=1)).feeds
    if not feeds:
        raise UsageError(
            f"No input could be made up that '{path}' runs on: view it without --time."
        )
    with scratch() as folder:
        profile = profile_models([path], [feeds], folder, seconds=_TIMED)[0]
    return node_seconds(view_of(model, read_weights=False), profile)


def _drawing(seen: _Seen, boxes: Sequence[Box]) -> Drawing:
    reads = [box.reads for box in boxes]
    tree = group_boxes([box.scope for box in boxes], reads)
    return Drawing(
        name=seen.file.path.name,
        boxes=tuple(boxes),
        tree=tree,
        layouts=lay_out(tree, reads),
        nodes=sum(len(box.operators) for box in boxes),
        nbytes=seen.file.loaded.nbytes,
        notes=seen.notes,
    )


def _evaluated(seen: Sequence[_Seen], result: Result | None) -> Evaluated | None:
    """Return what was measured of the last model, or, if that is the float one, of the first candidate.

    Raises:
        UsageError: The result is about other files.
    """
    if result is None:
        return None
    digests = [one.file.sha256 for one in seen]
    found = [m for digest in reversed(digests) for m in result.models if m.file.sha256 == digest]
    if not found:
        evaluated = ", ".join(f"'{model.file.path}'" for model in result.models)
        raise UsageError(
            f"The result is not about '{seen[-1].file.path}', but about {evaluated}: give one of these, or the result of an "
            "evaluation of this file."
        )
    return found[0] if found[0].role == "candidate" else next(iter(result.candidates), None)


def write_evaluation(
    result: Result, folder: Path, models: Sequence[NamedModel] = ()
) -> tuple[Path, Path, Path]:
    """Write result.json, report.html and report.md; and of each candidate its graph beside float's, which the report links to.

    Args:
        result: What was measured.
        folder: Where to.
        models: The files that were evaluated, float's first; none: no graphs.

    Raises:
        OutputError: They cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise OutputError(f"Cannot make the folder '{folder}': {e.strerror}.") from e
    # First what took minutes to measure: the pages can be made from it again.
    save_result(result, folder / "result.json")
    for place, model in enumerate(models[1:], 1):
        _write_graph(result, folder / graph_name(place), ModelPair(models[0], model))
    page, text = write_pages(result, folder)
    return folder / "result.json", page, text


def written(models: Sequence[NamedModel]) -> tuple[str, ...]:
    """Return the names of all that `write_evaluation` writes for these models, float's first."""
    return (*WRITTEN, *(graph_name(place) for place in range(1, len(models))))


def _write_graph(result: Result, page: Path, pair: ModelPair) -> None:
    """Draw a candidate beside float. What cannot be drawn has no page, and nothing links to one of another evaluation."""
    try:
        drawn = view(pair.sides, ViewOptions(result=result, foresee=False))
        replace_text(page, render_page(drawn))
    except _FAILURES:
        page.unlink(missing_ok=True)
