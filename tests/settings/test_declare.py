"""A setting is declared once: file, command line and Python take the same values and refuse the same."""

from collections.abc import Callable
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from builders import node
from static_cases import chain, planned

from calibrators import plugins
from quantkit import targets
from quantkit.cli.app import run
from quantkit.cli.flags import Flags
from quantkit.cli.gate import GateFlags
from quantkit.cli.options import DataFlags
from quantkit.cli.tasks import Float16Flags, MethodFlags, StaticFlags
from quantkit.errors import UsageError
from quantkit.pipeline.evaluate import EvaluateOptions
from quantkit.settings import (
    CalibrateSettings,
    DataSettings,
    DynamicSettings,
    EvaluateSettings,
    Float16Settings,
    GateSettings,
    ImageSettings,
    NodeRule,
    RecoverSettings,
    StaticSettings,
    TensorRule,
    TextSettings,
    load_recipe,
)
from quantkit.settings.declare import Declared, declared

KINDS = (
    CalibrateSettings,
    DataSettings,
    DynamicSettings,
    EvaluateSettings,
    Float16Settings,
    GateSettings,
    ImageSettings,
    NodeRule,
    RecoverSettings,
    StaticSettings,
    TensorRule,
    TextSettings,
)
ALL = [(kind, one) for kind in KINDS for one in declared(kind).values()]


@pytest.mark.parametrize(("kind", "one"), ALL, ids=[f"{k.__name__}.{o.name}" for k, o in ALL])
def test_every_setting_can_be_read_from_a_file_and_has_a_text(kind: type, one: Declared) -> None:
    with pytest.raises(UsageError, match=f"{one.name} takes "):
        one.read(object())
    assert one.setting.text.endswith(".")
    assert one.name in {f.name for f in fields(kind)}


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        ("quantize static", (DataFlags, MethodFlags, StaticFlags)),
        ("plan", (DataFlags, MethodFlags, StaticFlags)),
        ("quantize float16", (DataFlags, Float16Flags)),
        ("calibrate", (DataFlags, MethodFlags)),
        ("evaluate", (DataFlags, GateFlags)),
        ("gate", (GateFlags,)),
    ],
)
def test_help_says_of_a_flag_what_is_declared_of_the_setting(
    command: str,
    flags: tuple[type[Flags], ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    assert run([*command.split(), "--help"]) == 0
    shown = capsys.readouterr().out
    for one in (one for group in flags for one in group.settings()):
        assert one.setting.text in shown
        assert one.setting.metavar in shown


WRONG: dict[str, tuple[Callable[..., object], dict[str, Any], str]] = {
    "limit": (DataSettings, {"limit": "5"}, "limit = '5': limit takes a whole number."),
    "batch": (DataSettings, {"batch": 2.5}, "batch = 2.5: batch takes a whole number."),
    "shuffle": (DataSettings, {"shuffle": 1}, "shuffle = 1: shuffle takes true or false."),
    "path": (DataSettings, {"path": 3}, "path = 3: path takes the path of a file or folder."),
    "mean": (ImageSettings, {"mean": "a"}, "mean takes a number, or a list with one for each"),
    "crop": (
        ImageSettings,
        {"crop": (1, 2, 3)},
        "crop takes a whole number, or \\[height, width\\]",
    ),
    "layout": (ImageSettings, {"layout": 3}, "layout = 3: layout takes one of NCHW, NHWC."),
    "column": (TextSettings, {"column": 3}, "column takes a column's name"),
    "include": (
        StaticSettings,
        {"include": "c1"},
        r"include takes a list of texts in quotes; write \['c1'\] for one",
    ),
    "equalize": (RecoverSettings, {"equalize": "yes"}, 'equalize takes true, false or "auto".'),
    "range": (TensorRule, {"tensor": "t", "range": (1,)}, "range takes two numbers"),
    "max_drop": (GateSettings, {"max_drop": "much"}, "max_drop takes a number, or a text such as"),
    "weight_type": (DynamicSettings, {"weight_type": "int4"}, "weight_type 'int4' is unknown"),
    "half": (Float16Settings, {"dtype": "half"}, "dtype 'half' is unknown"),
    "compute": (Float16Settings, {"compute": "yes"}, "compute takes true or false."),
    "batches": (EvaluateOptions, {"batches": (0,)}, "batches takes "),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_in_python_is_one_error(case: str) -> None:
    make, given, message = WRONG[case]
    with pytest.raises(UsageError, match=message):
        make(**given)


def test_lists_and_the_numbers_of_numpy_are_taken() -> None:
    given: Any = {"limit": np.int64(3), "seed": np.int32(1)}
    assert DataSettings(**given) == DataSettings(limit=3, seed=1)
    given = {"mean": [np.float32(0.5)], "resize": [8, 9]}
    assert len(ImageSettings(**given).mean or ()) == 1


def test_what_is_given_by_flags_goes_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "quantkit.toml"
    file.write_text("[data]\nlimit = 9\nseed = 4\n[data.image]\npixels = '0-1'\n", encoding="utf-8")
    flags = DataFlags(given={"limit": 2, "crop": (8, 9)})
    assert flags.over(load_recipe(file).data) == DataSettings(
        limit=2, seed=4, image=ImageSettings(pixels="0-1", crop=(8, 9))
    )


@pytest.mark.parametrize(
    ("given", "spelled"),
    [({"shuffle": False}, "--no-shuffle"), ({"path": Path("x")}, "--data"), ({}, "")],
)
def test_a_flag_is_named_as_it_was_given(given: dict[str, Any], spelled: str) -> None:
    assert DataFlags(given=given).used() == spelled
    assert DataFlags(given=given, skip_bad=True).used() == (spelled or "--skip-bad")
    assert StaticFlags(given={"per_channel": False}).used() == "--per-tensor"


def test_a_target_that_is_a_plug_in_is_not_looked_for_at_each_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    mine = replace(targets.TARGETS["qnn"], name="mine")
    point = SimpleNamespace(name="mine", value="somewhere:MINE", load=lambda: mine)

    def entry_points(*, group: str) -> list[Any]:
        asked.append(group)
        return [point]

    monkeypatch.setattr(plugins, "entry_points", entry_points)
    counts = []
    for between in (1, 12):
        tensors = ["a", *(f"t{i}" for i in range(between - 1)), "b"]
        made = [node("Sigmoid", [x], [y]) for x, y in pairwise(tensors)]
        planned(chain(*made), StaticSettings(target="mine"))
        counts.append(len(asked))
        asked.clear()
    assert counts[0] == counts[1] > 0
