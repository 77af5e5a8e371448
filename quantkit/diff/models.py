"""`compare_models`: what differs between two model files."""

import filecmp
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from quantkit.diff.attributes import Change
from quantkit.diff.header import header_changes, port_changes
from quantkit.diff.nodes import NodesDiff, nodes_diff
from quantkit.diff.scales import ScalesDiff, scales_diff
from quantkit.diff.tensor_errors import TensorErrors, tensor_errors
from quantkit.diff.weights import WeightsDiff, weights_diff
from quantkit.graph.load import LoadedModel
from quantkit.graph.size.by_cause import size_by_cause
from quantkit.match.nodes import pair_nodes
from quantkit.runtime.session import load_model
from quantkit.runtime.synthetic_inputs import Feeds

__all__ = ["ModelDiff", "SizeChange", "compare_models"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeChange:
    """Bytes of one cause in both models."""

    cause: str
    a: int
    b: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDiff:
    """What differs between two models.

    Attributes:
        a: Path of the first.
        b: Path of the second.
        identical: The files have the same bytes; then nothing was run.
        nbytes: Size of both, external data included.
        header: Versions and metadata that differ.
        ports: Inputs and outputs that differ.
        nodes: How nodes correspond.
        weights: How weights correspond.
        scales: How activations are quantized.
        sizes: By cause, in both; they add up to `nbytes`.
        errors: What running both shows.
    """

    a: str
    b: str
    identical: bool
    nbytes: tuple[int, int]
    header: tuple[Change, ...]
    ports: tuple[Change, ...]
    nodes: NodesDiff
    weights: WeightsDiff
    scales: ScalesDiff
    sizes: tuple[SizeChange, ...]
    errors: TensorErrors

    @property
    def computes_the_same(self) -> bool:
        """Whether graph, weights and scales are the same, whatever the files say about themselves."""
        parts = (self.nodes, self.weights, self.scales)
        changed = any(part.changed or part.only_a or part.only_b for part in parts)
        return not (changed or self.ports or self.errors.differ)

    @property
    def same(self) -> bool:
        """Whether no difference was found."""
        return self.identical or (
            self.computes_the_same
            and not self.header
            and not self.nodes.renamed
            and self.nbytes[0] == self.nbytes[1]
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        plain: dict[str, Any] = msgspec.json.decode(
            msgspec.json.encode(self)
        )  # no NaN, no Infinity
        return {"kind": "models", "same": self.same, **plain}


def compare_models(
    a: Path,
    b: Path,
    *,
    samples: Sequence[Feeds] = (),
    progress: Callable[[str], None] = lambda _: None,
) -> ModelDiff:
    """Compare two model files.

    Args:
        a: The first: float, or the last release.
        b: The second.
        samples: Inputs to run both on; without, one is made up from the signature.
        progress: Told what begins.

    Raises:
        ModelError: One of the two cannot be read.
        DataError: The models do not run on the samples.
    """
    progress("Reading both models")
    first, second = load_model(a), load_model(b)
    first.require_weights()
    second.require_weights()
    identical = _identical(first, second)
    progress("Matching nodes")
    pairs = pair_nodes(first.model, second.model)
    nodes = nodes_diff(first.model, second.model, pairs)
    progress("Comparing weights")
    weights = weights_diff(first.model, second.model, pairs)
    errors = TensorErrors()
    if not identical:
        progress("Running both models")
        errors = tensor_errors(first, second, samples, progress)
    return ModelDiff(
        a=str(a),
        b=str(b),
        identical=identical,
        nbytes=(first.nbytes, second.nbytes),
        header=header_changes(first.model, second.model),
        ports=port_changes(first.model, second.model),
        nodes=nodes,
        weights=weights,
        scales=scales_diff(first.model, second.model),
        sizes=_sizes(first, second),
        errors=errors,
    )


def _identical(a: LoadedModel, b: LoadedModel) -> bool:
    """Say whether all files have the same contents, one after the other."""
    return len(a.files) == len(b.files) and all(
        filecmp.cmp(x, y, shallow=False) for x, y in zip(a.files, b.files, strict=True)
    )


def _sizes(a: LoadedModel, b: LoadedModel) -> tuple[SizeChange, ...]:
    before = {part.cause: part.nbytes for part in size_by_cause(a)}
    after = {part.cause: part.nbytes for part in size_by_cause(b)}
    found = [
        SizeChange(cause=cause, a=before.get(cause, 0), b=after.get(cause, 0))
        for cause in {**before, **after}
    ]
    return tuple(sorted(found, key=lambda s: -max(s.a, s.b)))
