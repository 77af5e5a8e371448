"""Weights of few bits fitted once more, in the order of the graph; kept only if less is lost on samples that they were not fitted to."""

from collections.abc import Iterable, Iterator, Mapping
from math import log10
from pathlib import Path
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.calibration.monitor import Monitor
from quantkit.errors import DataError
from quantkit.files import scratch
from quantkit.model.graph.save import copy_of
from quantkit.pipeline.prepare import memory_left
from quantkit.pipeline.prepared import Feeds, Prepared
from quantkit.pipeline.static_model import runnable
from quantkit.quantize.emit import Format, emit_static
from quantkit.quantize.plan import Plan, SolvedIntegers
from quantkit.quantize.solve.blocks import BlockSettings
from quantkit.quantize.solve.in_order import solved_in_order
from quantkit.runtime.check_result import HELD_OUT, LARGE, Tally
from quantkit.runtime.session import RUNTIME_ERRORS, first_line
from quantkit.runtime.taps import read_tensors
from quantkit.targets import cores

_FEWEST = 4  # samples that decide
_NEEDED = "it needs data that can be read again, and 40 samples or more, some of which are not calibrated with"
_AT_ONCE = 8  # samples in memory
_ALL = 1.0  # of the error that comes in: MobileNetV2 and ResNet-20 with 2 to 4 bits lose less than with a half
_ERRORS: tuple[type[Exception], ...] = (*RUNTIME_ERRORS, DataError, OSError)
_NAME = "Fitting weights in the order of the graph"


def fitted_in_order(
    prepared: Prepared, plan: Plan, start: SolvedIntegers, output_format: Format, monitor: Monitor
) -> tuple[SolvedIntegers, str]:
    """Return the integers that lose less on samples that were not fitted to, and a note.

    Args:
        prepared: The model and its samples.
        plan: What was decided.
        start: What was solved for from the float model alone.
        output_format: How the plan is written down.
        monitor: Told what is done.
    """
    ready, recover = prepared.ready, prepared.job.options.recover
    if recover.rounding is False or recover.bias is False:
        return start, ""
    if ready.nbytes >= LARGE:
        return start, f"{_NAME}: left out, the model is too large."
    judges = _held_out(prepared)
    if prepared.data is None or prepared.data.once or len(judges) < _FEWEST:
        return start, f"{_NAME}: left out, {_NEEDED}."
    memory = memory_left(ready, prepared.settings)
    how = BlockSettings(corrected=_ALL, damps=True, workers=cores(), memory=memory)
    try:
        with runnable(ready) as written, scratch() as folder:
            assert written.path is not None  # noqa: S101 - it was written
            found = solved_in_order(
                ready.model,
                written.path,
                ready.view,
                plan,
                ready.products,
                lambda: _read(prepared),
                start,
                how,
                folder,
                monitor,
            )
            results = [_made(prepared, plan, one, output_format) for one in (start, found)]
            before, after = (_sqnr(written.path, made, judges) for made in results)
    except _ERRORS as e:
        return start, f"{_NAME}: left out ({first_line(e)})."
    figures = f"{before:.1f} dB before, {after:.1f} dB after, on {len(judges)} held-out samples"
    if after <= before:
        return start, f"{_NAME}: not kept ({figures})."
    return found, f"{_NAME}: {figures}."


def _held_out(prepared: Prepared) -> Feeds:
    """Return the judged samples that nothing is calibrated with."""
    if prepared.on == HELD_OUT:
        return prepared.judged
    return prepared.judged[: prepared.turns.first] if prepared.turns is not None else ()


def _read(prepared: Prepared) -> Iterator[Mapping[str, NDArray[Any]]]:
    """Yield the samples that calibrate, some of them in memory at a time."""
    assert prepared.data is not None  # noqa: S101 - asked only where there is data
    for first in range(0, prepared.data.used, _AT_ONCE):
        places = range(first, min(first + _AT_ONCE, prepared.data.used))
        yield from prepared.data.at(prepared.source, places)


def _made(
    prepared: Prepared, plan: Plan, solved: SolvedIntegers, output_format: Format
) -> ir.Model:
    model = copy_of(prepared.ready.model)
    emit_static(model, plan, solved, output_format)
    return model


def _sqnr(path: Path, made: ir.Model, feeds: Feeds) -> float:
    """Return the SQNR of all outputs of a model, in dB: that of their mean noise over signal."""
    names: Iterable[str] = [value.name or "" for value in made.graph.outputs]
    tallies = {name: Tally() for name in names}
    runs = zip(read_tensors(path, names, feeds), read_tensors(made, names, feeds), strict=True)
    for expected, actual in runs:
        for name, tally in tallies.items():
            tally.add(expected[name], actual[name])
    lost = sum(tally.lost for tally in tallies.values()) / max(1, len(tallies))
    return -10 * log10(max(lost, 1e-30))
