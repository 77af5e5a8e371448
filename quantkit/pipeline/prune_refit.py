"""Fit the weights of a pruned model to what it really computes, in the order of the graph."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantkit.calibration.monitor import Monitor
from quantkit.files import scratch
from quantkit.pipeline.prune_model import PreparedPrune
from quantkit.quantize.solve.sensitivity import noise_of
from quantkit.reduce.prune.refit import FittedOperator, refitted
from quantkit.reduce.prune.surroundings import bias_of, is_alone, shortcut_of
from quantkit.reduce.prune.widths import Widths
from quantkit.runtime.runs import run_session
from quantkit.runtime.session import make_session

_COMPARED = 64  # choosing samples that tell which weights are better


def fit(
    prepared: PreparedPrune, widths: Widths, monitor: Monitor
) -> tuple[Widths, dict[str, NDArray[Any]]]:
    """Return the weights behind what is removed: fitted in order, or each by itself where that is better on the choosing samples.

    With few samples for many inputs, fitting in order follows the samples too closely.

    Args:
        prepared: The float model, and its samples.
        widths: What is left; where it was decided before, also how weights are fitted.
        monitor: Told how far it is.
    """
    if prepared.split is None and widths.in_order:
        return widths, refit(prepared, widths, monitor)
    each = prepared.graph.filled(widths)
    if prepared.split is None:
        return widths, each
    in_order = refit(prepared, widths, monitor)
    noise = [_noise(prepared, widths, tensors) for tensors in (in_order, each)]
    if noise[0] <= noise[1]:
        return widths, in_order
    return replace(widths, in_order=False), each


def _noise(prepared: PreparedPrune, widths: Widths, tensors: Mapping[str, NDArray[Any]]) -> float:
    """Return the noise of the outputs, relative to their power, on samples that nothing was fitted to."""
    assert prepared.split is not None  # noqa: S101 - the caller has looked
    feeds = list(islice(prepared.feeds(prepared.split.choosing[:_COMPARED]), _COMPARED))
    files = (prepared.file, prepared.written(prepared.graph.pruned(widths, tensors), "compared"))
    float_outputs, own = (
        [run_session(session, feed) for feed in feeds]
        for session in (make_session(str(path)) for path in files)
    )
    return noise_of(float_outputs, own)


def refit(prepared: PreparedPrune, widths: Widths, monitor: Monitor) -> dict[str, NDArray[Any]]:
    """Return the weights, biases and maps of all linear operators behind what is removed.

    Args:
        prepared: The float model, and its samples.
        widths: What is left.
        monitor: Told how far it is.
    """
    maps = prepared.graph.maps_of(widths)
    gone = frozenset[str]().union(*(block.nodes for block in maps))
    view, kept = prepared.ready.view, prepared.graph.kept_inputs(widths)
    parts = [
        FittedOperator(
            product=product,
            bias=bias_of(view, product),
            kept=kept.get(product.node, np.ones(product.layout.inputs, bool)),
            shortcut=shortcut_of(view, product),
        )
        for product in prepared.ready.products
        if product.node not in gone and not product.inside and is_alone(view, product)
    ]
    tensors = {n: prepared.graph.array(n) for p in parts for n in (p.product.weight, p.bias) if n}
    for block in maps:
        shapes = ((block.width, block.width), (block.width,))
        tensors |= {n: np.zeros(s, np.float32) for n, s in zip(block.map, shapes, strict=False)}
        tensors[block.map[2]] = np.array(False)
    monitor.stage("Fitting weights to what the pruned model computes")
    started = [0]

    def progress(done: int, of: int) -> None:
        if not started[0]:
            monitor.start(of, "tensors")
        monitor.tick(done - started[0])
        started[0] = done

    with scratch() as folder:
        return refitted(
            prepared.switched(maps, "refit"),
            parts,
            tensors,
            prepared.feeds(prepared.fitting),
            Path(folder),
            progress,
            maps,
        )
