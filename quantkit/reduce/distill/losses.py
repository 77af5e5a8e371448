"""The distance between student and teacher, without labels: the training loss, and the held-out loss."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its usual name

_WARM = 2.0  # temperature of the training loss: small probabilities count too
_DIVERGENCE, _COSINE, _NEAR, _ALIKE = 4.0, 3.0, 0.5, 5.0
_INNER = 0.5
_LEAST = 1e-12
_SUMS_TO = 1e-3
_MATRIX, _TOKENS = 2, 3  # axes
_MASK = "mask"


class OutputKind(StrEnum):
    """The kind of an output; its value names the held-out loss."""

    LOGITS = "KL"
    PROBABILITIES = "KL of probabilities"
    VECTORS = "1 - cosine"
    TOKENS = "1 - cosine of means"
    VALUES = "relative error"


def output_kind(output: Tensor, mask: Tensor | None, *, embeds: bool) -> OutputKind | None:
    """Return the kind of an output of the teacher; None: it holds no floats.

    Args:
        output: Its values.
        mask: Which tokens count; None: the model has no mask.
        embeds: The user says that it is an embedding.
    """
    if not output.dtype.is_floating_point:
        return None
    if output.ndim == _TOKENS and mask is not None and mask.shape == output.shape[:2]:
        return OutputKind.TOKENS
    if output.ndim < _MATRIX or output.shape[-1] < _MATRIX:
        return OutputKind.VALUES
    if bool((output >= 0).all()) and bool(((output.sum(-1) - 1).abs() < _SUMS_TO).all()):
        return OutputKind.PROBABILITIES
    if output.ndim != _MATRIX:
        return OutputKind.VALUES
    normed = bool(((output.square().sum(-1) - 1).abs() < _SUMS_TO).all())
    return OutputKind.VECTORS if embeds or normed else OutputKind.LOGITS


def mask_in(feeds: Mapping[str, Tensor]) -> Tensor | None:
    """Return the input that tells which tokens count; None: there is none."""
    found = (v for n, v in feeds.items() if _MASK in n.lower() and v.ndim == _MATRIX)
    return next(found, None)


@dataclass(frozen=True, slots=True)
class Objective:
    """The tensors that are compared.

    Attributes:
        outputs: Outputs by their kinds.
        inner: Inner tensors that both models have.
    """

    outputs: Mapping[str, OutputKind]
    inner: Collection[str] = ()

    @property
    def wanted(self) -> tuple[str, ...]:
        """All tensors that are compared."""
        return tuple(dict.fromkeys((*self.outputs, *self.inner)))

    @property
    def measure(self) -> str:
        """The name of the held-out loss."""
        return ", ".join(dict.fromkeys(self.outputs.values()))

    def loss(
        self, have: Mapping[str, Tensor], want: Mapping[str, Tensor], mask: Tensor | None
    ) -> Tensor:
        """Return the training loss."""
        parts = [_loss(kind, have[n], want[n], mask) for n, kind in self.outputs.items()]
        total = torch.stack(parts).mean()
        if not self.inner:
            return total
        inner = [_relative(have[name], want[name], mask) for name in self.inner]
        return total + _INNER * torch.stack(inner).mean()

    def distance(
        self, have: Mapping[str, Tensor], want: Mapping[str, Tensor], mask: Tensor | None
    ) -> float:
        """Return the held-out loss of a batch: a mean over its rows."""
        parts = [_distance(kind, have[n], want[n], mask) for n, kind in self.outputs.items()]
        # Rounding leaves the KL of equal rows below 0; NaN stays NaN in this order.
        return max(float(torch.stack(parts).mean()), 0.0)


def _loss(kind: OutputKind, have: Tensor, want: Tensor, mask: Tensor | None) -> Tensor:
    if kind in {OutputKind.LOGITS, OutputKind.PROBABILITIES}:
        return _DIVERGENCE * _divergence(kind, have, want, _WARM) + _relative(have, want)
    if kind is OutputKind.VALUES:
        return _relative(have, want)
    near = _relative(have, want, mask)
    have, want = (_vectors(kind, x, mask) for x in (have, want))
    alike = (have @ have.T - want @ want.T).square().mean()
    return _COSINE * (1 - (have * want).sum(-1)).mean() + _NEAR * near + _ALIKE * alike


def _distance(kind: OutputKind, have: Tensor, want: Tensor, mask: Tensor | None) -> Tensor:
    if kind in {OutputKind.LOGITS, OutputKind.PROBABILITIES}:
        return _divergence(kind, have, want, 1.0)
    if kind is OutputKind.VALUES:
        return _relative(have, want)
    have, want = (_vectors(kind, x, mask) for x in (have, want))
    return (1 - (have * want).sum(-1)).mean()


def _divergence(kind: OutputKind, have: Tensor, want: Tensor, warm: float) -> Tensor:
    if kind is OutputKind.PROBABILITIES:
        have, want = (x.clamp(min=_LEAST).log() for x in (have, want))
    have, want = (F.log_softmax(x.flatten(0, -2) / warm, -1) for x in (have, want))
    return F.kl_div(have, want, log_target=True, reduction="batchmean") * warm**2


def _vectors(kind: OutputKind, x: Tensor, mask: Tensor | None) -> Tensor:
    """Return one vector of length 1 for each row: of tokens their mean."""
    if kind is OutputKind.TOKENS and mask is not None:
        counts = mask.unsqueeze(-1).to(x.dtype)
        x = (x * counts).sum(1) / counts.sum(1).clamp(min=1)
    return F.normalize(x.flatten(1), dim=-1)


def _relative(have: Tensor, want: Tensor, mask: Tensor | None = None) -> Tensor:
    error, power = (have - want).square(), want.square()
    if mask is not None and want.ndim == _TOKENS and mask.shape == want.shape[:2]:
        counts: Any = mask.unsqueeze(-1).to(want.dtype)
        error, power = error * counts, power * counts
    return error.sum() / power.sum().clamp(min=_LEAST)
