"""Opening a model: weights stay in their files, and whatever is no model is one clear error."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from builders import Array, graph, matmul_model, model, node, rng, run, save, weight
from graph.cases import (
    BIG,
    MODELS,
    anonymous_memory,
    assert_same,
    constant_nodes,
    feeds_for,
    function_model,
    if_model,
    nested_model,
    plain,
    tensors_of,
    with_external_data,
    written,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from quantkit import QuantkitError, quantize_dynamic
from quantkit.errors import ModelError, UsageError
from quantkit.model.graph import mapping
from quantkit.model.graph.load import LoadedModel, load


def initializer(loaded: LoadedModel, name: str) -> ir.TensorProtocol:
    tensor = next(
        g.initializers[name].const_value for g in loaded.model.graphs() if name in g.initializers
    )
    assert tensor is not None
    return tensor


def assert_refused(source: Path, *expected: str) -> None:
    """Refused in one line that names the file."""
    with pytest.raises(ModelError) as caught:
        load(source)
    message = str(caught.value)
    assert "\n" not in message
    assert str(source) in message
    for part in expected:
        assert part in message


# --- weights -----------------------------------------------------------------------------------


@pytest.mark.parametrize("external", [False, True], ids=["one-file", "external-data"])
def test_weights_are_lazy_and_right(external: bool, tmp_path: Path) -> None:  # noqa: FBT001
    store = with_external_data if external else save
    loaded = load(store(plain(), tmp_path / "m.onnx"))
    tensor = initializer(loaded, "w")
    assert isinstance(tensor, ir.LazyTensor)
    np.testing.assert_array_equal(tensor.numpy(), weight(*BIG))
    np.testing.assert_array_equal(initializer(loaded, "b").numpy(), weight(20, seed=1))


@pytest.mark.parametrize("external", [False, True], ids=["one-file", "external-data"])
def test_loading_does_not_read_the_weights(external: bool, tmp_path: Path) -> None:  # noqa: FBT001
    proto = matmul_model(4096, 4096, bias=False)  # 64 MB
    path = (with_external_data if external else save)(proto, tmp_path / "m.onnx")
    del proto
    before = anonymous_memory()
    loaded = load(path)
    assert anonymous_memory() - before < 8 << 20
    assert initializer(loaded, "w").numpy().shape == (4096, 4096)
    assert anonymous_memory() - before < 8 << 20
    assert loaded.nbytes > 64 << 20


@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("external", [False, True], ids=["one-file", "external-data"])
def test_a_loaded_model_means_the_same(
    build: Callable[[], onnx.ModelProto],
    external: bool,  # noqa: FBT001
    tmp_path: Path,
) -> None:
    proto = build()
    store = with_external_data if external else save
    loaded = load(store(proto, tmp_path / "m.onnx"))
    loaded.require_weights()
    path = written(loaded.model, tmp_path / "out.onnx")
    feeds = feeds_for(proto)
    assert_same(run(proto, feeds, optimize=False), run(path, feeds, optimize=False))


STORED: dict[str, Array] = {
    "float16": weight(*BIG).astype(np.float16).repeat(2, 0),
    "float64": weight(*BIG).astype(np.float64),
    "bfloat16": weight(*BIG).astype(ml_dtypes.bfloat16).repeat(2, 0),
    "int8": rng().integers(-128, 128, (40, 40)).astype(np.int8),
    "uint8": rng().integers(0, 256, (40, 40)).astype(np.uint8),
    "int16": rng().integers(-99, 99, (40, 40)).astype(np.int16),
    "int32": rng().integers(-99, 99, BIG).astype(np.int32),
    "int64": rng().integers(-99, 99, BIG).astype(np.int64),
    "bool": rng().integers(0, 2, (40, 40)).astype(np.bool_),
    "complex64": weight(*BIG).astype(np.complex64) * 1j,
    "float8e4m3fn": weight(40, 40).astype(ml_dtypes.float8_e4m3fn),
    "int4": rng().integers(-8, 8, (64, 64)).astype(ml_dtypes.int4),
    "uint4-odd-count": rng().integers(0, 16, (51, 51)).astype(ml_dtypes.uint4),
    "int2": rng().integers(-2, 2, (80, 80)).astype(ml_dtypes.int2),
}


@pytest.mark.parametrize("external", [False, True], ids=["one-file", "external-data"])
@pytest.mark.parametrize("array", STORED.values(), ids=STORED)
def test_tensors_of_every_type_survive(
    array: Array,
    external: bool,  # noqa: FBT001
    tmp_path: Path,
) -> None:
    proto = plain()
    proto.ir_version = 13
    tensor = numpy_helper.from_array(array, "t")
    proto.graph.initializer.append(tensor)
    proto.graph.output.append(
        helper.make_tensor_value_info("t", tensor.data_type, list(array.shape))
    )
    proto.opset_import[0].version = 25
    store = with_external_data if external else save
    loaded = load(store(proto, tmp_path / "m.onnx"))
    np.testing.assert_array_equal(initializer(loaded, "t").numpy(), array)
    back = onnx.load(written(loaded.model, tmp_path / "out.onnx", external=external))
    (kept,) = (t for t in back.graph.initializer if t.name == "t")
    assert kept.data_type == tensor.data_type
    assert kept.raw_data == tensor.raw_data


def test_tensors_of_strings_survive(tmp_path: Path) -> None:
    array = np.array([f"text {i}" for i in range(400)], dtype=object)
    value = numpy_helper.from_array(array)
    nodes = [
        node("Constant", [], ["k"], value=value),
        node("Transpose", ["k"], ["t"]),
        node("Identity", ["t"], ["y"]),
        node("Identity", ["s"], ["z"]),
    ]
    types = {"y": TensorProto.STRING, "z": TensorProto.STRING}
    proto = model(graph(nodes, {}, {"y": [400], "z": [400]}, {"s": array}, types=types))
    path = written(load(save(proto, tmp_path / "m.onnx")).model, tmp_path / "out.onnx")
    for output in run(path, {}):
        assert output.tolist() == array.tolist()


def test_a_proto_is_left_as_it_was() -> None:
    proto = nested_model()
    before = proto.SerializeToString()
    loaded = load(proto)
    assert loaded.path is None
    assert loaded.proto is not proto
    assert proto.SerializeToString() == before


def test_files_and_sizes_are_those_on_disk(tmp_path: Path) -> None:
    path = with_external_data(plain(), tmp_path / "m.onnx")
    loaded = load(path)
    assert set(loaded.files) == {path, tmp_path / "weights.bin"}
    assert loaded.nbytes == path.stat().st_size + (tmp_path / "weights.bin").stat().st_size
    assert loaded.name == f"'{path}'"


# --- what is no model --------------------------------------------------------------------------


NO_MODEL: dict[str, bytes] = {
    "text": b"This is not a model.\nIt has two lines.\n",
    "json": b'{"a": 1}\n',
    "git-lfs-pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 9\n",
    "html": b"<!DOCTYPE html>\n<html><body>404 Not Found</body></html>\n",
    "zip": b"PK\x03\x04" + bytes(60),
    "zeros": bytes(5000),
    "random": rng().bytes(5000),
    "truncated": plain().SerializeToString()[:-30],
    "truncated-within-weights": plain().SerializeToString()[:900],
    "a-tensor": numpy_helper.from_array(weight(*BIG), "w").SerializeToString(),
    "a-graph": plain().graph.SerializeToString(),
    "a-node": plain().graph.node[0].SerializeToString(),
}


@pytest.mark.parametrize("contents", NO_MODEL.values(), ids=NO_MODEL)
def test_a_file_that_is_no_model_is_refused(contents: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(contents)
    assert_refused(path, "not an ONNX model")


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.touch()
    assert_refused(path, "empty")


def test_a_folder_is_refused(tmp_path: Path) -> None:
    assert_refused(tmp_path, "is a directory")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert_refused(tmp_path / "m.onnx", "does not exist")


def test_a_link_to_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").symlink_to(tmp_path / "gone.onnx")
    assert_refused(tmp_path / "m.onnx", "does not exist")


def test_a_file_that_cannot_be_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = save(plain(), tmp_path / "m.onnx")
    monkeypatch.setattr(Path, "open", denied)
    assert_refused(path, "Permission denied")


@pytest.mark.parametrize("source", [b"bytes", 3, None], ids=["bytes", "number", "none"])
def test_only_paths_and_protos_are_taken(source: Any) -> None:
    with pytest.raises(UsageError, match=r"path or an onnx\.ModelProto"):
        load(source)


def test_a_model_truncated_anywhere_is_refused(tmp_path: Path) -> None:
    whole = nested_model().SerializeToString()
    path = tmp_path / "m.onnx"
    for end in range(1, len(whole) - 1, 41):
        path.write_bytes(whole[:end])
        assert_refused(path)


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.binary(min_size=1, max_size=2000))
def test_random_bytes_are_refused(tmp_path: Path, contents: bytes) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(contents)
    assert_refused(path)


CHANGES = st.lists(
    st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255), st.booleans()),
    min_size=1,
    max_size=3,
)


@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(changes=CHANGES, which=st.sampled_from(sorted(MODELS)))
def test_a_damaged_model_loads_or_is_refused(
    tmp_path: Path, changes: list[tuple[float, int, bool]], which: str
) -> None:
    proto = MODELS[which]()
    for tensor in proto.graph.initializer:  # damage structure rather than weights
        tensor.raw_data = tensor.raw_data[:40]
    damaged = bytearray(proto.SerializeToString())
    for position, value, removed in changes:
        at = int(position * len(damaged))
        damaged[at : at + 1] = b"" if removed else bytes([value])
    path = tmp_path / "m.onnx"
    path.write_bytes(damaged)
    message = ""
    try:
        load(path)
    except QuantkitError as e:
        message = str(e)
    assert "\n" not in message


def test_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(plain().SerializeToString().replace(b"add", b"\xff\xfe\xfd"))
    assert_refused(path, "not UTF-8")


def test_a_graph_whose_name_is_no_text_is_refused(tmp_path: Path) -> None:
    proto = plain()
    proto.graph.name = "GRAPH"
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString().replace(b"GRAPH", b"\xff\xfe\xfd\x80\x80"))
    assert_refused(path, "not UTF-8")


def test_a_name_with_a_line_break_is_refused_in_one_line(tmp_path: Path) -> None:
    proto = plain()
    proto.graph.node[0].input[0] = "two\nlines"
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    assert_refused(path, "nothing makes 'two\\nlines'")


def test_a_documentation_that_is_no_text_is_one_error(tmp_path: Path) -> None:
    proto = matmul_model()
    proto.doc_string = "GBKGBK"
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString().replace(b"GBKGBK", "你好吗".encode("gbk")))
    with pytest.raises(ModelError, match="utf-8"):
        quantize_dynamic(path, tmp_path / "q.onnx")


@pytest.mark.parametrize("data_type", [0, 99], ids=["undefined", "unknown"])
@pytest.mark.parametrize(
    "build",
    [plain, constant_nodes, if_model, function_model],
    ids=["initializer", "constant-node", "branch", "function"],
)
def test_a_tensor_without_type_is_refused(
    build: Callable[[], onnx.ModelProto], data_type: int, tmp_path: Path
) -> None:
    proto = build()
    next(tensors_of(proto)).data_type = data_type
    assert_refused(save(proto, tmp_path / "m.onnx"), "has no type that is known")


def test_a_tensor_of_the_wrong_size_is_refused(tmp_path: Path) -> None:
    proto = plain()
    proto.graph.initializer[0].dims[0] = 21
    assert_refused(save(proto, tmp_path / "m.onnx"), "'w' has 1600 bytes", "1680")


def test_functions_that_call_themselves_are_refused(tmp_path: Path) -> None:
    proto = function_model()
    function = proto.functions[0]
    function.opset_import.append(helper.make_opsetid("local", 1))
    function.node[1].CopyFrom(node("Layer", ["a"], ["m"], domain="local", slope=0.5))
    assert_refused(save(proto, tmp_path / "m.onnx"), "Cyclic")


def test_functions_of_another_opset_than_the_model_are_refused(tmp_path: Path) -> None:
    proto = function_model()
    proto.functions[0].opset_import[0].version = 18
    assert_refused(save(proto, tmp_path / "m.onnx"), "Opset mismatch", "without functions")


def test_functions_called_with_too_much_are_refused(tmp_path: Path) -> None:
    proto = function_model()
    proto.graph.node[0].input.append("x")
    assert_refused(save(proto, tmp_path / "m.onnx"), "cannot be inlined", "local::Layer")


# --- what would be lost ------------------------------------------------------------------------


def sparse() -> onnx.SparseTensorProto:
    values = numpy_helper.from_array(np.ones(2, np.float32), "sparse_w")
    indices = numpy_helper.from_array(np.array([0, 5]), "sparse_w_indices")
    return helper.make_sparse_tensor(values, indices, [400])


def sparse_in_branch() -> onnx.ModelProto:
    proto = if_model()
    proto.graph.node[0].attribute[1].g.sparse_initializer.append(sparse())
    return proto


def sparse_in_main() -> onnx.ModelProto:
    proto = plain()
    proto.graph.sparse_initializer.append(sparse())
    return proto


@pytest.mark.parametrize("build", [sparse_in_main, sparse_in_branch], ids=["main", "branch"])
def test_sparse_initializers_are_refused(
    build: Callable[[], onnx.ModelProto], tmp_path: Path
) -> None:
    assert_refused(save(build(), tmp_path / "m.onnx"), "sparse", "'sparse_w'", "dense")


def test_training_information_is_refused(tmp_path: Path) -> None:
    proto = plain()
    proto.training_info.add(algorithm=plain().graph)
    assert_refused(save(proto, tmp_path / "m.onnx"), "training")


@pytest.mark.parametrize("field", ["graph", "opset_import"])
def test_a_model_without_graph_or_opset_is_refused(field: str, tmp_path: Path) -> None:
    proto = plain()
    proto.ClearField(field)
    assert_refused(save(proto, tmp_path / "m.onnx"), "no graph or no opset")


def test_refusals_of_a_proto_call_it_so() -> None:
    proto = plain()
    proto.training_info.add(algorithm=plain().graph)
    with pytest.raises(ModelError, match=r"^the given ModelProto holds training information"):
        load(proto)


# --- external data -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "build", [plain, constant_nodes, if_model], ids=["initializer", "constant-node", "branch"]
)
def test_missing_external_data_is_remembered(
    build: Callable[[], onnx.ModelProto], tmp_path: Path
) -> None:
    path = with_external_data(build(), tmp_path / "m.onnx")
    (tmp_path / "weights.bin").unlink()
    loaded = load(path)
    assert loaded.missing == ("weights.bin",)
    with pytest.raises(ModelError, match=re.escape(str(path))) as caught:
        loaded.require_weights()
    assert "weights.bin" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_external_data_of_a_weight_that_would_be_folded(tmp_path: Path) -> None:
    nodes = [node("Transpose", ["w"], ["wt"]), node("MatMul", ["x", "wt"], ["y"])]
    proto = model(graph(nodes, {"x": [1, 20]}, {"y": [1, 20]}, {"w": weight(*BIG)}))
    path = with_external_data(proto, tmp_path / "m.onnx")
    (tmp_path / "weights.bin").unlink()
    assert load(path).missing == ("weights.bin",)
    with pytest.raises(ModelError, match=r"is missing or too short: weights\.bin"):
        quantize_dynamic(path, tmp_path / "q.onnx")


@pytest.mark.parametrize("kept", [0, 1, 1599])
def test_external_data_that_is_too_short_is_remembered(kept: int, tmp_path: Path) -> None:
    path = with_external_data(plain(), tmp_path / "m.onnx")
    data = tmp_path / "weights.bin"
    data.write_bytes(data.read_bytes()[:kept])
    loaded = load(path)
    assert len(loaded.missing) == 1
    assert loaded.missing[0].startswith("weights.bin")
    with pytest.raises(ModelError, match=r"weights\.bin"):
        loaded.require_weights()


@pytest.mark.parametrize(
    "location",
    [
        "../outside.bin",
        "sub/../../outside.bin",
        "/etc/hostname",
        "..\\outside.bin",
        "C:\\outside.bin",
        "C:outside.bin",
        "\\\\host\\share\\outside.bin",
    ],
)
def test_external_data_outside_the_folder_is_refused(location: str, tmp_path: Path) -> None:
    (tmp_path / "outside.bin").write_bytes(bytes(9000))
    folder = tmp_path / "model"
    folder.mkdir()
    proto = plain()
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    with pytest.raises(ModelError, match="outside the model's folder") as caught:
        load(save(proto, folder / "m.onnx"))
    assert location in str(caught.value)


def test_external_data_of_a_proto_is_refused_with_advice(tmp_path: Path) -> None:
    path = with_external_data(plain(), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="pass the model's path, or load its external data"):
        load(onnx.load(path, load_external_data=False))


@pytest.mark.parametrize("location", ["weights.bin", "./weights.bin", "data/weights.bin"])
def test_external_data_may_be_in_a_folder_below(location: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    proto = matmul_model()
    path = with_external_data(proto, tmp_path / "m.onnx", location)
    result = quantize_dynamic(path, tmp_path / "q.onnx")
    assert result.verification is not None
    assert result.verification.compared["y"] > 30


def test_external_data_of_a_function_is_found(tmp_path: Path) -> None:
    proto = function_model()
    loaded = load(with_external_data(proto, tmp_path / "m.onnx"))
    assert loaded.missing == ()
    path = written(loaded.model, tmp_path / "out.onnx")
    feeds = feeds_for(proto)
    assert_same(run(proto, feeds, optimize=False), run(path, feeds, optimize=False))


# --- links: the layout of a Hugging Face cache --------------------------------------------------


def hugging_face_cache(folder: Path, *, external: bool) -> Path:
    """snapshots/<commit>/model.onnx is a link to blobs/<hash>, and so is its external data."""
    blobs, snapshot = folder / "blobs", folder / "snapshots" / "c0ffee" / "onnx"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    store = with_external_data if external else save
    store(matmul_model(), blobs / "model.onnx")
    for name, digest in (("model.onnx", "aaaa"), ("weights.bin", "bbbb")):
        if (blobs / name).exists():
            (blobs / name).rename(blobs / digest)
            (snapshot / name).symlink_to(os.path.relpath(blobs / digest, snapshot))
    return snapshot / "model.onnx"


def linked(link: Callable[[Path, Path], None], folder: Path, *, external: bool) -> Path:
    """All the model's files are links to files of other names in another folder."""
    away = folder / "away"
    away.mkdir()
    store = with_external_data if external else save
    store(matmul_model(), folder / "model.onnx")
    for name in ("model.onnx", "weights.bin"):
        if (folder / name).exists():
            (folder / name).rename(away / f"{name}.blob")
            link(folder / name, away / f"{name}.blob")
    return folder / "model.onnx"


