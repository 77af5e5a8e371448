"""Colours and shapes, in one place: tokens for both themes, one look for each model.

The series are Okabe and Ito's colours, darkened for paper and lightened for the dark page until each stands out 3:1 from
its ground; texts stand out 4.5:1. A shape goes with each colour, so that colour is never the only sign.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Theme = Literal["light", "dark"]
Shape = Literal["circle", "square", "diamond", "up", "down", "cross", "hexagon"]

SHAPES: tuple[Shape, ...] = ("circle", "square", "diamond", "up", "down", "cross", "hexagon")

_COLOURS = {  # on the light page, on the dark one
    "bg": ("#fdfdfc", "#141517"),
    "surface": ("#f4f3ef", "#1e2023"),
    "ink": ("#1a1a19", "#ecebe8"),
    "muted": ("#595853", "#aaa9a4"),
    "rule": ("#dcdad4", "#34363a"),
    "axis": ("#8b8a85", "#7b7c80"),
    "link": ("#0a5a94", "#82c4f5"),
    "focus": ("#0072b2", "#56b4e9"),
    "band": ("#e9e7e1", "#25282c"),
    "shade": ("#cfccc4", "#4a4d52"),
    "pass": ("#00694a", "#58d1a3"),
    "pass-bg": ("#e5f2ec", "#15291f"),
    "fail": ("#a33a00", "#ff9a70"),
    "fail-bg": ("#fbeae1", "#331c11"),
    "undecided": ("#745200", "#f2c25a"),
    "undecided-bg": ("#faf0d8", "#2d2410"),
    "neutral": ("#45443f", "#cfcec9"),
    "neutral-bg": ("#f1efea", "#222427"),
    "s0": ("#0072b2", "#56b4e9"),
    "s1": ("#d55e00", "#ff8a4c"),
    "s2": ("#00896a", "#2cc295"),
    "s3": ("#b0508a", "#e79ac6"),
    "s4": ("#8f7400", "#e6c84a"),
    "s5": ("#4b3fa8", "#a79bff"),
    "s6": ("#6a5d52", "#c5b4a2"),
    "p0": ("#3d5470", "#8fb0d6"),
    "p1": ("#7f9bb8", "#4a6280"),
    "p2": ("#b98a3e", "#d9a958"),
    "p3": ("#c9b79a", "#6d5d40"),
    "p4": ("#4a6d5a", "#7fb598"),
    "p5": ("#a9c3b2", "#4c6a59"),
    "p6": ("#8f5450", "#c98681"),
    "p7": ("#c4c2bc", "#5c5e62"),
}
_SERIES = 7
_LINEAR = 0.04045  # below it sRGB is linear
_FILLED = ("s0", "rule", *(f"p{i}" for i in range(8)))  # what words are written on
_REFERENCE = re.compile(r"var\(--([a-z0-9-]+)\)")


def _luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= _LINEAR else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """Return how far two colours stand apart by WCAG: (L1 + 0.05) / (L2 + 0.05), 1 to 21."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _with_words(tokens: dict[str, str]) -> dict[str, str]:
    """Add the colour of words on each filled area: ink or ground, whichever is easier to read."""
    grounds = (tokens["ink"], tokens["bg"])
    return tokens | {
        f"on-{name}": max(grounds, key=lambda word: contrast(word, tokens[name]))
        for name in _FILLED
    }


TOKENS: Mapping[Theme, Mapping[str, str]] = {
    "light": _with_words({name: light for name, (light, _) in _COLOURS.items()}),
    "dark": _with_words({name: dark for name, (_, dark) in _COLOURS.items()}),
}


@dataclass(frozen=True, slots=True)
class Look:
    """How one model is drawn everywhere: a class of the style sheet, and a shape."""

    css: str
    shape: Shape


def look(index: int) -> Look:
    """Return the look of a model by its place in the result; 0 is float, drawn in ink.

    Where colours begin anew, shapes go one further: 49 candidates look different.
    """
    if index == 0:
        return Look("float", "circle")
    lap, colour = divmod(index - 1, _SERIES)
    return Look(f"s{colour}", SHAPES[(colour + lap) % len(SHAPES)])


def variables(theme: Theme) -> str:
    """Return the tokens as declarations of a style sheet."""
    return "".join(f"--{name}:{colour};" for name, colour in TOKENS[theme].items())


def themes() -> str:
    """Return the declarations for both themes: the system's, unless the page has chosen one; light on paper."""
    light, dark = variables("light"), variables("dark")
    return (
        f":root{{color-scheme:light;{light}}}\n"
        f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{color-scheme:dark;{dark}}}}}\n"
        f":root[data-theme=dark]{{color-scheme:dark;{dark}}}\n"
        f"@media print{{:root:root:root{{color-scheme:light;{light}}}}}\n"
    )


def resolved(css: str, theme: Theme) -> str:
    """Return a style sheet with its variables replaced: many viewers of SVG know none."""
    return _REFERENCE.sub(lambda found: TOKENS[theme][found[1]], css)
