"""What the templates of the page and of the Markdown share: numbers as people read them."""

from inspect import isfunction
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from quantkit.evaluate.report import numbers


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
    written = {k: v for k, v in vars(numbers).items() if isfunction(v) and not k.startswith("_")}
    environment.filters |= written | filters
    environment.globals |= {"ABSENT": numbers.ABSENT} | names
    return environment
