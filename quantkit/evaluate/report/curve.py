"""The losses of a training, as one picture."""

from collections.abc import Sequence

from quantkit.evaluate.report.svg import Scale, tag, text

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 720.0, 320.0, 52.0, 16.0, 36.0, 40.0  # pixels
_TRAINING, _HELD_OUT, _RULE, _GROUND = "#b9b8b3", "#0072b2", "#dcdad4", "#fdfdfc"
_SMOOTHED = 60  # points of the training loss
_STYLE = "text { font: 12px sans-serif; fill: #1a1a19; }"


def curve_svg(
    measure: str, held_out: Sequence[tuple[int, float]], losses: Sequence[float], kept: int
) -> str:
    """Return both losses of a training, as multiples of their first values.

    Args:
        measure: The name of the held-out loss.
        held_out: Steps, and the held-out loss there.
        losses: The training loss of each step.
        kept: The step of the weights that were kept.
    """
    trained = _relative(_smoothed(losses))
    tested = _relative(held_out)
    top = 1.05 * max((y for _, y in (*trained, *tested)), default=1.0)
    x = Scale(0, max(1, len(losses), held_out[-1][0]), _LEFT, _WIDTH - _RIGHT)
    y = Scale(0, top, _HEIGHT - _BOTTOM, _TOP)
    parts = [tag("style", _STYLE), tag("rect", width="100%", height="100%", fill=_GROUND)]
    for value, words in y.ticks(5):
        parts += [
            tag("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=y(value), y2=y(value), stroke=_RULE),
            text(_LEFT - 6, y(value) + 4, words, anchor="end"),
        ]
    parts += [text(x(value), _HEIGHT - 22, words, anchor="middle") for value, words in x.ticks(6)]
    for points, colour in ((trained, _TRAINING), (tested, _HELD_OUT)):
        placed = " ".join(f"{x(step):.1f},{y(loss):.1f}" for step, loss in points)
        parts.append(tag("polyline", points=placed, fill="none", stroke=colour, stroke_width="2"))
    best = next(loss for step, loss in tested if step == kept)
    parts += [
        tag("circle", cx=x(kept), cy=y(best), r=4, fill=_HELD_OUT),
        text(
            _LEFT,
            16,
            f"held-out {measure}: {held_out[0][1]:.4g} before training; kept: step {kept:,} ({best:.2f} of it)",
        ),
        text(
            _LEFT,
            _HEIGHT - 6,
            "steps; grey: training loss, blue: held-out loss, relative to the first value",
        ),
    ]
    return tag(
        "svg",
        "".join(parts),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {_WIDTH:.0f} {_HEIGHT:.0f}",
        width=_WIDTH,
        height=_HEIGHT,
        role="img",
        aria_label=f"Losses of a training: held-out {measure}, and the training loss",
    )


def _smoothed(losses: Sequence[float]) -> list[tuple[int, float]]:
    """Return means of neighbouring losses, by the step in their middle."""
    size = max(1, len(losses) // _SMOOTHED)
    parts = [(i, losses[i : i + size]) for i in range(0, len(losses), size)]
    return [(i + len(part) // 2, sum(part) / len(part)) for i, part in parts]


def _relative(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    first = points[0][1] if points and points[0][1] else 1.0
    return [(step, loss / first) for step, loss in points]
