"""A metric of the user's own, called with outputs and labels of a batch: `module:function`, or an entry point.

An entry point of the group "quantkit.metrics" names the function, and its own name is the metric's. `check_metric` checks one.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quantkit.data import Label
from quantkit.errors import UsageError
from quantkit.evaluate.accuracy.chunks import Array, Chunk, Unit
from quantkit.evaluate.accuracy.scorer import (
    Figure,
    Mean,
    SampleColumn,
    Scorer,
    is_class,
    is_number,
)
from quantkit.settings import metric_plugins


class MetricFunction(Protocol):
    """One score per sample.

    It may have two attributes: ``higher_is_better = False`` for an error, and ``needs_labels = False`` if it can be called
    with labels None.
    """

    def __call__(self, outputs: dict[str, Array], labels: Any, /) -> ArrayLike:
        """Return one score per sample.

        Args:
            outputs: Arrays by the names of the model's outputs, one row per sample.
            labels: An array of numbers, or a list of texts; None without labels.
        """


def import_metric(name: str) -> MetricFunction:
    """Return the function that `module:function` names, or `file.py:function`, or the plug-in of that name.

    Raises:
        UsageError: There is none, or it cannot be imported.
    """
    plugins = metric_plugins()
    found = plugins.import_named(name) if ":" in name else plugins.load(name)
    if not callable(found):
        raise UsageError(
            f"The plug-in '{plugins.where(name)}' is no metric: it must name a function of outputs and labels."
        )
    metric: MetricFunction = found
    return metric


def check_metric(metric: MetricFunction, outputs: Mapping[str, Array], labels: Any = None) -> None:
    """Check the laws of a metric; for the tests of anyone's.

        check_metric(margin, {"logits": np.eye(4)}, np.arange(4))

    Args:
        metric: The function.
        outputs: What a model could give for a few samples, by output name: at least two rows each.
        labels: One per sample, an array of numbers or a list of texts; None only if the metric needs none.

    Raises:
        AssertionError: A law is broken; the message names it.
    """
    counts = {len(array) for array in outputs.values()}
    if len(counts) != 1 or counts == {1}:
        raise ValueError(
            "The laws need outputs of as many rows as there are samples, at least two."
        )
    for key in ("higher_is_better", "needs_labels"):
        _hold(isinstance(getattr(metric, key, True), bool), f"{key} is True or False")
    needs = bool(getattr(metric, "needs_labels", True))
    _hold(labels is not None or not needs, "needs_labels is False where there are no labels")
    given = {name: array.copy() for name, array in outputs.items()}
    kept = list(labels) if labels is not None else None
    together = _lawful(metric, given, labels)
    same = all(given[name].tobytes() == array.tobytes() for name, array in outputs.items())
    _hold(same and (kept is None or kept == list(labels)), "outputs and labels are not changed")
    _hold(np.array_equal(together, _lawful(metric, given, labels)), "a second call gives the same")
    alone = [
        _lawful(
            metric,
            {name: array[i : i + 1] for name, array in outputs.items()},
            None if labels is None else labels[i : i + 1],
        )
        for i in range(counts.pop())
    ]
    # Which samples come together is not the metric's to know.
    _hold(
        np.allclose(together, np.concatenate(alone), rtol=1e-5, atol=1e-8),
        "a sample's score does not depend on the samples beside it",
    )


def _lawful(metric: MetricFunction, outputs: dict[str, Array], labels: Any) -> NDArray[np.float64]:
    count = len(next(iter(outputs.values())))
    try:
        scores = _scores(metric, outputs, labels, count, "it")
    except UsageError as e:
        raise AssertionError(f"Broken law: a metric returns one number per sample; {e}") from e
    _hold(bool(np.isfinite(scores).all()), "scores are finite")
    return scores


def _hold(condition: bool, law: str) -> None:  # noqa: FBT001 - an assertion with a name
    if not condition:
        raise AssertionError(f"Broken law: {law}.")


def _scores(
    metric: MetricFunction, outputs: Mapping[str, Array], labels: Any, count: int, where: str
) -> NDArray[np.float64]:
    """Call a metric.

    Raises:
        UsageError: It fails, or does not return one number per sample.
    """
    try:
        found = metric(dict(outputs), labels)
    except Exception as e:  # whatever the user's function raises
        raise UsageError(f"{where} failed: {type(e).__name__}: {e}") from e
    try:
        scores = np.asarray(found, np.float64)
    except (TypeError, ValueError) as e:
        raise UsageError(
            f"{where} returned {type(found).__name__}: one number per sample is needed."
        ) from e
    if scores.shape != (count,):
        raise UsageError(
            f"{where} returned an array of shape {scores.shape} for {count} samples: one "
            "number per sample is needed."
        )
    return scores


class UserScorer(Scorer):
    """The mean of the scores that a user's function gives.

    Samples of different shapes, or of several rows, are given to it one by one.
    """

    def __init__(self, name: str, metric: MetricFunction) -> None:
        self.main = name
        self._metric = metric
        self._scores, self._kinds = SampleColumn(), SampleColumn()
        self._whole = True

    @property
    def needs_labels(self) -> bool:
        """Whether the function can only be called with labels."""
        return bool(getattr(self._metric, "needs_labels", True))

    def observe(self, chunk: Chunk) -> None:
        """Call the function for each model."""
        labels = [unit.label for unit in chunk.units]
        self._whole = self._whole and all(is_class(label) for label in labels)
        self._kinds.add([label if is_number(label) else np.nan for label in labels])
        self._scores.add([self._scored(answers, chunk.units) for answers in chunk.answers])

    def _scored(
        self, answers: Mapping[str, Sequence[Array]], units: Sequence[Unit]
    ) -> NDArray[np.float64]:
        """Return a model's score of each unit."""
        if all(_is_a_row_each(arrays) for arrays in answers.values()):
            return self._call({name: _joined(arrays) for name, arrays in answers.items()}, units)
        single = (
            self._call({name: arrays[place] for name, arrays in answers.items()}, [unit])
            for place, unit in enumerate(units)
        )
        return np.concatenate(list(single))

    def _call(self, outputs: Mapping[str, Array], units: Sequence[Unit]) -> NDArray[np.float64]:
        last = f" to '{units[-1].name}'" if len(units) > 1 else ""
        where = f"metric '{self.main}' on '{units[0].name}'{last}"
        scores = _scores(self._metric, outputs, _as_given(units), len(units), where)
        for unit, score in zip(units, scores.tolist(), strict=True):
            if not np.isfinite(score):
                raise UsageError(f"metric '{self.main}' gave {score} for '{unit.name}'.")
        return scores

    def figures(self) -> tuple[Figure, ...]:
        """Return the mean."""
        return (
            Mean(
                name=self.main,
                scores=self._scores.values,
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

    def answer(self, model: int, unit: int) -> str:
        """Return the score."""
        return f"{self._scores.values[model, unit]:.4g}"


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
