"""Run a module or a program of torch: arrays in, named arrays out."""

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantkit.deploy.export.framework import Feeds
from quantkit.deploy.export.user_code import need_torch
from quantkit.errors import ModelError


def called(module: Any, feeds: Feeds, named: Collection[str]) -> list[tuple[str, NDArray[Any]]]:
    """Run a module; return its outputs, flat, with the names that they suggest.

    Args:
        module: The module.
        feeds: Its inputs.
        named: Those that are given by name; the others in their order.
    """
    torch = need_torch()
    tensors = {name: torch.from_numpy(np.array(value)) for name, value in feeds.items()}
    placed = [value for name, value in tensors.items() if name not in named]
    with (
        torch.no_grad(),
        plain_attention(),
        redirect_stdout(sys.stderr),
    ):  # prints are no part of --json
        given = module(*placed, **{name: tensors[name] for name in named})
    return [(name, as_numpy(value, name)) for name, value in flattened(given)]


def as_numpy(value: Any, name: str) -> NDArray[Any]:
    """Return a tensor as an array; bfloat16, which numpy lacks, as float32."""
    torch = need_torch()
    tensor = value.detach().cpu()
    if tensor.is_complex() or tensor.layout != torch.strided:
        raise ModelError(
            f"Output '{name}' is complex or sparse, which ONNX models cannot give: return torch.view_as_real(y), y.abs() or "
            "y.to_dense()."
        )
    tensor = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
    array: NDArray[Any] = tensor.resolve_conj().resolve_neg().numpy().copy()
    return array


def flattened(given: Any, name: str = "") -> list[tuple[str, Any]]:
    """Return the tensors in what a module gives, with names: keys of dicts, fields of named tuples, else numbers.

    Raises:
        ModelError: There is something else in it.
    """
    if given is None:
        return []
    if isinstance(given, need_torch().Tensor):
        return [(name or "output", given)]
    return [pair for key, value in _parts(given, name) for pair in flattened(value, key)]


def _parts(given: Any, name: str) -> list[tuple[str, Any]]:
    """Return the members of a list, a dict or a record, with the names that they get."""
    if isinstance(given, list | tuple) and not hasattr(given, "_fields"):
        base = name or "output"
        several = len(given) > 1
        return [(f"{base}_{i}" if several else base, value) for i, value in enumerate(given)]
    if isinstance(given, Mapping):
        parts = [(str(key), value) for key, value in given.items()]
    elif hasattr(given, "_fields"):
        parts = list(zip(given._fields, given, strict=True))
    elif is_dataclass(given):
        parts = [(f.name, getattr(given, f.name)) for f in fields(given)]
    else:
        raise ModelError(
            f"The model gives a {type(given).__name__} as '{name or 'output'}', which is no tensor: return tensors, or "
            "lists and dicts of them."
        )
    return [(f"{name}_{key}" if name else key, value) for key, value in parts]


def same_outputs(
    one: Sequence[tuple[str, NDArray[Any]]], other: Sequence[tuple[str, NDArray[Any]]]
) -> bool:
    """Say whether two runs gave the same, bit for bit."""
    return [name for name, _ in one] == [name for name, _ in other] and all(
        np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
        for (_, a), (_, b) in zip(one, other, strict=True)
    )


@contextmanager
def plain_attention() -> Iterator[None]:
    """Keep torch's Transformer layers from their fast path: it is not exported, and puts zeros where a mask hides."""
    kernels = need_torch().backends.mha
    before = kernels.get_fastpath_enabled()
    kernels.set_fastpath_enabled(False)
    try:
        yield
    finally:
        kernels.set_fastpath_enabled(before)
