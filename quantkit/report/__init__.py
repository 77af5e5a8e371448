"""Views of a result: a page for people, Markdown for a pull request. They read nothing but the result."""

from quantkit.report.files import write_html, write_markdown, write_pages
from quantkit.report.html import render_html
from quantkit.report.markdown import render_markdown
from quantkit.report.plots import accuracy_size_svg

__all__ = ["accuracy_size_svg", "render_html", "render_markdown", "write_html", "write_markdown"]
__all__ += ["write_pages"]