LAYOUTS: dict[str, Callable[..., Path]] = {
    "hugging-face-cache": hugging_face_cache,
    "symbolic-links": lambda folder, **k: linked(Path.symlink_to, folder, **k),
    "hard-links": lambda folder, **k: linked(Path.hardlink_to, folder, **k),
}


@pytest.mark.parametrize("external", [False, True], ids=["one-file", "external-data"])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_links_are_followed(
    layout: Callable[..., Path],
    external: bool,  # noqa: FBT001
    tmp_path: Path,
) -> None:
    path = layout(tmp_path, external=external)
    loaded = load(path)
    loaded.require_weights()
    np.testing.assert_array_equal(initializer(loaded, "w").numpy(), weight(128, 192))


@pytest.mark.parametrize("external", [False, True], ids=["one-file", "external-data"])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_linked_models_are_quantized_and_verified(
    layout: Callable[..., Path],
    external: bool,  # noqa: FBT001
    tmp_path: Path,
) -> None:
    path = layout(tmp_path, external=external)
    result = quantize_dynamic(path, tmp_path / "q.onnx")
    assert result.verification is not None
    assert result.verification.compared["y"] > 30
    assert result.verification.note == ""


def test_the_default_domain_has_two_names(tmp_path: Path) -> None:
    proto = plain()
    proto.opset_import[0].domain = "ai.onnx"
    for item in proto.graph.node:
        item.domain = "ai.onnx"
    loaded = load(save(proto, tmp_path / "m.onnx"))
    assert dict(loaded.model.opset_imports) == {"": 17}
    assert {item.domain for item in loaded.model.graph} == {""}


