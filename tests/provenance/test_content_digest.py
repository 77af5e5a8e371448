"""The digest of what a model says: the same however it is stored, another for every change."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import Array, graph, model, node, save, weight
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from provenance_cases import float_model

from quantkit.errors import ModelError
from quantkit.model.provenance import KEY, content_digest


def with_external(path: Path, target: Path, size: int = 0) -> Path:
    """Write the same model with tensors of at least `size` bytes, constants too, beside it."""
    onnx.save(
        onnx.load(path),
        target,
        save_as_external_data=True,
        location=f"{target.stem}.bin",
        size_threshold=size,
        convert_attribute=True,
    )
    return target


@pytest.mark.parametrize("size", [0, 1, 1024, 1 << 20])
def test_one_file_and_external_data_are_the_same(size: int, tmp_path: Path) -> None:
    path = float_model(tmp_path / "m.onnx")
    other = with_external(path, tmp_path / "e.onnx", size)
    assert content_digest(path) == content_digest(other)


def test_weights_in_nodes_and_inside_of_subgraphs(tmp_path: Path) -> None:
    def built(scale: float) -> onnx.ModelProto:
        inner = graph(
            [node("MatMul", ["c", "w"], ["z"])], {}, {"z": ["N", 32]}, {"w": weight(32, 32)}
        )
        tensor = helper.make_tensor("t", TensorProto.FLOAT, (1, 32), weight(1, 32) * scale)
        raw = onnx.numpy_helper.from_array(weight(16, 32) * np.float32(scale), "raw")
        nodes = [
            node("Constant", [], ["k"], value=tensor),
            node("Constant", [], ["k2"], value=raw),
            node("Add", ["x", "k"], ["c"]),
            node("If", ["cond"], ["y"], then_branch=inner, else_branch=inner),
        ]
        types = {"cond": TensorProto.BOOL}
        return model(graph(nodes, {"x": ["N", 32], "cond": []}, {"y": ["N", 32]}, types=types))

    path = save(built(1.0), tmp_path / "m.onnx")
    other = with_external(path, tmp_path / "e.onnx")
    assert content_digest(path) == content_digest(other)
    assert content_digest(save(built(1.5), tmp_path / "n.onnx")) != content_digest(path)


def test_four_bits_are_the_same_inside_and_outside(tmp_path: Path) -> None:
    values = np.arange(4096) % 15 - 7
    packed = helper.make_tensor("w", TensorProto.INT4, (64, 64), values)
    nodes = [node("Identity", ["w"], ["q"]), node("Cast", ["q"], ["y"], to=TensorProto.FLOAT)]
    built = graph(nodes, {}, {"y": [64, 64]})
    built.initializer.append(onnx.TensorProto(name="w", dims=[64, 64], data_type=packed.data_type))
    built.initializer[0].raw_data = onnx.numpy_helper.to_array(packed).tobytes()[: 64 * 32]
    path = save(model(built, opset=21, ir_version=10), tmp_path / "m.onnx")
    other = with_external(path, tmp_path / "e.onnx")
    assert content_digest(path) == content_digest(other)


def test_the_entry_itself_does_not_count_and_other_entries_do(tmp_path: Path) -> None:
    path = float_model(tmp_path / "m.onnx")
    before = content_digest(path)
    for key, same in ((KEY, True), ("author", False)):
        proto = onnx.load(path)
        proto.metadata_props.add(key=key, value="anything")
        save(proto, tmp_path / "n.onnx")
        assert (content_digest(tmp_path / "n.onnx") == before) is same


def array_of(proto: onnx.ModelProto, name: str) -> Array:
    tensor = next(t for t in proto.graph.initializer if t.name == name)
    return onnx.numpy_helper.to_array(tensor)


@settings(max_examples=40, deadline=None)
@given(position=st.integers(min_value=0, max_value=64 * 96 * 4 - 1), bit=st.integers(0, 7))
def test_every_bit_of_a_weight_counts(
    tmp_path_factory: pytest.TempPathFactory, position: int, bit: int
) -> None:
    folder = tmp_path_factory.getbasetemp()
    path = float_model(folder / "bits.onnx")
    before, content = content_digest(path), bytearray(path.read_bytes())
    start = content.index(array_of(onnx.load(path), "w1").tobytes())
    content[start + position] ^= 1 << bit
    (folder / "flipped.onnx").write_bytes(content)
    assert content_digest(folder / "flipped.onnx") != before


def test_external_data_that_is_gone_too_short_or_elsewhere(tmp_path: Path) -> None:
    path = with_external(float_model(tmp_path / "m.onnx"), tmp_path / "e.onnx")
    data = tmp_path / "e.bin"
    data.write_bytes(data.read_bytes()[:-3])
    with pytest.raises(ModelError, match="3 bytes too short for tensor"):
        content_digest(path)
    data.unlink()
    with pytest.raises(ModelError, match="cannot be read"):
        content_digest(path)
    proto = onnx.load(path, load_external_data=False)
    for tensor in proto.graph.initializer:
        tensor.external_data[0].value = "../secret"
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(ModelError, match="outside the model's folder"):
        content_digest(path)
