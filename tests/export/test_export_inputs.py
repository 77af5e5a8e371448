"""Inputs as users write them; needs no framework."""

from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantkit.deploy.export.inputs import Bound, Inputs, inputs_of_example, parse_inputs
from quantkit.errors import QuantkitError, UsageError

NAMES = st.from_regex(r"[a-z_][a-z0-9_.]{0,8}", fullmatch=True)
SYMBOLS = st.from_regex(r"[a-z][a-z0-9_]{0,5}", fullmatch=True)
DTYPES = st.sampled_from(
    ["float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"]
)


@st.composite
def specs(draw: st.DrawFn) -> str:
    dims = draw(st.lists(st.integers(1, 9).map(str) | SYMBOLS, max_size=4))
    mark = draw(st.sampled_from([":", "=", " : "]))
    return f"{draw(NAMES)}{mark}{draw(DTYPES)}[{', '.join(dims)}]"


@given(specs())
def test_what_is_read_is_written_as_it_was(text: str) -> None:
    found = parse_inputs([text])
    again = parse_inputs([str(found.specs[0])])
    assert again.specs == found.specs
    assert dict(again.bounds) == dict(found.bounds)


@given(specs(), st.integers(0, 5))
def test_values_have_the_shape_and_the_type(text: str, seed: int) -> None:
    found = parse_inputs([text])
    sizes = next(iter(found.traced()))
    array = found.feeds(sizes, seed)[found.specs[0].name]
    assert array.shape == found.specs[0].shape(sizes)
    assert array.dtype == found.specs[0].dtype
    assert np.array_equal(array, found.feeds(sizes, seed)[found.specs[0].name])


@given(st.text(max_size=30))
def test_any_other_text_is_one_clear_error(text: str) -> None:
    with suppress(QuantkitError):
        assert parse_inputs([text]).specs[0].name in text


@given(st.integers(1, 200), st.integers(1, 200))
def test_sizes_lie_within_the_bounds(one: int, other: int) -> None:
    least, most = sorted((one, other))
    found = parse_inputs([f"x:float32[{least}<=n<={most}]"])
    tried = found.tried("n")
    assert tried[0] == least
    assert tried[-1] == most
    assert all(least <= sizes["n"] <= most for sizes in found.traced())


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("x:float32[n<=128]", Bound(most=128)),
        ("x:float32[n<128]", Bound(most=127)),
        ("x:float32[n>=4]", Bound(least=4)),
        ("x:float32[n>4]", Bound(least=5)),
        ("x:float32[2<=n<=9]", Bound(least=2, most=9)),
        ("x:float32[2<n<9]", Bound(least=3, most=8)),
        ("x:float32[n,n<=7]", Bound(most=7)),
    ],
)
def test_bounds(text: str, bound: Bound) -> None:
    assert parse_inputs([text]).bounds["n"] == bound


def test_ranges_hold_the_values() -> None:
    found = parse_inputs(["ids:int64[batch,9]{5..7}", "u:float32[batch]{0..1}", "m:bool[batch]"])
    feeds = found.feeds({"batch": 50}, seed=1)
    assert set(np.unique(feeds["ids"])) == {5, 6, 7}
    assert 0 <= feeds["u"].min() < feeds["u"].max() <= 1
    assert set(np.unique(feeds["m"])) == {False, True}


@pytest.mark.parametrize("bound", ["n", "n>=2", "n>=32", "n>=500", "40<=n<=41", "n<=2"])
def test_a_dynamic_dimension_is_never_tried_at_one_size_alone(bound: str) -> None:
    found = parse_inputs([f"x:float32[{bound}]"])
    assert len(found.tried("n")) > 1
    assert all(found.bounds["n"].holds(size) for size in found.tried("n"))


@pytest.mark.parametrize("kind", ["int64", "bool", "int64[batch,seq]{0..1}"])
def test_masks_leave_something_in_every_row(kind: str) -> None:
    text = kind if "[" in kind else f"{kind}[batch,seq]"
    found = parse_inputs([f"attention_mask:{text}"])
    for seq in (1, 3):
        mask = found.feeds({"batch": 64, "seq": seq}, seed=1)["attention_mask"]
        assert mask.any(axis=-1).all()
        assert mask.all() == (seq == 1)


def test_whole_numbers_without_a_range_are_known() -> None:
    texts = ["a:int64[n]", "b:int64[n]{0..5}", "c:float32[n]", "d:bool[n]", "mask:int64[n]"]
    assert parse_inputs(texts).unranged() == ["a"]


def test_shared_names_are_one_dimension_and_primes_differ() -> None:
    found = parse_inputs(["a:float32[batch,seq,3]", "b:int64[batch,seq]"])
    assert list(found.bounds) == ["batch", "seq"]
    for sizes in found.traced():
        assert 1 < sizes["batch"] != sizes["seq"] > 1
    assert [s["batch"] for s in found.traced()] == [2] * len(list(found.traced()))


