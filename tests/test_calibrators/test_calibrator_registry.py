"""Calibrators by name, plug-ins included."""

import sys
from importlib.metadata import EntryPoint
from types import ModuleType

import numpy as np
import pytest

import calibrators
from calibrators import (
    MeanSquaredError,
    MovingAverage,
    Percentile,
    SketchCalibrator,
    plugins,
    registry,
)
from calibrators.testing import check_calibrator

BUILT_IN = ("minmax", "percentile", "entropy", "mse", "moving_average")


def plug_in(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Pretend that a package with calibrators of these names is installed."""
    points = [EntryPoint(name, "fake_plugin:Chosen", registry.GROUP) for name in names]
    monkeypatch.setattr(plugins, "entry_points", lambda *, group: points if group else [])


def provide(monkeypatch: pytest.MonkeyPatch, chosen: object) -> None:
    module = ModuleType("fake_plugin")
    module.__dict__["Chosen"] = chosen
    monkeypatch.setitem(sys.modules, "fake_plugin", module)


def test_names_are_the_built_in_ones() -> None:
    assert registry.names()[:5] == BUILT_IN


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_name_makes_a_calibrator(name: str) -> None:
    found = registry.create(name)
    found.observe(np.arange(5, dtype=np.float32))
    assert found.range().high.item() > 0


def test_settings_are_passed_on() -> None:
    assert registry.method("percentile", keep=99.0) == Percentile(keep=99.0)
    found = registry.create("mse", axis=1, levels=15)
    assert isinstance(found, SketchCalibrator)
    assert found.method == MeanSquaredError(levels=15)
    assert found.sketch.axis == 1
    average = registry.create("moving_average", momentum=0.5)
    assert isinstance(average, MovingAverage)
    assert average.momentum == 0.5


def test_an_unknown_name_lists_the_known_and_the_closest() -> None:
    with pytest.raises(ValueError, match=r"called 'percentil'; there are minmax, .*'percentile'\?"):
        registry.create("percentil")


def test_an_unknown_setting_lists_the_known() -> None:
    with pytest.raises(ValueError, match=r"'mse' takes other settings \(levels, symmetric\)"):
        registry.method("mse", depth=8)
    with pytest.raises(ValueError, match=r"'moving_average' takes other settings"):
        registry.create("moving_average", axis=1)


def test_a_calibrator_of_its_own_is_no_method() -> None:
    with pytest.raises(ValueError, match="collects its own statistics"):
        registry.method("moving_average")


def test_a_plugged_in_method_is_found_and_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    plug_in(monkeypatch, "narrow")
    provide(monkeypatch, Percentile)
    assert registry.names() == (*BUILT_IN, "narrow")
    assert registry.method("narrow", keep=50.0) == Percentile(keep=50.0)
    check_calibrator(lambda: registry.create("narrow", keep=50.0))


def test_a_plugged_in_calibrator_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plug_in(monkeypatch, "average")
    provide(monkeypatch, MovingAverage)
    assert isinstance(registry.create("average", momentum=0.1), MovingAverage)


def test_a_function_may_make_a_calibrator(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(axis: int = 0) -> SketchCalibrator:
        return SketchCalibrator(Percentile(), axis=axis)

    plug_in(monkeypatch, "made")
    provide(monkeypatch, make)
    found = registry.create("made", axis=2)
    assert isinstance(found, SketchCalibrator)
    assert found.sketch.axis == 2


def test_a_plug_in_is_imported_only_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    plug_in(monkeypatch, "absent")
    assert "absent" in registry.names()
    assert registry.create("minmax")
    with pytest.raises(
        ValueError, match=r"'fake_plugin:Chosen' for the calibrator 'absent' cannot be"
    ):
        registry.create("absent")


@pytest.mark.parametrize("taken", [("minmax",), ("mine", "mine")], ids=["built-in", "twice"])
def test_a_name_in_use_is_an_error(monkeypatch: pytest.MonkeyPatch, taken: tuple[str, ...]) -> None:
    plug_in(monkeypatch, *taken)
    with pytest.raises(ValueError, match="already in use"):
        registry.names()


def test_the_public_names_exist() -> None:
    assert all(hasattr(calibrators, name) for name in calibrators.__all__)
    assert calibrators.__all__ == sorted(calibrators.__all__)
