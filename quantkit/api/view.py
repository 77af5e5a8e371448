"""`view_model`: a model, or two beside each other, as a page that opens from disk."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantkit.api.arguments import as_path, checked_kinds, optional_path, read_result
from quantkit.calibration import Calibration
from quantkit.deploy.view import render_page
from quantkit.deploy.view.explorer import explorer_files
from quantkit.deploy.view.facts import Page
from quantkit.errors import UsageError
from quantkit.evaluate.match import SharedModel
from quantkit.files import check_folder, check_outputs, replace_text
from quantkit.model.graph.load import model_files
from quantkit.pipeline.view import ViewOptions, view
from quantkit.quantize.plan import Plan, read_plan
from quantkit.result import Result

_OVERLAYS = ("int8.json", "drift.json", "latency.json", "size.json")
_EXPLORER = ("graph.json", "graph_float.json", "graph_other.json", *_OVERLAYS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewFiles:
    """What was written.

    Attributes:
        html: The page; None: not asked for.
        explorer: Graphs and overlays for Model Explorer; empty: not asked for.
        notes: What is not shown, and why.
    """

    html: Path | None
    explorer: tuple[Path, ...]
    notes: tuple[str, ...]


@checked_kinds
def view_model(  # noqa: PLR0913 - one parameter per question
    model: str | Path,
    output: str | Path | None = None,
    *,
    float_model: str | Path | None = None,
    result: Result | str | Path | None = None,
    calibration: Calibration | str | Path | None = None,
    plan: Plan | str | Path | None = None,
    time: bool = False,
    raw: bool = False,
    model_explorer: str | Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> ViewFiles:
    """Draw a model: one box a layer, groups by name scope, with what is known of each.

        files = view_model("model.int8.onnx", "graph.html", float_model="model.onnx")
        print(files.html)

    Args:
        model: The model.
        output: The page to write; None: only the files for Model Explorer.
        float_model: What it was made from: drawn beside it, with what changed.
        result: What `evaluate_models` returned, its result.json, or the folder of that: where the drift comes from.
        calibration: What `calibrate` returned, or its file: ranges and histograms of tensors.
        plan: What a plan does to the float model, or its file.
        time: Measure what each layer takes here, on made-up inputs.
        raw: Draw every node of the file as a box of its own.
        model_explorer: A folder for the same as files for Google's Model Explorer.
        progress: Called with what is being done.

    Returns:
        Where they are.

    Raises:
        QuantkitError: With one line that says what is wrong and what to do.
    """
    page = optional_path(output, "output")
    folder = optional_path(model_explorer, "model_explorer")
    if page is None and folder is None:
        raise UsageError("Write where to? Give output, a page, or model_explorer, a folder.")
    base = optional_path(float_model, "float_model")
    models = [*([] if base is None else [base]), as_path(model, "model")]
    read = [file for path in models for file in model_files(path)]
    read += [Path(given) for given in (result, calibration, plan) if isinstance(given, str | Path)]
    check_outputs([page], read)
    if folder is not None:
        check_folder(folder, _EXPLORER, read)
    options = ViewOptions(
        result=None if result is None else read_result(result)[0],
        calibration=_loaded(calibration, Calibration.load),
        plan=_loaded(plan, read_plan),
        time=time,
        raw=raw,
    )
    drawn = view([SharedModel(path) for path in models], options, progress)
    if page is not None:
        replace_text(page, render_page(drawn))
    explorer = () if folder is None else _write_explorer(drawn, folder)
    notes = tuple(f"{drawing.name}: {note}" for drawing in drawn.drawings for note in drawing.notes)
    return ViewFiles(html=page, explorer=explorer, notes=notes)


def _loaded(given: Any, load: Callable[[str | Path], Any]) -> Any:
    """Return what a file holds where one was given, else what was given."""
    return load(given) if isinstance(given, str | Path) else given


def _write_explorer(drawn: Page, folder: Path) -> tuple[Path, ...]:
    """Write the files for Model Explorer; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    contents = explorer_files(drawn)
    for name, content in contents.items():
        replace_text(folder / name, content)
    return tuple(folder / name for name in contents)
