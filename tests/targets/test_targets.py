"""Targets as data, by name and as plug-ins; and what this machine is."""

import json
import sys
from dataclasses import replace
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import quantkit.targets
from calibrators import plugins
from quantkit.errors import UsageError
from quantkit.numerics.dtypes import INT8, INT16, INT32, UINT8
from quantkit.targets import (
    DEFAULT,
    TARGETS,
    Machine,
    check_target,
    names,
    registered,
    registry,
    target,
    this_machine,
)
from quantkit.targets.machine import from_cpuinfo, from_sysctl

MINE = replace(DEFAULT, name="mine")


def plug_in(monkeypatch: pytest.MonkeyPatch, chosen: object, *called: str) -> None:
    """Pretend that a package with a target of these names is installed."""
    points = [EntryPoint(name, "fake_targets:CHOSEN", registry.GROUP) for name in called]
    monkeypatch.setattr(plugins, "entry_points", lambda *, group: points if group else [])
    module = ModuleType("fake_targets")
    module.__dict__["CHOSEN"] = chosen
    monkeypatch.setitem(sys.modules, "fake_targets", module)


@pytest.mark.parametrize("name", TARGETS)
def test_every_target_is_sound(name: str) -> None:
    found = target(name)
    check_target(found)
    assert found.name == name
    assert found.notes
    plain = json.loads(json.dumps(found.to_json()))
    assert plain["activation"] == found.activation.name
    assert frozenset(plain["moves"]) == found.moves


def test_the_default_is_right_on_every_cpu() -> None:
    assert TARGETS["cpu"] is DEFAULT
    assert next(iter(TARGETS)) == "cpu"
    assert (DEFAULT.activation, DEFAULT.weight, DEFAULT.saturates) == (UINT8, INT8, True)
    assert names() == tuple(TARGETS)


