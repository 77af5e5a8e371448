"""`verify_file`: is a model what it says it is, and does quantizing as its record says give the same?"""

import filecmp
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from quantkit.api.arguments import as_path, checked_kinds, optional_path
from quantkit.calibration import Calibration, CalibratorOf
from quantkit.calibration.collect import CalibrateOptions
from quantkit.calibration.container import is_calibration
from quantkit.errors import ModelError, UsageError
from quantkit.files import scratch
from quantkit.model.graph.load import model_files
from quantkit.model.provenance import (
    Provenance,
    content_digest,
    model_digest,
    read_provenance,
)
from quantkit.pipeline.chain import chain_of
from quantkit.pipeline.form import run_form
from quantkit.pipeline.forms import form_of, settings_of
from quantkit.pipeline.optimize import optimize_model
from quantkit.pipeline.prepared import Job, Output
from quantkit.pipeline.result import kept_of
from quantkit.pipeline.verify_file import (
    Attestation,
    Check,
    attest,
    require_provenance,
    samples_used,
    version_changes,
    was_calibrated,
)
from quantkit.quantize.plan import Plan
from quantkit.quantize.rewrite.simplify.plugins import PLUGINS
from quantkit.runtime.session import load_model
from quantkit.settings import DataSettings, parse_memory
from quantkit.settings.record import data_settings_of, recorded_settings


