"""Small torch modules to export, half of them traps; imported by name, as users' code is."""

import argparse
import sys
import warnings
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: Any) -> Any:
        return self.fc2(torch.relu(self.fc1(x)))


def cnn() -> Any:
    parts = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)]
    parts += [nn.Conv2d(8, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*parts, nn.Dropout(0.5), nn.Linear(8, 4))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.norm = nn.Linear(8, 8), nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x: Any) -> Any:
        return self.norm(x + self.b(functional.gelu(self.a(x))))


class Recurrent(nn.Module):
    def __init__(self, kind: Any = nn.GRU) -> None:
        super().__init__()
        self.core = kind(4, 6, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.core(x)[0][:, -1]


def lstm() -> Any:
    return Recurrent(nn.LSTM)


class Transformer(nn.Module):
    """Two layers, variable sequence, a mask, and a table of 40 positions."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, 16), nn.Embedding(40, 16)
        self.heads, self.qkv, self.out = 2, nn.Linear(16, 48), nn.Linear(16, 16)
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 3)

    def forward(self, ids: Any, mask: Any) -> Any:
        batch, seq = ids.shape
        x = self.words(ids) + self.places(torch.arange(seq))
        q, k, v = self.qkv(x).view(batch, seq, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        bias = torch.where(mask[:, None, None, :] > 0, 0.0, -1e4)
        weights = torch.softmax(q @ k.transpose(-1, -2) / 8**0.5 + bias, -1)
        x = self.norm(x + self.out((weights @ v).transpose(1, 2).reshape(batch, seq, -1)))
        return {"logits": self.head(x[:, 0]), "hidden": x}


class Pair(NamedTuple):
    total: Any
    product: Any


class TwoInputs(nn.Module):
    def forward(self, left: Any, right: Any, scale: float = 2.0) -> Pair:
        return Pair(left + right, left * right * scale)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(20, 8), nn.Linear(8, 20, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: Any) -> Any:
        return self.head(self.words(ids))


class InPlace(nn.Module):
    def forward(self, x: Any) -> Any:
        x *= 2
        x[:, 0] = 0
        return x.clamp_(-1, 1)


class Passed(nn.Module):
    """Gives an input back as it is, and a list with one tensor."""

    def forward(self, x: Any) -> Any:
        return {"x": x, "parts": [x.sum(1)]}


class Large(nn.Module):
    """Cancels large numbers: its own rounding is beyond any limit that is a share of its output."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(64, 64, bias=False)
        nn.init.normal_(self.fc.weight, std=1000.0)

    def forward(self, x: Any) -> Any:
        return self.fc(x) - (x.unsqueeze(1) * self.fc.weight).sum(-1) + x


class Where(nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.where(x.sum(1, keepdim=True) > 0, x, -x)


class Cond(nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda t: t * 2, lambda t: t - 1, (x,))


class Argmax(nn.Module):
    def forward(self, x: Any) -> Any:
        return {"best": x.argmax(1), "positive": x > 0}


class Nothing(nn.Module):
    """Optional outputs that are not there."""

    def forward(self, x: Any) -> Any:
        return x * 3, None


def double() -> Any:
    return nn.Sequential(nn.Linear(8, 4), nn.Sigmoid()).double()


class Shrinks(nn.Module):
    """At small sizes an image of one pixel is left, which tracing takes for a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4)

    def forward(self, image: Any) -> Any:
        return self.norm(self.conv(image)).mean((2, 3))


# Traps.


class Median(nn.Module):
    """An operator that neither exporter has."""

    def forward(self, x: Any) -> Any:
        return x.median(1).values


class Loop(nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.stack([row * 2 for row in x])


class ViewNumber(nn.Module):
    def forward(self, x: Any) -> Any:
        return x.view(2, 8) + 1


class ViewEight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        return self.fc(x.view(8, -1))


class FixedParameter(nn.Module):
    def __init__(self, size: int = 2) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.ones(size, 8))

    def forward(self, x: Any) -> Any:
        return x + self.bias


def fixed_buffer_of_five() -> Any:
    return FixedParameter(5)


class Expand(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.ones(1, 8))

    def forward(self, x: Any) -> Any:
        return torch.cat([self.token.expand(2, 8), x], 1)


class IntOfShape(nn.Module):
    def forward(self, x: Any) -> Any:
        rows = int(x.shape[0])
        return x + torch.arange(rows)[:, None]


class NumpyShape(nn.Module):
    def forward(self, x: Any) -> Any:
        return x.reshape(int(np.prod(x.shape)))


class Branch(nn.Module):
    def forward(self, x: Any) -> Any:
        if x.sum() > 0:
            return x
        return -x


class SizeBranch(nn.Module):
    def forward(self, x: Any) -> Any:
        if x.shape[0] > 4:
            return x * 2
        return x


class Item(nn.Module):
    def forward(self, x: Any) -> Any:
        factor = x[0, 0].item()
        return x * int(factor)


class Numpy(nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.from_numpy(x.numpy() * 2)


class DropoutByHand(nn.Module):
    def forward(self, x: Any) -> Any:
        return functional.dropout(x, 0.5, training=True)


class Stubborn(nn.Module):
    """Keeps its Dropout in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def train(self, mode: bool = True) -> Any:  # noqa: ARG002, FBT001 - torch's signature
        return super().train(mode=True)

    def forward(self, x: Any) -> Any:
        return self.drop(x)


class Noisy(nn.Module):
    class Noise(nn.Module):
        def forward(self, x: Any) -> Any:
            return x + torch.randn_like(x)

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.noise = nn.Linear(8, 4), self.Noise()

    def forward(self, x: Any) -> Any:
        return self.noise(self.fc(x))


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return x + self.calls


class CountsInPython(nn.Module):
    calls = 0

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return x + self.calls


def no_statistics() -> Any:
    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8, track_running_stats=False))


