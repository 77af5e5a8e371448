"""Samples as the model takes them: names, shapes and types are checked, labels are read.

Every sample passes `conform`, so that the runtime never has to say no. Values are changed only by casts that lose
nothing a model could need: between floats (weights are float32 anyway), and between integers where every value fits.
An integer never becomes a float here: pixels of 0..255 fed to a network that was trained on 0..1 run without
complaint and give ranges that are wrong 255-fold.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from quantkit.data.model import Array, InputSpec, Sample, Samples, shape_text
from quantkit.errors import DataError
from quantkit.settings import closest

_TRIES = 16


def quoted(names: Sequence[str]) -> str:
    """Return "'a', 'b' and 'c'", at most eight of them."""
    shown = [f"'{name}'" for name in names[:8]]
    if len(names) > len(shown):
        return f"{', '.join(shown)} and {len(names) - len(shown)} more"
    return " and ".join(part for part in (", ".join(shown[:-1]), *shown[-1:]) if part)


def check_names(names: Sequence[str], inputs: Sequence[InputSpec], where: str) -> None:
    """Raise if an input has no array.

    Args:
        names: The arrays that the data has, labels left out.
        inputs: What the model wants.
        where: The sample or file, for the message.
    """
    wanted = [spec.name for spec in inputs]
    unknown = [name for name in names if name not in wanted]
    for spec in inputs:
        if spec.name not in names:
            has = f"it has {quoted(unknown)}" if unknown else "it has no other array"
            raise DataError(
                f"'{where}' has no array for the model's input '{spec}': "
                f"{has}{closest(spec.name, unknown)}; name the arrays like the inputs."
            )


def check_unknown(names: Sequence[str], inputs: Sequence[InputSpec], where: str) -> None:
    """Raise if an array belongs to no input.

    Args:
        names: What the data's arrays are called.
        inputs: What the model takes.
        where: The file or object, for the message.
    """
    wanted = [spec.name for spec in inputs]
    for name in names:
        if name not in wanted:
            raise DataError(
                f"'{where}' has an array '{name}' that is no input of the model"
                f"{closest(name, wanted)}: its inputs are {quoted(wanted)}."
            )


def _as_feeds(
    arrays: Mapping[str, Any], inputs: Sequence[InputSpec], where: str
) -> dict[str, Array]:
    """Return the arrays as the model takes them, or raise saying which input does not fit.

    Args:
        arrays: One for each input, of the input's rank, or one less: then a batch axis is added.
        inputs: What the model wants.
        where: The sample, for the message.
    """
    check_names(tuple(arrays), inputs, where)
    check_unknown(tuple(arrays), inputs, where)
    return {spec.name: _fit(np.asarray(arrays[spec.name]), spec, where) for spec in inputs}


def conform(sample: Sample, inputs: Sequence[InputSpec]) -> Sample:
    """Return the sample with arrays that fit the model, or raise a `DataError` that names it."""
    return replace(
        sample,
        feeds=_as_feeds(sample.feeds, inputs, sample.name),
        # A file's name may be no UTF-8; records and pages are.
        name=sample.name.encode(errors="backslashreplace").decode(),
    )


def first_good(samples: Samples) -> Sample:
    """Return the first sample that can be read, to check and describe the data when it is opened.

    One broken file must not stop a caller that passes over broken files. Where none of the first
    ones is good, the first error tells what is wrong with all.
    """
    first: DataError | None = None
    for index in range(min(len(samples), _TRIES)):
        try:
            return samples[index]
        except DataError as e:
            first = first or e
    raise first or DataError("There are no samples: nothing to read.")


def input_lines(sample: Sample) -> tuple[str, ...]:
    """Return each input as the sample has it, for a `Description`."""
    return tuple(f"{k} {shape_text(v.dtype, v.shape)}" for k, v in sample.feeds.items())


def _fit(array: Array, spec: InputSpec, where: str) -> Array:
    if array.ndim == len(spec.shape) - 1:
        array = array[np.newaxis]
    elif not spec.shape and array.shape == (1,):
        array = array.reshape(())
    fits = array.ndim == len(spec.shape) and all(
        want in {None, have} for want, have in zip(spec.shape, array.shape, strict=True)
    )
    if not fits:
        raise DataError(
            f"'{where}' does not fit the input '{spec.name}': the model wants "
            f"{shape_text(spec.dtype, spec.shape)} and the data has "
            f"{shape_text(array.dtype, array.shape)}; {_shape_advice(array, spec)}."
        )
    return array if array.dtype == spec.dtype else _cast(array, spec, where)


def _shape_advice(array: Array, spec: InputSpec) -> str:
    if array.ndim != len(spec.shape):
        return f"give it {len(spec.shape)} axes"
    axes = [a for a, n in enumerate(spec.shape) if n not in {None, array.shape[a]}]
    if axes[0] and sorted(array.shape[1:]) == sorted(n or 0 for n in spec.shape[1:]):
        return "the axes seem to be in another order: transpose the array"
    return f"axis {axes[0]} must be {spec.shape[axes[0]]}"


def _cast(array: Array, spec: InputSpec, where: str) -> Array:
    have, want = array.dtype, spec.dtype
    if want.kind == "O" and have.kind in "OU":
        return array.astype(object)
    if _is_float(have) and _is_float(want):
        return _cast_float(array, spec, where)
    if have.kind in "iub" and want.kind in "iu":
        limits = np.iinfo(want)
        if not array.size or (array.min() >= limits.min and array.max() <= limits.max):
            return array.astype(want)
        raise DataError(
            f"'{where}' holds {have} values from {array.min()} to {array.max()} for the input "
            f"'{spec.name}', which the model wants as {want}: they do not fit."
        )
    raise DataError(
        f"'{where}' does not fit the input '{spec.name}': the model wants "
        f"{shape_text(want, spec.shape)} and the data has {shape_text(have, array.shape)}; "
        f"{_cast_advice(have, want)}."
    )


def _is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or dtype.name == "bfloat16"  # ml_dtypes' bfloat16 has kind "V"


def _cast_float(array: Array, spec: InputSpec, where: str) -> Array:
    try:
        with np.errstate(over="raise"):
            return array.astype(spec.dtype)
    except FloatingPointError as e:
        raise DataError(
            f"'{where}' holds values up to {np.nanmax(np.abs(array)):g} for the input "
            f"'{spec.name}', which the model wants as {spec.dtype}: they overflow."
        ) from e


def _cast_advice(have: np.dtype[Any], want: np.dtype[Any]) -> str:
    if have == np.uint8 and _is_float(want):
        return (
            "these look like raw pixels of 0..255: scale them as in training "
            f"(for example x.astype(np.{want}) / 255) and save them again"
        )
    return f"convert it first, for example x.astype(np.{want})"
