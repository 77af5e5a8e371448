"""Read the fields of a protobuf message without its schema, nor any package but Python's own.

Wire format: a field is ``varint(number << 3 | wire type)`` followed by a varint (0), 8 bytes (1),
``varint(length)`` and that many bytes (2), or 4 bytes (5).
"""

from collections.abc import Iterator
from typing import NamedTuple

Buffer = bytes | memoryview
_BYTES = 2
_VARINT_END = 64


class WireError(ValueError):
    """The bytes are not a protobuf message, or end too early."""


class Field(NamedTuple):
    """One field of a message: its number, its wire type, and where its bytes are."""

    number: int
    wire: int
    start: int  # of the tag
    value: int  # first byte of the value
    end: int


def fields_of(buffer: Buffer, position: int, end: int) -> Iterator[Field]:
    """Yield the fields of the message that lies between `position` and `end`.

    Args:
        buffer: The file.
        position: Of the message's first byte.
        end: The byte behind its last.

    Raises:
        WireError: It is cut off, or no protobuf.
    """
    while position < end:
        start = position
        tag, position = varint(buffer, position, end)
        wire = tag & 7
        if wire == _BYTES:
            length, value = varint(buffer, position, end)
            position = value + length
        elif wire == 0:
            value = position
            _, position = varint(buffer, position, end)
        elif wire in {1, 5}:
            value = position
            position += 8 if wire == 1 else 4
        else:
            raise WireError(f"unknown wire type {wire} at byte {start}")
        if position > end:
            raise WireError(f"the field at byte {start} ends {position - end} bytes too late")
        yield Field(tag >> 3, wire, start, value, position)


def varint(buffer: Buffer, position: int, end: int) -> tuple[int, int]:
    """Read a number of variable length; return it and where it ends.

    Args:
        buffer: The file.
        position: Of the number's first byte.
        end: The byte behind the message that holds it.
    """
    result = shift = 0
    while position < end and shift < _VARINT_END:
        byte = buffer[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:  # the continuation bit
            return result, position
        shift += 7
    raise WireError(f"a number at byte {position} does not end")