class BatchNormByHand(nn.Module):
    def forward(self, x: Any) -> Any:
        return functional.batch_norm(x, None, None, training=True)


def largest_of_row() -> Any:
    return nn.Sequential(nn.Conv1d(1, 4, 3), nn.MaxPool1d(2), nn.AdaptiveMaxPool1d(1), nn.Flatten())


def broken_weight() -> Any:
    layer = nn.Linear(8, 4)
    layer.weight.data[0, 0] = float("nan")
    return layer


class Prints(nn.Module):
    def forward(self, x: Any) -> Any:
        sys.stdout.write("forward\n")
        return x + 1


class Masked(nn.Module):
    def forward(self, x: Any, mask: Any) -> Any:
        return functional.scaled_dot_product_attention(x, x, x, attn_mask=mask[:, None, :])


class Padded(nn.Module):
    """torch's own encoder: in evaluation its fast path makes nested tensors of what the mask leaves."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)

    def forward(self, x: Any, padding: Any) -> Any:
        return self.encoder(x, src_key_padding_mask=padding)


class AnyNames(nn.Module):
    def forward(self, **given: Any) -> Any:
        return given["left"] - given["right"]


class Bfloat16Inside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 4).bfloat16()

    def forward(self, x: Any) -> Any:
        return self.fc(x.bfloat16()).float()


def empty() -> Any:
    with torch.device("meta"):
        return nn.Linear(8, 4)


def quantized_by_torch() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated
        return torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(8, 4)), {nn.Linear})


def scripted() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated
        return torch.jit.script(nn.Linear(8, 4))


def compiled() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own parts are deprecated
        return torch.compile(nn.Linear(8, 4))


def reads_arguments() -> Any:
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=8)
    return nn.Linear(parser.parse_args().width, 4)


class Ordered(nn.Module):
    """Takes only values that belong together, as offsets and lengths do."""

    def forward(self, first: Any, last: Any) -> Any:
        if not torch.compiler.is_compiling() and bool((first > last).any()):
            raise ValueError("first > last")
        return last - first


def bfloat16() -> Any:
    return nn.Linear(8, 4).bfloat16()


class Complex(nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.fft.fft(x)


class GivesText(nn.Module):
    def forward(self, x: Any) -> Any:
        return {"y": x, "name": "a text"}


class Raises(nn.Module):
    def forward(self, x: Any) -> Any:
        raise ValueError(f"no {x.ndim} axes here")


def factory_raises() -> Any:
    raise KeyError("checkpoint")


def not_a_module() -> Any:
    return {"weights": 1}


def exits() -> Any:
    raise SystemExit(3)


instance = Mlp()
