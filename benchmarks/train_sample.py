"""Train the embedded sample model and write it with its test data.

Run as ``python benchmarks/train_sample.py [--data DIR] [--out DIR]`` in an environment with
PyTorch. The number of epochs is fixed and the test set is only looked at once, after training.
The ONNX graph is built by hand from the trained weights, so BatchNormalization stays unfolded.
"""

import argparse
import gzip
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

__all__ = ["main"]

_DATA = Path("/usr/share/datasets/fashion-mnist")
_SAMPLES = Path(__file__).parent.parent / "quantkit" / "samples"
_SEED = 20240517
_CHANNELS = (1, 16, 64, 128)
_FEATURES = 128 * 3 * 3
_HIDDEN = 160
_CLASSES = 10
_EPOCHS = 5
_BATCH = 128
_PEAK_RATE = 4e-3
_KEPT_IMAGES = 2000
_OPSET = 17
_IR_VERSION = 8
_BN_EPSILON = 1e-5

_Weights = Mapping[str, NDArray[np.float32]]


def _say(text: str) -> None:
    """Write one line to standard output at once.

    Args:
        text: The line, without its newline.
    """
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _read_idx(path: Path) -> NDArray[np.uint8]:
    """Read a gzip-compressed IDX file of unsigned bytes.

    Args:
        path: The ``.gz`` file.

    Returns:
        The array it holds.

    Raises:
        ValueError: If the file is not an IDX file of unsigned bytes, or its length is wrong.
    """
    raw = gzip.decompress(path.read_bytes())
    zero, kind, rank = struct.unpack_from(">HBB", raw)
    if zero != 0 or kind != 0x08:
        raise ValueError(f"{path} is not an IDX file of unsigned bytes")
    shape = struct.unpack_from(f">{rank}I", raw, 4)
    return np.frombuffer(raw, dtype=np.uint8, offset=4 + 4 * rank).reshape(shape)


