"""What differs between two models (`models`), or two results (`results`); the type of a file to diff, and sample inputs."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Literal

from quantkit.calibration.model_inputs import fixed_batch, inputs_of, with_model_folder
from quantkit.data import Description, batches, collate, open_data
from quantkit.errors import DataError, UsageError, as_os_error
from quantkit.evaluate.diff.models import ModelDiff, compare_models
from quantkit.evaluate.diff.results import ResultDiff, compare_results
from quantkit.files import model_in
from quantkit.quantize.plan.model import FORMAT
from quantkit.result import SCHEMA
from quantkit.runtime.runs import row_trial
from quantkit.runtime.session import float_session, load_model
from quantkit.runtime.synthetic_inputs import Feeds
from quantkit.settings import DataSettings

__all__ = [
    "Kind",
    "ModelDiff",
    "ResultDiff",
    "compare_models",
    "compare_results",
    "kind_of",
    "located",
]
__all__ += ["read_samples"]


SAMPLES = 8
"""How many are read unless a user says so: enough to rank tensors by their error."""


def read_samples(
    model: Path,
    data: object,
    settings: DataSettings,
    described: Callable[[Description], None],
    *,
    skip_bad: bool = False,
) -> list[Feeds]:
    """Return the inputs of one run after the other.

    Args:
        model: Whose inputs the samples become.
        data: A path, or a Python object that `quantkit.data.open_data` takes.
        settings: Which samples, and how they are prepared; without a limit so many as `SAMPLES` runs take.
        described: Told what the data is.
        skip_bad: Leave out samples that cannot be read, instead of failing.

    Raises:
        DataError: The data cannot be read, does not fit the model, or holds no whole batch.
    """
    loaded = load_model(model)
    inputs = inputs_of(loaded)
    settings = with_model_folder(settings, loaded)
    found = open_data(data, inputs, settings, row_trial(partial(float_session, loaded)))
    described(found.description)
    size = fixed_batch(inputs) or settings.batch or 1
    settings = replace(settings, limit=settings.limit or SAMPLES * size)
    runs = batches(
        found,
        size=size,
        limit=settings.limit,
        shuffle=settings.shuffle,
        seed=settings.seed,
        skip_bad=skip_bad,
    )
    fixed = fixed_batch(inputs)
    feeds = [feed for run in runs if not fixed or len(run) == size for feed in collate(run)]
    if not feeds:
        shown = data if isinstance(data, str | Path) else found.description.location
        raise DataError(f"'{shown}' holds no {size} samples, which one run takes.")
    return list(islice(feeds, settings.limit))


Kind = Literal["model", "result", "plan"]
_RESULT = "result.json"


def located(path: Path) -> Path:
    """Return the file: a folder stands for the result in it.

    Raises:
        UsageError: There is no such file, or the folder holds no result.
    """
    if path.is_dir():
        if not (path / _RESULT).is_file():
            raise UsageError(f"'{path}' is a folder without {_RESULT}: {model_in(path)}")
        return path / _RESULT
    if not path.is_file():
        raise as_os_error(UsageError(f"There is no file '{path}'."), FileNotFoundError)
    return path


def kind_of(path: Path) -> Kind:
    """Tell a result and a plan by what they say of themselves; everything that is not JSON is taken for a model.

    Raises:
        UsageError: It is JSON of another kind, or cannot be read.
    """
    try:
        with path.open("rb") as file:
            start = file.read(64).lstrip()
    except OSError as e:
        raise as_os_error(UsageError(f"Cannot read '{path}': {e.strerror or e}."), e) from e
    if not start.startswith((b"{", b"[")) and path.suffix != ".json":
        return "model"
    try:
        plain = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as e:
        raise UsageError(f"'{path}' is not JSON: {e}.") from e
    said = plain if isinstance(plain, dict) else {}
    if str(said.get("schema", "")).partition("/")[0] == SCHEMA.partition("/")[0]:
        return "result"
    if str(said.get("format", "")).startswith(FORMAT.rpartition(".")[0]):
        return "plan"
    raise UsageError(f"'{path}' is neither a model nor a result nor a plan of quantkit.")
