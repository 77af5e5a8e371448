"""The picture of ``results/tune.json``: what each tool's file loses on samples that no tool has seen, and its time."""

from collections.abc import Mapping, Sequence
from typing import Any

from svg import text

__all__ = ["duration", "picture"]

_PANEL, _HEIGHT, _TOP, _LEFT, _GAP = 560, 250, 92, 66, 92
# Okabe-Ito colours, told apart by colour-blind readers; shapes differ too.
_TOOLS = (
    ("quantkit tune", "#0072B2"),
    ("quantkit static", "#56B4E9"),
    ("NNCF", "#009E73"),
    ("onnxruntime", "#D55E00"),
    ("random search", "#CC79A7"),
)
_ROW = 14  # pixels that words take
_FAR = 2.5  # times the height of what is shown makes a mark go to the edge


def picture(models: Mapping[str, Any]) -> str:
    """Return the picture: a panel a model."""
    width, height = _LEFT + _PANEL + 30, _TOP + len(models) * (_HEIGHT + _GAP)
    title = "What is lost (up is better) and how fast (left is better)"
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" font-family="system-ui, sans-serif" font-size="13" role="img">'
        ),
        f"<title>{title}</title>",
        f'<rect width="{width}" height="{height}" rx="10" fill="#ffffff"/>',
        text(24, 30, title, size=16, weight=600),
        text(
            24,
            50,
            "Marks: on samples that no tool has seen, with 95 % intervals. Dots: what tune and the random search tried.",
            colour="#666",
            size=11,
        ),
    ]
    for i, model in enumerate(models.values()):
        parts += _Panel(model, _TOP + i * (_HEIGHT + _GAP)).drawn()
    return "\n".join([*parts, "</svg>"]) + "\n"


class _Panel:
    """One model: its scales, and what is drawn."""

    def __init__(self, model: Mapping[str, Any], top: float) -> None:
        self.model, self.top = model, top
        self.rows = {n: r for n, r in model["rows"].items() if "value" in r}
        self.trials = [t for t in self._trials() if t[0] is not None and t[1] is not None]
        times = [r["time"] for r in self.rows.values()] + [t[0] for t in self.trials]
        self.right: float = max([1.0, *(t for t in times if t <= _FAR)]) * 1.08
        self.left: float = min([1.0, *times]) * 0.9
        drops = sorted(r["drop"] for r in self.rows.values())
        ends = [0.0, model["limit"], *drops[:1]]
        ends += self.rows.get("quantkit tune", {}).get("drop_ends") or []
        for drop in drops + sorted(t[1] for t in self.trials):
            if drop <= max(ends) + _FAR * (max(ends) - min(ends)):
                ends.append(drop)
        pad = 0.15 * (max(ends) - min(ends))
        self.low: float = min(ends) - pad
        self.high: float = max(ends) + pad

    def _trials(self) -> list[tuple[Any, Any, str]]:
        rows = self.model["rows"]
        tuned = rows.get("quantkit tune", {}).get("frontier", ())
        drawn = rows.get("random search", {}).get("points", ())
        return [(p["time"], p["drop"], "#CC79A7") for p in drawn] + [
            (t["time"], t["drop"], "#0072B2") for t in tuned
        ]

    def x(self, time: float) -> float:
        inside = min(max(time, self.left), self.right)
        return _LEFT + _PANEL * (inside - self.left) / (self.right - self.left)

    def y(self, drop: float) -> float:
        inside = min(max(drop, self.low), self.high)
        return self.top + _HEIGHT * (inside - self.low) / (self.high - self.low)

    def drawn(self) -> list[str]:
        """Return the panel."""
        return [*self._ground(), *self._dots(), *self._marks()]

    def _ground(self) -> list[str]:
        bottom, limit = self.top + _HEIGHT, self.y(self.model["limit"])
        unit = 100 if self.model["float"]["metric"].startswith("top") else 1
        name = f"{self.model['float']['metric']} lost" + (", points" if unit > 1 else "")
        size = f'x="{_LEFT}" width="{_PANEL}"'
        parts = [
            f'<rect {size} y="{self.top}" height="{_HEIGHT}" fill="#fafafa" stroke="#ddd"/>',
            f'<rect {size} y="{limit:.1f}" height="{bottom - limit:.1f}" fill="#fbeae1"/>',
            text(_LEFT, self.top - 9, self.model["title"], weight=600),
            text(_LEFT + _PANEL, self.top - 9, name, anchor="end", colour="#666"),
            text(_LEFT + _PANEL, bottom + 34, "time / float32", anchor="end", colour="#666"),
            text(
                _LEFT + _PANEL - 6,
                limit + 15,
                f"budget: {self.model['drop']}",
                anchor="end",
                colour="#a33a00",
                size=12,
            ),
        ]
        for time in (0.2, 0.4, 0.6, 0.8, 1.0, 1.5, 2.0, 3.0, 4.0):
            if self.left <= time <= self.right:
                x = self.x(time)
                dash = "" if time == 1 else ' stroke-dasharray="2 4"'
                parts.append(
                    f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{self.top}" y2="{bottom}" stroke="#bbb"{dash}/>'
                )
                parts.append(text(x, bottom + 17, f"{time:g}", anchor="middle", size=12))
        for drop in _ticks(self.low, self.high):
            y = self.y(drop)
            parts.append(
                f'<line x1="{_LEFT}" x2="{_LEFT + _PANEL}" y1="{y:.1f}" y2="{y:.1f}" stroke="#eee"/>'
            )
            parts.append(
                text(_LEFT - 8, y + 4.5, f"{unit * drop:.3g}", anchor="end", colour="#666", size=12)
            )
        return parts

    def _dots(self) -> list[str]:
        return [
            f'<circle cx="{self.x(time):.1f}" cy="{self.y(drop):.1f}" r="2.5" fill="{colour}" opacity="0.45"/>'
            for time, drop, colour in self.trials
        ]

    def _marks(self) -> list[str]:
        parts: list[str] = []
        taken: list[tuple[float, float, float]] = []
        # What this is about last, on top.
        for name, row in sorted(self.rows.items(), key=lambda pair: -_kind(pair[0])):
            colour, x, y = _TOOLS[_kind(name)][1], self.x(row["time"]), self.y(row["drop"])
            if row["drop_ends"]:
                spread = [self.y(end) for end in row["drop_ends"]]
                parts.append(
                    f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{spread[0]:.1f}" y2="{spread[1]:.1f}" stroke="{colour}" '
                    'stroke-width="1.5" opacity="0.5"/>'
                )
            parts.append(_mark(_kind(name), x, y, colour))
            words = self._words(name, row)
            left = x > _LEFT + 0.62 * _PANEL
            wide = 7.0 * len(words) + 12
            ends = (x - wide, x) if left else (x, x + wide)
            level = _level(ends, y, taken)
            taken.append((*ends, level))
            parts.append(
                text(
                    x - 12 if left else x + 12,
                    level + 4.5,
                    words,
                    anchor="end" if left else "start",
                    colour=colour,
                    size=12,
                    weight=600 if _kind(name) == 0 else 400,
                )
            )
        return parts

    def _words(self, name: str, row: Mapping[str, Any]) -> str:
        beyond = f" at {row['time']:.1f}" if row["time"] > self.right else ""
        deeper = f" ({row['drop']:.3g})" if row["drop"] > self.high else ""
        return f"{name}{beyond}{deeper}, {duration(row['seconds'])}"


