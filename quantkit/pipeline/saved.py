"""A preparation in a folder, to be taken up again: planned and realized in another process, without the data.

    prepared.onnx        the float model, simplified and equalized
    ranges.calibration   what was observed
    moments.calibration  what rounding reads
    samples.zip          what results are judged on
    prepared.json        all else, with the digests of the files and of the model that was prepared

Written whole or not at all. What was altered since, or was made from a model that has changed, is refused.
"""

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from quantkit.calibration import Calibration, CalibratorOf
from quantkit.calibration.collect import CalibrateOptions
from quantkit.calibration.container import read_container, write_container
from quantkit.errors import (
    DataError,
    ModelError,
    OutputError,
    QuantkitError,
    UsageError,
    as_os_error,
)
from quantkit.files import scratch
from quantkit.model.graph.channel_factors import KEY, Divisors, read_divisors, write_divisors
from quantkit.model.graph.load import LoadedModel
from quantkit.model.graph.save import Stage
from quantkit.model.provenance import json_digest, model_digest
from quantkit.pipeline.prepared import Feeds, FloatModel, Job, Moments, Prepared, Turns
from quantkit.quantize.plan.measured import Costs
from quantkit.runtime.session import load_model
from quantkit.settings import DataSettings, StaticSettings

_FORMAT = "quantkit.prepared.1"
_INDEX, _MODEL, _SAMPLES = "prepared.json", "prepared.onnx", "samples.zip"
_RANGES, _MOMENTS = "ranges.calibration", "moments.calibration"
_BLOCK = 1 << 20


def save_prepared(prepared: Prepared, folder: Path) -> None:
    """Write a preparation into a new folder.

    Args:
        prepared: What to write.
        folder: Where; it must not exist.

    Raises:
        UsageError: The folder exists, the model came from no file, or realizing would need the data again.
        OutputError: It cannot be written.
    """
    if folder.exists():
        raise UsageError(f"'{folder}' exists: give the name of a new folder.")
    if prepared.source.path is None:
        raise UsageError(
            "A model that was given in memory cannot be found again: save it to a file, and prepare that."
        )
    if len(prepared.moments.groups) > 1:
        raise UsageError(
            "The moments that rounding reads do not fit into the memory limit all at once, so that the data is needed for "
            "each plan: prepare the model with a higher limit to save it."
        )
    try:
        with scratch(folder.absolute().parent) as place:
            whole = place / "prepared"
            whole.mkdir()
            _write(prepared, whole)
            whole.rename(folder)
    except QuantkitError:
        raise
    except OSError as e:
        raise as_os_error(OutputError(f"Cannot write '{folder}': {e.strerror or e}."), e) from e


def _write(prepared: Prepared, folder: Path) -> None:
    Stage(folder / _MODEL, folder).write(prepared.ready.model)
    prepared.seen.save(folder / _RANGES)
    held = prepared.moments.held
    if held is not None and held is not prepared.seen:
        held.save(folder / _MOMENTS)
    header, arrays = _packed({"judged": prepared.judged, "samples": prepared.samples})
    write_container(folder / _SAMPLES, header, arrays)
    index = {
        "format": _FORMAT,
        "source": str(prepared.source.path and prepared.source.path.absolute()),
        "sha256": model_digest(prepared.source)["sha256"],
        "files": {path.name: _digest(path) for path in sorted(folder.iterdir())},
        "job": _job_record(prepared.job),
        "ready": _ready_record(prepared.ready),
        "warnings": list(prepared.warnings),
        "on": prepared.on,
        "fitted": {name: list(ends) for name, ends in prepared.fitted.items()},
        "turns": msgspec.to_builtins(prepared.turns),
        "costs": msgspec.to_builtins(prepared.costs),
    }
    text = json.dumps({**index, "seal": json_digest(index)}, indent=1, sort_keys=True)
    (folder / _INDEX).write_text(text, encoding="utf-8")


def _job_record(job: Job[StaticSettings]) -> dict[str, Any]:
    calibrate = job.calibrate
    return {
        "data": str(job.data) if isinstance(job.data, str | Path) else None,
        "calibrated before": isinstance(job.data, Calibration),
        "options": msgspec.to_builtins(job.options, enc_hook=str),
        "settings": msgspec.to_builtins(job.settings, enc_hook=str),
        "method": msgspec.to_builtins(calibrate.method),
        "calibrate": {
            "minmax_only": calibrate.minmax_only,
            "every_value": calibrate.every_value,
            "skip_bad": calibrate.skip_bad,
        },
    }


def _ready_record(ready: FloatModel) -> dict[str, Any]:
    noted: dict[str, str] = {}
    write_divisors(noted, ready.divided)
    return {
        "name": ready.name,
        "notes": list(ready.notes),
        "known": sorted(ready.known),
        "renamed": dict(ready.renamed),
        "factors_id": ready.factors_id,
        "divided": json.loads(noted[KEY]),
    }


