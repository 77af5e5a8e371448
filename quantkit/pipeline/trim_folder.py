"""Trim a model, or a folder with a model, its tokenizer and their settings."""

from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from quantkit.calibration.monitor import Monitor
from quantkit.errors import ModelError, UsageError
from quantkit.files import check_outputs, model_in, scratch
from quantkit.model.graph.load import model_files
from quantkit.pipeline.form import run_form
from quantkit.pipeline.forms import form_of
from quantkit.pipeline.forms.trim import kept_file
from quantkit.pipeline.prepared import Job, Output
from quantkit.pipeline.trim_result import TrimResult
from quantkit.reduce.trim.files import LEFT_OUT, TOKENIZER, read_object, rewritten
from quantkit.reduce.trim.graph import Tokens
from quantkit.settings import TrimSettings

_MODELS = ("model.onnx", "onnx/model.onnx")


def trim_model(
    job: Job[TrimSettings],
    output: Path,
    *,
    verify: bool = True,
    external_data: bool = False,
    monitor: Monitor | None = None,
) -> TrimResult:
    """Trim what a job names; see `quantkit.api.trim.trim`.

    Raises:
        UsageError: The output would overwrite what is read, or is a folder with something in it.
        ModelError: The folder holds no model.
    """
    source = Path(job.source) if isinstance(job.source, str | Path) else None
    if source is not None and source.is_dir():
        return _trim_folder(
            job, source, output, verify=verify, external_data=external_data, monitor=monitor
        )
    beside = [kept_file(output), *([] if job.options.keep_tokenizer else [TOKENIZER])]
    given = job.settings.text.tokenizer
    read = [*(model_files(source) if source else ()), *_tokenizers(source, given)]
    check_outputs([output, *(output.with_name(name) for name in beside)], read)
    to = Output(path=output, verify=verify, external_data=external_data)
    result: TrimResult = run_form(form_of(job, to, monitor))
    return replace(result, files=tuple(beside))


def _tokenizers(source: Path | None, given: Path | None) -> Iterator[Path]:
    """Yield where the tokenizer may be that is read."""
    for folder in (source.parent, source.parent.parent) if source else ():
        yield folder / TOKENIZER
    if given is not None:
        yield given / TOKENIZER if given.is_dir() else given


def _trim_folder(job: Job[TrimSettings], folder: Path, output: Path, **how: Any) -> TrimResult:
    """Write a folder with the smaller model, the tokenizer, and all else with new ids: as a whole, or not at all."""
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        said = f"The output '{output}' is there already: choose another folder, or remove it."
        raise UsageError(said)
    if output.resolve().is_relative_to(folder.resolve()):
        said = (
            f"The output '{output}' is inside of '{folder}', which is read; choose another folder."
        )
        raise UsageError(said)
    name = next((name for name in _MODELS if (folder / name).is_file()), "")
    if not name:
        raise ModelError(f"'{folder}' has neither {' nor '.join(_MODELS)}: {model_in(folder)}")
    with scratch(output.resolve().parent) as place:
        made = place / "made"
        (made / name).parent.mkdir(parents=True)
        result = trim_model(replace(job, source=folder / name), made / name, **how)
        left_out = tuple(_copy_others(folder, made, name, result.plan.kept))
        files = sorted(p.relative_to(made).as_posix() for p in made.rglob("*") if p.is_file())
        if output.is_dir():
            output.rmdir()
        made.rename(output)
    return replace(result, files=tuple(f for f in files if f != name), left_out=left_out)


def _copy_others(folder: Path, made: Path, name: str, kept: Tokens) -> Iterator[str]:
    """Copy the other files of a folder, with new ids where they name some; yield those that belong to the full vocabulary."""
    number = {old: new for new, old in enumerate(kept.ids)}
    if not kept.same_ids:
        (made / name).with_name(TOKENIZER).rename(made / TOKENIZER)
    tokenizer = read_object(made / TOKENIZER)
    for file in _others(folder, {folder / name, *model_files(folder / name)}):
        place = made / file.relative_to(folder)
        if file.name.endswith(LEFT_OUT):
            yield file.relative_to(folder).as_posix()
        elif not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            text = rewritten(file, number, kept.rows, tokenizer) if tokenizer else None
            place.write_bytes(file.read_bytes() if text is None else text.encode())


def _others(folder: Path, own: Collection[Path]) -> Iterator[Path]:
    """Yield the files of a folder but for hidden ones and those of the model."""
    for file in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
        if file.is_file() and file not in own and not hidden:
            yield file
