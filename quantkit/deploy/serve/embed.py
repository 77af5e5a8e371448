"""Embeddings of texts: the vectors of an encoder's tokens made into one, of length 1."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from quantkit.deploy.serve.protocol import Array, Port, RequestError

Mode = Literal["mean", "cls", "none"]
POOLINGS: tuple[Mode, ...] = get_args(Mode)
_TOKENS = 3  # axes of an output with a vector for each token
_ENCODED = ("hidden_state", "token_embedding")  # in the name of such an output
_FILE = Path("1_Pooling/config.json")  # as sentence-transformers writes it


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooling:
    """How vectors of tokens become one.

    Attributes:
        mode: One of `POOLINGS`.
        output: The output with the vectors; "": there is none.
        mask: The input that is 0 where a token is padding; "": there is none.
    """

    mode: str = "none"
    output: str = ""
    mask: str = ""


def stored_pooling(model: Path) -> Mode | None:
    """Return the mode that stands next to a model, or above its folder; None if none of `POOLINGS` does."""
    for folder in (model.parent, model.resolve().parent.parent):
        with suppress(OSError, ValueError):
            plain = json.loads((folder / _FILE).read_text(encoding="utf-8"))
            chosen = [key for key, value in plain.items() if value is True and "mode" in key]
            modes: dict[str, Mode] = {
                "pooling_mode_mean_tokens": "mean",
                "pooling_mode_cls_token": "cls",
            }
            return modes.get(chosen[0]) if len(chosen) == 1 else None
    return None


def choose_pooling(mode: str | None, model: Path, outputs: Sequence[Port], mask: str) -> Pooling:
    """Return how a text encoder's answers are pooled.

    Args:
        mode: What the user set; None: as the file next to the model says, else the mean if the first output is named as
            that of an encoder.
        model: The model file.
        outputs: Its outputs.
        mask: The input that is 0 where a token is padding.
    """
    tokens = [p.name for p in outputs if len(p.shape) == _TOKENS and p.datatype[:2] == "FP"]
    named = [name for name in tokens if any(word in name.lower() for word in _ENCODED)]
    output = next(iter(named or tokens), "")
    usual = "mean" if outputs and outputs[0].name in named else "none"
    found = mode or (stored_pooling(model) if tokens else None) or usual
    return Pooling(mode=found, output=output, mask=mask)


def embedded(
    runs: Sequence[tuple[Mapping[str, Array], Mapping[str, Array]]], how: Pooling, *, unit: bool
) -> dict[str, Any]:
    """Return the answer with one vector for each row.

    Args:
        runs: Inputs and outputs of each.
        how: The mode, which is not "none".
        unit: Divide each vector by its length.

    Raises:
        RequestError: The model has no output with a vector for each token.
    """
    if not how.output:
        raise RequestError("pooling needs a vector for each token, and no output has three axes.")
    vectors = np.concatenate(
        [_pooled(outputs[how.output], feeds.get(how.mask), how.mode) for feeds, outputs in runs]
    )
    if unit:
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)
    return {
        "output": how.output,
        "pooling": how.mode,
        "normalized": unit,
        "embeddings": vectors.astype(np.float32).tolist(),
    }


def _pooled(tokens: Array, mask: Array | None, mode: str) -> Array:
    values = tokens.astype(np.float64)
    if mask is None or mask.shape != values.shape[:2]:
        mask = np.ones(values.shape[:2])
    if mode == "cls":
        first = np.argmax(mask != 0, axis=1)  # padding may stand on the left
        found: Array = values[np.arange(len(values)), first]
        return found
    weights = (mask != 0).astype(np.float64)[..., np.newaxis]
    return np.asarray((values * weights).sum(axis=1) / np.maximum(weights.sum(axis=1), 1.0))
