"""The picture of dynamic quantization in docs/results.md, from ``results/dynamic.json``: latency against float, with size and drift."""

import argparse
import json
import math
from pathlib import Path
from typing import Any

from measure import RESULTS
from svg import text

_WIDTH, _ROW, _TOP, _LEFT, _RIGHT = 900, 86, 84, 190, 230
_TICKS = (0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 4.0)
# Blues and vermillion of the Okabe-Ito palette, told apart by colour-blind readers; shapes differ too.
_TOOLS = (
    ("quantkit QUInt8", "quantkit", "#0072B2"),
    ("quantkit QInt8", "quantkit, int8 weights", "#56B4E9"),
    ("onnxruntime QUInt8", "onnxruntime.quantization", "#D55E00"),
)
_LEVELS = (-21, 0, 21)
_MODELS = {
    "all-MiniLM-L6-v2": "MiniLM encoder",
    "efficientnet_lite0": "EfficientNet-Lite0",
    "mobilenet_v2": "MobileNetV2",
    "resnet20_cifar10": "ResNet-20",
}


def main() -> None:
    """Draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS / "dynamic.json")
    parser.add_argument("--out", type=Path, default=Path("reports/dynamic.svg"))
    arguments = parser.parse_args()
    measured = json.loads(arguments.results.readtext(encoding="utf-8"))["models"]
    arguments.out.writetext(_picture(measured), encoding="utf-8")
    print(f"wrote {arguments.out}")


def _picture(measured: dict[str, Any]) -> str:
    models = [name for name in _MODELS if name in measured]
    height = _TOP + _ROW * len(models) + 46
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
            f'width="{_WIDTH}" font-family="system-ui, sans-serif" font-size="13" role="img">'
        ),
        "<title>Latency relative to float32 after dynamic quantization</title>",
        f'<rect width="{_WIDTH}" height="{height}" rx="10" fill="#ffffff"/>',
        text(24, 30, "Dynamic int8 on a CPU: latency relative to float32", size=17, weight=600),
        *_legend(),
        *_axis(height),
    ]
    for i, name in enumerate(models):
        parts += _row(name, measured[name], _TOP + i * _ROW + _ROW / 2)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _legend() -> list[str]:
    parts, x = [], 24.0
    for i, (_, label, colour) in enumerate(_TOOLS):
        parts += [_mark(i, x + 6, 52, colour), text(x + 18, 57, label)]
        x += 30 + 7.4 * len(label)
    note = "label: ratio, size of the file, drift from float on real data"
    return [*parts, text(x + 10, 57, note, colour="#555")]


def _axis(height: int) -> list[str]:
    parts = []
    for tick in _TICKS:
        x = _x(tick)
        heavy = tick == 1.0
        stroke = "#333" if heavy else "#ddd"
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 8}" y2="{height - 38}" stroke="{stroke}"/>'
        )
        label = "float" if heavy else f"{tick:g}x"
        parts.append(text(x, height - 20, label, anchor="middle", weight=600 if heavy else 400))
    parts.append(text(_x(0.5) - 22, height - 20, "faster", anchor="end", colour="#555"))
    parts.append(text(_x(4.0) + 22, height - 20, "slower", colour="#555"))
    return parts


def _row(name: str, model: dict[str, Any], y: float) -> list[str]:
    parts = [text(24, y + 5, _MODELS[name], weight=600)]
    for i, (configuration, _, colour) in enumerate(_TOOLS):
        found = model["configurations"][configuration]
        if "latency" not in found:
            continue
        timing = next(iter(found["latency"].values()))
        share = found["bytes"] / model["float"]["bytes"]
        label = f"{timing['ratio']:.2f}x, {share:.0%}, {_drift(found['quality'])}"
        at, level = _x(timing["ratio"]), y + _LEVELS[i]
        low, high = _x(timing["low"]), _x(timing["high"])
        parts += [
            (
                f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{level}" y2="{level}" stroke="{colour}" '
                'stroke-width="2"/>'
            ),
            _mark(i, at, level, colour),
            text(max(at, high) + 12, level + 4.5, label),
        ]
    return parts


def _drift(quality: dict[str, float]) -> str:
    if "cosine" in quality:
        return f"cosine {quality['cosine']:.4f}"
    return f"{quality['sqnr_db']:.1f} dB"


def _x(ratio: float) -> float:
    span = math.log(_TICKS[-1] / _TICKS[0])
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * math.log(ratio / _TICKS[0]) / span


def _mark(kind: int, x: float, y: float, colour: str) -> str:
    if kind == 0:
        return f'<circle cx="{x:.1f}" cy="{y}" r="6" fill="{colour}"/>'
    if kind == 1:
        corners = f"{x - 6.5:.1f},{y + 5.5} {x + 6.5:.1f},{y + 5.5} {x:.1f},{y - 6.5}"
        return f'<polygon points="{corners}" fill="{colour}"/>'
    return f'<rect x="{x - 5.5:.1f}" y="{y - 5.5}" width="11" height="11" fill="{colour}"/>'


if __name__ == "__main__":
    main()
