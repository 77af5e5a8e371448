"""The embedded sample: a small trained classifier and real labelled test images.

The folder holds:

* ``fashion_cnn.onnx``: a float32 convolutional network trained on the 60,000 training images
  of Fashion-MNIST (opset 17, input ``image`` [batch, 1, 28, 28] in 0..1, output ``logits``
  [batch, 10]). Its BatchNormalization nodes are kept as a framework exports them. The accuracy
  on all 10,000 test images is in its metadata under ``test_accuracy``.
* ``fashion_test.npz``: the first 2,000 images of the Fashion-MNIST test set with their labels.

Both were made by ``benchmarks/train_sample.py``, which needs PyTorch; quantkit does not.

Fashion-MNIST is by Zalando SE (https://github.com/zalandoresearch/fashion-mnist), copyright
2017, under the MIT licence; the copy used is the Debian package ``dataset-fashion-mnist``.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = ["CLASS_NAMES", "Sample", "fashion_mnist"]

CLASS_NAMES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
"""The class of each label, in label order."""

_FOLDER = Path(__file__).parent


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """A model with labelled data to measure it on.

    Attributes:
        model: Path of the ONNX model.
        images: Images of shape (N, 1, 28, 28), pixel values in 0..1.
        labels: The class index of each image, of shape (N,).
    """

    model: Path
    images: NDArray[np.float32]
    labels: NDArray[np.int64]


def fashion_mnist() -> Sample:
    """Load the embedded Fashion-MNIST sample.

    Returns:
        The model's path, 2,000 test images and their labels.
    """
    with np.load(_FOLDER / "fashion_test.npz", allow_pickle=False) as data:
        pixels = data["image"]
        labels = data["label"].astype(np.int64)
    images = pixels[:, np.newaxis, :, :].astype(np.float32) / np.float32(255)
    return Sample(model=_FOLDER / "fashion_cnn.onnx", images=images, labels=labels)
