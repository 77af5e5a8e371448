"""What the templates of the page and of the Markdown know: numbers as people read them, and the figures of a search."""

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from quantkit.evaluate.report import numbers
from quantkit.evaluate.report.search import judged_drop, lost_text, lost_unit

__all__ = ["environment_with"]


def environment_with(filters: dict[str, Any], names: dict[str, Any], *, html: bool) -> Environment:
    """Return the environment of a view.

    Args:
        filters: Those of the view alone.
        names: What its templates know besides.
        html: Texts are escaped.
    """
    environment = Environment(
        loader=PackageLoader("quantkit.evaluate.report", "templates"),
        autoescape=html,  # noqa: S701 - the Markdown escapes by filters of its own
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    written = set(numbers.__all__) - {"ABSENT", "MINUS"}
    environment.filters |= {name: getattr(numbers, name) for name in written} | filters
    environment.globals |= {"ABSENT": numbers.ABSENT, "judged_drop": judged_drop}
    environment.globals |= {"lost": lost_text, "lost_unit": lost_unit} | names
    return environment