def test_trials_move_one_dimension_at_a_time_and_all_at_their_least() -> None:
    found = parse_inputs(["a:float32[batch,seq<=8]"])
    trials = found.trials({"batch": 2, "seq": 3})
    assert {t["batch"] for t in trials} == {1, 2, 3, 7, 32}
    assert {t["seq"] for t in trials} == {1, 2, 3, 7, 8}
    assert {"batch": 1, "seq": 1} in trials


def test_sizes_that_are_asked_for() -> None:
    found = parse_inputs(["a:float32[batch,seq]"], ["seq=1,9,128"])
    assert found.tried("seq") == (1, 9, 128)
    assert {s["seq"] for s in found.traced()} <= {9, 128}


@pytest.mark.parametrize(
    ("texts", "sizes", "said"),
    [
        (["x:float33[2]"], [], r"type 'float33' is unknown \(did you mean 'float32'\?\)"),
        (["x:float32[2"], [], "cannot be read: write it as"),
        (["float32[2]"], [], "cannot be read"),
        (["x:float32[0]"], [], "a dimension of 0 holds nothing"),
        (["x:float32[2,-2]"], [], "'-2' is neither a number nor a name"),
        (["x:float32[9<=n<=3]"], [], "No size is within the bounds of 'n'"),
        (["x:int64[n]{1.5..2}"], [], "a range is two numbers of its type"),
        (["x:int8[n]{0..300}"], [], "int8 does not hold all of this range"),
        (["x:int64[n]{5..2}"], [], "from its least value to its greatest"),
        (["x:float32[n]{0..inf}"], [], "from its least value to its greatest"),
        (["x:float32[n]", "x:float32[n]"], [], "'x' is given twice"),
        (["x:float32[n]"], ["m=1"], "no input has a dynamic dimension 'm'"),
        (["x:float32[n]"], ["n=0"], "is not NAME=SIZE,SIZE"),
        (["x:float32[n<=4]"], ["n=1,9"], "9 is outside of the bounds of 'n'"),
    ],
)
def test_slips_are_named(texts: list[str], sizes: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        parse_inputs(texts, sizes)
    assert "\n" not in str(caught.value)


def test_too_many_dimensions_to_tell_apart() -> None:
    found = parse_inputs([f"x:float32[{','.join(f'd{i}' for i in range(13))}]"])
    with pytest.raises(UsageError, match="13 dynamic dimensions"):
        next(iter(found.traced()))


def test_an_example_tells_the_inputs(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, x=np.ones((4, 3), np.float32), ids=np.array([[1, 9]] * 4))
    found = inputs_of_example(path)
    assert [str(spec) for spec in found.specs] == ["x:float32[batch,3]", "ids:int64[batch,2]"]
    assert (found.specs[1].low, found.specs[1].high) == (1, 9)
    assert isinstance(found, Inputs)
    fixed = inputs_of_example(path, fixed_batch=True)
    assert [str(spec) for spec in fixed.specs] == ["x:float32[4,3]", "ids:int64[4,2]"]


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({}, "holds no arrays"),
        ({"x": np.array(["a"])}, "'x' of .* is no example of an input"),
        ({"x": np.array([np.nan])}, "'x' of .* is no example of an input"),
        ({"x": np.ones((2, 1)), "y": np.ones((3, 1))}, "have 2 and 3 rows"),
    ],
)
def test_examples_that_are_none(arrays: dict[str, np.ndarray], said: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=said):
        inputs_of_example(tmp_path / "x.npz")


def test_examples_that_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        inputs_of_example(tmp_path / "none.npz")
    (tmp_path / "bad.npz").write_bytes(b"PK nothing")
    with pytest.raises(UsageError, match=r"is not an \.npz file"):
        inputs_of_example(tmp_path / "bad.npz")


@pytest.mark.parametrize("free", ["None", "none", "?", "-1", "", " * "])
def test_dimensions_without_a_name_are_dynamic(free: str) -> None:
    found = parse_inputs([f"x:float32[{free},8,{free}]", f"a.b:int64[{free},4]"])
    assert [spec.dims for spec in found.specs] == [("batch", 8, "x_2"), ("batch", 4)]
    assert list(found.bounds) == ["batch", "x_2"]


def test_masks_leave_something_whichever_way_they_are_meant() -> None:
    found = parse_inputs(["mask:int64[n,3]", "padding_mask:bool[n,3]"])
    feeds = found.feeds({"n": 400}, seed=0)
    assert feeds["mask"].any(axis=1).all()
    assert not feeds["padding_mask"].all(axis=1).any()
    assert feeds["padding_mask"].any()


def test_sizes_are_not_reckoned_from_others() -> None:
    with pytest.raises(UsageError, match=r"'2\*s' is neither a number nor a name \(nor can sizes"):
        parse_inputs(["x:float32[s]", "y:float32[2*s]"])
