"""Round the weights of a static plan by what they multiply, as far as memory allows all at once."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from quantkit.calibration.calibration import Calibration
from quantkit.calibration.monitor import Monitor
from quantkit.pipeline.prepare import memory_left, observe_again
from quantkit.pipeline.prepared import Prepared
from quantkit.pipeline.static_model import STEPS, runnable
from quantkit.quantize.plan import Plan, SolvedIntegers
from quantkit.quantize.solve.weights import Rounding, is_static, moment_request, solve
from quantkit.targets import cores


def rounded(
    prepared: Prepared,
    plan: Plan,
    monitor: Monitor,
    first: Callable[[], Calibration | None],
    *,
    packed: bool = False,
) -> SolvedIntegers:
    """Round weights and correct biases, as far as that is not switched off.

    The moments of one group of linear operators are in memory at a time: observed, solved with, and dropped.

    Args:
        prepared: The model.
        plan: What was decided.
        monitor: Told what is done.
        first: Returns the moments of the first group; None: the data is run again for them.
        packed: Only weights that have few bits in the file.
    """
    recover, ready = prepared.job.options.recover, prepared.ready
    groups = prepared.moments.groups
    if recover.rounding is False and recover.bias is not True:
        return SolvedIntegers()
    monitor.step(4, STEPS, "Rounding weights")
    work = partial(
        solve,
        ready.model,
        plan,
        settings=Rounding(
            ranges=recover.ranges is True,
            second_order=recover.rounding is not False,
            adaptive=recover.adaptive is True,
        ),
        bias=recover.bias is not False,
        workers=cores(),
        memory=memory_left(ready, prepared.settings),
        monitor=monitor,
    )
    # Moments may be too many for memory, so products go group by group. Of the first group they were observed
    # together with the ranges and are held already; those of later groups cost a pass over the data each. What was
    # solved for is dropped at once, unless `prepared` is to be written again. Products without moments
    # (a calibration that was made elsewhere, a weight too wide) go with the first.
    later = {request for group in groups[1:] for request in group}
    static = [p for p in ready.products if is_static(p, plan)]
    if packed:
        static = [p for p in static if plan.weight[p.weight].blocks is not None]
    solved, seen = SolvedIntegers(), first()
    with ExitStack() as files:
        written = None
        for number, group in enumerate(groups or ((),), 1):
            # What is in no group was never to be observed: it is solved with the first.
            own = [
                p
                for p in static
                if (moment_request(p) not in later if number == 1 else moment_request(p) in group)
            ]
            asked = tuple(
                dict.fromkeys(moment_request(p) for p in own if moment_request(p) in group)
            )
            if seen is None and asked:
                written = written or files.enter_context(runnable(ready))
                monitor.name(f"Observing moments, group {number} of {len(groups)}")
                seen = observe_again(prepared, written, asked, monitor)
            solved = solved.with_more(work(own, seen))
            seen = None
    return solved
