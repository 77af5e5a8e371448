import zlib
from pathlib import Path

import pytest
from builders import matmul_model, save
from graph.cases import with_external_data

from quantkit.api.quantize import Task, quantize
from quantkit.evaluate.size import compressed_size, size_of
from quantkit.samples import fashion_mnist
from quantkit.settings import DynamicSettings


def test_a_candidate_is_weighed_against_float(tmp_path: Path) -> None:
    base, path = fashion_mnist().model, tmp_path / "q.onnx"
    quantize(Task(source=base, how=DynamicSettings()), path)
    found = size_of(path, base)
    assert found.disk == path.stat().st_size == sum(part.nbytes for part in found.parts)
    assert found.ratio == path.stat().st_size / base.stat().st_size
    assert found.compressed == len(zlib.compress(path.read_bytes(), 6))
    assert size_of(base, base).ratio == 1


def test_all_files_are_compressed(tmp_path: Path) -> None:
    path = with_external_data(matmul_model(), tmp_path / "m.onnx")
    files = (path, tmp_path / "weights.bin")
    found = size_of(path, path)
    assert found.disk == sum(f.stat().st_size for f in files)
    assert found.compressed == sum(len(zlib.compress(f.read_bytes(), 6)) for f in files)


def test_a_long_file_is_estimated_from_some_of_its_blocks(tmp_path: Path) -> None:
    path = tmp_path / "long"
    path.write_bytes(b"".join(bytes([i]) * (1 << 20) for i in range(20)) + b"rest")
    exact = compressed_size(path)
    assert compressed_size(path, whole=0, sampled=10) == pytest.approx(exact, rel=0.1)


def test_an_empty_file_stays_empty(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    assert compressed_size(tmp_path / "empty") == 0
    assert compressed_size(save(matmul_model(), tmp_path / "m.onnx")) > 0
