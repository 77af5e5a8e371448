"""The picture of static quantization, from ``results/static.json``: how near to float, and how fast."""

import argparse
import json
import math
from pathlib import Path
from typing import Any

from measure import RESULTS
from svg import text

_PANEL, _HEIGHT, _TOP, _LEFT, _GAP = 380, 300, 104, 62, 46
_FASTEST, _SLOWEST = 0.35, 8.0
_TICKS = (0.5, 1.0, 2.0, 4.0)
_LOWEST, _HIGHEST = 0.0, 36.0
# Okabe-Ito colours, told apart by colour-blind readers; shapes differ too.
_TOOLS = (
    ("quantkit", "quantkit", "#0072B2"),
    ("onnxruntime", "onnxruntime.quantization", "#D55E00"),
    ("NNCF", "NNCF", "#009E73"),
)
_MODELS = {
    "efficientnet_lite0": "EfficientNet-Lite0",
    "mobilenet_v2": "MobileNetV2",
    "all-MiniLM-L6-v2": "MiniLM encoder",
    "resnet20_cifar10": "ResNet-20",
}
_COLUMNS = 2


def main() -> None:
    """Draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS / "static.json")
    parser.add_argument("--out", type=Path, default=Path("reports/static.svg"))
    arguments = parser.parse_args()
    measured = json.loads(arguments.results.read_text(encoding="utf-8"))["models"]
    arguments.out.write_text(_picture(measured), encoding="utf-8")
    print(f"wrote {arguments.out}")


def _picture(measured: dict[str, Any]) -> str:
    models = [name for name in _MODELS if name in measured]
    rows = -(-len(models) // _COLUMNS)
    width = _LEFT + _COLUMNS * (_PANEL + _GAP)
    height = _TOP + rows * (_HEIGHT + 76)
    title = "Static int8 on a CPU: near to float (up) and fast (left)"
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" font-family="system-ui, sans-serif" font-size="13" role="img">'
        ),
        f"<title>{title}</title>",
        f'<rect width="{width}" height="{height}" rx="10" fill="#ffffff"/>',
        text(24, 32, title, size=17, weight=600),
        *_legend(),
    ]
    for i, name in enumerate(models):
        left = _LEFT + (i % _COLUMNS) * (_PANEL + _GAP)
        parts += _panel(name, measured[name]["rows"], left, _TOP + (i // _COLUMNS) * (_HEIGHT + 76))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _legend() -> list[str]:
    parts, x = [], 30.0
    for kind, (_, label, colour) in enumerate(_TOOLS):
        parts += [_mark(kind, x, 58, colour), text(x + 13, 62.5, label)]
        x += 40 + 8 * len(label)
    parts.append(
        text(
            x + 10,
            62.5,
            "each mark is one configuration; higher and further left is better",
            colour="#666",
        )
    )
    return parts


def _panel(name: str, rows: dict[str, Any], left: float, top: float) -> list[str]:
    bottom = top + _HEIGHT
    parts = [
        f'<rect x="{left}" y="{top}" width="{_PANEL}" height="{_HEIGHT}" fill="#fafafa" stroke="#ddd"/>',
        text(left, top - 9, _MODELS[name], weight=600),
        text(left + _PANEL, bottom + 36, "latency / float32", anchor="end", colour="#666"),
    ]
    for ratio in _TICKS:
        x = _x(ratio, left)
        dash = "" if ratio == 1 else ' stroke-dasharray="2 4"'
        parts += [
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}" stroke="#bbb"{dash}/>',
            text(x, bottom + 18, f"{ratio:g}", anchor="middle"),
        ]
    for level in range(int(_LOWEST), int(_HIGHEST) + 1, 10):
        y = _y(level, top)
        parts += [
            f'<line x1="{left}" x2="{left + _PANEL}" y1="{y:.1f}" y2="{y:.1f}" stroke="#eee"/>',
            text(left - 8, y + 4.5, f"{level} dB", anchor="end", colour="#666"),
        ]
    # quantkit last, on top.
    for tool in reversed(range(len(_TOOLS))):
        parts += _marks(tool, rows, left, top)
    return parts


def _marks(tool: int, rows: dict[str, Any], left: float, top: float) -> list[str]:
    prefix, _, colour = _TOOLS[tool]
    parts = []
    for name, row in rows.items():
        if not name.startswith(prefix) or "error" in row or "latency" not in row:
            continue
        x, y = _x(row["latency"]["ratio"], left), _y(row["quality"]["sqnr_db"], top)
        parts.append(_mark(tool, x, y, colour))
        if tool == 0:
            said = f"{row['quality']['sqnr_db']:.1f} dB, {row['latency']['ratio']:.2f}"
            parts.append(text(x + 12, y + 4.5, said, colour=colour, weight=600))
    return parts


def _x(ratio: float, left: float) -> float:
    share = math.log(min(max(ratio, _FASTEST), _SLOWEST) / _FASTEST) / math.log(_SLOWEST / _FASTEST)
    return left + _PANEL * share


def _y(level: float, top: float) -> float:
    inside = min(max(level, _LOWEST), _HIGHEST)
    return top + _HEIGHT * (1 - (inside - _LOWEST) / (_HIGHEST - _LOWEST))


def _mark(kind: int, x: float, y: float, colour: str) -> str:
    if kind == 0:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="7" fill="{colour}"/>'
    if kind == 1:
        return f'<rect x="{x - 5:.1f}" y="{y - 5:.1f}" width="10" height="10" fill="{colour}" opacity="0.8"/>'
    corners = f"{x - 6:.1f},{y + 5:.1f} {x + 6:.1f},{y + 5:.1f} {x:.1f},{y - 6:.1f}"
    return f'<polygon points="{corners}" fill="{colour}" opacity="0.8"/>'


if __name__ == "__main__":
    main()
