"""Every operator of the training graph against onnxruntime, and whole models."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import graph, model, node, rng, run
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, numpy_helper

from quantkit.errors import RuntimeSupportError
from quantkit.model.graph.load import load

torch = pytest.importorskip("torch", reason="torch is not installed: training is not tested")

from quantkit.reduce.distill.network import Network
from quantkit.reduce.distill.operators import OPERATORS

SHARED = Path(__file__).parents[4] / "shared" / "models"

Array = Any  # of numpy; also a number of it
I64 = np.int64


def _x(*shape: int, seed: int = 0) -> Array:
    return rng(seed).standard_normal(shape).astype(np.float32)


def _ints(*values: int) -> Array:
    return np.array(values, I64)


IMAGE = _x(2, 4, 7, 6)
ROWS = _x(3, 5)
POSITIVE = np.abs(ROWS) + 0.1

# Operator, its inputs (the first is fed, the others are constants), attributes.
Case = tuple[str, Sequence[Array | None], Mapping[str, Any]]
CASES: list[Case] = [
    *((op, [ROWS], {}) for op in ("Abs", "Ceil", "Cos", "Exp", "Floor", "Identity", "Neg", "Relu")),
    *((op, [ROWS], {}) for op in ("Reciprocal", "Selu", "Sigmoid", "Sin", "Softplus", "Tanh")),
    *((op, [ROWS], {}) for op in ("Erf", "Elu", "LeakyRelu", "HardSigmoid", "HardSwish", "Dropout")),
    *((op, [POSITIVE], {}) for op in ("Log", "Sqrt")),
    *((op, [ROWS, _x(5, seed=1)], {}) for op in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum")),
    *((op, [ROWS, _x(3, 5, seed=1)], {}) for op in ("Greater", "Less", "GreaterOrEqual", "Equal")),
    ("LessOrEqual", [ROWS, ROWS], {}),
    ("Mod", [ROWS, np.float32(2)], {"fmod": 1}),
    ("Pow", [POSITIVE, np.float32(2)], {}),
    ("Pow", [POSITIVE, np.float32(0.5)], {}),
    ("PRelu", [IMAGE, _x(4, 1, 1)], {}),
    ("Gelu", [ROWS], {}),
    ("Gelu", [ROWS], {"approximate": "tanh"}),
    ("Clip", [ROWS, np.float32(-0.5), np.float32(0.5)], {}),
    ("Clip", [ROWS, None, np.float32(0.5)], {}),
    ("Clip", [ROWS], {}),
    ("Conv", [IMAGE, _x(6, 4, 3, 3), _x(6)], {}),
    ("Conv", [IMAGE, _x(6, 4, 3, 3)], {"pads": [1, 0, 2, 1], "strides": [2, 1]}),
    ("Conv", [IMAGE, _x(4, 1, 3, 3)], {"group": 4, "dilations": [2, 1], "pads": [1, 1, 1, 1]}),
    ("Conv", [IMAGE, _x(6, 4, 3, 3)], {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ("Conv", [IMAGE, _x(6, 4, 2, 2)], {"auto_pad": "SAME_LOWER"}),
    ("Conv", [_x(2, 4, 9), _x(6, 4, 3)], {"pads": [1, 1]}),
    ("ConvTranspose", [IMAGE, _x(4, 3, 3, 3), _x(3)], {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ("ConvTranspose", [IMAGE, _x(4, 3, 2, 2)], {"strides": [2, 2], "output_padding": [1, 1]}),
    ("Gemm", [ROWS, _x(5, 4), _x(4)], {}),
    ("Gemm", [ROWS, _x(4, 5), _x(4)], {"transB": 1, "alpha": 0.5, "beta": 2.0}),
    ("Gemm", [ROWS, _x(3, 4)], {"transA": 1}),
    ("MatMul", [_x(2, 3, 5), _x(5, 4)], {}),
    ("BatchNormalization", [IMAGE, _x(4), _x(4), _x(4), np.abs(_x(4)) + 0.1], {}),
    ("InstanceNormalization", [IMAGE, _x(4), _x(4)], {}),
    ("LayerNormalization", [ROWS, _x(5), _x(5, seed=1)], {}),
    ("LayerNormalization", [IMAGE, _x(7, 6), _x(7, 6)], {"axis": -2, "epsilon": 1e-3}),
    ("Softmax", [IMAGE], {}),
    ("Softmax", [IMAGE], {"axis": 1}),
    ("LogSoftmax", [IMAGE], {"axis": 2}),
    ("MaxPool", [IMAGE], {"kernel_shape": [3, 2], "pads": [1, 0, 1, 0], "strides": [2, 2]}),
    ("MaxPool", [IMAGE], {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    ("AveragePool", [IMAGE], {"kernel_shape": [2, 2], "pads": [1, 1, 1, 1]}),
    ("AveragePool", [IMAGE], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}),
    ("GlobalAveragePool", [IMAGE], {}),
    ("GlobalMaxPool", [IMAGE], {}),
    ("Resize", [IMAGE, None, np.array([1, 1, 2, 3], np.float32)], {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}),
    ("Resize", [IMAGE, None, None, _ints(2, 4, 9, 11)], {"mode": "linear"}),
    ("Resize", [IMAGE, None, None, _ints(2, 4, 9, 11)], {"mode": "linear", "coordinate_transformation_mode": "align_corners"}),
    ("Reshape", [IMAGE, _ints(0, -1, 3)], {}),
    ("Flatten", [IMAGE], {}),
    ("Flatten", [IMAGE], {"axis": -1}),
    ("Unsqueeze", [ROWS, _ints(0, -1)], {}),
    ("Squeeze", [_x(1, 3, 1, 5), _ints(0, 2)], {}),
    ("Squeeze", [_x(1, 3, 1, 5)], {}),
    ("Transpose", [IMAGE], {"perm": [0, 2, 3, 1]}),
    ("Transpose", [ROWS], {}),
    ("Slice", [IMAGE, _ints(1, 0), _ints(1 << 40, -1), _ints(2, 3)], {}),
    ("Slice", [IMAGE, _ints(-1), _ints(-(1 << 40)), _ints(2), _ints(-2)], {}),
    ("Split", [IMAGE], {"axis": 1}),
    ("Split", [IMAGE, _ints(1, 3)], {"axis": 1}),
    ("Gather", [ROWS, _ints(0, -1, 2)], {"axis": 1}),
    ("Gather", [ROWS, np.array(1, I64)], {}),
    ("Pad", [IMAGE, _ints(0, 0, 1, 2, 0, 0, 0, 1)], {}),
    ("Pad", [IMAGE, _ints(0, 0, 1, 2, 0, 0, 0, 1), np.float32(3)], {}),
    ("Pad", [IMAGE, _ints(0, 0, 1, 2, 0, 0, 0, 1)], {"mode": "reflect"}),
    ("Pad", [ROWS, _ints(1, 0, 0, 2)], {"mode": "edge"}),
    ("Expand", [_x(3, 1), _ints(2, 1, 4)], {}),
    ("Concat", [ROWS, _x(3, 2)], {"axis": -1}),
    ("Shape", [IMAGE], {}),
    ("Shape", [IMAGE], {"start": 1, "end": -1}),
    *((op, [IMAGE, _ints(-1, 2)], {}) for op in ("ReduceSum",)),
    *((op, [IMAGE], {"axes": [-1, 2]}) for op in ("ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2")),
    ("ReduceMean", [IMAGE], {"keepdims": 0}),
    ("ReduceSum", [IMAGE, _ints()], {"noop_with_empty_axes": 1}),
    ("Where", [ROWS > 0, ROWS, -ROWS], {}),
    ("Not", [ROWS > 0], {}),
    ("And", [ROWS > 0, ROWS < 1], {}),
    ("Or", [ROWS > 0, ROWS < -1], {}),
    ("Cast", [ROWS], {"to": TensorProto.INT64}),
    ("BitShift", [np.arange(9, dtype=np.uint8), np.array([2], np.uint8)], {"direction": "RIGHT"}),
    ("Mod", [np.arange(9, dtype=np.uint8), np.array([4], np.uint8)], {}),
    ("Div", [_ints(7, -7), _ints(2, 2)], {}),
    ("Range", [np.array(1, I64), np.array(9, I64), np.array(3, I64)], {}),
    ("ConstantOfShape", [_ints(2, 3)], {"value": numpy_helper.from_array(np.array([2.5], np.float32))}),
    ("QuantizeLinear", [ROWS, np.float32(0.05), np.uint8(100)], {}),
    ("QuantizeLinear", [IMAGE, np.abs(_x(4)) + 0.02, np.zeros(4, np.int8)], {"axis": 1}),
    ("DequantizeLinear", [np.arange(12, dtype=np.int8).reshape(4, 3), _x(4), np.ones(4, np.int8)], {"axis": 0}),
    ("DequantizeLinear", [np.arange(4, dtype=np.int32), np.float32(0.5)], {}),
]  # fmt: skip


def _model(
    op: str, inputs: Sequence[Array | None], attributes: Mapping[str, Any], opset: int = 17
) -> onnx.ModelProto:
    opset = 20 if op == "Gelu" else opset
    names = ["x" if not i else "" if a is None else f"w{i}" for i, a in enumerate(inputs)]
    outputs = ["y", "z"] if op == "Split" else ["y"]
    first = inputs[0]
    assert first is not None
    constants = {
        n: np.asarray(a) for n, a in zip(names[1:], inputs[1:], strict=True) if a is not None
    }
    types = {"x": onnx.helper.np_dtype_to_tensor_dtype(np.asarray(first).dtype)}
    made = node(op, names, outputs, "n", **attributes)
    proto = onnx.helper.make_graph(
        [made],
        "g",
        [onnx.helper.make_tensor_value_info("x", types["x"], np.asarray(first).shape)],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )
    return model(proto, opset=opset)


def _compared(proto: onnx.ModelProto, feeds: Mapping[str, Array]) -> None:
    expected = run(proto, feeds)
    network = Network(load(proto).model)
    with torch.no_grad():
        actual = network({n: torch.from_numpy(np.array(a)) for n, a in feeds.items()})
    for name, array in zip(network.wanted, expected, strict=True):
        found = actual[name].numpy()
        assert found.shape == array.shape
        np.testing.assert_allclose(found.astype(array.dtype), array, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(
    ("op", "inputs", "attributes"), CASES, ids=lambda v: v if isinstance(v, str) else ""
)
def test_an_operator_computes_what_onnxruntime_computes(
    op: str, inputs: Sequence[Array | None], attributes: Mapping[str, Any]
) -> None:
    _compared(_model(op, inputs, attributes), {"x": np.asarray(inputs[0])})


def test_every_operator_has_a_case() -> None:
    assert {op for op, _, _ in CASES} == OPERATORS.keys()


@pytest.mark.parametrize(
    ("op", "inputs", "attributes"),
    [
        ("Clip", [ROWS], {"min": -0.5, "max": 0.5}),
        ("Pad", [ROWS], {"pads": [0, 1, 0, 2], "value": 1.0}),
        ("Slice", [ROWS], {"starts": [1], "ends": [3], "axes": [0]}),
        ("Unsqueeze", [ROWS], {"axes": [0, 2]}),
        ("Squeeze", [_x(1, 3)], {"axes": [0]}),
        ("Split", [IMAGE], {"axis": 1, "split": [1, 3]}),
        ("ReduceSum", [IMAGE], {"axes": [1]}),
        ("Softmax", [IMAGE], {"axis": 2}),
        ("Dropout", [ROWS], {}),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_operators_of_old_opsets_read_attributes(
    op: str, inputs: Sequence[Array], attributes: Mapping[str, Any]
) -> None:
    _compared(_model(op, inputs, attributes, opset=9), {"x": inputs[0]})


@given(
    extents=st.tuples(st.integers(3, 9), st.integers(3, 9)),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    strides=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    pads=st.tuples(*[st.integers(0, 2)] * 4),
    group=st.sampled_from([1, 2, 4]),
)
@settings(max_examples=40, deadline=None)
def test_convolutions_of_any_kind(
    extents: tuple[int, int],
    kernel: tuple[int, int],
    strides: tuple[int, int],
    pads: tuple[int, ...],
    group: int,
) -> None:
    x, w = _x(1, 4, *extents), _x(8, 4 // group, *kernel)
    _compared(_model("Conv", [x, w], {"strides": strides, "pads": pads, "group": group}), {"x": x})


@given(
    values=st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=30), zero=st.integers(0, 255)
)
@settings(max_examples=40, deadline=None)
def test_fake_quantization_is_quantizing_and_back_within_one_step(
    values: list[float], zero: int
) -> None:
    scale = np.float32(0.07)
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    proto = model(
        graph(
            nodes,
            {"x": [None]},
            {"y": [None]},
            {"s": np.array(scale), "z": np.array(zero, np.uint8)},
        )
    )
    x = np.array(values, np.float32)
    (expected,) = run(proto, {"x": x})
    fed = torch.tensor(x, requires_grad=True)
    found = Network(load(proto).model)({"x": fed})["y"]
    np.testing.assert_allclose(found.detach().numpy(), expected, atol=float(scale) * 1.01)
    found.sum().backward()
    inside = (expected > (0 - zero) * scale) & (expected < (255 - zero) * scale)
    assert (
        fed.grad.numpy()[inside] == 1
    ).all()  # rounding lets gradients pass, cutting off does not


def test_what_is_missing_is_named_in_one_line() -> None:
    nodes = [node("Det", ["x"], ["d"], "first"), node("Relu", ["d"], ["y"])]
    proto = model(graph(nodes, {"x": [2, 2]}, {"y": []}))
    with pytest.raises(RuntimeSupportError, match=r"Det \('first'\)"):
        Network(load(proto).model)


def test_a_variant_that_is_missing_is_named_in_one_line() -> None:
    pads = _ints(0, -1, 0, 0)
    proto = _model("Pad", [ROWS, pads], {})
    with pytest.raises(RuntimeSupportError, match=r"Pad n.*cuts"):
        Network(load(proto).model)({"x": torch.from_numpy(ROWS)})


MODELS = {
    "all-MiniLM-L6-v2/model.onnx": {n: np.ones((2, 9), I64) for n in ("input_ids", "attention_mask", "token_type_ids")},
    "mobilenet_v2.onnx": {"input": _x(1, 3, 224, 224)},
    "efficientnet_lite0.onnx": {"input": _x(1, 3, 224, 224)},
    "resnet20_cifar10.onnx": {"input": _x(2, 3, 32, 32)},
    "zoo/detector.onnx": {"images": _x(1, 3, 640, 640)},
    "zoo/pitch.onnx": {},
    "zoo/text_direction.onnx": {},
    "zoo/text_recognition.onnx": {},
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_whole_models_compute_what_onnxruntime_computes(name: str) -> None:
    path = SHARED / name
    if not path.exists():
        pytest.skip("the shared models are not here")
    loaded = load(path)
    feeds = MODELS[name] or _made_up(path)
    with torch.no_grad():
        found = Network(loaded.model)({n: torch.from_numpy(a) for n, a in feeds.items()})
    for one, expected in zip(found.values(), run(path, feeds), strict=True):
        error = np.square(one.numpy() - expected).sum()
        assert error <= 1e-9 * np.square(expected).sum()


def _made_up(path: Path) -> dict[str, Array]:
    from quantkit.runtime.session import make_session
    from quantkit.runtime.synthetic_inputs import made_up_feeds

    session = make_session(str(path))
    return {n: np.array(a) for n, a in next(made_up_feeds(session.get_inputs())).items()}
