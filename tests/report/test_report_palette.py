"""Colours: legible in both themes, told apart by colour-blind people, never alone."""

import re
from importlib.resources import files
from itertools import combinations

import numpy as np
import pytest

from quantkit.evaluate.report.palette import TOKENS, Theme, contrast, look, resolved

_THEMES: tuple[Theme, ...] = ("light", "dark")
# Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB.
_BLIND = {
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
}  # fmt: skip


def linear(colour: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    channels = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def lab(
    rgb: np.ndarray[tuple[int], np.dtype[np.float64]],
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    matrix = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    xyz = np.array(matrix) @ np.clip(rgb, 0, 1) / np.array([0.9505, 1, 1.089])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("theme", _THEMES)
def test_words_stand_out(theme: Theme) -> None:
    tokens = TOKENS[theme]
    for word in ("ink", "muted", "link", "pass", "fail", "undecided", "neutral"):
        for ground in ("bg", "surface"):
            assert contrast(tokens[word], tokens[ground]) >= 4.5, (word, ground)
    for state in ("pass", "fail", "undecided", "neutral"):
        assert contrast(tokens[state], tokens[f"{state}-bg"]) >= 4.5
        assert contrast(tokens["ink"], tokens[f"{state}-bg"]) >= 4.5
    for ground in ("band", "fail-bg"):
        assert contrast(tokens["muted"], tokens[ground]) >= 4.5, ground
    assert contrast(tokens["fail"], tokens["band"]) >= 4.5


@pytest.mark.parametrize("theme", _THEMES)
def test_words_on_bars_stand_out(theme: Theme) -> None:
    tokens = TOKENS[theme]
    for name, colour in tokens.items():
        if name.startswith("on-"):
            assert contrast(colour, tokens[name[3:]]) >= 4.5, name


@pytest.mark.parametrize("theme", _THEMES)
def test_marks_stand_out(theme: Theme) -> None:
    tokens = TOKENS[theme]
    for name in [f"s{i}" for i in range(7)] + ["axis", "focus"]:
        assert contrast(tokens[name], tokens["bg"]) >= 3, name


@pytest.mark.parametrize("theme", _THEMES)
@pytest.mark.parametrize("kind", _BLIND)
def test_first_candidates_are_told_apart_by_colour_blind_people(theme: Theme, kind: str) -> None:
    """The first four by colour alone; beyond them shapes help."""
    matrix = np.array(_BLIND[kind])
    seen = [lab(matrix @ linear(TOKENS[theme][f"s{i}"])) for i in range(4)]
    assert min(float(np.linalg.norm(a - b)) for a, b in combinations(seen, 2)) > 10


def test_looks_differ_in_shape_too() -> None:
    looks = [look(i) for i in range(1, 8)]
    assert len({x.shape for x in looks}) == 7
    assert len({x.css for x in looks}) == 7


def test_as_many_as_49_candidates_look_different() -> None:
    assert len({look(i) for i in range(1, 50)}) == 49


def test_themes_have_the_same_tokens_and_styles_use_only_those() -> None:
    assert set(TOKENS["light"]) == set(TOKENS["dark"])
    for name in ("plot.css", "style.css"):
        css = (files("quantkit.evaluate.report") / "templates" / name).read_text(encoding="utf-8")
        assert set(re.findall(r"var\(--([a-z0-9-]+)\)", css)) <= set(TOKENS["light"])
        assert "var(" not in resolved(css, "dark")
