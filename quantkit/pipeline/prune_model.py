"""The float model that is pruned: simplified, with its groups of channels and its blocks, and what was seen of their inputs."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.calibration.collect import CalibrateOptions
from quantkit.calibration.job import sample_digest
from quantkit.calibration.model_inputs import batch_for, inputs_of
from quantkit.calibration.monitor import Monitor
from quantkit.calibration.opened import opened_for
from quantkit.calibration.origin import samples_origin
from quantkit.data import Samples, collate, order
from quantkit.errors import DataError, NothingToPruneError, UsageError
from quantkit.evaluate.accuracy import AccuracyOptions
from quantkit.model.graph.load import LoadedModel
from quantkit.model.graph.save import Stage, copy_of
from quantkit.model.provenance import DataOrigin
from quantkit.pipeline.prepared import Job, Prepared
from quantkit.pipeline.prune_graph import PruneGraph, find_removable
from quantkit.pipeline.split import Split, divide
from quantkit.reduce.prune.blocks import (
    ResidualBlock,
    add_switched_maps,
)
from quantkit.runtime.check_result import HELD_OUT
from quantkit.runtime.pieces import Structure, read_structure
from quantkit.runtime.session import load_model
from quantkit.settings import PruneSettings

Array = NDArray[Any]
Feeds = Mapping[str, Array]

_FITTED, _TEXTS = (
    512,
    1024,
)  # samples that weights are fitted to, at most: a text has fewer positions than an image
_TOGETHER, _SMALL = 16, 64 << 10  # samples in a run, if they are smaller than so many bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedPrune(Prepared):
    """A float model, its groups and blocks, and what was seen of them.

    Attributes:
        file: The float model as it was given.
        lab: A folder for temporary files.
        graph: What can be removed.
        fitting: Places of the samples that weights are fitted to.
        split: What the other samples are for; None: it was decided before what is removed.
    """

    file: Path
    lab: Path
    graph: PruneGraph
    fitting: tuple[int, ...]
    split: Split | None

    @property
    def samples_read(self) -> Samples:
        """The data."""
        assert self.data is not None  # noqa: S101 - checked when it was opened
        found = self.data.require()
        assert isinstance(found, Samples)  # noqa: S101 - likewise
        return found

    @property
    def timed(self) -> Feeds:
        """What is timed: one sample alone, or as many as the model is built for."""
        first = self.samples_read[self.fitting[0]]
        count = batch_for(inputs_of(self.source), first, 1)
        found: Feeds = collate([self.samples_read[n] for n in self.fitting[:count]])[0]
        return found

    def feeds(self, places: Iterable[int]) -> Iterator[Feeds]:
        """Yield samples, some in a run if they are small and none is padded."""
        samples, inputs, skip = (
            self.samples_read,
            inputs_of(self.source),
            self.job.calibrate.skip_bad,
        )
        waiting = []
        for place in places:
            try:
                sample = samples[place]
            except DataError:
                if not skip:
                    raise
                continue
            nbytes = sum(array.nbytes for array in sample.feeds.values())
            wanted = 1 if sample.padding or nbytes > _SMALL else _TOGETHER
            waiting.append(sample)
            if len(waiting) >= batch_for(inputs, sample, wanted):
                yield from collate(waiting)
                waiting = []
        if waiting and batch_for(inputs, waiting[0], 1) == 1:
            yield from collate(waiting)

    def data_origin(self) -> DataOrigin:
        """Name the samples that weights are fitted to."""
        assert self.data is not None  # noqa: S101 - checked when it was opened
        samples, chosen = self.samples_read, self.data.settings
        return samples_origin(
            samples.description,
            samples.fingerprint(),
            [sample_digest(feed) for feed in self.feeds(self.fitting)],
            {"limit": chosen.limit, "shuffle": chosen.shuffle, "seed": chosen.seed},
            "moments",
        )

    def written(self, model: ir.Model, name: str) -> Path:
        """Write a model into the lab."""
        folder = self.lab / name
        folder.mkdir(exist_ok=True)
        stage = Stage(folder / "model.onnx", folder)
        stage.write(model)
        return stage.model_path

    def switched(self, blocks: Iterable[ResidualBlock], name: str) -> Structure:
        """Write the float model with a map beside each of some blocks, that is off unless it is turned on, and open it."""
        model = copy_of(self.ready.model)
        add_switched_maps(model, blocks)
        return read_structure(self.written(model, name))


def prepare_prune(
    source: LoadedModel, file: Path, job: Job[PruneSettings], lab: Path, monitor: Monitor
) -> PreparedPrune:
    """Simplify a model, find what can be removed, and divide the samples.

    Args:
        source: The float model; it stays as it is.
        file: It, in a file.
        job: What is asked for.
        lab: A folder for temporary files.
        monitor: Told what is done.

    Raises:
        NothingToPruneError: Nothing can be removed; names the operators that stand in the way.
        DataError: There are too few samples, or they can be read only once.
    """
    monitor.stage("Simplifying")
    graph = find_removable(source.model, job.options.exclude)
    if not graph.groups and not graph.blocks:
        raise NothingToPruneError(_why_none(source, graph))
    prepared = PreparedPrune(
        job=job,
        source=source,
        ready=graph.ready,
        file=file,
        lab=lab,
        graph=graph,
        fitting=(),
        split=None,
    )
    return _with_samples(prepared, monitor)


def _why_none(source: LoadedModel, graph: PruneGraph) -> str:
    """Say that nothing can be removed, and which operators stand in the way."""
    listed = ", ".join(f"{op} ({count})" for op, count in graph.labels.stops.most_common(3))
    why = f"these operators need all channels: {listed}" if listed else "it has no inner channels"
    return f"Nothing to prune in {source.name}: no linear operator consumes channels that can be removed; {why}."


def _with_samples(prepared: PreparedPrune, monitor: Monitor) -> PreparedPrune:
    """Open the data and divide it; where it was decided before what is removed, only samples to fit to are needed."""
    job, source = prepared.job, prepared.source
    data = opened_for(source, job.data, job.settings, CalibrateOptions(most=None))
    samples = data.require()
    if not isinstance(samples, Samples):
        raise UsageError(
            "These samples can be read only once, and pruning reads them often: give a path, or a list."
        )
    mixed = order(
        len(samples), limit=job.settings.limit, shuffle=job.settings.shuffle, seed=job.settings.seed
    ).tolist()
    if job.widths is not None:
        data = replace(data, settings=job.settings)
        return replace(prepared, data=data, fitting=tuple(mixed))
    accuracy = AccuracyOptions(skip_bad=job.calibrate.skip_bad)
    monitor.stage("Dividing the samples")
    split, _ = divide(
        load_model(prepared.file),
        job.data,
        job.settings,
        accuracy,
        monitor,
        most=_FITTED if samples[mixed[0]].padding is None else _TEXTS,
        share=0.5,
    )
    # The record says how these are drawn again: the first of the mixed order.
    limit = mixed.index(split.calibration[-1]) + 1
    data = replace(data, settings=replace(data.settings, limit=limit))
    found = replace(prepared, data=data, fitting=split.calibration, split=split, on=HELD_OUT)
    few = data.most_judged(source)
    return replace(found, judged=tuple(islice(found.feeds(split.judging), few)))
