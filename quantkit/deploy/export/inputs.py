"""What a model's inputs are, as a user writes them, and arrays that fit.

    input:float32[batch,3,224,224]
    ids=int64[batch,seq<=128]{0..30521}

A dimension is a number or a name. Names are dynamic, and the same name is the same size wherever it stands.
One without a name (None, ?, -1) is dynamic, too: 'batch' if it is the first, else called after its input and axis.
"""

import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantkit.errors import UsageError
from quantkit.settings import closest

SIZES = (1, 2, 3, 7, 32)
"""What every dynamic dimension is tried at, as far as its bounds allow."""

Sizes = Mapping[str, int]

DTYPES = ("float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")
"""Types that inputs have."""

_EXAMPLE = "write it as 'input:float32[batch,3,224,224]' or 'ids:int64[batch,seq<=128]{0..30521}'"
_SPEC = re.compile(
    r"\s*(?P<name>[^\s:=\[\]{}]+)\s*[:=]\s*(?P<dtype>\w+)\s*\[(?P<dims>[^\[\]]*)\]\s*"
    r"(?:\{(?P<low>[^{}]*?)\.\.(?P<high>[^{}]*)\}\s*)?"
)
_DIM = re.compile(
    r"(?:(?P<least>\d+)\s*(?P<from><=?)\s*)?(?P<name>[A-Za-z_]\w*)\s*(?:(?P<to><=?|>=?)\s*(?P<most>\d+))?"
)
_SIZE = re.compile(r"0*[1-9]\d*")
_UNNAMED = frozenset({"", "none", "?", "*", "-1"})
_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
# Networks that shrink images want sizes of so many pixels, and multiples of what they shrink by.
_FACTORS = (1, 8, 16, 32, 64)
_LARGEST_TRIED = 512  # of a declared bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Which sizes a dynamic dimension may have; `most` None: any."""

    least: int = 1
    most: int | None = None

    def holds(self, size: int) -> bool:
        """Say whether a size is within."""
        return self.least <= size and (self.most is None or size <= self.most)

    def within(self, other: "Bound") -> "Bound":
        """Return what both allow."""
        ends = [b.most for b in (self, other) if b.most is not None]
        return Bound(least=max(self.least, other.least), most=min(ends, default=None))


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSpec:
    """One input.

    Attributes:
        name: What the ONNX model calls it.
        dtype: As numpy calls it.
        dims: Numbers, and names of dynamic dimensions.
        low: The least value that it takes; None: any.
        high: The greatest.
    """

    name: str
    dtype: str
    dims: tuple[int | str, ...]
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        return f"{self.name}:{self.dtype}[{','.join(map(str, self.dims))}]"

    @property
    def is_mask(self) -> bool:
        """Whether it says by its name that it is 0 and 1."""
        return "mask" in self.name.lower() or self.hides

    @property
    def hides(self) -> bool:
        """Whether 1 says what is left out, as in torch's ``key_padding_mask``, and not what is kept."""
        return "pad" in self.name.lower() and self.dtype == "bool"

    def shape(self, sizes: Sizes) -> tuple[int, ...]:
        """Return the shape at given sizes of the dynamic dimensions."""
        return tuple(d if isinstance(d, int) else sizes[d] for d in self.dims)

    def values(self, sizes: Sizes, generator: np.random.Generator) -> NDArray[Any]:
        """Return made-up values: within the range where there is one, else normal, or 0 and 1."""
        shape, kind = self.shape(sizes), np.dtype(self.dtype).kind
        if kind == "f" and self.low is None:
            return generator.standard_normal(shape).astype(self.dtype)
        low, high = (0, 1) if self.low is None or self.high is None else (self.low, self.high)
        if kind == "f":
            return generator.uniform(low, high, shape).astype(self.dtype)
        drawn = generator.integers(int(low), int(high), shape, endpoint=True)
        if self.is_mask and shape and (low, high) == (0, 1):
            # Attention over nothing is not defined, and frameworks differ there: a mask leaves something.
            drawn[..., 0] |= ~drawn.any(axis=-1)
            if self.hides:
                drawn = 1 - drawn
        return drawn.astype(self.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """All inputs of a model.

    Attributes:
        specs: In the order in which they are given to the model.
        bounds: Of each dynamic dimension, in order of appearance.
        asked: Sizes to try instead of `SIZES`, by dimension.
        example: What the user gave as example; None: nothing.
        drawn: Values are rows of the example, as the model does not run on made-up ones.
    """

    specs: tuple[InputSpec, ...]
    bounds: Mapping[str, Bound] = field(default_factory=dict)
    asked: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    example: Mapping[str, NDArray[Any]] | None = None
    drawn: bool = False

    def feeds(self, sizes: Sizes, seed: int) -> dict[str, NDArray[Any]]:
        """Return values of all inputs, made up or drawn from the example; the same for the same seed."""
        generator = np.random.default_rng(seed)
        if self.drawn and self.example is not None:
            if not self.bounds:
                return dict(self.example)
            rows = next(a.shape[0] for a in self.example.values() if a.ndim)
            chosen = generator.integers(rows, size=next(iter(sizes.values())))
            return {name: a[chosen] if a.ndim else a for name, a in self.example.items()}
        return {spec.name: spec.values(sizes, generator) for spec in self.specs}

    def unranged(self) -> list[str]:
        """Return the inputs of whole numbers whose values nobody described."""
        whole = (spec for spec in self.specs if np.dtype(spec.dtype).kind in "iu")
        return [spec.name for spec in whole if spec.low is None and not spec.is_mask]

    def traced(self) -> Iterator[dict[str, int]]:
        """Yield sizes to trace the model at, until one runs: different primes, so that no axis is taken for another.

        Sizes 0 and 1 are never used, as exporters take them for constants. The first axis, usually the batch, stays small.
        """
        first = {spec.dims[0] for spec in self.specs if spec.dims}
        inner = {d for spec in self.specs for d in spec.dims[1:]}
        seen: list[dict[str, int]] = []
        for factor in _FACTORS:
            sizes = {
                name: self._example(name, prime * (1 if name in first - inner else factor))
                for name, prime in zip(self.bounds, _primes(len(self.bounds)), strict=True)
            }
            if sizes not in seen:
                seen.append(sizes)
                yield sizes

    def _example(self, name: str, wanted: int) -> int:
        if name in self.asked:
            fitting = [size for size in self.asked[name] if size > 1]
            return min(fitting, key=lambda size: abs(size - wanted)) if fitting else wanted
        bound = self.bounds[name]
        most = wanted if bound.most is None else min(wanted, bound.most)
        return max(most, bound.least)

    def tried(self, name: str) -> tuple[int, ...]:
        """Return the sizes that a dynamic dimension is tried at."""
        if name in self.asked:
            return self.asked[name]
        bound = self.bounds[name]
        # Twice the least: where that is large, no other size may be left, and one alone shows nothing.
        ends = [bound.least, *({2 * bound.least} if bound.holds(2 * bound.least) else ())]
        if bound.most is not None:
            ends.append(min(bound.most, max(_LARGEST_TRIED, bound.least)))
        return tuple(sorted({*(size for size in SIZES if bound.holds(size)), *ends}))

    def trials(self, base: Sizes) -> list[dict[str, int]]:
        """Return the sizes to prove at: each dynamic dimension at each of its sizes, then all at their least."""
        found = [dict(base)]
        found += ({**base, name: size} for name in self.bounds for size in self.tried(name))
        found.append({name: self.tried(name)[0] for name in self.bounds})
        return [sizes for i, sizes in enumerate(found) if sizes not in found[:i]]


def _primes(count: int) -> Sequence[int]:
    if count > len(_PRIMES):
        raise UsageError(
            f"{count} dynamic dimensions are more than the {len(_PRIMES)} that can be told apart: write numbers for some."
        )
    return _PRIMES[:count]


def parse_inputs(texts: Sequence[str], sizes: Sequence[str] = ()) -> Inputs:
    """Read inputs as users write them; see the module's docstring.

    Args:
        texts: One for each input.
        sizes: Such as "seq=1,9,128": what a dynamic dimension is tried at.

    Raises:
        UsageError: One cannot be read; the message says which and how it is written.
    """
    bounds: dict[str, Bound] = {}
    specs = tuple(_spec(text, bounds) for text in texts)
    names = [spec.name for spec in specs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"Input '{twice}' is given twice; give each input once.")
    empty = next((n for n, b in bounds.items() if b.most is not None and b.most < b.least), None)
    if empty is not None:
        raise UsageError(
            f"No size is within the bounds of '{empty}': mend the --input that has it."
        )
    return with_sizes(Inputs(specs=specs, bounds=bounds), sizes)


def with_sizes(inputs: Inputs, sizes: Sequence[str]) -> Inputs:
    """Return inputs with the sizes that their dynamic dimensions are tried at.

    Raises:
        UsageError: They are no sizes, outside of the bounds, or of a dimension that no input has.
    """
    asked: dict[str, tuple[int, ...]] = {}
    for text in sizes:
        name, _, listed = text.partition("=")
        name, numbers = name.strip(), [part.strip() for part in listed.split(",")]
        if not all(_SIZE.fullmatch(n) for n in numbers):
            raise UsageError(f"--sizes '{text}' is not NAME=SIZE,SIZE such as seq=1,9,128.")
        if name not in inputs.bounds:
            known = ", ".join(inputs.bounds) or "none"
            raise UsageError(
                f"--sizes '{text}': no input has a dynamic dimension '{name}'{closest(name, inputs.bounds)}; "
                f"there is {known}."
            )
        outside = next((n for n in numbers if not inputs.bounds[name].holds(int(n))), None)
        if outside is not None:
            raise UsageError(f"--sizes '{text}': {outside} is outside of the bounds of '{name}'.")
        asked[name] = tuple(dict.fromkeys(map(int, numbers)))
    return replace(inputs, asked=asked)


def _spec(text: str, bounds: dict[str, Bound]) -> InputSpec:
    found = _SPEC.fullmatch(text)
    if found is None:
        raise UsageError(f"--input '{text}' cannot be read: {_EXAMPLE}.")
    dtype = found["dtype"].lower()
    if dtype not in DTYPES:
        raise UsageError(
            f"--input '{text}': type '{found['dtype']}' is unknown{closest(dtype, DTYPES)}: use one of "
            f"{', '.join(DTYPES)}."
        )
    dims = [part.strip() for part in found["dims"].split(",")] if found["dims"].strip() else []
    own = re.sub(r"\W|^(?=\d)", "_", found["name"])
    for axis, part in enumerate(dims):
        if part.lower() in _UNNAMED:
            dims[axis] = f"{own}_{axis}" if axis else "batch"
    low, high = _range(text, found, dtype)
    return InputSpec(
        name=found["name"],
        dtype=dtype,
        dims=tuple(_dim(text, part, bounds) for part in dims),
        low=low,
        high=high,
    )


def _range(text: str, found: re.Match[str], dtype: str) -> tuple[float | None, float | None]:
    if found["low"] is None:
        return None, None
    try:
        if dtype.startswith("float"):
            low, high = float(found["low"]), float(found["high"])
        else:
            low, high = int(found["low"]), int(found["high"])
    except ValueError:
        raise UsageError(
            f"--input '{text}': a range is two numbers of its type, such as {{0..30521}}."
        ) from None
    if not (np.isfinite(low) and np.isfinite(high) and low <= high):
        raise UsageError(f"--input '{text}': the range goes from its least value to its greatest.")
    if not dtype.startswith("float") and not _fits(dtype, low, high):
        raise UsageError(f"--input '{text}': {dtype} does not hold all of this range.")
    return low, high


def _fits(dtype: str, low: float, high: float) -> bool:
    if dtype == "bool":
        return low >= 0 and high <= 1
    limits = np.iinfo(dtype)
    return int(limits.min) <= low and high <= int(limits.max)


def _dim(text: str, part: str, bounds: dict[str, Bound]) -> int | str:
    if part.isdecimal():
        if int(part) == 0:
            raise UsageError(f"--input '{text}': a dimension of 0 holds nothing.")
        return int(part)
    found = _DIM.fullmatch(part)
    if found is None:
        raise UsageError(
            f"--input '{text}': dimension '{part}' is neither a number nor a name (nor can sizes be reckoned from others); "
            f"{_EXAMPLE}."
        )
    least = int(found["least"] or 0) + (found["from"] == "<")
    most = None
    if found["to"] in {">", ">="}:
        least = max(least, int(found["most"]) + (found["to"] == ">"))
    elif found["to"]:
        most = int(found["most"]) - (found["to"] == "<")
    bound = Bound(least=max(1, least), most=most)
    bounds[found["name"]] = bounds.get(found["name"], Bound()).within(bound)
    return found["name"]


def inputs_of_example(path: Path, *, fixed_batch: bool = False) -> Inputs:
    """Read inputs from arrays that are an example of them: the first axis is the batch, the others are as they are.

    Args:
        path: An .npz whose arrays are called as the inputs.
        fixed_batch: The first axis has the example's size, too.

    Raises:
        UsageError: It is no such file.
    """
    example = _example(path)
    rows = {a.shape[0] for a in example.values() if a.ndim}
    batch = not fixed_batch and len(rows) == 1
    if not fixed_batch and len(rows) > 1:
        raise UsageError(
            f"The arrays of '{path}' have {' and '.join(map(str, sorted(rows)))} rows, so that the batch cannot be told: "
            "add --fixed-batch, or write the inputs with --input."
        )
    specs = tuple(
        InputSpec(
            name=name,
            dtype=array.dtype.name,
            dims=("batch", *array.shape[1:]) if batch and array.ndim else array.shape,
            low=float(array.min()),
            high=float(array.max()),
        )
        for name, array in example.items()
    )
    return Inputs(specs=specs, bounds={"batch": Bound()} if batch else {}, example=example)


def _example(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            example = dict(arrays)
    except FileNotFoundError:
        raise UsageError(f"The example '{path}' does not exist.") from None
    except (OSError, ValueError, TypeError, zipfile.BadZipFile) as e:
        raise UsageError(
            f"The example '{path}' is not an .npz file; write one with numpy.savez(path, NAME=array)."
        ) from e
    if not example:
        raise UsageError(f"The example '{path}' holds no arrays.")
    for name, array in example.items():
        if array.dtype.name not in DTYPES or not array.size or not np.isfinite(array).all():
            raise UsageError(
                f"Array '{name}' of '{path}' is no example of an input: it is empty, of a type that is none of "
                f"{', '.join(DTYPES)}, or not finite."
            )
    return example
