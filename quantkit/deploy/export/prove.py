"""The proof of an export: the file gives what the framework gives, at other sizes and other values than it was traced with.

    max|d| <= 1e-5 * max(1, max|y|)

Where that fails, the framework is run in float64: a file may be ten times as far from that as the framework's own float32,
for large outputs are rounded more coarsely than that limit.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.deploy.export.framework import Exported, Feeds, Framework, Limit, Outputs
from quantkit.deploy.export.inputs import Inputs
from quantkit.deploy.export.user_code import blamed, placed
from quantkit.errors import ModelError, RuntimeSupportError, VerifyError
from quantkit.runtime.runs import run_session
from quantkit.runtime.session import RUNTIME_ERRORS, first_line, make_session

TOLERANCE = 1e-5
OWN = 10.0  # times the framework's own error
_PROBED = 4096  # the largest size that is tried beyond what tracing found
_TAP_ERRORS: tuple[type[Exception], ...] = (*RUNTIME_ERRORS, ModelError, ValueError, KeyError)
_NOTHING_WRITTEN = "nothing was written"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How far one output is from the framework's.

    Attributes:
        output: Its name.
        largest: The largest absolute difference; of whole numbers and truth values how many are others.
        allowed: What it may be.
        own: The framework's own error in float32, where that decided; else None.
        against: The file's error against the same float64; else None.
    """

    output: str
    largest: float
    allowed: float
    own: float | None = None
    against: float | None = None

    @property
    def ok(self) -> bool:
        """Whether that is rounding."""
        if self.largest <= self.allowed:
            return True
        return self.own is not None and self.against is not None and self.against <= OWN * self.own

    @property
    def share(self) -> float:
        """The part of what is allowed."""
        return self.largest / self.allowed

    def __str__(self) -> str:
        text = f"{self.largest:.2g} (allowed {self.allowed:.2g})"
        if self.own is None or self.against is None:
            return text
        return (
            f"{text}; from float64 the file is {self.against:.2g} and the framework {self.own:.2g}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run of both.

    Attributes:
        sizes: Of the dynamic dimensions.
        differences: Of each output.
    """

    sizes: Mapping[str, int]
    differences: tuple[Difference, ...]

    @property
    def named(self) -> str:
        """The sizes, for people."""
        return _named(self.sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What was shown before a file was written.

    Attributes:
        trials: All runs.
        notes: What the user should know: sizes that the framework itself refuses.
    """

    trials: tuple[Trial, ...]
    notes: tuple[str, ...] = ()

    def by_size(self) -> list[tuple[str, Difference]]:
        """Return the worst difference of each output at each of the sizes, named."""
        return [(named, one) for (named, _), one in self._worst(lambda trial: trial.named).items()]

    def worst(self) -> dict[str, Difference]:
        """Return the worst difference of each output, as a share of what is allowed."""
        return {output: one for (_, output), one in self._worst(lambda _: "").items()}

    def _worst(self, group: Callable[[Trial], str]) -> dict[tuple[str, str], Difference]:
        """Return the worst difference of each output in each group of trials."""
        found: dict[tuple[str, str], Difference] = {}
        for trial in self.trials:
            for one in trial.differences:
                key = group(trial), one.output
                found[key] = max(found.get(key, one), one, key=lambda d: d.share)
        return found

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "trials": [
                {
                    "sizes": dict(trial.sizes),
                    "differences": {
                        d.output: {"largest": d.largest, "allowed": d.allowed, "own": d.own}
                        for d in trial.differences
                    },
                }
                for trial in self.trials
            ],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A file and what it must be equal to.

    Attributes:
        framework: The model.
        exported: As the exporter wrote it.
        path: The file to prove.
        progress: Called with what is being done.
    """

    framework: Framework
    exported: Exported
    path: Path
    progress: Callable[[str], None] = field(default=lambda _: None)

    @property
    def traced(self) -> Mapping[str, int]:
        """Sizes that it was traced at."""
        return self.exported.sizes

    def trials(self) -> Iterator[tuple[dict[str, int], Feeds]]:
        """Yield sizes and inputs: the example, sizes within the bounds, and those just outside of what tracing found."""
        inputs = self.framework.inputs
        if inputs.example is not None:
            yield _sizes_of(inputs, inputs.example), inputs.example
        several = inputs.trials(self.traced)
        for name, limit in self.exported.limits.items():
            several += ({**self.traced, name: size} for size in self._beyond(name, limit))
        yield dict(self.traced), inputs.feeds(self.traced, seed=len(several) + 1)
        for number, sizes in enumerate(several, 1):
            yield sizes, inputs.feeds(sizes, seed=number)

    def _beyond(self, name: str, limit: Limit) -> list[int]:
        inputs = self.framework.inputs
        if name in inputs.asked:
            return []
        ends = [limit.least - 1, *([] if limit.most is None else [limit.most, limit.most + 1])]
        return [n for n in ends if inputs.bounds[name].holds(n) and n <= _PROBED]


def _sizes_of(inputs: Inputs, feeds: Feeds) -> dict[str, int]:
    return {
        d: n
        for spec in inputs.specs
        for d, n in zip(spec.dims, feeds[spec.name].shape, strict=True)
        if isinstance(d, str)
    }


def _named(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items()) or "fixed sizes"


def prove(case: Case) -> Proof:
    """Run the file and the framework side by side.

    Raises:
        RuntimeSupportError: onnxruntime does not load the file.
        VerifyError: The file gives something else; the message says where and what to do.
    """
    try:
        session = make_session(str(case.path))
    except RUNTIME_ERRORS as e:
        raise RuntimeSupportError(
            f"onnxruntime does not load the exported model ({first_line(e)}); {_NOTHING_WRITTEN}."
        ) from e
    trials: list[Trial] = []
    refused: dict[str, tuple[list[str], str]] = {}
    nans: list[str] = []
    for sizes, feeds in case.trials():
        case.progress(f"Comparing at {_named(sizes)}")
        try:
            expected = case.framework.run(feeds)
        except Exception as e:  # noqa: BLE001 - the user's code, at a size that it may not be made for
            name, size = _changed(case, sizes, refused)
            if name:
                refused.setdefault(name, ([], blamed(e)))[0].append(size)
            continue
        found = _compared(case, session, sizes, feeds, expected)
        trials.append(Trial(sizes=sizes, differences=found))
        nans += (name for name, y in expected.items() if y.dtype.kind == "f" and np.isnan(y).any())
    _require_dynamic(case, trials, refused)
    said = [
        f"the model itself gives NaN in '{name}': look at its weights, and at the values that --input allows"
        for name in dict.fromkeys(nans)
    ]
    return Proof(trials=tuple(trials), notes=(*_refusals(refused), *said))


def _changed(case: Case, sizes: Mapping[str, int], known: Collection[str]) -> tuple[str, str]:
    """Return which dimension differs from where it was traced, and its size; of several one that is not known yet."""
    other = [(name, str(size)) for name, size in sizes.items() if size != case.traced[name]]
    if len(other) > 1 and any(name in known for name, _ in other):
        return "", ""
    return other[0] if other else ("", "")


def _refusals(refused: Mapping[str, tuple[list[str], str]]) -> Iterator[str]:
    for name, (sizes, why) in refused.items():
        listed = ", ".join(dict.fromkeys(sizes))
        yield f"the model itself does not run at {name}={listed} ({why}): not proved there"


def _require_dynamic(
    case: Case, trials: list[Trial], refused: Mapping[str, tuple[list[str], str]]
) -> None:
    """Refuse dimensions that ran at one size alone: nobody has seen that they are dynamic."""
    for name in case.framework.inputs.bounds:
        seen = {trial.sizes[name] for trial in trials}
        if len(seen) < 2 and len(case.framework.inputs.tried(name)) > 1:
            why = refused.get(name, ([], "no other size was tried"))[1]
            raise VerifyError(
                f"'{name}' is no dynamic dimension: the model runs at {name}={next(iter(seen), '?')} alone ({why}); write "
                "the number in --input."
            )


def _compared(
    case: Case, session: Any, sizes: Mapping[str, int], feeds: Feeds, expected: Outputs
) -> tuple[Difference, ...]:
    try:
        actual = run_session(session, feeds)
    except RUNTIME_ERRORS as e:
        raise VerifyError(_diagnosed(case, sizes, f"fails ({first_line(e)})")) from e
    for name, value in expected.items():
        if value.shape != actual[name].shape:
            given = f"gives {list(actual[name].shape)} for '{name}', the model {list(value.shape)}"
            raise VerifyError(_diagnosed(case, sizes, given))
    found = tuple(difference(n, expected[n], actual[n]) for n in expected)
    if all(d.ok for d in found):
        return found
    wide = case.framework.run_wide(feeds)
    if wide is not None:
        found = tuple(
            d if d.ok else _against(d, wide[d.output], expected[d.output], actual[d.output])
            for d in found
        )
    bad = next((d for d in found if not d.ok), None)
    if bad is not None:
        raise VerifyError(
            _diagnosed(case, sizes, f"is {bad} from the model in '{bad.output}'", feeds)
        )
    return found


def difference(name: str, expected: NDArray[Any], actual: NDArray[Any]) -> Difference:
    """Return how far an output is from what it should be."""
    if expected.dtype.kind != "f" or actual.dtype.kind != "f":
        other = int(np.count_nonzero(expected != actual))
        return Difference(output=name, largest=float(other), allowed=0.5)  # none, that is
    one, two = expected.astype(np.float64), actual.astype(np.float64)
    finite = np.isfinite(one) & np.isfinite(two)
    same = np.array_equal(one[~finite], two[~finite], equal_nan=True)
    largest = float(np.abs(one[finite] - two[finite]).max(initial=0.0)) if same else float("inf")
    top = float(np.abs(one[finite]).max(initial=0.0))
    return Difference(output=name, largest=largest, allowed=TOLERANCE * max(1.0, top))


def _against(
    found: Difference, wide: NDArray[Any], expected: NDArray[Any], actual: NDArray[Any]
) -> Difference:
    return Difference(
        output=found.output,
        largest=found.largest,
        allowed=found.allowed,
        own=difference(found.output, wide, expected).largest,
        against=difference(found.output, wide, actual).largest,
    )


def _diagnosed(case: Case, sizes: Mapping[str, int], what: str, feeds: Feeds | None = None) -> str:
    """Say what is wrong with a file that gives something else: frozen sizes, frozen values, or arithmetic."""
    at = _named(sizes)
    other = [name for name, size in sizes.items() if size != case.traced[name]]
    if not _holds(case, seed=0):
        return f"At {at} the exported file {what}{_first_layer(case, feeds)}; {_NOTHING_WRITTEN}."
    if not _holds(case, seed=1):
        return (
            f"The exported file holds values of the example that it was traced with: on other values it {what}; "
            f"{_NOTHING_WRITTEN}. Compute them from the inputs with torch operations (no .item(), numpy or Python numbers)."
        )
    for name in other:
        limit = case.exported.limits.get(name)
        if limit is not None and limit.line is not None:
            return (
                f"The size of '{name}' decides at {placed(limit.line)}, and the file keeps what holds at "
                f"{name}={case.traced[name]}: at {at} it {what}; {_NOTHING_WRITTEN}. Write code that is the same for all "
                f"sizes, or bound the dimension in --input."
            )
    frozen = " or ".join(f"'{name}'" for name in other)
    return (
        f"Dimension {frozen} was frozen at {_named({n: case.traced[n] for n in other})} by the exporter: at {at} the file "
        f"{what}; {_NOTHING_WRITTEN}. Loops over it, int(x.shape[...]), numbers in view, reshape or expand and "
        "adaptive pooling to more than 1 do that: use -1 and x.shape[...], or write the number in --input."
    )


def _holds(case: Case, seed: int) -> bool:
    """Say whether the file is right at the sizes that it was traced at; with seed 0 on the very values."""
    feeds = case.framework.inputs.feeds(case.traced, seed=seed)
    try:
        actual = run_session(make_session(str(case.path)), feeds)
        expected = case.framework.run(feeds)
    except Exception:  # noqa: BLE001 - of the runtime, or of the user's code
        return False
    return all(
        value.shape == actual[name].shape and difference(name, value, actual[name]).ok
        for name, value in expected.items()
    )


def _first_layer(case: Case, feeds: Feeds | None) -> str:
    """Return in words which part of the model is the first to differ; "" if that cannot be told."""
    layers = case.exported.layers
    if feeds is None or not layers:
        return ""
    try:
        expected = case.framework.inner(feeds)
        actual = _tapped(case.exported.path, list(layers.values()), feeds)
    except _TAP_ERRORS:
        return ""
    for name, tensor in layers.items():
        if name in expected and tensor in actual and expected[name].shape == actual[tensor].shape:
            found = difference(name, expected[name], actual[tensor])
            if not found.ok:
                return f"; the first layer that differs is '{name}', by {found}"
    return ""


def _tapped(path: Path, tensors: list[str], feeds: Feeds) -> Outputs:
    """Run a file with inner tensors as outputs; its inputs are taken in their order."""
    model = ir.load(path)
    values = {v.name: v for node in model.graph for v in node.outputs}
    wanted = [values[name] for name in tensors if name in values]
    model.graph.outputs.clear()
    model.graph.outputs.extend(dict.fromkeys(wanted))
    names = [value.name or "" for value in model.graph.inputs]
    tapped = path.with_name("tapped.onnx")
    ir.save(model, tapped)
    session = make_session(str(tapped), level=0)
    return run_session(session, dict(zip(names, feeds.values(), strict=True)))
