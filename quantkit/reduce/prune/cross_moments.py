"""Second moments across two models: of what an operator reads in the float model, and behind what was changed."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_RIDGE, _LEAST = 1e-3, 1e-6  # of the diagonal; of its mean
_TOGETHER = 512  # rows that are multiplied at once


@dataclass(slots=True)
class CrossMoments:
    """Sums over pairs of rows: what an operator reads in the float model (x), and behind what was changed (z).

    Attributes:
        count: How many pairs were seen.
        total: Of x and of z, (2, groups, K).
        cross: Of x z^T, (groups, K, K).
        own: Of z z^T.
        missing: Of e z^T, (groups, channels, K), and of e, (groups, channels), where e is what an operator is to output besides.
    """

    count: int = 0
    total: Any = 0.0
    cross: Any = 0.0
    own: Any = 0.0
    missing: tuple[Any, Any] = (0.0, 0.0)
    _waiting: list[tuple[Floats, Floats, Floats | None]] = field(default_factory=list)

    def observe(
        self, exact: NDArray[Any], rough: NDArray[Any], missing: NDArray[Any] | None = None
    ) -> None:
        """Take in rows, (groups, rows, K) each; and what an operator is to output besides, (1, rows, all channels)."""
        groups, rows, _ = exact.shape
        error = None
        if missing is not None and missing.shape[1] == rows:
            error = missing.astype(np.float64).reshape(rows, groups, -1).swapaxes(0, 1)
        self._waiting.append((exact.astype(np.float64), rough.astype(np.float64), error))
        self.count += rows
        if sum(x.shape[1] for x, _, _ in self._waiting) >= _TOGETHER:
            self.flush()

    def flush(self) -> None:
        """Multiply what has come together: adding to K x K sums costs as much as many rows."""
        if not self._waiting:
            return
        x, z = (np.concatenate([one[n] for one in self._waiting], axis=1) for n in (0, 1))
        errors = [one[2] for one in self._waiting if one[2] is not None]
        self.total = self.total + np.stack([x.sum(axis=1), z.sum(axis=1)])
        self.cross = self.cross + x.swapaxes(1, 2) @ z
        self.own = self.own + z.swapaxes(1, 2) @ z
        if len(errors) == len(self._waiting):
            e, (cross, total) = np.concatenate(errors, axis=1), self.missing
            self.missing = cross + e.swapaxes(1, 2) @ z, total + e.sum(axis=1)
        self._waiting = []

    def moments(self, *, centred: bool) -> Floats:
        """Return those of the rows behind what was changed, of one group, (K, K)."""
        self.flush()
        mean = self.total[1][0] / max(1, self.count)
        found: Floats = self.own[0] / max(1, self.count)
        return found - np.outer(mean, mean) if centred else found

    def fitted(
        self, weight: Floats, prior: Floats, kept: NDArray[np.bool_], *, centred: bool
    ) -> tuple[Floats, Floats]:
        """Return weights and the change of the bias that give what the float model computes, as far as rows tell.

        Ridge regression to the weights that are there already, W' = P + (W X - P C)(C + L)^-1 with L = (1e-3 + K / 2 rows) diag(C).

        Args:
            weight: W, (groups, channels, K): what the float model multiplies by.
            prior: P, the same without some inputs.
            kept: Which inputs there are, (K,).
            centred: A bias takes up the means; else there is none to change.
        """
        self.flush()
        x, z = self.total / max(1, self.count)
        cross, own = self.cross / self.count, self.own / self.count
        target, shift = (
            weight @ cross + self.missing[0] / self.count,
            self.missing[1] / self.count,
        )
        output = np.einsum("gnk,gk->gn", weight, x) + shift
        if centred:
            target = target - output[:, :, np.newaxis] * z[:, np.newaxis, :]
            own = own - z[:, :, np.newaxis] * z[:, np.newaxis, :]
        target, own = target[:, :, kept], own[:, kept][:, :, kept]
        inputs = own.shape[-1]
        diagonal = np.diagonal(own, axis1=1, axis2=2)
        ridge = (_RIDGE + inputs / (2 * self.count)) * diagonal
        least = _LEAST * diagonal.mean(axis=-1, keepdims=True)
        damped = own + np.where(ridge > least, ridge, least + 1e-30)[:, :, np.newaxis] * np.eye(
            inputs
        )
        missing = target - prior[:, :, kept] @ own
        found = np.zeros_like(prior)
        found[:, :, kept] = prior[:, :, kept] + np.linalg.solve(
            damped, missing.swapaxes(1, 2)
        ).swapaxes(1, 2)
        shift = output - np.einsum("gnk,gk->gn", found, z)
        return found, shift.reshape(-1) if centred else np.zeros(shift.size)

    def mapped(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return weight, (inputs, channels), and bias of the affine map from z to x that is best by least squares.

        What rows do not tell stays as it is: a block adds to the tensor that it starts from.
        """
        self.flush()
        same = np.eye(self.own.shape[-1])[np.newaxis]
        kept = np.ones(self.own.shape[-1], bool)
        weight, bias = self.fitted(same, same, kept, centred=True)
        return weight[0].T.astype(np.float32), bias.astype(np.float32)
