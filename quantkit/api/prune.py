"""`prune`: remove channels, neurons, heads and layers of a model, and fit the rest to make up for them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import onnx

from quantkit.api.arguments import checked_kinds, sample_settings
from quantkit.api.quantize import Task, quantize
from quantkit.calibration.monitor import Monitor
from quantkit.pipeline.prune_result import PruneResult
from quantkit.settings import DataSettings, PruneSettings


@checked_kinds
def prune(  # noqa: PLR0913 - one parameter per question
    model_input: str | Path | onnx.ModelProto,
    model_output: str | Path,
    data: object,
    *,
    speed: float | None = None,
    size: float | str | None = None,
    max_drop: float | str | None = None,
    sparsity: float | str | None = None,
    pattern: str | None = None,
    low_rank: bool = False,
    metric: str | None = None,
    force: bool = False,
    nodes_to_exclude: Sequence[str] = (),
    settings: DataSettings | None = None,
    limit: int | None = None,
    skip_bad: bool = False,
    use_external_data_format: bool = False,
    verify: bool = True,
    monitor: Monitor | None = None,
) -> PruneResult:
    """Remove channels, neurons, attention heads and blocks that carry least, and fit the remaining weights to make up for them.

    Needs no labels and no training. Samples are divided: some fit weights, others choose, the rest judges.

    Args:
        model_input: A path, or a ModelProto.
        model_output: Where to write.
        data: What `quantkit.calibrate` takes, except what can be read only once.
        speed: Latency to reach, as a multiple of float's.
        size: File size to reach: a share up to 1 or "70%", bytes or "14.6MB".
        max_drop: The drop that is allowed: 0.01 or "1%" is one point. None of the three: 1 %.
        sparsity: Set this share of the weights to zero instead: 0.5 or "50%".
        pattern: Or so many of every group: "2:4".
        low_rank: Or write layers as two thin ones, where that loses less than 4 bits of the same size and gains time.
        metric: As for `evaluate_models`; None: by the labels, else decisions or outputs are compared with float's.
        force: Prune even if int8 gains less than 10 % of its latency from it.
        nodes_to_exclude: Nodes whose channels all stay, by name or pattern.
        settings: How samples are prepared and ordered.
        limit: Use this many samples in all; overrides the settings.
        skip_bad: Leave out samples that cannot be read, instead of failing.
        use_external_data_format: Write a ``.data`` file also below 2 GB.
        verify: Check the result before writing.
        monitor: Told what is done; None: nobody.

    Returns:
        What was removed, and the drop on held-out samples, latency and size, next to float.

    Raises:
        UnreachableError: No pruned file reaches the target, or int8 gains too little; nothing is written.
        QuantkitError: With one line that says what is wrong and what to do. Nothing is written then.
    """
    given: Any = {"size": size, "max_drop": max_drop, "sparsity": sparsity, "pattern": pattern}
    how = PruneSettings(
        speed=speed,
        low_rank=low_rank,
        metric=metric,
        force=force,
        exclude=tuple(nodes_to_exclude),
        **given,
    )
    samples = sample_settings(settings, limit=limit)
    task = Task(source=model_input, how=how, data=data, samples=samples, skip_bad=skip_bad)
    result = quantize(
        task,
        model_output,
        verify=verify,
        external_data=use_external_data_format,
        monitor=monitor,
    )
    return cast("PruneResult", result)
