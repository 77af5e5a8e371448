"""Three models to export, and samples for them: ``python models.py`` writes rows.npz, images.npz and texts.npz.

They are not trained. Labels are what the models themselves answer, so that a report shows what quantization changes.
"""

from typing import Any

import numpy as np
import torch
from torch import nn


def mlp() -> nn.Module:
    """Return a classifier of rows with 32 numbers."""
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 5)
    )


def cnn() -> nn.Module:
    """Return a classifier of RGB images, of any size from 16 x 16 on."""
    torch.manual_seed(2)
    parts: list[nn.Module] = []
    for before, after in ((3, 16), (16, 32), (32, 64)):
        parts += [
            nn.Conv2d(before, after, 3, padding=1),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
    return nn.Sequential(
        *parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(64, 5)
    )


class Encoder(nn.Module):
    """A transformer of two layers over token ids, with a mask and up to 64 positions."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(1000, 128), nn.Embedding(64, 128)
        layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True, activation="gelu")
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(128, 5)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> dict[str, Any]:
        """Return the scores of five classes for each text."""
        x = self.words(input_ids) + self.places(torch.arange(input_ids.shape[1]))
        x = self.layers(x, src_key_padding_mask=attention_mask == 0)
        kept = attention_mask.unsqueeze(-1).to(x.dtype)
        return {"logits": self.head((x * kept).sum(1) / kept.sum(1).clamp(min=1.0))}


def encoder() -> nn.Module:
    """Return a classifier of texts."""
    torch.manual_seed(3)
    return Encoder()


def main() -> None:
    """Write samples for the three models, with the answers of the models as labels."""
    random = np.random.default_rng(0)
    ids = random.integers(1, 1000, (200, 24))
    mask = (np.arange(24) < random.integers(4, 25, (200, 1))).astype(np.int64)
    samples = {
        "rows.npz": (mlp(), {"x": random.normal(size=(400, 32)).astype(np.float32)}),
        "images.npz": (cnn(), {"image": random.normal(size=(200, 3, 32, 32)).astype(np.float32)}),
        "texts.npz": (encoder(), {"input_ids": ids * mask, "attention_mask": mask}),
    }
    for name, (model, arrays) in samples.items():
        with torch.no_grad():
            found = model.eval()(*(torch.from_numpy(a) for a in arrays.values()))
        scores = found["logits"] if isinstance(found, dict) else found
        np.savez(name, labels=scores.argmax(1).numpy(), **arrays)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