def test_what_the_targets_differ_in() -> None:
    vnni, avx2, arm = TARGETS["x86-vnni"], TARGETS["x86-avx2"], TARGETS["arm64"]
    assert not vnni.saturates
    assert avx2 == replace(DEFAULT, name=avx2.name, title=avx2.title)
    assert (arm.activation, arm.saturates) == (INT8, False)
    tensorrt, openvino, qnn = TARGETS["tensorrt"], TARGETS["openvino"], TARGETS["qnn"]
    assert (tensorrt.activation, tensorrt.symmetric_activations) == (INT8, True)
    assert tensorrt.bias is openvino.bias is None
    assert not tensorrt.needs_output
    assert openvino.saturates
    assert (qnn.int16, qnn.bias) == (True, INT32)
    assert "MatMul" in qnn.products - qnn.channelwise
    assert "LayerNormalization" in qnn.computes


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("cpuu", r"target 'cpuu' is unknown \(did you mean 'cpu'\?\): use one of cpu, x86-vnni"),
        ("TensorRT", r"did you mean 'tensorrt'"),
        ("zzz", r"target 'zzz' is unknown: use one of"),
    ],
)
def test_an_unknown_name_lists_the_known_and_the_closest(name: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        target(name)


def test_a_plug_in_is_found_and_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    plug_in(monkeypatch, MINE, "mine")
    assert names() == (*TARGETS, "mine")
    assert target("mine") is MINE
    check_target(target("mine"))
    with pytest.raises(UsageError, match=r"did you mean 'mine'"):
        target("mime")


def test_plug_ins_are_registered_unless_they_cannot_be_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plug_in(monkeypatch, MINE, "mine")
    assert registered() == (*TARGETS.values(), MINE)
    plug_in(monkeypatch, "no target", "mine")
    assert registered() == tuple(TARGETS.values())


@pytest.mark.parametrize("chosen", [DEFAULT, "mine"], ids=["other name", "no target"])
def test_a_plug_in_that_is_no_target_is_an_error(
    monkeypatch: pytest.MonkeyPatch, chosen: object
) -> None:
    plug_in(monkeypatch, chosen, "mine")
    with pytest.raises(UsageError, match=r"'fake_targets:CHOSEN' is no Target called 'mine'"):
        target("mine")


def test_a_plug_in_that_cannot_be_imported_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    plug_in(monkeypatch, MINE, "mine")
    monkeypatch.delitem(sys.modules, "fake_targets")
    with pytest.raises(
        UsageError, match="for the target 'mine' cannot be imported: ModuleNotFound"
    ):
        target("mine")


@pytest.mark.parametrize("taken", [("cpu",), ("mine", "mine")], ids=["built-in", "twice"])
def test_a_name_in_use_is_an_error(monkeypatch: pytest.MonkeyPatch, taken: tuple[str, ...]) -> None:
    plug_in(monkeypatch, MINE, *taken)
    with pytest.raises(UsageError, match="already in use"):
        names()


@pytest.mark.parametrize(
    ("change", "law"),
    [
        ({"name": "My CPU"}, "a name is lower case"),
        ({"title": ""}, "title and runtime are given"),
        ({"moves": {"Reshape"}}, "operators are frozen sets"),
        ({"moves": frozenset({"com.microsoft:Gelu"})}, "operators are ONNX names"),
        ({"products": frozenset(), "channelwise": frozenset()}, "some product runs in integers"),
        ({"moves": frozenset({"Add"})}, "are disjoint"),
        ({"needs_output": frozenset({"Add"})}, "needs_output is part of products"),
        ({"channelwise": frozenset({"Add"})}, "channelwise is part of products"),
        ({"per_channel": False}, "per_channel says whether"),
        ({"activation": INT16}, "have 8 bits"),
        ({"types": frozenset({UINT8})}, "types has those of activations and weights"),
        ({"zero_points": False}, "without zero points activations and weights are symmetric"),
        (
            {"zero_points": False, "symmetric_activations": True},
            "without zero points types are signed",
        ),
        ({"formats": frozenset({"tflite"})}, "formats are qdq and qoperator"),
        ({"bias": INT8}, "a bias is int32 or float"),
        ({"min_opset": 12}, "the opset is at least 13"),
        ({"activation": INT8}, "only uint8 x int8 saturates"),
        ({"notes": ("no full stop",)}, "notes are sentences"),
    ],
)
def test_a_broken_law_is_named(change: dict[str, Any], law: str) -> None:
    with pytest.raises(AssertionError, match=law):
        check_target(replace(MINE, **change))


def test_the_public_names_exist() -> None:
    assert all(hasattr(quantkit.targets, name) for name in quantkit.targets.__all__)


XEON = "processor\t: 0\nmodel name\t: Xeon\nflags\t\t: fpu avx2 avx512f avx512_vnni\n"
OLD = "model name : Core i5\nflags : sse4_2 avx2\n"
PI = "processor : 0\nFeatures : fp asimd asimddp\nCPU part : 0xd0b\n"
M1 = (
    "machdep.cpu.brand_string: Apple M1\nhw.optional.AdvSIMD: 1\n"
    "hw.optional.arm.FEAT_DotProd: 1\nhw.optional.arm.FEAT_I8MM: 0\n"
)
MAC = (
    "machdep.cpu.brand_string: Intel(R) Core(TM) i7\nmachdep.cpu.features: FPU AVX1.0\n"
    "machdep.cpu.leaf7_features: AVX2 AVX512F AVX512VNNI\n"
)


@pytest.mark.parametrize(
    ("found", "fits", "saturates", "shown"),
    [
        (from_cpuinfo(XEON, "x86_64"), "x86-vnni", False, "Xeon (avx2, avx512f, avx512_vnni)"),
        (from_cpuinfo(OLD, "AMD64"), "x86-avx2", True, "Core i5 (avx2)"),
        (from_cpuinfo(PI, "aarch64"), "arm64", False, "aarch64 (asimd, asimddp)"),
        (from_cpuinfo("", "x86_64"), "cpu", None, "x86_64 (no vector integers known)"),
        (from_cpuinfo("", ""), "cpu", None, "unknown (no vector integers known)"),
        (from_cpuinfo("model name : R\n", "riscv64"), "cpu", None, "R (no vector integers known)"),
        (from_sysctl(M1, "arm64"), "arm64", False, "Apple M1 (asimd, asimddp)"),
        (from_sysctl(MAC, "x86_64"), "x86-vnni", False, "i7 (avx2, avx512f, avx512_vnni)"),
        (from_sysctl("", "x86_64"), "cpu", None, "x86_64 (no vector integers known)"),
    ],
)
def test_what_a_machine_is(found: Machine, fits: str, saturates: bool | None, shown: str) -> None:  # noqa: FBT001
    assert found.target == fits
    assert found.saturates is saturates
    assert str(found).endswith(shown)
    if saturates is not None:
        assert target(found.target).saturates == saturates


@given(st.text(), st.text())
def test_no_text_makes_it_fail(text: str, machine: str) -> None:
    for found in (from_cpuinfo(text, machine), from_sysctl(text, machine)):
        assert found.target in TARGETS
        assert found.architecture
        assert found.brand


def test_this_machine_is_known_by_its_target() -> None:
    found = this_machine()
    assert found.target in TARGETS
    assert json.loads(json.dumps(found.to_json()))["target"] == found.target


@pytest.mark.parametrize("system", ["Linux", "Darwin", "Windows", ""])
def test_no_system_makes_it_fail(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.system", lambda: system)
    monkeypatch.setattr("platform.processor", lambda: "")
    this_machine.cache_clear()
    try:
        assert this_machine().target in TARGETS
    finally:
        this_machine.cache_clear()
