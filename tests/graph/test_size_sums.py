"""The parts add up to the files, whatever the file holds."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import pytest
from builders import graph, matmul_model, model, node, save, weight
from graph.cases import MODELS, with_external_data, written
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType
from onnxruntime.quantization import quantize_dynamic as ort_dynamic

from quantkit.errors import ModelError
from quantkit.model.graph.load import load
from quantkit.model.graph.size import Accounts, ByteRanges, account
from quantkit.pipeline.inspect import inspect_model

MODELS_FOLDER = Path(__file__).resolve().parents[3] / "shared" / "models"
REAL = sorted(MODELS_FOLDER.rglob("*.onnx")) if MODELS_FOLDER.is_dir() else []
TYPES = [TensorProto.FLOAT, TensorProto.INT8, TensorProto.UINT8, TensorProto.INT4]
TYPES += [TensorProto.INT64, TensorProto.FLOAT16, TensorProto.STRING, TensorProto.BOOL]
OPS = ("MatMul", "Add", "DequantizeLinear", "Cast", "Sub", "Mul", "Identity", "QLinearConv")


def check(path: Path) -> Accounts:
    found = account(path)
    assert found.files[0] == path
    assert found.nbytes == sum(file.stat().st_size for file in found.files)
    assert found.nbytes == sum(part.nbytes for part in found.parts)
    assert all(part.nbytes > 0 for part in found.parts)
    assert sum(row.nbytes for row in found.tensors) <= found.nbytes
    return found


def cause(found: Accounts, name: str) -> int:
    return next((part.nbytes for part in found.parts if part.cause == name), 0)


@st.composite
def tensors(draw: st.DrawFn, name: str = "") -> onnx.TensorProto:
    dtype = draw(st.sampled_from(TYPES))
    dims = draw(st.lists(st.integers(0, 7), max_size=3))
    count = int(np.prod(dims, dtype=int))
    if dtype == TensorProto.STRING:
        return numpy_helper.from_array(np.full(dims, "text", object), name)
    raw = draw(st.booleans())
    value = draw(st.integers(0, 1)) if dtype == TensorProto.BOOL else draw(st.integers(-8, 7))
    value = abs(value) if dtype == TensorProto.UINT8 else value
    made = helper.make_tensor(name, dtype, dims, [value] * count)
    return numpy_helper.from_array(numpy_helper.to_array(made), name) if raw else made


@st.composite
def graphs(draw: st.DrawFn, outer: Sequence[str] = (), depth: int = 0) -> onnx.GraphProto:
    names = [*outer, *(f"w{depth}_{i}" for i in range(draw(st.integers(0, 4))))]
    made = helper.make_graph([], "g", [], [])
    made.initializer.extend(draw(tensors(n)) for n in names[len(outer) :])
    known = [*names, "x"]
    for i in range(draw(st.integers(0, 6))):
        out = f"v{depth}_{i}"
        if depth < 2 and draw(st.integers(0, 5)) == 0:
            inner: dict[str, Any] = {"then_branch": draw(graphs(known, depth + 1))}
            made.node.append(node("If", [draw(st.sampled_from(known))], [out], **inner))
        elif draw(st.integers(0, 3)) == 0:
            made.node.append(node("Constant", [], [out], value=draw(tensors())))
        else:
            inputs = draw(st.lists(st.sampled_from([*known, ""]), max_size=4))
            made.node.append(node(draw(st.sampled_from(OPS)), inputs, [out]))
        known.append(out)
    out = draw(st.sampled_from(known))
    made.output.append(helper.make_tensor_value_info(out, TensorProto.FLOAT, None))
    made.doc_string = draw(st.text(max_size=5))
    return made


@settings(max_examples=50, deadline=None)
@given(
    part=graphs(),
    body=graphs(depth=5),
    sparse=st.none() | st.integers(1, 5),
    location=st.sampled_from([None, "data.bin", "./data.bin"]),
)
def test_random_models_add_up(
    part: onnx.GraphProto, body: onnx.GraphProto, sparse: int | None, location: str | None
) -> None:
    function = onnx.FunctionProto(
        name="F",
        domain="local",
        node=body.node,
        output=[out for n in body.node[:1] for out in n.output],
    )
    proto = model(part, functions=[function])
    if sparse is not None:
        values = numpy_helper.from_array(weight(sparse), "sparse")
        indices = numpy_helper.from_array(np.arange(sparse))
        proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [9]))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "m.onnx"
        if location:
            _move_out(proto, path.parent / "data.bin", location)
        check(save(proto, path))
    if location is None:
        assert sum(p.nbytes for p in account(proto).parts) == proto.ByteSize()


def _move_out(proto: onnx.ModelProto, file: Path, location: str) -> None:
    """Put contents into a file at places that overlap, leave gaps, and end behind its end."""
    for i, tensor in enumerate(proto.graph.initializer):
        if not tensor.raw_data:
            continue
        note = {"location": location, "offset": 100 * (i // 2), "length": 3 * len(tensor.raw_data)}
        for key, value in note.items():
            tensor.external_data.add(key=key, value=str(value))
        tensor.data_location = TensorProto.EXTERNAL
        tensor.ClearField("raw_data")
    file.write_bytes(bytes(777))


@given(st.lists(st.tuples(st.integers(-5, 60), st.integers(-5, 60)), max_size=30))
def test_byte_ranges_count_every_byte_once(ranges: list[tuple[int, int]]) -> None:
    file, taken = ByteRanges(50), set[int]()
    for start, end in ranges:
        new = set(range(max(start, 0), min(end, 50))) - taken
        assert file.take(start, end) == len(new)
        taken |= new
        assert file.free == 50 - len(taken)
    lengths, run = 0, 0
    for i in range(50):
        run, lengths = (0, lengths + (run if run < 7 else 0)) if i in taken else (run + 1, lengths)
    assert file.gaps(7) == lengths


@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS.keys())
@pytest.mark.parametrize("external", [False, True], ids=["one-file", "external"])
def test_files_of_all_kinds_add_up(build: Any, external: bool, tmp_path: Path) -> None:  # noqa: FBT001
    proto = build()
    path = tmp_path / "m.onnx"
    check(with_external_data(proto, path) if external else save(proto, path))
    check(written(load(path).model, tmp_path / "out.onnx", external=external))


def test_padding_is_told_from_data_that_nobody_uses(tmp_path: Path) -> None:
    path = written(load(matmul_model()).model, tmp_path / "m.onnx", external=True)
    (data,) = tmp_path.glob("m.onnx.*.data")
    assert cause(check(path), "unused external data") == 0
    with data.open("ab") as file:
        file.write(bytes(100_000))
    assert cause(check(path), "unused external data") == 100_000


def test_bytes_that_tensors_share_are_counted_once(tmp_path: Path) -> None:
    nodes = [node("MatMul", ["x", "a"], ["m"]), node("MatMul", ["m", "b"], ["y"])]
    proto = model(graph(nodes, {"x": [20, 20]}, {"y": None}, {"a": weight(20, 20)}))
    with_external_data(proto, tmp_path / "m.onnx")
    proto = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    shared = onnx.TensorProto()
    shared.CopyFrom(proto.graph.initializer[0])
    shared.name = "b"
    proto.graph.initializer.append(shared)
    found = check(save(proto, tmp_path / "m.onnx"))
    assert cause(found, "weights of MatMul") == 1600
    assert cause(found, "duplicates") == 0


def test_external_data_that_is_missing_counts_nothing(tmp_path: Path) -> None:
    path = with_external_data(matmul_model(), tmp_path / "m.onnx")
    (tmp_path / "weights.bin").unlink()
    assert check(path).files == (path,)


@pytest.mark.parametrize("contents", [b"", b"no model \xff\xff\xff"], ids=["empty", "noise"])
def test_what_is_no_model_is_refused(contents: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(contents)
    with pytest.raises(ModelError):
        account(path)


def test_files_of_onnxruntime_add_up(tmp_path: Path) -> None:
    path = save(matmul_model(), tmp_path / "m.onnx")
    ort_dynamic(path, tmp_path / "q.onnx", weight_type=QuantType.QUInt8)
    found = check(tmp_path / "q.onnx")
    assert cause(found, "weights of MatMul") == 128 * 192
    assert cause(found, "scales") > 0


@pytest.mark.skipif(not REAL, reason="the shared models are not there")
@pytest.mark.parametrize("path", REAL, ids=lambda p: p.stem)
@pytest.mark.slow
def test_real_models_add_up(path: Path) -> None:
    found = check(path)
    assert inspect_model(path).size == found.parts
    assert cause(found, "structure") < found.nbytes / 2