def load_prepared(folder: Path, source: str | Path | None = None) -> Prepared:
    """Take up a preparation that was saved.

    Args:
        folder: Where it was saved.
        source: The float model, if it is no longer where it was.

    Raises:
        DataError: The folder holds no preparation, another version's, or one that was altered.
        ModelError: The float model is not the one that was prepared.
    """
    index = _index(folder)
    try:
        return _read(folder, index, source or index["source"])
    except (KeyError, TypeError, ValueError, msgspec.ValidationError) as e:
        raise DataError(
            f"'{folder}' is not of this version ({e!r}); prepare the model again."
        ) from e


def _index(folder: Path) -> dict[str, Any]:
    """Return what the index says, if all files are as they were written."""
    try:
        index = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
        kind, seal = index["format"], index.pop("seal")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        raise DataError(f"'{folder}' holds no preparation: {_INDEX} cannot be read.") from e
    if kind != _FORMAT:
        raise DataError(
            f"'{folder}' was saved by another version ('{kind}', not '{_FORMAT}'); prepare the model again."
        )
    if json_digest(index) != seal:
        raise DataError(f"'{folder / _INDEX}' was altered; prepare the model again.")
    for name, digest in index["files"].items():
        path = folder / name
        if not path.is_file() or _digest(path) != digest:
            raise DataError(f"'{path}' was altered or is gone; prepare the model again.")
    return dict(index)


def _read(folder: Path, index: Mapping[str, Any], path: str | Path) -> Prepared:
    source = load_model(path)
    if model_digest(source)["sha256"] != index["sha256"]:
        raise ModelError(
            f"{source.name} is not the model that was prepared, or has changed since: prepare it again."
        )
    seen = Calibration.load(folder / _RANGES)
    before = index["job"]["calibrated before"]
    held = seen if before else None
    if _MOMENTS in index["files"]:
        held = Calibration.load(folder / _MOMENTS)
    samples = _unpacked(*read_container(folder / _SAMPLES))
    return Prepared(
        job=_job(index["job"], path, seen if before else index["job"]["data"]),
        source=source,
        ready=_ready(load_model(folder / _MODEL), index["ready"]),
        seen=seen,
        moments=Moments(held=held),
        warnings=tuple(index["warnings"]),
        judged=samples["judged"],
        on=index["on"],
        samples=samples["samples"],
        fitted=msgspec.convert(
            index.get("fitted", index.get("narrowed", {})), dict[str, tuple[float, float]]
        ),
        turns=msgspec.convert(index.get("turns"), Turns | None),
        costs=msgspec.convert(index.get("costs", {}), dict[str, Costs | str]),
    )


def _job(record: Mapping[str, Any], source: str | Path, data: object) -> Job[StaticSettings]:
    def path(kind: type[Any], text: str) -> Any:
        return kind(text)

    method = msgspec.convert(record["method"], CalibratorOf)
    return Job(
        source=source,
        data=data,
        options=msgspec.convert(record["options"], StaticSettings, dec_hook=path),
        settings=msgspec.convert(record["settings"], DataSettings, dec_hook=path),
        calibrate=CalibrateOptions(method=method, **record["calibrate"]),
    )


def _ready(loaded: LoadedModel, record: Mapping[str, Any]) -> FloatModel:
    divided = []
    for group in record["divided"]:
        found = read_divisors({KEY: json.dumps([group])})
        assert found is not None  # noqa: S101 - the index is as it was written
        tensors = tuple(group["tensors"])
        divided.append(Divisors(tensors=tensors, divisor=found[tensors[0]]))
    return FloatModel.of(
        loaded.model,
        notes=tuple(record["notes"]),
        name=record["name"],
        known=frozenset(record["known"]),
        factors_id=record["factors_id"],
        divided=tuple(divided),
        renamed=record["renamed"],
    )


def _packed(groups: Mapping[str, Feeds]) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return samples as plain arrays, and which is which."""
    header: dict[str, list[list[str]]] = {}
    arrays = {}
    for group, feeds in groups.items():
        header[group] = [list(feed) for feed in feeds]
        for number, feed in enumerate(feeds):
            for slot, array in enumerate(feed.values()):
                # Text comes as Python objects, which no file should hold.
                plain = array.astype(np.str_) if array.dtype == object else array
                arrays[f"{group}/{number}/{slot}"] = plain
    return header, arrays


def _unpacked(
    header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
) -> dict[str, list[dict[str, NDArray[Any]]]]:
    return {
        group: [
            {name: arrays[f"{group}/{number}/{slot}"] for slot, name in enumerate(names)}
            for number, names in enumerate(listed)
        ]
        for group, listed in header.items()
    }


def _digest(path: Path) -> str:
    digest = sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
