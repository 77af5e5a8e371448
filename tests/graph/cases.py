"""Models and helpers that the tests of `quantkit.model.graph` share."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from builders import Array, graph, model, node, run, save, weight
from onnx import TensorProto, helper, numpy_helper

from quantkit.model.graph.load import load
from quantkit.model.graph.save import staged

BIG = (20, 20)  # 1600 bytes of float32: taken out of the protobuf


def written(built: ir.Model, path: Path, *, external: bool = False) -> Path:
    """Write a model as the pipeline does."""
    with staged(path) as stage:
        stage.write(built, external=external)
        stage.commit()
    return path


def assert_same(expected: list[Array], actual: list[Array]) -> None:
    """Compare outputs bit for bit."""
    assert len(expected) == len(actual)
    for e, a in zip(expected, actual, strict=True):
        assert e.dtype == a.dtype
        assert e.shape == a.shape
        assert e.tobytes() == a.tobytes()


def assert_unchanged(
    proto: onnx.ModelProto, feeds: Mapping[str, Array], folder: Path, *, external: bool = False
) -> ir.Model:
    """Load, normalize and write a model; outputs stay equal bit for bit. Return the loaded model."""
    loaded = load(save(proto, folder / "in.onnx"))
    path = written(loaded.model, folder / "out.onnx", external=external)
    assert_same(run(proto, feeds, optimize=False), run(path, feeds, optimize=False))
    return loaded.model


def with_external_data(proto: onnx.ModelProto, path: Path, location: str = "weights.bin") -> Path:
    """Write a model whose large tensors, Constant nodes' too, are in the file `location`."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    contents = bytearray()
    for tensor in tensors_of(copy):
        if len(tensor.raw_data) < 1024:
            continue
        tensor.external_data.add(key="location", value=location)
        tensor.external_data.add(key="offset", value=str(len(contents)))
        tensor.external_data.add(key="length", value=str(len(tensor.raw_data)))
        tensor.data_location = TensorProto.EXTERNAL
        contents += tensor.raw_data
        tensor.ClearField("raw_data")
    (path.parent / location).write_bytes(contents)
    return save(copy, path)


def tensors_of(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    def walk(part: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
        yield from part.initializer
        for item in part.node:
            for attribute in item.attribute:
                if attribute.HasField("t"):
                    yield attribute.t
                for inner in (
                    *([attribute.g] if attribute.HasField("g") else []),
                    *attribute.graphs,
                ):
                    yield from walk(inner)

    yield from walk(proto.graph)
    for function in proto.functions:
        for item in function.node:
            yield from (a.t for a in item.attribute if a.HasField("t"))


def anonymous_memory() -> int:
    """Return the bytes of this process that are not pages of a file."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise OSError("no RssAnon; is this Linux?")


def staging_folders(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def plain() -> onnx.ModelProto:
    nodes = [node("MatMul", ["x", "w"], ["m"], "mm"), node("Add", ["m", "b"], ["y"], "add")]
    weights = {"w": weight(*BIG), "b": weight(20, seed=1)}
    return model(graph(nodes, {"x": ["N", 20]}, {"y": ["N", 20]}, weights))


def constant_nodes() -> onnx.ModelProto:
    nodes = [
        node("Constant", [], ["w"], value=numpy_helper.from_array(weight(*BIG))),
        node("Constant", [], ["b"], value=numpy_helper.from_array(weight(20, seed=1))),
        node("MatMul", ["x", "w"], ["m"]),
        node("Add", ["m", "b"], ["y"]),
    ]
    return model(graph(nodes, {"x": ["N", 20]}, {"y": ["N", 20]}))


def branch(name: str, seed: int, *, tensor: str = "w") -> onnx.GraphProto:
    """A branch that multiplies x of the outer graph by its own weight."""
    nodes = [node("MatMul", ["x", tensor], [name], f"mm_{name}")]
    return graph(nodes, {}, {name: None}, {tensor: weight(*BIG, seed=seed)}, name=name)


def if_model(
    then: onnx.GraphProto | None = None, other: onnx.GraphProto | None = None
) -> onnx.ModelProto:
    """Inputs c and x; both branches own a large weight of the same name."""
    nodes = [
        node(
            "If",
            ["c"],
            ["y"],
            then_branch=then or branch("t", 1),
            else_branch=other or branch("e", 2),
        )
    ]
    part = graph(nodes, {"c": [], "x": ["N", 20]}, {"y": ["N", 20]}, types={"c": TensorProto.BOOL})
    return model(part)


def loop_model() -> onnx.ModelProto:
    """x, multiplied three times by a weight of the loop's body."""
    body = graph(
        [node("MatMul", ["h", "w"], ["next"]), node("Identity", ["go"], ["goes"])],
        {"i": [], "go": [], "h": ["N", 20]},
        {"goes": [], "next": ["N", 20]},
        {"w": weight(*BIG)},
        name="body",
        types={"i": TensorProto.INT64, "go": TensorProto.BOOL, "goes": TensorProto.BOOL},
    )
    nodes = [node("Loop", ["count", "", "x"], ["y"], body=body)]
    return model(graph(nodes, {"x": ["N", 20]}, {"y": ["N", 20]}, {"count": np.array(3, np.int64)}))


def nested_model() -> onnx.ModelProto:
    """An If in a branch of an If; three weights of one name."""
    inner = graph(
        [node("If", ["c"], ["i"], then_branch=branch("it", 3), else_branch=branch("ie", 4))],
        {},
        {"i": None},
        name="inner",
    )
    return if_model(other=inner)


def function_model(constant: onnx.TensorProto | None = None) -> onnx.ModelProto:
    """Two calls of a function that multiplies by a Constant of its own and scales the result."""
    tensor = constant or numpy_helper.from_array(weight(*BIG))
    scale = node("LeakyRelu", ["m"], ["b"])
    scale.attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    body = [node("Constant", [], ["w"], value=tensor), node("MatMul", ["a", "w"], ["m"]), scale]
    function = helper.make_function(
        "local", "Layer", ["a"], ["b"], body, [helper.make_opsetid("", 17)], ["slope"]
    )
    nodes = [
        node("Layer", ["x"], ["h"], "first", domain="local", slope=0.25),
        node("Layer", ["h"], ["y"], "second", domain="local", slope=0.5),
    ]
    return model(
        graph(nodes, {"x": ["N", 20]}, {"y": ["N", 20]}),
        domains={"local": 1},
        functions=[function],
    )


def feeds_for(proto: onnx.ModelProto, *, taken: bool = True) -> dict[str, Array]:
    """Inputs of the models above."""
    names = {value.name for value in proto.graph.input}
    feeds: dict[str, Array] = {"x": weight(3, 20, seed=9, scale=1.0)}
    return feeds | ({"c": np.array(taken)} if "c" in names else {})


MODELS = {
    "initializers": plain,
    "constant-nodes": constant_nodes,
    "if": if_model,
    "loop": loop_model,
    "nested-if": nested_model,
    "functions": function_model,
}
