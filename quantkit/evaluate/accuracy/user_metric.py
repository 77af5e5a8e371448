"""A metric of the user's own: `module:function`, called with outputs and labels of a batch."""

import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantkit.data import Label
from quantkit.errors import UsageError
from quantkit.evaluate.accuracy.chunks import Array, Chunk, Unit
from quantkit.evaluate.accuracy.columns import Column
from quantkit.evaluate.accuracy.figures import Figure, Mean
from quantkit.evaluate.accuracy.labels import is_class, is_number

__all__ = ["UserScorer", "import_metric"]

UserMetric = Callable[[dict[str, Array], Any], Any]


def import_metric(name: str) -> UserMetric:
    """Return the function that `module:function` names, or `file.py:function`; modules are also looked for in the working directory.

    Raises:
        UsageError: There is no such module or function, or the module cannot be imported.
    """
    module, _, function = name.rpartition(":")
    if not module or not function:
        raise UsageError(f"metric '{name}' is no function: write module:function.")
    folder = os.getcwd()  # noqa: PTH109 sys.path holds texts
    added = folder not in sys.path
    if added:
        sys.path.insert(0, folder)
    try:
        found = _from_file(module) if module.endswith(".py") else importlib.import_module(module)
    except Exception as e:  # whatever the user's module raises when it is run
        raise UsageError(
            f"metric '{name}': the module '{module}' cannot be imported: {type(e).__name__}: {e}"
        ) from e
    finally:
        if added:
            sys.path.remove(folder)
    metric = getattr(found, function, None)
    if not callable(metric):
        raise UsageError(f"metric '{name}': the module '{module}' has no function '{function}'.")
    called: UserMetric = metric
    return called


def _from_file(path: str) -> ModuleType:
    spec = spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"'{path}' is no Python file")
    found = module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


class UserScorer:
    """The mean of the scores that a user's function gives.

    The function gets ``outputs`` (name -> array, one row per sample) and ``labels`` (an array of numbers, or a list of
    texts), and returns one score a sample. Higher is better unless it has an attribute ``higher_is_better = False``;
    it is called with labels None only if it has ``needs_labels = False``. Samples of different shapes, or of several
    rows, are given one by one.
    """

    together = 1

    def __init__(self, name: str, metric: UserMetric, models: int) -> None:
        self.main = name
        self._metric = metric
        self._scores = [Column() for _ in range(models)]
        self._kinds: Column = Column()
        self._whole = True

    @property
    def needs_labels(self) -> bool:
        """Whether the function can only be called with labels."""
        return bool(getattr(self._metric, "needs_labels", True))

    def observe(self, chunk: Chunk) -> None:
        """Call the function for each model."""
        labels = [unit.label for unit in chunk.units]
        self._whole = self._whole and all(is_class(label) for label in labels)
        numeric = all(is_number(label) for label in labels)
        self._kinds.add(np.array(labels if numeric else [np.nan] * len(labels), np.float64))
        for column, answers in zip(self._scores, chunk.answers, strict=True):
            if all(_is_a_row_each(arrays) for arrays in answers.values()):
                whole = {name: _joined(arrays) for name, arrays in answers.items()}
                column.add(self._call(whole, chunk.units))
                continue
            for place, unit in enumerate(chunk.units):
                single = {name: arrays[place] for name, arrays in answers.items()}
                column.add(self._call(single, [unit]))

    def _call(self, outputs: Mapping[str, Array], units: Sequence[Unit]) -> NDArray[np.float64]:
        last = f" to '{units[-1].name}'" if len(units) > 1 else ""
        where = f"metric '{self.main}' on '{units[0].name}'{last}"
        try:
            found = self._metric(dict(outputs), _as_given(units))
        except Exception as e:  # whatever the user's function raises
            raise UsageError(f"{where} failed: {type(e).__name__}: {e}") from e
        try:
            scores = np.asarray(found, np.float64)
        except (TypeError, ValueError) as e:
            raise UsageError(
                f"{where} returned {type(found).__name__}: one number per sample is needed."
            ) from e
        if scores.shape != (len(units),):
            raise UsageError(
                f"{where} returned an array of shape {scores.shape} for {len(units)} samples: one "
                "number per sample is needed."
            )
        for unit, score in zip(units, scores.tolist(), strict=True):
            if not np.isfinite(score):
                raise UsageError(f"metric '{self.main}' gave {score} for '{unit.name}'.")
        return scores

    def figures(self) -> tuple[Figure, ...]:
        """Return the mean."""
        return (
            Mean(
                name=self.main,
                scores=np.stack([column.values for column in self._scores]),
                higher_is_better=bool(getattr(self._metric, "higher_is_better", True)),
            ),
        )

    def classes(self) -> NDArray[np.int64] | None:
        """Return the labels where all are whole numbers."""
        return self._kinds.values.astype(np.int64) if self._whole else None

    def numbers(self) -> NDArray[np.float64] | None:
        """Return the labels where all are numbers, and not all whole."""
        known = not self._whole and bool(np.isfinite(self._kinds.values).all())
        return self._kinds.values if known else None

    def notes(self) -> tuple[str, ...]:
        """Return no note: the metric is its author's."""
        return ()

    def answer(self, model: int, unit: int) -> str | None:
        """Return the score."""
        return f"{self._scores[model].values[unit]:.4g}"


def _is_a_row_each(arrays: Sequence[Array]) -> bool:
    """Say whether all are alike, and each is one row or a single number."""
    return len({a.shape for a in arrays}) == 1 and arrays[0].shape[:1] in {(), (1,)}


def _joined(arrays: Sequence[Array]) -> Array:
    """Return one array, one row per sample; what has no batch axis gets one."""
    if not arrays[0].ndim:
        return np.stack(arrays)
    return np.concatenate(arrays)


def _as_given(units: Sequence[Unit]) -> NDArray[Any] | list[Label] | None:
    labels = [unit.label for unit in units]
    if all(label is None for label in labels):
        return None
    return np.array(labels) if all(is_number(label) for label in labels) else labels
