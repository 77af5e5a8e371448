"""`verify_file`: is a model what it says it is?"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from quantkit.api.arguments import as_path, checked_kinds
from quantkit.errors import UsageError
from quantkit.pipeline.reproduce import reproduce
from quantkit.pipeline.verify_file import Attestation, attest
from quantkit.settings import DataSettings, parse_memory


@checked_kinds
def verify_file(  # noqa: PLR0913 - one parameter per question
    model: str | Path,
    float_model: str | Path | None = None,
    data: str | Path | None = None,
    *,
    again: bool = False,
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
        settings: How samples are prepared; None is as the model's record says.
        memory: Bytes that may be held at once (or "500MB", "1GB"), where settings do not say it.
        progress: Called with what is being done.

    Returns:
        What the model says of itself, and each check with its outcome; `ok` where nothing is wrong.

    Raises:
        QuantkitError: The model carries no provenance, or something that was given cannot be read.
    """
    path = as_path(model, "model")
    source = None if float_model is None else as_path(float_model, "float_model")
    given: dict[str, Any] = {
        "data": None if data is None else as_path(data, "data"),
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
    return replace(found, checks=(*found.checks, reproduce(path, source, **given)))
