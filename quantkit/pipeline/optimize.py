"""Simplify a float model and prove it: load, simplify, write to a staging folder, compare, rename into place."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.errors import QuantkitError, VerifyError
from quantkit.files import check_outputs, scratch
from quantkit.model.graph.opset import raise_opset
from quantkit.model.graph.protos import to_proto
from quantkit.model.graph.save import Stage, staged
from quantkit.model.provenance import ModelOrigin, Provenance, model_digest, write_model
from quantkit.numerics.affine import sqnr
from quantkit.pipeline.apart import compare_apart
from quantkit.pipeline.checks import require_same
from quantkit.pipeline.result import FileResult
from quantkit.quantize.rewrite.simplify import SimplifyReport, select, simplify
from quantkit.quantize.rewrite.simplify.plugins import ModelPass, find_pass, run_pass, with_pass
from quantkit.runtime.check_result import LARGE, Reference, Verification, run_float
from quantkit.runtime.runs import run_session
from quantkit.runtime.session import load_model, make_session, readable_ir_version
from quantkit.settings.record import to_record

# Folding 21 to 52 BatchNormalizations of a float32 model was measured at 118 to 128 dB, everything else is
# closer. Far below that something other than rounding has happened.
_WRONG_DB = 40.0
_HALF = 0.5
_HINT = "Leave out passes (--skip) to find which one it is."


# What a careless pass gets wrong: values that only a subgraph reads, a weight with two readers, an input that is left out,
# outputs that are read inside, and operators that it has never heard of.
_LAW_MODELS = (
    """<ir_version: 8, opset_import: ["" : 17]>
shared (float[N, 4] x) => (float[N, 4] y, float[N, 4] z) <float[4] b = {1, 2, -3, 4}>
{ a = Add(x, b) y = Relu(a) c = Identity(a) z = Mul(y, b) }""",
    """<ir_version: 8, opset_import: ["" : 17]>
branches (float[N, 4] x, bool c) => (float[N, 4] y) <float[4] b = {0.5, 2, -3, 4}, float top = {1.5}>
{ a = Sub(x, b) e = Clip(a, , top)
  y = If (c) <then_branch = t () => (float[N, 4] p) { p = Add(e, b) },
              else_branch = f () => (float[N, 4] q) { r = Neg(a) q = Identity(r) }> }""",
    """<ir_version: 8, opset_import: ["" : 17]>
passed (float[2, 3] x) => (float[2, 3] y, int64[2] z)
{ y = Identity(x) t = Transpose<perm = [1, 0]>(x) u = Transpose<perm = [1, 0]>(t) z = Shape(u) }""",
    """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
