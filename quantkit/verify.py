"""The never-invalid contract: before anything is written, the result is checked, loaded, run and compared."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from quantkit.errors import RuntimeSupportError, VerifyError
from quantkit.feeds import Feeds, made_up_feeds, strange_input
from quantkit.graph.load import LoadedModel
from quantkit.graph.mapped_model import mapped_model
from quantkit.numerics.affine import sqnr
from quantkit.runtime import (
    RUNTIME_ERRORS,
    first_line,
    make_session,
    readable_ir_version,
    run_session,
    why_not_loaded,
)

__all__ = [
    "LARGE",
    "NOISE_DB",
    "Reference",
    "Verification",
    "compare",
    "run_float",
]

# Above this the float model is not run beside the quantized one, and the quantized one is mapped,
# not copied: verification never needs more memory than quantization.
LARGE = 1 << 30
# Below this the output is more noise than signal, whatever the model is for.
NOISE_DB = 5.0

_SHOWN = 3  # outputs, in a sentence

_SAMPLE_ERRORS: tuple[type[Exception], ...] = (*RUNTIME_ERRORS, ValueError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Inputs that the float model accepts, and its outputs; or why there are none."""

    feeds: Feeds
    outputs: Mapping[str, Any]
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What was checked.

    Attributes:
        compared: Outputs that were compared with the float model, with their SQNR in dB.
        note: What could not be checked, and why; empty if everything was.
        ran: Whether it was run at all.
    """

    compared: Mapping[str, float]
    note: str
    ran: bool

    def __str__(self) -> str:
        done = "valid, loads and runs in onnxruntime" if self.ran else "valid, loads in onnxruntime"
        shown = list(self.compared.items())[:_SHOWN]
        found = ", ".join(
            f"{name} {f'{db:.1f} dB' if isfinite(db) else 'identical'}" for name, db in shown
        )
        more = f" and {len(self.compared) - _SHOWN} more" if len(self.compared) > _SHOWN else ""
        return f"verified: {done}" + (f"; SQNR against float: {found}{more}" if found else "")

    @property
    def worst(self) -> float | None:
        """The lowest SQNR; None if nothing was compared."""
        return min(self.compared.values(), default=None)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        # Infinite where nothing changed at all, which JSON cannot say.
        found = {k: v if isfinite(v) else None for k, v in self.compared.items()}
        return {"sqnr_db": found, "note": self.note, "ran": self.ran}


def run_float(
    source: LoadedModel,
    sample: Feeds | None = None,
    ranges: Mapping[str, tuple[float, float]] = MappingProxyType({}),
) -> Reference:
    """Load and run the float model on `sample`, or on inputs made up from its signature.

    `ranges`: between which values made-up inputs lie, where that is known.

    Raises:
        RuntimeSupportError: onnxruntime does not load the float model; says why.
    """
    if source.nbytes > LARGE and sample is None:
        size = source.nbytes / 2**30
        return Reference(feeds={}, outputs={}, note=f"not compared with float ({size:.1f} GB)")
    try:
        session = _float_session(source)
    except RUNTIME_ERRORS as e:
        raise RuntimeSupportError(why_not_loaded(source, str(e))) from e
    if sample is not None:
        return _run_sample(session, sample)
    strange = strange_input(session.get_inputs())
    if strange is not None:
        why = f"no value can be made up for input '{strange.name}' of type {strange.type}"
        return Reference(feeds={}, outputs={}, note=f"not run: {why}; pass a sample")
    reason = ""
    for feeds in made_up_feeds(session.get_inputs(), ranges):
        try:
            return Reference(feeds=feeds, outputs=run_session(session, feeds))
        except RUNTIME_ERRORS as e:
            reason = first_line(e)
    return Reference(
        feeds={},
        outputs={},
        note=f"not run: the float model accepts none of the inputs made up for it ({reason}); "
        "pass a sample",
    )


def _run_sample(session: Any, sample: Feeds) -> Reference:
    try:
        return Reference(feeds=sample, outputs=run_session(session, sample))
    except _SAMPLE_ERRORS as e:
        raise VerifyError(
            f"The float model does not run on the given sample: {first_line(e)}"
        ) from e


def compare(candidate: Path, reference: Reference, *, nbytes: int) -> Verification:
    """Load the written candidate, run it on the reference's inputs, and compare.

    Raises:
        VerifyError: It does not load, does not run, or gives NaN where float does not.
    """
    try:
        session = _candidate_session(candidate, nbytes)
    except RUNTIME_ERRORS as e:
        raise VerifyError(f"onnxruntime does not load the result: {first_line(e)}") from e
    if not reference.outputs:
        return _run_unseen(session, reference)
    try:
        outputs = run_session(session, reference.feeds)
    except RUNTIME_ERRORS as e:
        raise VerifyError(f"The result loads but does not run: {first_line(e)}") from e
    compared, skipped = {}, []
    for output in session.get_outputs():
        expected, actual = reference.outputs[output.name], outputs[output.name]
        _check_form(output, expected, actual)
        finite = np.isfinite(expected) if _is_comparable(expected, actual) else np.False_
        if not finite.any() or not expected[finite].any():
            skipped.append(output.name)  # nothing, or no signal, to compare with
            continue
        compared[output.name] = sqnr(expected[finite], actual[finite])
    note = f"not comparable: {', '.join(skipped)}" if skipped else reference.note
    return Verification(compared=compared, note=note, ran=True)


def _check_form(output: Any, expected: Any, actual: Any) -> None:
    """Raise if an output has another type or rank than float's, or values where float has none.

    Extents that the model leaves free may differ: what a detector keeps depends on its scores.
    """
    if not isinstance(expected, np.ndarray):
        return
    wrong = expected.dtype != actual.dtype or expected.ndim != actual.ndim
    # A declared extent counts only if the float model keeps it: some models declare wrong ones.
    extents = zip(output.shape, expected.shape, actual.shape, strict=False)
    if wrong or any(declared == e != a for declared, e, a in extents):
        raise VerifyError(
            f"Output '{output.name}' of the result is {actual.dtype}{list(actual.shape)}, "
            f"not {expected.dtype}{list(expected.shape)}."
        )
    same = expected.shape == actual.shape and expected.dtype.kind == "f"
    if same and not np.isfinite(actual[np.isfinite(expected)]).all():
        raise VerifyError(f"Output '{output.name}' of the result holds NaN or infinity.")


def _is_comparable(expected: Any, actual: Any) -> bool:
    return (
        isinstance(expected, np.ndarray)
        and expected.dtype.kind == "f"
        and expected.shape == actual.shape
    )


def _run_unseen(session: Any, reference: Reference) -> Verification:
    """Run a result that cannot be compared, on the first made-up inputs that it takes."""
    for feeds in made_up_feeds(session.get_inputs()):
        try:
            run_session(session, feeds)
        except RUNTIME_ERRORS:
            continue
        return Verification(compared={}, note=reference.note, ran=True)
    note = reference.note if "not run" in reference.note else f"{reference.note}; not run"
    return Verification(compared={}, note=note, ran=False)


def _float_session(source: LoadedModel) -> Any:
    """Load the float model as it is: mapped, not optimized, used once."""
    if source.path is None:
        assert source.proto is not None  # noqa: S101 - one of the two is given
        source.proto.ir_version = readable_ir_version(source.proto.ir_version)
        return make_session(source.proto.SerializeToString(), level=0)
    mapped = mapped_model(source.path, readable_ir_version)
    return make_session(mapped.structure, folder=mapped.folder, prepack=False, level=0)


def _candidate_session(path: Path, nbytes: int) -> Any:
    """Load the result as users will; if it is large, mapped so that it is not in memory twice."""
    if nbytes < LARGE // 4:
        return make_session(str(path))
    mapped = mapped_model(path, readable_ir_version)
    return make_session(mapped.structure, folder=mapped.folder, prepack=False)
