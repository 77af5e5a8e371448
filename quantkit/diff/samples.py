"""A few samples of a user's data, as the inputs of a model."""

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

from quantkit.data import Description, batches, collate, fixed_batch, open_data
from quantkit.errors import DataError
from quantkit.observe.prepare import inputs_of, with_model_folder
from quantkit.runtime.session import load_model
from quantkit.runtime.synthetic_inputs import Feeds
from quantkit.settings import DataSettings

__all__ = ["SAMPLES", "read_samples"]

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
    found = open_data(data, inputs, settings)
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