foreign (float[N, 4] x) => (float[N, 4] y, float[N, 4] z)
{ g = com.microsoft.FastGelu(x) y = Tanh(g) z = Tanh(g) }""",
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class OptimizeResult(FileResult):
    """What was done. `compared` of its verification is infinite for outputs that are the same bit for bit, both run without onnxruntime's own optimization.

    Attributes:
        report: Nodes before and after, and what each pass changed.
    """

    report: SimplifyReport

    def __str__(self) -> str:
        """Say what counts, in a few lines."""
        lines = [self._sizes(), self._checked()]
        return "\n".join([*lines, *(f"note: {text}" for text in self.warnings)])

    def _sizes(self) -> str:
        nodes = f"{self.report.nodes_before} -> {self.report.nodes_after} nodes"
        return f"{nodes}, {super(OptimizeResult, self)._sizes()}"

    def _inside(self) -> dict[str, Any]:
        found = super(OptimizeResult, self)._inside()
        return {**found, "simplified": self.report.to_json()}


def optimize_model(  # noqa: PLR0913 - one parameter per question
    model_input: str | Path | onnx.ModelProto,
    model_output: str | Path,
    *,
    passes: Iterable[str] | None = None,
    exclude: Iterable[str] = (),
    extra_passes: Iterable[str] = (),
    verify: bool = True,
    external_data: bool = False,
    opset: int = 0,
    metadata: Mapping[str, str] | None = None,
    sample: Mapping[str, NDArray[Any]] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> OptimizeResult:
    """Simplify a model and write it: fewer nodes, the same results.

    Args:
        model_input: The model, a path or a ModelProto; it is only read.
        model_output: Where to write the result; not the input.
        passes: Names of `quantkit.quantize.rewrite.simplify.PASSES` to run; all if None.
        exclude: Names of passes not to run.
        extra_passes: Passes of other packages to run afterwards, one by one: names of entry points, or
            ``module:attribute``. Each is proved like the built-in ones.
        verify: Load and run the result, and compare it with the input, before it is written.
        external_data: Write weights to a ``.data`` file beside the model.
        opset: Raise the opset to this, if it is lower.
        metadata: Entries to write into the model.
        sample: Inputs to compare on, by name; made up if None.
        progress: Called with what is being done.

    Raises:
        UsageError: There is no such pass, or the output cannot be where it is asked for.
        ModelError: The model cannot be read, or onnxruntime does not run it.
        VerifyError: The result is not valid or computes something else; nothing was written.
    """
    started = time.perf_counter()
    target, chosen = Path(model_output), select(passes, exclude)
    extras = {name: find_pass(name) for name in extra_passes}  # before minutes of work
    progress("Reading")
    loaded = load_model(model_input)
    check_outputs([target], loaded.files)
    loaded.require_weights()
    options = {"passes": to_record(chosen), "verify": verify, "external_data": external_data}
    more = {"extra_passes": list(extras), "opset": opset, "metadata": dict(metadata or {})}
    options |= {key: value for key, value in more.items() if value}
    origin = Provenance(kind="optimize", float=ModelOrigin(**model_digest(loaded)), options=options)
    with loaded.watched(), staged(target) as stage:
        reference = None
        if verify:
            progress("Running the model")
            reference = run_float(loaded, sample)
        progress("Simplifying")
        model = raise_opset(loaded.model, opset)
        model.metadata_props.update(metadata or {})
        report = simplify(model, chosen)
        progress("Verifying")
        nbytes, checked = _proved(model, stage, origin, reference)
        # Each on its own: what is wrong then has a name.
        for name, run in extras.items():
            progress(f"Running the pass {name}")
            done = run_pass(name, run, model)
            report, model = with_pass(report, name, done), done.model
            nbytes, checked = _proved(model, stage, origin, reference, (name, checked))
        require_same(loaded, origin)
        external = stage.commit() is not None
    return OptimizeResult(
        report=report,
        input_bytes=loaded.nbytes,
        output_bytes=nbytes,
        external_data=external,
        verification=checked,
        warnings=(*report.notes, *_warnings(checked)),
        seconds=time.perf_counter() - started,
    )


def _proved(
    model: ir.Model,
    stage: Stage,
    origin: Provenance,
    reference: Reference | None,
    after: tuple[str, Verification | None] | None = None,
) -> tuple[int, Verification | None]:
    """Write a model to the stage, run it, compare it with the input.

    Args:
        model: What was simplified.
        stage: Where it is written.
        origin: Its record.
        reference: What the input computed; None: nothing is run.
        after: The pass that ran last, and what was found before it; None: the built-in ones.

    Returns:
        Its size, and what was found.

    Raises:
        VerifyError: It is not valid, does not run, or computes something else; names the pass.
    """
    if after is None:
        nbytes = _write(stage, model, origin)
        return nbytes, None if reference is None else _verify(stage, reference, nbytes, _HINT)
    name, before = after
    try:
        nbytes = _write(stage, model, origin)
        checked = None
        if reference is not None:
            checked = _verify(stage, reference, nbytes, "Leave that pass out.")
            _require_kept(before, checked)
    except QuantkitError as e:
        raise VerifyError(f"The pass '{name}' broke the model: {e}") from e
    return nbytes, checked


def _require_kept(before: Verification | None, now: Verification) -> None:
    """Raise if an output can no longer be compared, or whole numbers are mostly others, since a pass has run.

    A flipped decision here and there is rounding: the largest of two near scores.
    """
    for name in () if before is None else before.compared:
        equal = now.agreement.get(name)
        if name not in now.compared and (equal is None or equal.share < _HALF):
            raise VerifyError(
                f"Output '{name}' is not what the input gives; nothing was written. Leave that pass out."
            )


def _write(stage: Stage, model: ir.Model, origin: Provenance) -> int:
    model.ir_version = readable_ir_version(model.ir_version or 0)
    try:
        external: bool = origin.options["external_data"]
        return write_model(stage, model, origin, external=external)
    except onnx.checker.ValidationError as e:
        reason = str(e).strip().splitlines()[0]
        raise VerifyError(f"The simplified model is not valid ONNX: {reason}") from e


def _verify(stage: Stage, reference: Reference, nbytes: int, hint: str) -> Verification:
    """Load and run the result as users will, then measure it as the reference was: not optimized."""
    checked = compare_apart(stage.model_path, reference, nbytes=nbytes)
    if not reference.outputs or nbytes >= LARGE // 4:  # not in memory twice
        _require_close(checked.about_zero, hint)
        return checked
    session = make_session(str(stage.model_path), level=0, prepack=False)
    outputs = run_session(session, reference.feeds)
    compared = dict(checked.compared)
    for name, expected in reference.outputs.items():
        if _is_exact(expected, outputs[name]):
            compared[name] = inf
        elif name in compared:
            compared[name] = _distance(expected, outputs[name])
    _require_close(compared, hint)
    skipped = [name for name in outputs if name not in compared]
    note = f"different, or not comparable: {', '.join(skipped)}" if skipped else reference.note
    others = {name: equal for name, equal in checked.agreement.items() if name not in compared}
    return Verification(compared=compared, note=note, ran=True, agreement=others)


def _is_exact(expected: Any, actual: Any) -> bool:
    if not isinstance(expected, np.ndarray) or expected.shape != actual.shape:
        return False
    return bool(np.array_equal(expected, actual, equal_nan=expected.dtype.kind == "f"))


def _distance(expected: NDArray[Any], actual: NDArray[Any]) -> float:
    finite = np.isfinite(expected)
    return sqnr(expected[finite], actual[finite])


def _require_close(compared: Mapping[str, float], hint: str) -> None:
    name = min(compared, key=lambda n: compared[n], default=None)
    if name is not None and compared[name] < _WRONG_DB:
        raise VerifyError(
            f"Output '{name}' of the simplified model is {compared[name]:.1f} dB from the input's, which "
            f"is not rounding; nothing was written. {hint}"
        )


def _warnings(checked: Verification | None) -> tuple[str, ...]:
    if checked is None:
        return ("Not verified: the result was neither loaded nor compared with the input.",)
    return (checked.remark,) if checked.remark else ()


def check_pass(run: ModelPass, models: Sequence[onnx.ModelProto | str | Path] = ()) -> None:
    """Check the laws of a pass; for the tests of anyone's.

        check_pass(MyPass(), ["a_model_that_it_is_for.onnx"])

    On each model, and on a few built-in ones that any pass must leave right (subgraphs, shared weights, outputs that are
    inputs, nodes without names): it does not fail, keeps inputs and outputs, leaves a valid model that computes the same,
    can be run once more, and where it says that nothing was modified, nothing was.

    Args:
        run: The pass.
        models: Models on which it has something to do.

    Raises:
        AssertionError: A law is broken; the message names it.
    """
    for number, source in enumerate((*models, *map(onnx.parser.parse_model, _LAW_MODELS))):
        where = (
            f"model {number + 1}"
            if number < len(models)
            else f"\n{_LAW_MODELS[number - len(models)]}"
        )
        loaded = load_model(source)
        origin = Provenance(
            kind="optimize",
            float=ModelOrigin(**model_digest(loaded)),
            options={"external_data": False},
        )
        reference = run_float(loaded)
        if not reference.outputs:
            raise ValueError(f"The laws need models that run on made-up inputs: {reference.note}.")
        with scratch() as folder, staged(folder / "checked.onnx") as stage:
            nbytes = _write(stage, loaded.model, origin)
            model, last = loaded.model, _verify(stage, reference, nbytes, "")
            for _ in range(2):  # a pass may be run once more
                before = to_proto(model).SerializeToString(deterministic=True)
                try:
                    done = run_pass("checked", run, model)
                    _, now = _proved(done.model, stage, origin, reference, ("checked", last))
                except QuantkitError as e:
                    raise AssertionError(
                        f"Broken law: a pass keeps what a model computes; {e} On {where}"
                    ) from e
                after = to_proto(done.model).SerializeToString(deterministic=True)
                if not done.modified and after != before:
                    raise AssertionError(
                        f"Broken law: what is not modified is the same; on {where}"
                    )
                model, last = done.model, now or last