@checked_kinds
def verify_file(  # noqa: PLR0913 - one parameter per question
    model: str | Path,
    float_model: str | Path | None = None,
    data: str | Path | None = None,
    *,
    again: bool = False,
    student: str | Path | None = None,
    settings: DataSettings | None = None,
    memory: int | str | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Attestation:
    """Check a model that quantkit wrote: unchanged, made from this float model and this data, runs.

        found = verify_file("model.int8.onnx", "model.onnx", "images/", again=True)
        for check in found.checks:
            print(check.name, check.outcome, check.sentence)

    Args:
        model: A model that quantkit wrote.
        float_model: What it should be made from; it is also run beside it.
        data: What it should be calibrated with: data, or the file of a calibration.
        again: Also quantize again as recorded, and compare the bytes; needs the float model.
        student: The model that distillation began with; `again` needs it for a distilled model, of which the float model is the teacher.
        settings: How samples are prepared; None is as the model's record says.
        memory: Bytes that may be held at once (or "500MB", "1GB"), where settings do not say it.
        progress: Called with what is being done.

    Returns:
        What the model says of itself, and each check with its outcome; `ok` where nothing is wrong.

    Raises:
        QuantkitError: The model carries no provenance, or something that was given cannot be read.
    """
    path = as_path(model, "model")
    source = optional_path(float_model, "float_model")
    given: dict[str, Any] = {
        "data": optional_path(data, "data"),
        "settings": settings,
        "memory": None if memory is None else parse_memory(memory),
        "progress": progress,
    }
    if again and source is None:
        raise UsageError("again=True needs the float model: give float_model.")
    progress(f"Reading {path}")
    found = attest(path, float_model=source, **given)
    if not again or source is None:
        return found
    start = None if student is None else as_path(student, "student")
    made = reproduce(path, source, student=start, **given)
    return replace(found, checks=(*found.checks, made))


def reproduce(  # noqa: PLR0913 - one parameter per file
    model: Path,
    float_model: Path,
    *,
    data: Path | None = None,
    student: Path | None = None,
    settings: DataSettings | None = None,
    memory: int | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Check:
    """Quantize again with the recorded options and compare the bytes.

    Args:
        model: A model that quantkit wrote.
        float_model: What it was made from.
        data: What it was calibrated with: data, or the file of a calibration.
        student: The model that distillation began with, where no step before made it.
        settings: How samples are prepared; None is as the record says.
        memory: Bytes that may be held at once, where settings do not say it.
        progress: Called with what is being done.

    Raises:
        QuantkitError: The model carries no provenance, or float model or data cannot be read.
    """
    _, says = require_provenance(model)
    chain = chain_of(model, says)
    if any(map(was_calibrated, chain.steps)) and data is None:
        raise UsageError(
            "It was calibrated: to make it again give the data, or the calibration, as --data."
        )
    follows = chain.plan is not None  # as the last step, the only one that can
    obstacles = [_obstacle(step, data, follows=follows) for step in chain.steps]
    obstacles.append(_other_student(chain.steps[0], student))
    if obstacle := next(filter(None, obstacles), ""):
        return Check("again", "unknown", f"Cannot be made again: {obstacle}.")
    # Records name the file that was read, and external data is named after the file.
    names = [*map(_name_read, chain.steps[1:]), model.name]
    made = float_model if student is None else student
    with scratch() as folder:
        for number, (step, name) in enumerate(zip(chain.steps, names, strict=True)):
            progress(f"Making it again ({step.kind})")
            source, made = made, folder / str(number) / name
            start = source if step.kind == "distill" else None
            source = source if start is None else float_model
            made.parent.mkdir()
            plan, how = chain.plan if step is chain.steps[-1] else None, settings
            try:
                if settings is None and was_calibrated(step):
                    how = replace(data_settings_of(step.options), memory=memory)
                _make(step, (source, start), made, data, how or DataSettings(), plan)
            except (AttributeError, KeyError, TypeError, msgspec.ValidationError) as e:
                raise ModelError(f"The recorded options are not of this version: {e!r}.") from e
        return _compared(model, made, says)


def _obstacle(says: Provenance, data: Path | None, *, follows: bool) -> str:
    """Return why the record does not suffice; "" if it does; `follows`: the plan that it names is there."""
    if says.kind == "optimize":
        return _foreign(says.options.get("extra_passes", ()))
    if says.options.get("plan") is not None and not follows:
        return "it follows a plan of which only the hash is recorded"
    if says.kind != "static":
        return "a framework exported it; run quantkit export" if says.kind == "export" else ""
    if says.calibration is not None and data is not None and not is_calibration(data):
        return "it was made from a calibration; give that file as --data"
    if says.calibration is None and data is not None and is_calibration(data):
        return "it was made from data, not from a calibration"
    return ""


def _foreign(passes: Sequence[str]) -> str:
    """Return why passes of other packages are not run again: a file from elsewhere must not choose what is imported."""
    installed = PLUGINS.names()
    for name in passes:
        if name not in installed:
            code = "code that only its maker names" if ":" in name else "which is not installed"
            return f"it ran the pass '{name}', {code}"
    return ""


def _other_student(first: Provenance, student: Path | None) -> str:
    """Return why the first step of a chain cannot train a student again; "" if it can, or trains none."""
    recorded = first.options.get("student")
    if recorded is None:
        return "" if student is None else "no student began it; leave out --student"
    if student is None:
        return f"it was distilled from the student {recorded['name']}; give it as --student"
    if model_digest(load_model(student))["sha256"] == recorded["sha256"]:
        return ""
    return f"{student.name} is not the student that it was distilled from"


def _name_read(says: Provenance) -> str:
    """Return the name of the file that a step read, other than the teacher of a distillation."""
    name: str = says.options.get("student", {}).get("name", says.float.name)
    return name


def _make(
    says: Provenance,
    sources: tuple[Path, Path | None],
    target: Path,
    data: Path | None,
    settings: DataSettings,
    plan: Plan | None,
) -> None:
    given, (source, student) = says.options, sources
    verify, external = bool(given["verify"]), bool(given["external_data"])
    if says.kind == "optimize":
        optimize_model(
            source,
            target,
            passes=given["passes"],
            extra_passes=given.get("extra_passes", ()),
            verify=verify,
            external_data=external,
            opset=given.get("opset", 0),
            metadata=given.get("metadata"),
        )
        return
    job = _job(says, source, data if was_calibrated(says) else None, settings)
    job = replace(job, student=student)
    output = Output(path=target, verify=verify, external_data=external)
    run_form(form_of(job, output, plan=plan))


def _job(says: Provenance, source: Path, data: Path | None, settings: DataSettings) -> Job[Any]:
    given, observed = says.options, None
    calibrate = {**given.get("calibrate", {"skip_bad": bool(given.get("skip_bad"))})}
    if "method" in calibrate:
        method = msgspec.convert(calibrate.pop("method"), CalibratorOf)
        calibrate |= {"method": method, "most": samples_used(says)}
        if data is not None and is_calibration(data):
            observed = Calibration.load(str(data)).by(method)
    return Job(
        source=source,
        data=observed or data,
        options=recorded_settings(given, settings_of(says.kind)),
        calibrate=CalibrateOptions(**calibrate),
        settings=settings,
        kept=kept_of(given),
        bits=given.get("bits"),
        widths=given.get("widths"),
    )


def _compared(model: Path, made: Path, says: Provenance) -> Check:
    if _same_bytes(model, made):
        return Check("again", "ok", "Made again from the same inputs, it has the same bytes.")
    now = read_provenance(made)
    assert now is not None  # noqa: S101 - it was just written
    causes = _causes(says, now)
    if content_digest(model) == now.content:
        differ = f"; the record differs: {'; '.join(causes)}" if causes else ""
        return Check("again", "ok", f"Made again, it is the same model{differ}.")
    if not causes:
        return Check("again", "wrong", "Made again from the same inputs, it is another model.")
    if says.kind == "distill":
        causes.append("training repeats its bytes only on the same CPU with the same torch")
    inputs = says.float.sha256 != now.float.sha256 or _data_of(says) != _data_of(now)
    return Check(
        "again", "wrong" if inputs else "unknown", f"Made again, it differs: {'; '.join(causes)}."
    )


def _causes(was: Provenance, now: Provenance) -> list[str]:
    """Return what explains a difference, most likely first."""
    found = []
    if was.float.sha256 != now.float.sha256:
        found.append("the float model is another")
    if _data_of(was) != _data_of(now):
        found.append("the calibration data is another")
    if was.options != now.options:
        keys = (
            k for k in {**was.options, **now.options} if was.options.get(k) != now.options.get(k)
        )
        found.append(f"other options ({', '.join(sorted(keys))})")
    found += (f"made with {change}" for change in version_changes(was.software, now.software))
    if was.cpu != now.cpu:
        found.append(f"made on another CPU ({was.cpu})")
    if was.options.get("sample"):
        found.append("it was verified with a sample that is not recorded")
    return found


def _data_of(record: Provenance) -> tuple[str, str, int]:
    data, calibration = record.data, record.calibration
    return (
        data.fingerprint if data else "",
        calibration.sha256 if calibration else "",
        data.samples if data else 0,
    )


def _same_bytes(one: Path, other: Path) -> bool:
    """Say whether two models are the same, their external data included."""
    files = model_files(one), model_files(other)
    return len(files[0]) == len(files[1]) and all(
        a.exists() and filecmp.cmp(a, b, shallow=False) for a, b in zip(*files, strict=True)
    )
