"""The file quantkit.toml: its tables become a `Recipe`; its errors name the file and the table."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar, cast

from quantkit.errors import UsageError
from quantkit.settings.calibrate import CALIBRATE_VALUES, CalibrateSettings
from quantkit.settings.checks import closest
from quantkit.settings.data import (
    DATA_VALUES,
    IMAGE_VALUES,
    TEXT_VALUES,
    DataSettings,
    ImageSettings,
    TextSettings,
)
from quantkit.settings.evaluate import EVALUATE_VALUES, EvaluateSettings
from quantkit.settings.gate import GATE_VALUES, GateSettings
from quantkit.settings.static import (
    NODE_VALUES,
    RECOVER_VALUES,
    STATIC_VALUES,
    TENSOR_VALUES,
    NodeRule,
    RecoverSettings,
    StaticSettings,
    TensorRule,
)
from quantkit.settings.values import Values, WrongTypeError, path

__all__ = ["RECIPE_NAME", "Recipe", "load_recipe"]

RECIPE_NAME = "quantkit.toml"

_TOP: Values = {"model": path}
_LONG, _HUGE = 80, 10**80  # of a value in a message
_Table = dict[str, object]
_Settings = TypeVar("_Settings")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What quantkit.toml says. `folder` is where it stands (else the working directory), `file` and `text` the file itself.

    `calibrated` and `evaluated` are `data` with what [calibrate.data] and [evaluate.data] say over it.
    """

    model: Path | None = None
    data: DataSettings = field(default_factory=DataSettings)
    calibrated: DataSettings = field(default_factory=DataSettings)
    evaluated: DataSettings = field(default_factory=DataSettings)
    calibrate: CalibrateSettings = field(default_factory=CalibrateSettings)
    static: StaticSettings = field(default_factory=StaticSettings)
    evaluate: EvaluateSettings = field(default_factory=EvaluateSettings)
    gate: GateSettings = field(default_factory=GateSettings)
    folder: Path = field(default_factory=Path)
    file: Path | None = None
    text: str = ""


def load_recipe(path: Path | None = None) -> Recipe:
    """Read a recipe.

    Args:
        path: The file; None: quantkit.toml in the working directory if there is one, else the
            defaults.

    Raises:
        UsageError: The file cannot be read, or holds a key or value that quantkit does not know.
    """
    if path is None:
        path = Path(RECIPE_NAME)
        if not path.exists():
            return Recipe()
    try:
        content = path.read_text(encoding="utf-8-sig")  # some editors mark UTF-8
        document = tomllib.loads(content)
    except FileNotFoundError as e:
        raise UsageError(f"There is no recipe '{path}': give the path of a {RECIPE_NAME}.") from e
    except OSError as e:
        raise UsageError(f"Cannot read the recipe '{path}': {e.strerror or e}.") from e
    except UnicodeDecodeError as e:
        raise UsageError(f"{path}: this is no UTF-8 text: save the file as UTF-8.") from e
    except ValueError as e:  # of TOML, or of a number with thousands of digits
        raise UsageError(f"{path}: this is no TOML: {e}.") from e
    except RecursionError as e:
        raise UsageError(f"{path}: lists or tables are nested too deeply.") from e
    return replace(_recipe(document, path), text=content)


def _recipe(document: _Table, file: Path) -> Recipe:
    inner = ("data", "calibrate", "static", "evaluate", "gate")
    data, calibrate, static, evaluate, gate = (_table(document, name, file) for name in inner)
    top = _read(document, _TOP, "", file, inner)
    every = _data(data, file)
    return Recipe(
        model=cast("Path | None", top.get("model")),
        data=every,
        calibrated=_data_over(every, _table(calibrate, "calibrate.data", file), "calibrate", file),
        evaluated=_data_over(every, _table(evaluate, "evaluate.data", file), "evaluate", file),
        calibrate=_build(
            CalibrateSettings, calibrate, CALIBRATE_VALUES, "[calibrate]", file, ("data",)
        ),
        static=_static(static, file),
        evaluate=_build(EvaluateSettings, evaluate, EVALUATE_VALUES, "[evaluate]", file, ("data",)),
        gate=_build(GateSettings, gate, GATE_VALUES, "[gate]", file),
        folder=file.parent,
        file=file,
    )


