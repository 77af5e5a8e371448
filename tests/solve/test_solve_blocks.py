"""Codes of weights from what they multiply: less is lost at the outputs than by rounding to nearest."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from block_cases import branches, chain, language_model, planned, samples, with_floats
from builders import graph, model, node, rng, run, save, sqnr, weight

from quantkit.calibration.monitor import Silent
from quantkit.model.graph.products import products_of
from quantkit.model.graph.view import view_of
from quantkit.numerics.blocks import BlockCodes, BlockGrid, solve_blocks
from quantkit.quantize.plan import Plan
from quantkit.quantize.rewrite.smooth import scale_inputs, smoothable
from quantkit.quantize.solve.blocks import BlockSettings, solve_blind, solve_in_order
from quantkit.quantize.solve.codes_folder import CodesFolder
from quantkit.quantize.solve.sensitivity import errors_by_bits, weight_noise

Feeds = list[dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """A float model with samples, its plan, and others to judge by."""

    proto: onnx.ModelProto
    built: ir.Model
    plan: Plan
    path: Path
    feeds: Feeds
    others: Feeds

    def solved(self, folder: Path, store: Any = None, **settings: Any) -> dict[str, BlockCodes]:
        folder.mkdir()
        found: dict[str, BlockCodes] = {} if store is None else store
        solve_in_order(
            self.built,
            self.path,
            self.plan,
            products_of(view_of(self.built)),
            lambda: iter(self.feeds),
            found,
            BlockSettings(**settings),
            folder,
            Silent(),
        )
        return found

    def blind(self, **settings: Any) -> dict[str, BlockCodes]:
        found: dict[str, BlockCodes] = {}
        solve_blind(self.built, self.plan, found, BlockSettings(**settings), Silent())
        return found

    def quality(self, codes: dict[str, BlockCodes]) -> float:
        """Return the SQNR of all outputs on other samples than those that codes were solved from."""
        other = with_floats(self.proto, self.plan, codes)
        outputs = [
            np.concatenate([run(p, feed)[0].ravel() for feed in self.others])
            for p in (self.proto, other)
        ]
        return sqnr(*outputs)


def case(proto: onnx.ModelProto, folder: Path, **options: Any) -> Case:
    built, plan = planned(proto, **options)
    path = save(ir.to_proto(built), folder / "float.onnx")
    every = samples(proto, 24)
    return Case(proto, built, plan, path, every[:16], every[16:])


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_solving_in_order_loses_less_than_rounding_blindly(bits: int, tmp_path: Path) -> None:
    one = case(chain(3), tmp_path, bits=bits)
    solved, blind = one.solved(tmp_path / "t"), one.blind()
    assert solved.keys() == blind.keys() == {w.tensor for w in one.plan.weights}
    assert one.quality(solved) > one.quality(blind) + 1.5


def test_fitting_to_quantized_layers_loses_no_more_than_fitting_to_float_ones(
    tmp_path: Path,
) -> None:
    one = case(chain(3), tmp_path, bits=3)
    by_float = one.quality(one.solved(tmp_path / "a", sequential=False))
    assert one.quality(one.solved(tmp_path / "b")) > by_float - 0.1


def test_the_first_layer_is_the_same_whether_or_not_errors_are_followed(tmp_path: Path) -> None:
    one = case(chain(2), tmp_path)
    followed, alone = (one.solved(tmp_path / str(s), sequential=s) for s in (True, False))
    np.testing.assert_array_equal(followed["w0"].codes, alone["w0"].codes)
    assert (followed["w1"].codes != alone["w1"].codes).any()


@pytest.mark.parametrize("workers", [1, 2])
def test_the_same_comes_of_any_number_of_processes_and_of_any_run(
    workers: int, tmp_path: Path
) -> None:
    one = case(chain(2), tmp_path)
    first = one.solved(tmp_path / "a", workers=1)
    again = one.solved(tmp_path / "b", workers=workers)
    for name, codes in first.items():
        np.testing.assert_array_equal(codes.codes, again[name].codes)
        np.testing.assert_array_equal(codes.scale, again[name].scale)


def test_what_has_codes_is_not_solved_again_and_later_layers_come_out_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = case(chain(3), tmp_path)
    whole = one.solved(tmp_path / "a")
    (tmp_path / "codes").mkdir()
    store = CodesFolder(tmp_path / "codes")
    store["w0"], store["w1"] = whole["w0"], whole["w1"]
    shapes = []

    def counted(rows: Any, *rest: Any, **how: Any) -> BlockCodes:
        shapes.append(rows.shape)
        return solve_blocks(rows, *rest, **how)

    monkeypatch.setattr("quantkit.quantize.solve.blocks.solve_blocks", counted)
    one.solved(tmp_path / "b", store)
    assert len(shapes) == 1
    np.testing.assert_array_equal(store["w2"].codes, whole["w2"].codes)
    np.testing.assert_array_equal(store["w2"].scale, whole["w2"].scale)


def test_moments_that_do_not_fit_are_said_and_the_weight_is_still_rounded(tmp_path: Path) -> None:
    one = case(chain(2), tmp_path, bits=3)
    (tmp_path / "t").mkdir()
    found: dict[str, BlockCodes] = {}
    notes = solve_in_order(
        one.built,
        one.path,
        one.plan,
        products_of(view_of(one.built)),
        lambda: iter(one.feeds),
        found,
        BlockSettings(memory=1000),
        tmp_path / "t",
        Silent(),
    )
    assert len(notes) == 2
    assert "moments take more memory than there is" in notes[0]
    assert one.quality(found) > one.quality(one.blind()) - 0.5


def test_a_tied_table_is_solved_once_from_what_multiplies_it(tmp_path: Path) -> None:
    one = case(language_model(rows=300, width=64), tmp_path, bits=3)
    solved = one.solved(tmp_path / "t")
    assert set(solved) == {"table", "layer"}
    assert one.quality(solved) > one.quality(one.blind())


def test_weights_inside_of_subgraphs_are_rounded_without_data(tmp_path: Path) -> None:
    built, plan = planned(branches())
    path = save(ir.to_proto(built), tmp_path / "float.onnx")
    feeds: Feeds = [
        {"x": rng(s).standard_normal((4, 64)).astype(np.float32), "c": np.array(s % 2 == 0)}
        for s in range(4)
    ]
    one = Case(branches(), built, plan, path, feeds, feeds)
    solved, blind = one.solved(tmp_path / "t"), one.blind()
    assert solved.keys() == {"w", "outer", "k"}
    for inner in ("outer", "k"):
        np.testing.assert_array_equal(solved[inner].codes, blind[inner].codes)
    assert (solved["w"].codes != blind["w"].codes).any()


def test_samples_that_hold_nan_do_not_spoil_moments(tmp_path: Path) -> None:
    one = case(chain(2), tmp_path, bits=3)
    clean = one.quality(one.solved(tmp_path / "a"))
    one.feeds[3]["x"][0, 0] = np.nan
    one.feeds[5]["x"][1, 2] = np.inf
    assert one.quality(one.solved(tmp_path / "b")) > clean - 1


def test_inputs_that_are_always_zero_are_no_trouble(tmp_path: Path) -> None:
    proto = chain(2)
    one = case(proto, tmp_path, bits=4)
    for feed in (*one.feeds, *one.others):
        feed["x"][:, :20] = 0
    assert one.quality(one.solved(tmp_path / "t")) > one.quality(one.blind())


def test_codes_lie_in_files_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    one = case(chain(1), tmp_path)
    codes = one.blind()["w0"]
    store = CodesFolder(tmp_path)
    assert "w/0:odd" not in store
    with pytest.raises(KeyError):
        store["w/0:odd"]
    store["w/0:odd"] = codes
    again = CodesFolder(tmp_path)
    assert "w/0:odd" in again
    found = again["w/0:odd"]
    assert found.grid == codes.grid
    for name in ("codes", "zero", "multiplier", "scale"):
        np.testing.assert_array_equal(getattr(found, name), getattr(codes, name))
    assert not list(tmp_path.glob("*.new.npz"))
    del store["w/0:odd"]
    assert "w/0:odd" not in again


# ----------------------------------------------------------------------------------------------- AWQ


def normalized() -> onnx.ModelProto:
    """x -> LayerNormalization -> two MatMul that read it -> Add -> y."""
    nodes = [
        node("LayerNormalization", ["x", "g", "s"], ["n"], "norm"),
        node("MatMul", ["n", "wa"], ["a"], "a"),
        node("MatMul", ["n", "wb"], ["b"], "b"),
        node("Add", ["a", "b"], ["y"], "sum"),
    ]
    gain = np.abs(weight(96, seed=3, scale=1.0)) + np.float32(0.1)
    gain[[5, 50]] *= 30
    held = {"g": gain, "s": weight(96, seed=4), "wa": weight(96, 80), "wb": weight(96, 80, seed=1)}
    return model(graph(nodes, {"x": ["N", 96]}, {"y": ["N", 80]}, held))


def powers_of(proto: onnx.ModelProto, feeds: Feeds) -> dict[str, Any]:
    tapped = onnx.ModelProto()
    tapped.CopyFrom(proto)
    tapped.graph.output.append(onnx.ValueInfoProto(name="n"))
    seen = np.concatenate([run(tapped, feed)[1] for feed in feeds]).astype(np.float64)
    return {"n": np.square(seen).mean(axis=0)}


def test_scaling_inputs_keeps_float_outputs_and_rounding_then_loses_less() -> None:
    proto = normalized()
    built, plan = planned(proto, bits=3)
    grids = {n: plan.weight[w].blocks for n, w in (("a", "wa"), ("b", "wb"))}
    known = {name: grid for name, grid in grids.items() if grid is not None}
    feeds = samples(proto, 8)
    (divided,) = scale_inputs(built, smoothable(view_of(built)), powers_of(proto, feeds), known)
    scaled = ir.to_proto(built)
    assert "n" in divided.tensors
    for feed in feeds:
        for optimize in (True, False):
            before, after = (run(p, feed, optimize=optimize)[0] for p in (proto, scaled))
            assert sqnr(before, after) > 110
    quality = []
    for one in (proto, scaled):
        own, own_plan = planned(one, bits=3)
        codes: dict[str, BlockCodes] = {}
        solve_blind(own, own_plan, codes, BlockSettings(method="minmax"), Silent())
        rounded = with_floats(one, own_plan, codes)
        quality.append(min(sqnr(run(proto, f)[0], run(rounded, f)[0]) for f in feeds))
    assert quality[1] > quality[0] + 0.5


def test_inputs_that_count_alike_are_left_alone() -> None:
    built, plan = planned(normalized(), bits=4)
    grid = plan.weight["wa"].blocks
    assert grid is not None
    even = {"n": np.ones(96)}
    assert scale_inputs(built, smoothable(view_of(built)), even, {"a": grid, "b": grid}) == ()


def test_a_tensor_that_nobody_has_seen_is_left_alone() -> None:
    built, _ = planned(normalized())
    assert scale_inputs(built, smoothable(view_of(built)), {}, {"a": BlockGrid(bits=4)}) == ()


# ----------------------------------------------------------------------------------------- sensitivity


def test_noise_of_one_weight_is_what_comes_out_with_it_alone_rounded(tmp_path: Path) -> None:
    one = case(chain(2), tmp_path)
    grid = BlockGrid(bits=4)
    tensors = {n: v.const_value for n, v in one.built.graph.initializers.items()}
    held = {n: t for n, t in tensors.items() if t is not None}
    ticks: list[int] = []
    probes = {"w0": (1, grid), "w1": (1, grid)}
    noise = weight_noise(one.path, probes, held, one.feeds, ticks.append)
    assert ticks == [1, 1]
    for name in probes:
        alone = {name: one.blind()[name]}
        other = with_floats(one.proto, one.plan, alone)
        before, after = (
            np.concatenate([run(p, f)[0].ravel() for f in one.feeds]) for p in (one.proto, other)
        )
        assert noise[name] == pytest.approx(10 ** (-sqnr(before, after) / 10), rel=0.2)


def test_errors_fall_with_every_bit() -> None:
    grids = {b: BlockGrid(bits=b) for b in range(2, 9)}
    errors = errors_by_bits(weight(96, 80), 1, grids)
    assert [*errors] == [*range(2, 9)]
    for few, more in zip(errors.values(), [*errors.values()][1:], strict=False):
        assert more < 0.5 * few
