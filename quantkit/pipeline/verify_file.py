"""Does a model come from where it says it does, and is it still what was written?"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from hashlib import file_digest
from pathlib import Path
from typing import Any, Literal

import onnx_ir as ir

from quantkit.calibration import Calibration
from quantkit.calibration.collect import CalibrateOptions
from quantkit.calibration.container import is_calibration
from quantkit.calibration.model_inputs import inputs_of, with_model_folder
from quantkit.calibration.opened import opened_for
from quantkit.calibration.origin import calibration_digest
from quantkit.data import Samples, open_data
from quantkit.errors import DataError, ModelError, QuantkitError
from quantkit.model.graph.load import LoadedModel
from quantkit.model.provenance import (
    Provenance,
    content_digest,
    cpu_name,
    is_sealed,
    model_digest,
    provenance_from_text,
    read_entry,
    software,
    source_of,
)
from quantkit.pipeline.apart import compare_apart
from quantkit.pipeline.chain import chain_of
from quantkit.pipeline.checks import is_noise, noise
from quantkit.reduce.trim.graph import Tokens
from quantkit.runtime.check_result import Reference, Verification, run_float
from quantkit.runtime.runs import row_trial
from quantkit.runtime.session import float_session, load_model
from quantkit.settings import DataSettings
from quantkit.settings.record import data_settings_of
from quantkit.text import counted, printable

Outcome = Literal["ok", "wrong", "unknown"]
_SHOWN = 12  # digits of a hash that tell two apart


@dataclass(frozen=True, slots=True)
class Check:
    """One question and its answer.

    Attributes:
        name: What was asked: "content", "record", "float", "data", "runs", "software", "cpu", "again".
        outcome: "unknown" where it could not be asked, or where no answer would be wrong.
        sentence: For people.
    """

    name: str
    outcome: Outcome
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Attestation:
    """What was found out about one model.

    Attributes:
        provenance: What the model says of itself.
        checks: In the order of asking.
    """

    provenance: Provenance
    checks: tuple[Check, ...] = field(default=())

    def __str__(self) -> str:
        says = f"{self.provenance.kind}, written by quantkit {self.provenance.quantkit}"
        answers = [f"{check.name}: {check.outcome}: {check.sentence}" for check in self.checks]
        return printable("\n".join((says, *answers, self.verdict)), keep="\n")

    def __repr__(self) -> str:
        return f"<Attestation {printable(self.provenance.kind)}: {self.verdict}>"

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return all(check.outcome != "wrong" for check in self.checks)

    @property
    def verdict(self) -> str:
        """All the answers in one line."""
        wrong = [check.name for check in self.checks if check.outcome == "wrong"]
        found = f"wrong: {', '.join(wrong)}" if wrong else "verified"
        unknown = sum(check.outcome == "unknown" for check in self.checks)
        return found + (f"; {counted(unknown, 'check')} skipped" if unknown else "")

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "ok": self.ok,
            "checks": [asdict(check) for check in self.checks],
            "provenance": self.provenance.to_json(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """A model, what it says, and what a user gave to compare with."""

    path: Path
    loaded: LoadedModel
    says: Provenance
    float_model: LoadedModel | None
    data: Path | None
    settings: DataSettings | None
    memory: int | None

    def recorded(self) -> DataSettings:
        """Return how samples were prepared, by the record."""
        return replace(data_settings_of(self.says.options), memory=self.memory)


def attest(
    model: Path,
    *,
    float_model: Path | None = None,
    data: Path | None = None,
    settings: DataSettings | None = None,
    memory: int | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Attestation:
    """Check a model against its own record, and against what it says it was made from.

    Args:
        model: A model that quantkit wrote.
        float_model: What it should be made from; it is also run beside it.
        data: What it should be calibrated with: data, or the file of a calibration.
        settings: How samples are prepared; None is as the record says.
        memory: Bytes that may be held at once, where settings do not say it.
        progress: Called with what is being done.

    Raises:
        ModelError: The model cannot be read, or carries no provenance.
        DataError: The data cannot be read.
    """
    text, says = require_provenance(model)
    case = _Case(
        path=model,
        loaded=load_model(model),
        says=says,
        float_model=None if float_model is None else load_model(float_model),
        data=data,
        settings=settings,
        memory=memory,
    )
    progress("Hashing")
    unchanged, sources = (_content(case), _record(text)), (_float(case), _data(case))
    progress("Running")
    runs = _runs(case, *sources)
    for loaded in (case.loaded, case.float_model):  # digests and runs belong to one version of each
        if loaded is not None:
            loaded.require_unchanged()
    return Attestation(
        provenance=says, checks=(*unchanged, *sources, runs, _software(says), _cpu(says))
    )


def require_provenance(model: Path) -> tuple[str, Provenance]:
    """Return a model's record, as it stands there and as it is read.

    Raises:
        ModelError: The model cannot be read, carries none, or a damaged one.
    """
    text = read_entry(model)
    if text is None:
        raise ModelError(
            f"'{model}' carries no provenance: it was not written by quantkit, or by a version before "
            "provenance. Quantize it again."
        )
    return text, provenance_from_text(text, f"'{model}'")


def was_calibrated(says: Provenance) -> bool:
    """Say whether samples decided what a model is: it holds for such alone, and is made again with them."""
    return says.kind == "static" or says.data is not None


def samples_used(says: Provenance) -> int | None:
    """Return how many samples a record says were used, at most; None: all."""
    used = None if says.data is None else says.data.order.get("limit")
    return used if isinstance(used, int) else None


def _content(case: _Case) -> Check:
    try:
        found = content_digest(case.path)
    except ModelError as e:
        return Check("content", "wrong", str(e))
    if found != case.says.content:
        return Check("content", "wrong", "The model was changed after quantkit wrote it.")
    # The content digest is the same for one file and external data; users compare with sha256sum.
    with case.path.open("rb") as file:
        shown = file_digest(file, "sha256").hexdigest()
    return Check("content", "ok", f"Unchanged since quantkit wrote it (sha256 {shown[:_SHOWN]}).")


def _record(text: str) -> Check:
    if is_sealed(text):
        return Check("record", "ok", "The record in the file is as quantkit wrote it.")
    return Check("record", "wrong", "The record was edited: its seal does not fit.")


def _float(case: _Case) -> Check:
    first = chain_of(case.path, case.says).steps[0]
    wanted, source = first.float, source_of(case.loaded.model.metadata_props)
    if case.says.kind == "export":
        return Check("float", "unknown", f"Exported from {source or wanted.name}.")
    named = f"{wanted.name} (sha256 {wanted.sha256[:_SHOWN]})"
    if source is not None:
        named += f", exported from {source}"
    if case.float_model is None:
        return Check("float", "unknown", f"Made from {named}; give --float to compare.")
    case.float_model.require_weights()
    found = model_digest(case.float_model)["sha256"]
    if found == wanted.sha256:
        return Check("float", "ok", f"Built from this model: {named}.")
    given = f"{case.float_model.name} has sha256 {found[:_SHOWN]}"
    return Check("float", "wrong", f"Made from {named}, and {given}.")


def _data(case: _Case) -> Check:
    if case.data is not None and is_calibration(case.data):
        return _calibration(case.says, Calibration.load(case.data))
    wanted = case.says.data
    if wanted is None:
        needed = case.says.calibration is not None
        why = "Made from a calibration that names no data." if needed else "Made without data."
        return Check("data", "unknown" if needed or case.data else "ok", why)
    named = f"{wanted.samples:,} samples of {wanted.name} ({wanted.kind})"
    if case.says.kind == "trim" and case.float_model is None:
        return Check("data", "unknown", f"Made for {named}; give --float to compare.")
    verb = "Trained" if case.says.kind == "distill" else "Calibrated"
    if case.data is None or not wanted.fingerprint:
        missing = "give --data to compare" if wanted.fingerprint else "nothing identifies them"
        return Check("data", "unknown", f"{verb} with {named}; {missing}.")
    return _samples(case, verb, named, wanted.fingerprint)


def _samples(case: _Case, verb: str, named: str, wanted: str) -> Check:
    recorded = case.recorded()
    if _fingerprint(case, case.settings or recorded) == wanted:
        return Check("data", "ok", f"{verb} with this data: {named}.")
    if case.settings is not None and _fingerprint(case, recorded) == wanted:
        return Check(
            "data",
            "wrong",
            "The same files, prepared in another way: settings differ from the recorded ones.",
        )
    return Check("data", "wrong", f"{verb} with other data: {named}.")


def _calibration(says: Provenance, given: Calibration) -> Check:
    if says.calibration is None:
        return Check("data", "wrong", "Not made from a calibration file.")
    if calibration_digest(given) == says.calibration.sha256:
        return Check("data", "ok", "Made from this calibration.")
    return Check("data", "wrong", "Made from another calibration.")


def _fingerprint(case: _Case, settings: DataSettings) -> str:
    """Return what names the given data; "" for data that cannot be prepared in this way."""
    settings = _searching(case, settings)
    trial = row_trial(partial(float_session, case.float_model or case.loaded))
    try:
        samples = open_data(case.data, inputs_of(case.loaded), settings, trial)
    except DataError:
        raise
    except QuantkitError:
        return ""
    return samples.fingerprint() if isinstance(samples, Samples) else ""


def _searching(case: _Case, settings: DataSettings) -> DataSettings:
    """Let a tokenizer be found beside either model; a smaller vocabulary has another one beside it."""
    found = settings if case.says.kind == "trim" else with_model_folder(settings, case.loaded)
    return found if case.float_model is None else with_model_folder(found, case.float_model)


def _runs(case: _Case, float_check: Check, data_check: Check) -> Check:
    reference = Reference(feeds={}, outputs={})
    if case.float_model is not None and float_check.outcome == "ok":
        try:
            reference = _reference(case, case.float_model, known=data_check.outcome == "ok")
            reference = replace(reference, halved=_halved(case, case.float_model))
            reference = _renumbered(case, reference)
        except QuantkitError as e:
            reference = replace(reference, note=f"not compared with float: {e}")
    try:
        found = compare_apart(case.path, reference, nbytes=case.loaded.nbytes)
    except QuantkitError as e:
        return Check("runs", "wrong", str(e))
    return _judged(found)


def _reference(case: _Case, float_model: LoadedModel, *, known: bool) -> Reference:
    """Run the float model, on made-up inputs only where no calibrated range could exclude them.

    `known`: the data is what the model was calibrated with, so that its record tells which samples it has not seen.
    """
    static = was_calibrated(case.says)
    if case.data is None or is_calibration(case.data):
        note = "not compared with float: give --data" if static else ""
        return Reference(feeds={}, outputs={}, note=note) if static else run_float(float_model)
    fitted = case.says.data is not None
    recorded = fitted and case.settings is None
    settings = case.recorded() if recorded else case.settings or DataSettings(memory=case.memory)
    options = CalibrateOptions(most=samples_used(case.says))
    opened = opened_for(float_model, case.data, _searching(case, settings), options)
    feeds, on = opened.judged(float_model)
    if not feeds:
        return Reference(
            feeds={}, outputs={}, note="not compared with float: no sample is readable"
        )
    own = fitted and known and case.says.kind != "distill"
    named = on if own else "samples of the given data"
    return run_float(float_model, feeds[0], more=feeds[1:], on=named)


def _halved(case: _Case, float_model: LoadedModel) -> frozenset[str]:
    """Return the inputs and outputs that are float16 in the model and float32 in the float model, as the record says."""
    asked = case.says.options.get("float16", {})
    ends = {"half_inputs": _types(case.loaded.model.graph.inputs)}
    ends |= {"half_outputs": _types(case.loaded.model.graph.outputs)}
    graph = float_model.model.graph
    before = _types([*graph.inputs, *graph.outputs])
    return frozenset(
        name
        for key, types in ends.items()
        for name, kind in types.items()
        if asked.get(key) and (before.get(name), kind) == (ir.DataType.FLOAT, ir.DataType.FLOAT16)
    )


def _renumbered(case: _Case, reference: Reference) -> Reference:
    """Translate token ids and logits for a model with a smaller vocabulary."""
    if case.says.kind != "trim":
        return reference
    try:
        kept = Tokens.of(case.says.options["tokens"], case.loaded.model.metadata_props)
    except (KeyError, TypeError, ValueError) as e:
        raise ModelError(f"The list of kept tokens is damaged: {e!r}.") from e
    return kept.translated(reference)


def _types(values: Iterable[ir.Value]) -> dict[str, ir.DataType | None]:
    return {value.name or "": value.dtype for value in values}


def _judged(found: Verification) -> Check:
    here = f"onnxruntime {software()['onnxruntime']}"
    figures = found.figures()
    if not figures:
        done = "Loads and runs" if found.ran else "Loads"
        note = f" ({found.note})" if found.note else ""
        return Check("runs", "ok", f"{done} in {here}{note}.")
    compared = f"{found.judged_on}: {figures}"
    if is_noise(found):
        return Check("runs", "wrong", f"Runs in {here}, and gives noise. {noise(found)}")
    if found.has_noise:
        return Check("runs", "unknown", f"Runs in {here}. {noise(found)}")
    return Check("runs", "ok", f"Runs in {here}; against float on {compared}.")


def version_changes(was: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return "onnxruntime 1.30.0, here 1.31.1" for every version that differs."""
    return [
        f"{name} {was.get(name, 'none')}, here {now.get(name, 'none')}"
        for name in sorted({*was, *now})
        if was.get(name) != now.get(name)
    ]


def _software(says: Provenance) -> Check:
    changes = version_changes(says.software, software(*({"torch"} & says.software.keys())))
    if changes:
        return Check("software", "unknown", f"Made with {'; '.join(changes)}.")
    listed = ", ".join(f"{name} {number}" for name, number in sorted(says.software.items()))
    return Check("software", "ok", f"Built with the installed versions: {listed}.")


def _cpu(says: Provenance) -> Check:
    here = cpu_name()
    if says.cpu == here:
        return Check("cpu", "ok", f"Built on the same kind of CPU: {here}.")
    return Check("cpu", "unknown", f"Made on another CPU: {says.cpu}.")
