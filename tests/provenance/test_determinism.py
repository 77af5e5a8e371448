"""The same inputs give the same bytes: whenever, wherever, and by however many workers."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from builders import rng
from provenance_cases import WAYS, contents, data_file, float_model, write

from quantkit.api.quantize import Task, quantize
from quantkit.calibration.collect import CalibrateOptions
from quantkit.model.provenance import read_provenance
from quantkit.pipeline.form import run_form
from quantkit.pipeline.forms import form_of
from quantkit.pipeline.prepared import Job, Output
from quantkit.settings import RecoverSettings, StaticSettings

PROGRAM = """
import sys
from pathlib import Path
from provenance_cases import WAYS, write
source, data, folder = map(Path, sys.argv[1:])
for way in WAYS:
    target = folder / way / "q.onnx"
    target.parent.mkdir(parents=True)
    write(way, source, data, target)
"""


@pytest.fixture
def inputs(tmp_path: Path) -> tuple[Path, Path]:
    return float_model(tmp_path / "m.onnx"), data_file(tmp_path / "x.npy")


def moved(inputs: tuple[Path, Path], folder: Path) -> tuple[Path, Path]:
    """The same files in another folder, with another time."""
    folder.mkdir(parents=True)
    copies = []
    for path in inputs:
        copy = folder / path.name
        copy.write_bytes(path.read_bytes())
        os.utime(copy, (1e9, 1e9))
        copies.append(copy)
    return copies[0], copies[1]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.slow
def test_twice_in_one_process_from_two_folders(
    way: str, inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    found = []
    for name, given in (("one", inputs), ("two", moved(inputs, tmp_path / "far" / "away"))):
        (tmp_path / name).mkdir()
        found.append(contents(write(way, *given, tmp_path / name / "q.onnx")))
    assert found[0] == found[1]
    assert len(found[0]) == (2 if way.endswith("external") else 1)


@pytest.mark.slow
def test_in_processes_with_other_hashes_of_strings(
    inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    for seed in ("1", "2"):
        tests = Path(__file__).parents[1]
        path = os.pathsep.join([str(tests), *sys.path])
        subprocess.run(
            [sys.executable, "-c", PROGRAM, *map(str, inputs), str(tmp_path / seed)],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path},
            check=True,
        )
    for way in WAYS:
        one, two = (contents(tmp_path / seed / way / "q.onnx") for seed in "12")
        assert one == two, way


def test_warnings_name_no_folder(tmp_path: Path) -> None:
    found = []
    for place in (tmp_path / "one", tmp_path / "two" / "deep"):
        data = place / "data"
        data.mkdir(parents=True)
        for i in range(6):
            np.save(data / f"{i}.npy", rng(i).standard_normal(64).astype(np.float32))
        (data / "bad.npy").write_bytes((data / "0.npy").read_bytes()[:-9])
        source = float_model(place / "m.onnx")
        recover = RecoverSettings(equalize=False, smooth=False)
        job = Task(source=source, data=data, skip_bad=True, how=StaticSettings(recover=recover))
        quantize(job, place / "q.onnx")
        found.append(contents(place / "q.onnx"))
    assert found[0] == found[1]
    record = read_provenance(tmp_path / "one" / "q.onnx")
    assert record is not None
    assert record.data is not None
    assert "1 of 7 samples could not be read" in " ".join(record.data.warnings)
    assert "bad.npy" in " ".join(record.data.warnings)
    assert str(tmp_path) not in " ".join(record.data.warnings)


@pytest.mark.parametrize("workers", [2, 3])
def test_workers_change_nothing(workers: int, inputs: tuple[Path, Path], tmp_path: Path) -> None:
    found = []
    everything = RecoverSettings(
        equalize=True, smooth=True, bias=True, empirical=True, ranges=True, adaptive=True
    )
    for name, count in (("one", 1), ("many", workers)):
        (tmp_path / name).mkdir()
        target = tmp_path / name / "q.onnx"
        calibrate = CalibrateOptions(workers=count)
        how = StaticSettings(recover=everything)
        job = Job(source=inputs[0], data=inputs[1], calibrate=calibrate, options=how)
        run_form(form_of(job, Output(path=target)))
        found.append(contents(target))
    assert found[0] == found[1]
