"""Simplify a float model and prove it: load, simplify, write to a staging folder, compare, rename into place."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from quantkit.errors import VerifyError
from quantkit.files import check_outputs, human
from quantkit.graph.load import LoadedModel
from quantkit.graph.save import Stage, staged
from quantkit.numerics.affine import sqnr
from quantkit.outcome import require_same
from quantkit.provenance import ModelOrigin, Provenance, model_digest, to_record, write_model
from quantkit.rewrite.simplify import SimplifyReport, select, simplify
from quantkit.runtime.check_result import LARGE, Reference, Verification, compare, run_float
from quantkit.runtime.session import load_model, make_session, readable_ir_version, run_session

__all__ = ["OptimizeResult", "optimize_model"]

# Folding 21 to 52 BatchNormalizations of a float32 model was measured at 118 to 128 dB, everything else is
# closer. Far below that something other than rounding has happened.
_WRONG_DB = 40.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizeResult:
    """What was done.

    Attributes:
        report: Nodes before and after, and what each pass changed.
        input_bytes: Size of the model, external data included.
        output_bytes: Size of the result, external data included.
        external_data: Whether its weights are in a ``.data`` file beside it.
        verification: What was checked before writing; None if that was switched off. `compared` is infinite
            for outputs that are the same bit for bit, both run without onnxruntime's own optimization.
        warnings: What the user should know.
        seconds: Wall time.
    """

    report: SimplifyReport
    input_bytes: int
    output_bytes: int
    external_data: bool
    verification: Verification | None
    warnings: tuple[str, ...]
    seconds: float

    def __str__(self) -> str:
        """Say what counts, in a few lines."""
        checked = self.verification
        lines = [self._sizes(), "not verified" if checked is None else str(checked)]
        return "\n".join([*lines, *(f"note: {text}" for text in self.warnings)])

    def __repr__(self) -> str:
        return f"<OptimizeResult: {self._sizes()}>"

    def _sizes(self) -> str:
        nodes = f"{self.report.nodes_before} -> {self.report.nodes_after} nodes"
        return f"{nodes}, {human(self.input_bytes)} -> {human(self.output_bytes)}"

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        checked = self.verification
        return {
            "input_bytes": self.input_bytes,
            "output_bytes": self.output_bytes,
            "external_data": self.external_data,
            "seconds": round(self.seconds, 4),
            "warnings": list(self.warnings),
            "verification": None if checked is None else checked.to_json(),
            "simplified": self.report.to_json(),
        }


def optimize_model(  # noqa: PLR0913 - one parameter a question
    model_input: str | Path | onnx.ModelProto,
    model_output: str | Path,
    *,
    passes: Iterable[str] | None = None,
    exclude: Iterable[str] = (),
    verify: bool = True,
    external_data: bool = False,
    sample: Mapping[str, NDArray[Any]] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> OptimizeResult:
    """Simplify a model and write it: fewer nodes, the same results.

    Args:
        model_input: The model, a path or a ModelProto; it is only read.
        model_output: Where to write the result; not the input.
        passes: Names of `quantkit.rewrite.simplify.PASSES` to run; all if None.
        exclude: Names of passes not to run.
        verify: Load and run the result, and compare it with the input, before it is written.
        external_data: Write weights to a ``.data`` file beside the model.
        sample: Inputs to compare on, by name; made up if None.
        progress: Called with what is being done.

    Raises:
        UsageError: There is no such pass, or the output cannot be where it is asked for.
        ModelError: The model cannot be read, or onnxruntime does not run it.
        VerifyError: The result is not valid or computes something else; nothing was written.
    """
    started = time.perf_counter()
    target, chosen = Path(model_output), select(passes, exclude)
    progress("Reading")
    loaded = load_model(model_input)
    check_outputs([target], loaded.files)
    loaded.require_weights()
    origin = Provenance(
        kind="optimize",
        float=ModelOrigin(**model_digest(loaded)),
        options={"passes": to_record(chosen), "verify": verify, "external_data": external_data},
    )
    with loaded.watched(), staged(target) as stage:
        reference = None
        if verify:
            progress("Running the model")
            loaded.release()  # onnxruntime maps the same file
            reference = run_float(loaded, sample)
        progress("Simplifying")
        report = simplify(loaded.model, chosen)
        nbytes = _write(stage, loaded, origin)
        progress("Verifying")
        checked = None if reference is None else _verify(stage, reference, nbytes)
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


def _write(stage: Stage, loaded: LoadedModel, origin: Provenance) -> int:
    loaded.model.ir_version = readable_ir_version(loaded.model.ir_version or 0)
    try:
        external: bool = origin.options["external_data"]
        return write_model(stage, loaded.model, origin, external=external)
    except onnx.checker.ValidationError as e:
        reason = str(e).strip().splitlines()[0]
        raise VerifyError(f"The simplified model is not valid ONNX: {reason}") from e


def _verify(stage: Stage, reference: Reference, nbytes: int) -> Verification:
    """Load and run the result as users will, then measure it as the reference was: not optimized."""
    checked = compare(stage.model_path, reference, nbytes=nbytes)
    if not reference.outputs or nbytes >= LARGE // 4:  # not in memory twice
        return checked
    session = make_session(str(stage.model_path), level=0, prepack=False)
    outputs = run_session(session, reference.feeds)
    compared = dict(checked.compared)
    for name, expected in reference.outputs.items():
        if _is_exact(expected, outputs[name]):
            compared[name] = inf
        elif name in compared:
            compared[name] = _distance(expected, outputs[name])
    _require_close(compared)
    skipped = [name for name in outputs if name not in compared]
    note = f"different, or not comparable: {', '.join(skipped)}" if skipped else reference.note
    return Verification(compared=compared, note=note, ran=True)


def _is_exact(expected: Any, actual: Any) -> bool:
    if not isinstance(expected, np.ndarray) or expected.shape != actual.shape:
        return False
    return bool(np.array_equal(expected, actual, equal_nan=expected.dtype.kind == "f"))


def _distance(expected: NDArray[Any], actual: NDArray[Any]) -> float:
    finite = np.isfinite(expected)
    return sqnr(expected[finite], actual[finite])


def _require_close(compared: Mapping[str, float]) -> None:
    name = min(compared, key=lambda n: compared[n], default=None)
    if name is not None and compared[name] < _WRONG_DB:
        raise VerifyError(
            f"Output '{name}' of the simplified model is {compared[name]:.1f} dB from the input's, which "
            "is not rounding; nothing was written. Leave out passes (--skip) to find which one it is."
        )


def _warnings(checked: Verification | None) -> tuple[str, ...]:
    if checked is None:
        return ("Not verified: the result was neither loaded nor compared with the input.",)
    return (f"Verification: {checked.note}.",) if checked.note else ()
