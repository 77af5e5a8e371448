"""The error of every tensor that two models share, in the whole of one against the whole of the other."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from quantkit.evaluate.correspondence import Match, correspondence
from quantkit.evaluate.noise import Noise
from quantkit.evaluate.parts import part_of
from quantkit.evaluate.structure import read_structure
from quantkit.evaluate.survey import Survey, same_form, survey

__all__ = ["accumulated"]

Feeds = Mapping[str, NDArray[Any]]
_MEMORY = 512 << 20  # bytes of activations held at a time
_COPIES = 3  # of each: one's, the other's, their difference


def accumulated(
    float_path: Path,
    candidate: Path,
    samples: Sequence[Feeds],
    *,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, float]:
    """Return the SQNR in dB of each tensor, by its name in the first model; infinite where nothing differs.

    Both run without optimization, which is what the files say; memory does not depend on the number of tensors.

    Raises:
        ModelError: A file cannot be read.
    """
    first, second = read_structure(float_path), read_structure(candidate)
    matches = {
        name: match
        for name, match in correspondence(first, second).matches.items()
        if name in second.maker and match.tensor in first.maker
    }
    if not samples or not matches:
        return {}
    theirs = survey(first, [m.tensor for m in matches.values()], samples[0])
    ours = survey(second, matches, samples[0])
    kept = [m for m in matches.values() if same_form(m, theirs, ours)]
    floats = {m.tensor: m for m in kept if theirs.kinds[m.tensor].is_float}
    noises = {tensor: Noise() for tensor in floats}
    for group in _groups(list(floats.values()), theirs):
        progress(f"Comparing {len(group)} of {len(floats)} tensors")
        one = part_of(first, [m.tensor for m in group], {})
        other = part_of(second, [m.candidate for m in group], {})
        for feeds in samples:
            expected, actual = one.run(feeds), other.run(feeds)
            for match in group:
                restored = match.restored(actual[match.candidate])
                noises[match.tensor].add(expected[match.tensor], restored)
    return {
        tensor: inf if noise.db is None else noise.db
        for tensor, noise in noises.items()
        if noise.comparable
    }


def _groups(matches: Sequence[Match], theirs: Survey) -> Iterator[list[Match]]:
    group: list[Match] = []
    held = 0
    for match in matches:
        needed = _COPIES * theirs.nbytes(match.tensor)
        if group and held + needed > _MEMORY:
            yield group
            group, held = [], 0
        group.append(match)
        held += needed
    if group:
        yield group
