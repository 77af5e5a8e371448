"""How wide words are, about: no font is at hand. Long names are cut to fit."""

import unicodedata
from collections.abc import Iterable

_ELLIPSIS = "…"
_NAMES = 0.42  # of the width at most, for names
_SHORTEST = 3  # characters of what was cut
NARROW = 560
"""Below this width, in pixels, names go above figures instead of beside them."""
# Widths in sizes of the font, as in Helvetica and its like: no font is at hand.
_WIDTHS = dict.fromkeys("ijl'|", 0.25) | dict.fromkeys(" .,:;!·/ftI\xa0", 0.31)
_WIDTHS |= dict.fromkeys("r()[]-", 0.36) | dict.fromkeys("mwMW%@", 0.86)
_LETTER, _CAPITAL, _IDEOGRAPH = 0.56, 0.7, 1.1
_WIDE = {"W", "F"}


def text_width(content: str, size: float = 13) -> float:
    """Estimate how wide words are."""
    return size * sum(map(_letter_width, content))


def _letter_width(letter: str) -> float:
    if unicodedata.east_asian_width(letter) in _WIDE:
        return _IDEOGRAPH
    return _WIDTHS.get(letter, _CAPITAL if letter.isupper() else _LETTER)


def shorten(content: str, width: float, size: float = 13) -> str:
    """Cut the middle out of a long text: names of nodes differ at both ends.

    Args:
        content: The text.
        width: What it may take, in pixels.
        size: Of the letters, in pixels.
    """
    whole = text_width(content, size)
    if whole <= width or len(content) <= _SHORTEST + 1:
        return content
    room = min(int(len(content) * width / whole), len(content) - 2)  # and the dots
    while (short := _cut(content, room)) and text_width(short, size) > width and room > _SHORTEST:
        room -= 1
    return short


def names_width(names: Iterable[str], width: float, least: float, size: float = 13) -> float:
    """Return how much of a picture's width its names take: what the longest needs, within bounds.

    Args:
        names: Of the rows.
        width: Of the picture, in pixels.
        least: What is given to names at least, in pixels.
        size: Of the letters, in pixels.
    """
    longest = max((text_width(name, size) for name in names), default=0.0)
    return min(max(longest, width * least), width * _NAMES)


def _cut(content: str, room: int) -> str:
    """Keep so many characters, two thirds of them from the end."""
    kept = max(room, _SHORTEST)
    head = kept // 3
    return content[:head] + _ELLIPSIS + content[len(content) - (kept - head) :]
