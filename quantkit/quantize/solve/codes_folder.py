"""Codes of weights in blocks, kept in files until the model is written."""

import json
from collections.abc import Iterator, MutableMapping
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from zipfile import is_zipfile

import numpy as np

from quantkit.numerics.blocks import (
    BlockCodes,
    BlockGrid,
)


class CodesFolder(MutableMapping[str, BlockCodes]):
    """Codes by weight, in files; each is there as a whole or not at all."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names: dict[str, None] = {}

    def _path(self, tensor: str) -> Path:
        return self._folder / f"{blake2b(tensor.encode(), digest_size=12).hexdigest()}.npz"

    def __getitem__(self, tensor: str) -> BlockCodes:
        try:
            with np.load(self._path(tensor), allow_pickle=False) as found:
                arrays = {name: found[name] for name in ("codes", "zero", "multiplier", "scale")}
                grid = BlockGrid(**json.loads(str(found["grid"])))
        except FileNotFoundError:
            raise KeyError(tensor) from None
        return BlockCodes(grid=grid, **arrays)

    def __contains__(self, tensor: object) -> bool:
        # What a machine that lost power has left may be cut off: it is no archive then.
        return isinstance(tensor, str) and is_zipfile(self._path(tensor))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __setitem__(self, tensor: str, codes: BlockCodes) -> None:
        path = self._path(tensor)
        temporary = path.with_suffix(".new.npz")
        np.savez(
            temporary,
            codes=codes.codes,
            zero=codes.zero,
            multiplier=codes.multiplier,
            scale=codes.scale,
            grid=json.dumps(asdict(codes.grid)),
        )
        temporary.replace(path)
        self._names[tensor] = None

    def __delitem__(self, tensor: str) -> None:
        self._path(tensor).unlink()
        del self._names[tensor]
