"""Text that comes from elsewhere (names of nodes, tensors, arrays and files), made fit to be shown.

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
