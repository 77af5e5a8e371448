"""Weights of few bits and all biases of a static plan, solved in the order of the graph from what the layers before them deliver."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir

from quantkit.calibration.monitor import Monitor
from quantkit.model.graph.products import Product
from quantkit.model.ops.view import View
from quantkit.numerics.weights import dequantize_weight
from quantkit.quantize.plan import Plan, SolvedIntegers
from quantkit.quantize.solve.blocks import BlockSettings, Refit, solve_in_order
from quantkit.quantize.solve.stream import Feeds
from quantkit.quantize.solve.weights import is_static


def solved_in_order(  # noqa: PLR0913 - one parameter per question
    model: ir.Model,
    path: Path,
    view: View,
    plan: Plan,
    products: Sequence[Product],
    feeds: Callable[[], Iterator[Feeds]],
    start: SolvedIntegers,
    settings: BlockSettings,
    folder: Path,
    monitor: Monitor,
) -> SolvedIntegers:
    """Return the integers of a static plan with weights of few bits that make up for the error of the layers before them.

    Weights of 8 bits stay as they are. So do weights and biases that several operators read.

    Args:
        model: The float model that was planned.
        path: The same, in a file.
        view: The same, described.
        plan: What was decided.
        products: Its products.
        feeds: Returns the samples, the same ones each time.
        start: What was solved for from the float model alone.
        settings: How codes are solved for.
        folder: Where tensors are kept meanwhile.
        monitor: Told of each weight that is done.

    Raises:
        An exception in `quantkit.runtime.session.RUNTIME_ERRORS`: a part of the model does not run.
        DataError: What a weight multiplies is never finite.
    """
    own = [p for p in products if is_static(p, plan) and _is_alone(p, view)]
    solved = {p.weight for p in own if p.weight in start.blocks}
    store = {name: codes for name, codes in start.blocks.items() if name not in solved}
    # What is added to a product without a bias of its own has no tensor that could be fed: its codes must do without.
    biases = {
        node: bias
        for node, bias in start.biases.items()
        if node not in {p.node for p in own if p.weight in solved and not p.bias}
    }
    known = {p.bias: p.node for p in products if p.bias and p.node in biases}
    refit = Refit(
        weights={n: dequantize_weight(w.integers, w.qparams) for n, w in start.weights.items()},
        nodes={p.node for p in own if known.get(p.bias) == p.node},
        names=known,
        biases=biases,
    )
    solve_in_order(model, path, plan, products, feeds, store, settings, folder, monitor, refit)
    return replace(start, blocks=store, biases=biases)


def _is_alone(product: Product, view: View) -> bool:
    """Say whether nobody else reads what a product multiplies by and adds, and it is a plain sum."""
    weight = view.weights[product.weight]
    known = product.bias in view.initializers and len(view.readers.get(product.bias, ())) == 1
    plain = product.alpha == product.beta == 1 and not product.inside
    return plain and len(weight.uses) == 1 and not weight.exposed and (known or not product.bias)
