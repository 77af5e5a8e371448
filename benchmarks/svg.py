"""What the pictures share."""

from xml.sax.saxutils import escape

__all__ = ["text"]


def text(  # noqa: PLR0913 - attributes of one element
    x: float,
    y: float,
    content: str,
    *,
    anchor: str = "start",
    colour: str = "#222",
    size: int = 13,
    weight: int = 400,
) -> str:
    """Return words with a white halo, legible over lines."""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"'
    halo = 'fill="none" stroke="#fff" stroke-width="4" stroke-linejoin="round" aria-hidden="true"'
    words = f'font-weight="{weight}">{escape(content)}</text>'
    return f'<text {place} {halo} {words}<text {place} fill="{colour}" {words}'
