"""The tables of static quantization in quantkit.toml."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantkit.errors import UsageError
from quantkit.settings import (
    NodeRule,
    QdqSettings,
    RecoverSettings,
    StaticSettings,
    TensorRule,
    load_recipe,
)

FULL = """
[static]
target = "arm64"
format = "qoperator"
activation_type = "int8"
weight_type = "int8"
per_channel = false
symmetric_activations = true
method = "mse"
include = ["/encoder/*"]
exclude = ["/encoder/0", "/encoder/1"]
op_types = ["Conv"]
coverage = "all"
simplify = false
[static.qdq]
weight_pairs = true
float_outputs = ["Conv"]
min_range = 0.001
channel_axes = { MatMul = 0, Gemm = 1 }
[static.recover]
equalize = true
smooth = false
bias = "auto"
rounding = true
adaptive = false
[[static.tensor]]
tensor = "logits"
range = [-4, 4.5]
dtype = "uint16"
[[static.tensor]]
tensor = "*/softmax"
float = true
[[static.tensor]]
tensor = "input"
method = "percentile"
[[static.node]]
node = "/head/*"
mode = "float"
[[static.node]]
node = "/head/last"
mode = "integer"
"""


def write(folder: Path, text: str) -> Path:
    file = folder / "quantkit.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_a_full_recipe(tmp_path: Path) -> None:
    assert load_recipe(write(tmp_path, FULL)).static == StaticSettings(
        target="arm64",
        format="qoperator",
        activation_type="int8",
        weight_type="int8",
        per_channel=False,
        symmetric_activations=True,
        method="mse",
        include=("/encoder/*",),
        exclude=("/encoder/0", "/encoder/1"),
        op_types=("Conv",),
        coverage="all",
        simplify=False,
        qdq=QdqSettings(
            weight_pairs=True,
            float_outputs=("Conv",),
            min_range=0.001,
            channel_axes=(("MatMul", 0), ("Gemm", 1)),
        ),
        recover=RecoverSettings(equalize=True, smooth=False, rounding=True, adaptive=False),
        tensors=(
            TensorRule(tensor="logits", range=(-4.0, 4.5), dtype="uint16"),
            TensorRule(tensor="*/softmax", keep_float=True),
            TensorRule(tensor="input", method="percentile"),
        ),
        nodes=(
            NodeRule(node="/head/*", mode="float"),
            NodeRule(node="/head/last", mode="integer"),
        ),
    )


def test_without_the_table_the_target_decides(tmp_path: Path) -> None:
    static = load_recipe(write(tmp_path, "")).static
    assert static == StaticSettings()
    assert (static.target, static.format) == (None, None)
    assert (static.activation_type, static.weight_type, static.per_channel) == (None, None, None)
    assert static.recover == RecoverSettings()
    assert static.recover.smooth == "auto"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[statik]", "unknown table 'statik' (did you mean 'static'?)"),
        ("static = 3", "'static' must be a table: write [static] on a line of its own"),
        ("[static]\ntargets = 'cpu'", "[static] unknown key 'targets' (did you mean 'target'?)"),
        ("[static]\nformat = 'qd'", "[static] format 'qd' is unknown (did you mean 'qdq'?)"),
        (
            "[static]\nactivation_type = 'unit8'",
            "activation_type 'unit8' is unknown (did you mean 'uint8'?): use one of uint8, int8,",
        ),
        ("[static]\nweight_type = 'int3'", "weight_type 'int3' is unknown"),
        ("[static]\nper_channel = 'yes'", "per_channel = 'yes': per_channel takes true or false"),
        ("[static]\ninclude = 'a'", "include = 'a': include takes a list of texts in quotes"),
        ("[static]\nexclude = ['a', 3]", "exclude takes a list of texts in quotes"),
        ("[static]\nrecover = true", "'static.recover' must be a table"),
        (
            "[static.recover]\nequalise = true",
            "[static.recover] unknown key 'equalise' (did you mean 'equalize'?)",
        ),
        ("[static.recover]\nbias = 'yes'", "bias = 'yes': bias takes true, false or \"auto\""),
        ("[static.recover]\nbias = 1", "bias = 1: bias takes true, false"),
        (
            "[static.tensor]\ntensor = 'a'",
            "'static.tensor' must be a list of tables: write [[static.tensor]] above each rule",
        ),
        ("[static]\nnode = ['a']", "'static.node' must be a list of tables"),
        (
            "[[static.tensor]]\ntensor = 'a'\nfloat = true\n[[static.tensor]]\ntenser = 'b'",
            "[[static.tensor]] number 2: unknown key 'tenser' (did you mean 'tensor'?)",
        ),
        ("[[static.tensor]]\nfloat = true", "number 1: tensor is missing"),
        ("[[static.tensor]]\ntensor = 'a'", "the rule for tensor 'a' says nothing"),
        (
            "[[static.tensor]]\ntensor = 'a'\nfloat = false",
            "the rule for tensor 'a' says nothing",
        ),
        (
            "[[static.tensor]]\ntensor = 'a'\nfloat = true\ndtype = 'int8'",
            "the rule for tensor 'a' leaves it in float: remove range, dtype and method",
        ),
        (
            "[[static.tensor]]\ntensor = 'a'\nrange = [0, 1]\nmethod = 'mse'",
            "gives its range twice: remove range or method",
        ),
        ("[[static.tensor]]\ntensor = 'a'\ndtype = 'int'", "dtype 'int' is unknown"),
        (
            "[[static.tensor]]\ntensor = 'a'\nrange = 3",
            "range = 3: range takes two numbers: [low, high]",
        ),
        ("[[static.tensor]]\ntensor = 'a'\nrange = [1]", "range takes two numbers"),
        ("[[static.tensor]]\ntensor = 'a'\nrange = [1, 'x']", "range takes two numbers"),
        ("[[static.tensor]]\ntensor = 'a'\nrange = [1, -1]", "is empty: use [low, high]"),
        ("[[static.tensor]]\ntensor = 'a'\nrange = [0, inf]", "range must be finite"),
        ("[[static.tensor]]\ntensor = 'a'\nrange = [nan, 1]", "range must be finite"),
        (
            "[[static.tensor]]\ntensor = 'a'\nrange = [1, 2]",
            "must hold 0, for that has to be exact",
        ),
        ("[[static.node]]\nmode = 'float'", "[[static.node]] number 1: node is missing"),
        ("[[static.node]]\nnode = 'a'", "number 1: mode is missing"),
        (
            "[[static.node]]\nnode = 'a'\nmode = 'flaot'",
            "mode 'flaot' is unknown (did you mean 'float'?): use one of float, integer",
        ),
    ],
)
def test_what_is_wrong_is_said_with_the_place(text: str, says: str, tmp_path: Path) -> None:
    file = write(tmp_path, text)
    with pytest.raises(UsageError) as e:
        load_recipe(file)
    assert str(e.value).startswith(f"{file}: ")
    assert says in str(e.value)
    assert "\n" not in str(e.value)


def test_a_flag_overrides_by_replace_and_is_checked_too() -> None:
    wrong: Any = "uint7"
    with pytest.raises(UsageError, match="activation_type 'uint7' is unknown"):
        replace(StaticSettings(), activation_type=wrong)


@given(st.floats(), st.floats())
def test_a_range_that_is_taken_holds_zero_and_is_finite(low: float, high: float) -> None:
    try:
        rule = TensorRule(tensor="t", range=(low, high))
    except UsageError:
        return
    assert rule.range == (low, high)
    assert -float("inf") < low <= 0 <= high < float("inf")
    assert low < high