@pytest.mark.parametrize("extent", [-1, -5, -(2**63)])
def test_a_negative_extent_is_a_dynamic_one(extent: int, tmp_path: Path) -> None:
    proto = matmul_model()
    described = helper.make_tensor_value_info("m", TensorProto.FLOAT, [extent, 192])
    proto.graph.value_info.append(described)
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = extent
    before = proto.SerializeToString()
    for source in (proto, save(proto, tmp_path / "m.onnx")):
        loaded = load(source).model
        inner = next(o for node in loaded.graph for o in node.outputs if o.name == "m")
        for value in (*loaded.graph.inputs, *loaded.graph.outputs, inner):
            assert value.shape is not None
            assert value.shape[0] == ir.SymbolicDim(None)
    assert proto.SerializeToString() == before


def test_a_loaded_model_keeps_none_of_its_files_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapping, "SMALL", 0)  # every file is mapped while its structure is read
    loaded = load(with_external_data(plain(), tmp_path / "m.onnx"))
    assert initializer(loaded, "w").numpy().shape == BIG
    opened = [str(p.readlink()) for p in Path("/proc/self/fd").iterdir() if p.is_symlink()]
    mapped = Path("/proc/self/maps").read_text(encoding="utf-8")
    assert not [path for path in opened if path.startswith(str(tmp_path))]
    assert str(tmp_path) not in mapped


def test_models_are_read_where_the_system_has_no_preadv(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("os.preadv")
    loaded = load(save(plain(), tmp_path / "m.onnx"))
    np.testing.assert_array_equal(initializer(loaded, "w").numpy(), weight(*BIG))


def test_weights_are_read_from_another_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(plain(), tmp_path / "m.onnx")
    monkeypatch.chdir(tmp_path)
    loaded = load("m.onnx")
    monkeypatch.chdir(tmp_path.parent)
    np.testing.assert_array_equal(initializer(loaded, "w").numpy(), weight(*BIG))
    assert not loaded.has_changed
