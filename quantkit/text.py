"""Texts and numbers as people read them in messages, tables and pages.

Names of nodes, tensors, arrays and files come from elsewhere, and are made fit to be shown.
A terminal takes some characters for commands, and some turn the direction of what is written: a name must not be able to clear
the screen, to hide an error or to look like another one.
"""

import unicodedata

# Controls, formats (they turn the direction of writing, or cannot be seen), halves of characters, separators of lines.
_UNFIT = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_JOINERS = "\u200c\u200d"  # between letters of some scripts
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def printable(text: str, keep: str = "") -> str:
    r"""Return a text in which characters that do more than be seen are written as escapes, such as ``\x1b``.

    Args:
        text: Any text.
        keep: Characters to leave as they are.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        _escape(c)
        if unicodedata.category(c) in _UNFIT and c not in keep and c not in _JOINERS
        else c
        for c in text
    )


def _escape(character: str) -> str:
    code = ord(character)
    if character in _NAMED:
        return _NAMED[character]
    if code <= 0xFF:  # of two digits
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"  # of four


def human(nbytes: float) -> str:
    """Write a number of bytes: ``22.9 MB``."""
    for unit in ("bytes", "kB", "MB"):
        digits = 0 if unit == "bytes" else 1
        text = f"{nbytes:.{digits}f}"
        if abs(float(text)) < 1000:
            return f"{text} {unit}"
        nbytes /= 1000
    return f"{nbytes:.2f} GB"


def counted(count: int, noun: str) -> str:
    """Write how many of something there are: ``1 sample``, ``1,872 samples``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def compact(value: float) -> str:
    """Write two decimals, of small numbers two digits; no zeros at the end; huge ones with a power of ten."""
    if abs(value) >= 1e6:
        return f"{value:.3g}"
    if abs(value) < 0.1:
        return f"{value:.2g}" if value else "0"
    return f"{value:.2f}".rstrip("0").rstrip(".")
