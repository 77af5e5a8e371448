"""`write_report`: the pages of a result."""

from dataclasses import dataclass
from html import escape
from pathlib import Path

from quantkit.api.arguments import as_path, checked_kinds, optional_path, read_result
from quantkit.errors import UsageError
from quantkit.evaluate.report import picture_svg, write_html, write_markdown
from quantkit.files import check_folder, check_outputs, check_unasked, replace_text
from quantkit.result import Result

_FORMATS = ("html", "md", "both")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFiles:
    """Where the parts of a report stand; None: not asked for. A notebook shows the page itself, or else the picture.

    Attributes:
        html: The page that opens from disk.
        markdown: The text for a pull request.
        picture: Accuracy against size, of a search its frontier; an SVG.
    """

    html: Path | None
    markdown: Path | None
    picture: Path | None

    @property
    def written(self) -> tuple[Path, ...]:
        """All of the report's files, in the order in which they were written."""
        return tuple(p for p in (self.html, self.markdown, self.picture) if p is not None)

    def _repr_html_(self) -> str | None:
        """Return the page in a frame, for notebooks; None without a page."""
        if self.html is None:
            return None
        # The frame keeps the page's styles and scripts away from the notebook; sandboxed, it cannot reach its cells.
        page = escape(self.html.read_text(encoding="utf-8"))
        frame = 'sandbox="allow-scripts" width="100%" height="640" style="border: 1px solid #ccc"'
        return f'<iframe {frame} srcdoc="{page}"></iframe>'

    def _repr_svg_(self) -> str | None:
        """Return the picture, for notebooks; None without one."""
        return None if self.picture is None else self.picture.read_text(encoding="utf-8")


@checked_kinds
def write_report(
    result: Result | str | Path,
    output: str | Path | None = None,
    *,
    form: str = "both",
    picture: str | Path | None = None,
) -> ReportFiles:
    """Write the pages that show a result. Nothing else is read.

        files = write_report("report/result.json", picture="picture.svg")
        print(files.html)

    Args:
        result: What `evaluate_models` returned, its result.json, or the folder of that.
        output: The folder to write into; None: beside the result.json.
        form: "html", "md" or "both".
        picture: Also write the picture of accuracy against size there, of a search that of its frontier; its name ends in
            ".svg".

    Returns:
        Where they are: report.html, report.md, the picture.

    Raises:
        QuantkitError: With one line that says what is wrong and what to do: a result that cannot be read, a folder
            that cannot be written.
    """
    if form not in _FORMATS:
        raise UsageError(f"Unknown format {form!r}; use 'html', 'md' or 'both'.")
    drawn = optional_path(picture, "picture")
    if drawn is not None and drawn.suffix != ".svg":
        raise UsageError(f"--picture writes an SVG: call it '{drawn.with_suffix('.svg')}'.")
    found, file = read_result(result)
    folder = _folder(output, file)
    names = {"html": ["report.html"], "md": ["report.md"]}.get(form, ["report.html", "report.md"])
    check_folder(folder, names, [file])
    check_outputs([drawn, *(folder / name for name in names if folder.is_dir())], [file])
    if output is None:
        check_unasked([folder / name for name in names], folder)
    page = write_html(found, folder) if form != "md" else None
    text = write_markdown(found, folder) if form != "html" else None
    if drawn is not None:
        replace_text(drawn, picture_svg(found))
    return ReportFiles(html=page, markdown=text, picture=drawn)


def _folder(output: str | Path | None, file: Path | None) -> Path:
    if output is not None:
        return as_path(output, "output")
    if file is None:
        raise UsageError("Which folder? A result that is no file has none beside it: give output.")
    return file.parent
