"""Weight-only quantization of a model: the float model, its samples, and inputs scaled so that those that count most are exact."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.calibration.collect import CalibrateOptions
from quantkit.calibration.job import sample_digest
from quantkit.calibration.model_inputs import batch_for, inputs_of
from quantkit.calibration.opened import OneShotData, OpenedData, opened_for
from quantkit.calibration.origin import samples_origin
from quantkit.data import Samples, batches, collate
from quantkit.model.graph.load import LoadedModel
from quantkit.model.graph.opset import opset_of
from quantkit.model.graph.save import Stage, copy_of
from quantkit.model.graph.view import view_of
from quantkit.model.provenance import DataOrigin
from quantkit.pipeline.prepared import FloatModel, Job, Prepared, float_copy, with_opset
from quantkit.quantize.plan import plan_blocks
from quantkit.quantize.rewrite.simplify.initializers import tie_weights
from quantkit.quantize.rewrite.smooth import scale_inputs, smoothable
from quantkit.runtime.taps import read_tensors
from quantkit.settings import WeightsSettings

_LOOKED_AT = 32  # samples that tell how large inputs are


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedWeights(Prepared):
    """A float model and its samples.

    Attributes:
        lab: A folder for temporary files.
        floats: The graph in a file, where it is run; None: nothing is run.
    """

    lab: Path
    floats: Path | None = None

    @property
    def resumable(self) -> bool:
        """Whether a later run can tell that it has the same samples."""
        return self.data is None or isinstance(self.data.samples, Samples)

    def data_origin(self) -> DataOrigin | None:
        """Name the samples, by all that they were drawn with; None: there are none."""
        if self.data is None:
            return None
        samples, chosen = self.data.require(), self.data.settings
        return samples_origin(
            samples.description,
            samples.fingerprint() if isinstance(samples, Samples) else "",
            [sample_digest(feed) for feed in self.feeds()],
            {"limit": chosen.limit, "shuffle": chosen.shuffle, "seed": chosen.seed},
            "moments",
        )

    def feeds(self) -> Iterator[dict[str, NDArray[Any]]]:
        """Yield the samples that weights are fitted to, one run at a time."""
        assert self.data is not None  # noqa: S101 - asked only where there is data
        samples, chosen = self.data.require(), self.data.settings
        together, skip_bad = 1, self.job.calibrate.skip_bad
        first = next(
            batches(samples, shuffle=chosen.shuffle, seed=chosen.seed, skip_bad=skip_bad), []
        )
        if first:
            together = batch_for(inputs_of(self.source), first[0], chosen.batch or 1)
        for batch in batches(
            samples,
            size=together,
            limit=chosen.limit,
            shuffle=chosen.shuffle,
            seed=chosen.seed,
            skip_bad=skip_bad,
        ):
            if len(batch) == together or not first:
                yield from collate(batch)


def prepare_weights(source: LoadedModel, job: Job[WeightsSettings], lab: Path) -> PreparedWeights:
    """Compute in float32, store once what is there twice, raise the opset as far as the format needs, open the data.

    Args:
        source: The float model; it stays as it is.
        job: What is asked for.
        lab: A folder for temporary files.
    """
    options = job.options
    model, notes, _ = float_copy(source.model, keep_inputs=options.keep_inputs)
    if tied := tie_weights(model):
        several = (
            "weight that was there twice is" if tied == 1 else "weights that were there twice are"
        )
        notes.append(f"{tied} {several} stored once.")
    view = view_of(model)
    needed = plan_blocks(view, options).min_opset
    if opset_of(model) < needed:
        model, raised = with_opset(model, needed)
        notes += raised
        view = view_of(model)
    ready = FloatModel(model=model, view=view, notes=tuple(notes))
    found = PreparedWeights(job=job, source=source, ready=ready, lab=lab)
    if job.data is None:
        return found
    data = _opened(source, job)
    judged, on = data.judged(source)
    floats = _file_of(model, lab)
    found = replace(found, data=data, floats=floats, judged=judged, on=on)
    scales = options.rounding is False if options.awq == "auto" else options.awq
    return _with_scaled_inputs(found, options) if scales else found


def _opened(source: LoadedModel, job: Job[WeightsSettings]) -> OpenedData:
    """Open the samples. What can be read only once is held in memory: weights are fitted in several passes.

    Raises:
        QuantkitError: They cannot be read, or do not fit the model.
    """
    everything = CalibrateOptions(most=None)
    data = opened_for(source, job.data, job.settings, everything)
    samples = data.require()
    if not isinstance(samples, OneShotData):
        return data
    held = [*islice(samples, job.settings.limit), *samples.held_out]
    return opened_for(source, [dict(sample.feeds) for sample in held], job.settings, everything)


def _file_of(model: ir.Model, lab: Path) -> Path:
    """Write a float model where parts of it can be run from."""
    stage = Stage(lab / "float.onnx", lab)
    stage.write(copy_of(model))
    return stage.model_path


def _with_scaled_inputs(prepared: PreparedWeights, options: WeightsSettings) -> PreparedWeights:
    """Scale the inputs that count most up, where the normalization before them takes that."""
    ready = prepared.ready
    found = [one for one in smoothable(ready.view) if one.folds]
    plan = plan_blocks(ready.view, options)
    grids = {
        node.name: grid
        for node in ready.view.weighted
        for name in node.weights.values()
        if name in plan.weight and (grid := plan.weight[name].blocks) is not None
    }
    assert prepared.floats is not None  # noqa: S101 - there is data
    powers: dict[str, NDArray[Any]] = {}
    count = 0
    names = [one.tensor for one in found]
    for seen in read_tensors(prepared.floats, names, list(islice(prepared.feeds(), _LOOKED_AT))):
        count += 1
        for name, array in seen.items():
            mean = np.square(array, dtype=np.float64).reshape(-1, array.shape[-1]).mean(axis=0)
            powers[name] = powers[name] + mean if name in powers else mean
    model = copy_of(ready.model)
    divided = scale_inputs(model, found, {n: p / count for n, p in powers.items()}, grids)
    if not divided:
        return prepared
    note = f"Scaled the inputs of {len(divided)} groups of layers (AWQ)."
    scaled = FloatModel.of(model, notes=(*ready.notes, note), divided=divided)
    return replace(prepared, ready=scaled, floats=_file_of(model, prepared.lab))