def duration(seconds: float) -> str:
    """Return how long something took, in minutes from one on."""
    return f"{seconds / 60:.1f} min" if seconds >= 60 else f"{seconds:.0f} s"


def _kind(name: str) -> int:
    return next(i for i, (tool, _) in enumerate(_TOOLS) if name.startswith(tool))


def _level(
    ends: tuple[float, float], y: float, taken: Sequence[tuple[float, float, float]]
) -> float:
    """Return a height for words at which no others stand."""
    for step in (0, -15, 15, -30, 30, -45, 45, -60, 60):
        near = [t for t in taken if abs(y + step - t[2]) < _ROW]
        if not any(ends[0] < t[1] and t[0] < ends[1] for t in near):
            return y + step
    return y


def _ticks(low: float, high: float) -> list[float]:
    span = (high - low) / 6
    power = 10.0 ** len(str(int(1 / span))) if span < 1 else 1.0
    step = next(m / power for m in (1, 2, 5, 10, 20, 50, 100) if m / power >= span)
    first = int(low / step) - 1
    return [i * step for i in range(first, first + 12) if low <= i * step <= high]


def _mark(kind: int, x: float, y: float, colour: str) -> str:
    if kind == 0:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="7" fill="{colour}" stroke="#fff"/>'
    if kind == 1:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{colour}" stroke="#fff"/>'
    if kind == 2:
        corners = f"{x - 6:.1f},{y + 5:.1f} {x + 6:.1f},{y + 5:.1f} {x:.1f},{y - 6:.1f}"
        return f'<polygon points="{corners}" fill="{colour}"/>'
    size = f'x="{x - 5:.1f}" y="{y - 5:.1f}" width="10" height="10"'
    turn = f' transform="rotate(45 {x:.1f} {y:.1f})"' if kind == 4 else ""
    return f'<rect {size} fill="{colour}"{turn}/>'