def _data(table: _Table, file: Path) -> DataSettings:
    image, text = _table(table, "data.image", file), _table(table, "data.text", file)
    return replace(
        _build(DataSettings, table, DATA_VALUES, "[data]", file, ("image", "text")),
        image=_build(ImageSettings, image, IMAGE_VALUES, "[data.image]", file),
        text=_build(TextSettings, text, TEXT_VALUES, "[data.text]", file),
    )


def _data_over(data: DataSettings, table: _Table, command: str, file: Path) -> DataSettings:
    """Return the data of one command. How samples are prepared is said once, in [data], and holds for both."""
    where = f"[{command}.data]"
    try:
        return replace(data, **_read(table, DATA_VALUES, where, file))
    except UsageError as e:
        message = str(e)
        told = message if message.startswith(str(file)) else f"{file}: {where} {message}"
        raise UsageError(told) from e


def _static(table: _Table, file: Path) -> StaticSettings:
    recover = _table(table, "static.recover", file)
    inner = ("recover", "tensor", "node")
    return replace(
        _build(StaticSettings, table, STATIC_VALUES, "[static]", file, inner),
        recover=_build(RecoverSettings, recover, RECOVER_VALUES, "[static.recover]", file),
        tensors=tuple(
            _make(TensorRule, _tensor_rule(values), where, file)
            for where, values in _rules(table, "static.tensor", TENSOR_VALUES, ("tensor",), file)
        ),
        nodes=tuple(
            _make(NodeRule, values, where, file)
            for where, values in _rules(table, "static.node", NODE_VALUES, ("node", "mode"), file)
        ),
    )


def _tensor_rule(values: dict[str, Any]) -> dict[str, Any]:
    """Rename the key "float", which as a field would hide the type."""
    return {"keep_float" if key == "float" else key: value for key, value in values.items()}


def _table(parent: Mapping[str, object], name: str, file: Path) -> _Table:
    found = parent.get(name.rpartition(".")[2], {})
    if not isinstance(found, dict):
        raise UsageError(f"{file}: '{name}' must be a table: write [{name}] on a line of its own.")
    return found


def _rules(
    parent: Mapping[str, object], name: str, known: Values, required: Sequence[str], file: Path
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the place and the values of each table of an array of tables."""
    found = parent.get(name.rpartition(".")[2], [])
    if not isinstance(found, list) or not all(isinstance(rule, dict) for rule in found):
        raise UsageError(
            f"{file}: '{name}' must be a list of tables: write [[{name}]] above each rule."
        )
    for position, rule in enumerate(found, 1):
        where = f"[[{name}]] number {position}:"
        values = _read(rule, known, where, file)
        for key in required:
            if key not in values:
                raise UsageError(f"{file}: {where} {key} is missing: say which {key} is meant.")
        yield where, values


def _build(
    kind: type[_Settings],
    table: Mapping[str, object],
    known: Values,
    where: str,
    file: Path,
    inner: Sequence[str] = (),
) -> _Settings:
    return _make(kind, _read(table, known, where, file, inner), where, file)


def _make(kind: type[_Settings], values: dict[str, Any], where: str, file: Path) -> _Settings:
    try:
        return kind(**values)
    except UsageError as e:
        raise UsageError(f"{file}: {where} {e}") from e


def _read(
    table: Mapping[str, object],
    known: Values,
    where: str,
    file: Path,
    inner: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the table's values as the fields want them. `inner` are tables read elsewhere."""
    place = f"{file}: {where} " if where else f"{file}: "
    found: dict[str, Any] = {}
    for key, value in table.items():
        if key in inner:
            continue
        if key not in known:
            what = "table" if isinstance(value, dict) else "key"
            names = (*known, *inner)
            raise UsageError(
                f"{place}unknown {what} '{key}'{closest(key, names)}: "
                f"known here are {', '.join(names)}."
            )
        try:
            found[key] = known[key](value, file.parent)
        except WrongTypeError as e:
            raise UsageError(f"{place}{key} = {_shown(value)}: {key} takes {e}.") from e
    return found


def _shown(value: object) -> str:
    """Return a value as the file has it, cut where nobody would read on."""
    if isinstance(value, int) and abs(value) > _HUGE:
        return "a huge number"  # Python does not write more than 4300 digits
    text = repr(value)
    return text if len(text) <= _LONG else f"{text[:_LONG]}..."
