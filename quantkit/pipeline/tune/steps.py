"""The table of steps: what changes the float model before it is quantized, which models it is for, what it can bring, and how long it takes."""

from collections.abc import Callable
from dataclasses import dataclass

from quantkit.model.graph.load import LoadedModel
from quantkit.pipeline.tune.moves import Step


@dataclass(frozen=True, slots=True)
class _Row:
    """Steps of one kind.

    Attributes:
        obstacle: Returns why a model cannot have them; "": it can.
        steps: Those that take away less first.
    """

    obstacle: Callable[[LoadedModel], str]
    steps: tuple[Step, ...]


_TABLE: tuple[_Row, ...] = ()


def steps_for(loaded: LoadedModel) -> tuple[tuple[Step, ...], tuple[str, ...]]:
    """Return the steps that a model can have, and why others are left out.

    Args:
        loaded: The float model.
    """
    obstacles = [row.obstacle(loaded) for row in _TABLE]
    rows = [row for row, obstacle in zip(_TABLE, obstacles, strict=True) if not obstacle]
    return tuple(step for row in rows for step in row.steps), tuple(filter(None, obstacles))