def _load(folder: Path, part: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Load the images and labels of one part of the data set.

    Args:
        folder: Folder of the IDX files.
        part: ``train`` or ``t10k``.

    Returns:
        Images of shape (N, 28, 28) and labels of shape (N,).
    """
    images = _read_idx(folder / f"{part}-images-idx3-ubyte.gz")
    labels = _read_idx(folder / f"{part}-labels-idx1-ubyte.gz")
    return images, labels


def _as_input(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Turn stored pixels into the model's input.

    Args:
        images: Pixels 0..255 of shape (N, 28, 28).

    Returns:
        Pixels 0..1 of shape (N, 1, 28, 28).
    """
    return images[:, np.newaxis, :, :].astype(np.float32) / np.float32(255)


def _torch() -> Any:
    """Import PyTorch, made deterministic and held to one thread.

    Returns:
        The ``torch`` module.
    """
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(_SEED)
    torch.use_deterministic_algorithms(mode=True)
    return torch


def _network(torch: Any) -> Any:
    """Build the untrained network.

    Args:
        torch: The ``torch`` module.

    Returns:
        A module whose state dict has keys ``conv1.weight``, ``bn1.weight`` ... ``fc2.bias``.
    """
    nn = torch.nn
    net = nn.Sequential()
    for i, (inputs, outputs) in enumerate(pairwise(_CHANNELS), start=1):
        net.add_module(f"conv{i}", nn.Conv2d(inputs, outputs, 3, padding=1, bias=False))
        net.add_module(f"bn{i}", nn.BatchNorm2d(outputs, eps=_BN_EPSILON))
        net.add_module(f"relu{i}", nn.ReLU())
        net.add_module(f"pool{i}", nn.MaxPool2d(2))
    net.add_module("flatten", nn.Flatten())
    net.add_module("fc1", nn.Linear(_FEATURES, _HIDDEN))
    net.add_module("relu_fc1", nn.ReLU())
    net.add_module("dropout", nn.Dropout(0.3))
    net.add_module("fc2", nn.Linear(_HIDDEN, _CLASSES))
    return net


def _train(images: NDArray[np.uint8], labels: NDArray[np.uint8]) -> dict[str, NDArray[np.float32]]:
    """Train the network for a fixed number of epochs.

    Args:
        images: Training images of shape (N, 28, 28).
        labels: Their labels.

    Returns:
        The trained weights and running statistics by name.
    """
    torch = _torch()
    net = _network(torch)
    pixels = torch.from_numpy(_as_input(images))
    classes = torch.from_numpy(labels.astype(np.int64))
    steps = -(-len(images) // _BATCH)
    optimizer = torch.optim.AdamW(net.parameters(), lr=_PEAK_RATE, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=_PEAK_RATE, epochs=_EPOCHS, steps_per_epoch=steps
    )
    net.train()
    for epoch in range(1, _EPOCHS + 1):
        started, total = time.monotonic(), 0.0
        for rows in torch.randperm(len(images)).split(_BATCH):
            loss = torch.nn.functional.cross_entropy(net(pixels[rows]), classes[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item() * len(rows)
        seconds = time.monotonic() - started
        _say(f"epoch {epoch}/{_EPOCHS}: loss {total / len(images):.4f} in {seconds:.0f} s")
    return {
        name: value.numpy().astype(np.float32)
        for name, value in net.state_dict().items()
        if not name.endswith("num_batches_tracked")
    }


def _nodes(image: ir.Value, weights: Mapping[str, ir.Value]) -> list[ir.Node]:
    """Make the nodes of the ONNX graph.

    Args:
        image: The graph's input.
        weights: The trained weights by name.

    Returns:
        Three Conv, BatchNormalization, Relu, MaxPool blocks, then Flatten, Gemm, Relu, Gemm.
    """
    nodes: list[ir.Node] = []

    def add(op: str, name: str, parts: Sequence[str] = (), **attributes: Any) -> None:
        last = nodes[-1].outputs[0] if nodes else image
        inputs = [last, *(weights[f"{name}.{part}"] for part in parts)]
        output = ir.val(f"{name}_out")
        nodes.append(ir.node(op, inputs, attributes, outputs=[output], name=name))

    statistics = ("weight", "bias", "running_mean", "running_var")
    for i in range(1, len(_CHANNELS)):
        window: dict[str, Any] = {"kernel_shape": [3, 3], "strides": [1, 1], "pads": [1, 1, 1, 1]}
        add("Conv", f"conv{i}", ["weight"], dilations=[1, 1], group=1, **window)
        add("BatchNormalization", f"bn{i}", statistics, epsilon=_BN_EPSILON, momentum=0.9)
        add("Relu", f"relu{i}")
        add("MaxPool", f"pool{i}", kernel_shape=[2, 2], strides=[2, 2])
    add("Flatten", "flatten", axis=1)
    add("Gemm", "fc1", ["weight", "bias"], alpha=1.0, beta=1.0, transB=1)
    add("Relu", "relu_fc1")
    add("Gemm", "fc2", ["weight", "bias"], alpha=1.0, beta=1.0, transB=1)
    return nodes


def _build(weights: _Weights) -> ir.Model:
    """Build the ONNX model.

    Args:
        weights: The trained weights by name.

    Returns:
        A checked float32 model.
    """
    image = ir.val("image", ir.DataType.FLOAT, ["batch", 1, 28, 28])
    values = {
        name: ir.val(name, const_value=ir.tensor(value, name=name))
        for name, value in weights.items()
    }
    nodes = _nodes(image, values)
    logits = nodes[-1].outputs[0]
    logits.name = "logits"
    logits.dtype = ir.DataType.FLOAT
    logits.shape = ir.Shape(["batch", _CLASSES])
    graph = ir.Graph(
        [image],
        [logits],
        nodes=nodes,
        initializers=list(values.values()),
        opset_imports={"": _OPSET},
        name="fashion_cnn",
    )
    model = ir.Model(graph, ir_version=_IR_VERSION, producer_name="quantkit.samples.train")
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    return model


def _accuracy(model: ir.Model, images: NDArray[np.uint8], labels: NDArray[np.uint8]) -> float:
    """Measure the ONNX model itself, in onnxruntime.

    Args:
        model: The model.
        images: Images of shape (N, 28, 28).
        labels: Their labels.

    Returns:
        The share of images it classifies rightly.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    right = 0
    for start in range(0, len(images), 500):
        part = slice(start, start + 500)
        (logits,) = session.run(["logits"], {"image": _as_input(images[part])})
        right += int(np.count_nonzero(np.argmax(logits, axis=1) == labels[part]))
    return right / len(images)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, measure and write the sample.

    Args:
        arguments: Command line arguments; those of the process when absent.
    """
    parser = argparse.ArgumentParser(prog="python benchmarks/train_sample.py", description=__doc__)
    parser.add_argument("--data", type=Path, default=_DATA, help="folder of the IDX .gz files")
    parser.add_argument("--out", type=Path, default=_SAMPLES, help="output folder")
    options = parser.parse_args(arguments)
    images, labels = _load(options.data, "train")
    test_images, test_labels = _load(options.data, "t10k")
    _say(f"read {len(images)} training and {len(test_images)} test images from {options.data}")
    weights = _train(images, labels)
    model = _build(weights)
    accuracy = _accuracy(model, test_images, test_labels)
    model.metadata_props.update(test_accuracy=f"{accuracy:.4f}", dataset="Fashion-MNIST")
    _say(f"accuracy on {len(test_images)} test images: {accuracy:.4f}")
    options.out.mkdir(parents=True, exist_ok=True)
    model_path = options.out / "fashion_cnn.onnx"
    data_path = options.out / "fashion_test.npz"
    ir.save(model, model_path)
    np.savez_compressed(
        data_path, image=test_images[:_KEPT_IMAGES], label=test_labels[:_KEPT_IMAGES]
    )
    parameters = sum(value.size for value in weights.values())
    _say(f"wrote {model_path}: {parameters} parameters, {model_path.stat().st_size} bytes")
    _say(f"wrote {data_path}: {_KEPT_IMAGES} images, {data_path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
