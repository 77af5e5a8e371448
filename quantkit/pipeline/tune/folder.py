"""What a search leaves in its folder, so that another run of the same command goes on with it.

    tune.json                  what is searched: digests of model and data, settings, versions; the family of plans
    steps/NAME+NAME/           model.onnx: what steps make of the float model
    candidates/NN/             model.onnx, recipe.json, candidate.json: whole, or not there; plan.json and quantkit.toml of a plan
    model.onnx, recipe.json, plan.json, quantkit.toml   of the best candidate so far
    result.json, report.html, report.md    of the frontier, when the search is over

Everything takes its place by a rename.
"""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from quantkit.errors import OutputError, UsageError, as_os_error
from quantkit.files import check_folder, digest_of, replace_text, replacing, scratch
from quantkit.model.graph.load import model_files
from quantkit.pipeline.chain import CHAIN
from quantkit.pipeline.tune.choice import Choice
from quantkit.quantize.plan.model import Kept, Mode
from quantkit.reasons import Reason
from quantkit.result import Interval
from quantkit.settings import RECIPE_NAME

MODEL, PLAN, CANDIDATE = "model.onnx", "plan.json", "candidate.json"
_INDEX, _CANDIDATES, _BASES, _WORK = "tune.json", "candidates", "steps", "work"
_MAKING = (CHAIN, PLAN, RECIPE_NAME)  # what says how a candidate is made
_OWN = (MODEL, *_MAKING, "result.json", "report.html", "report.md")
_FORMAT = "quantkit.tune.1"
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A file that was made and run, and what it does on the choosing samples.

    Attributes:
        name: "01", "02", ... in the order in which they were made.
        choice: What makes it.
        path: The file; None where it could not be made.
        sha256: Of the file.
        modes: How many nodes run in each mode.
        size: As a share of float's file.
        latency: As a multiple of float's time; None where it was not timed.
        latency_interval: Of it.
        predicted: The same by the costs of its nodes; None: not known.
        drop: How much it loses against float, in the units of the budget; None where it could not be made.
        drop_interval: Of it; None: not known.
        samples: How many it was run on, before that was clear.
        verdict: "in": within the budget of what may be lost; "out"; "failed": it could not be made.
        sqnr_db: Signal to noise of the worst output; None: nothing changed.
        seconds: That it took to make, run and time.
        running: Of these, to run it on the samples beside float.
        note: Why it could not be made; else "".
    """

    name: str
    choice: Choice
    path: Path | None = None
    sha256: str = ""
    modes: Mapping[str, int] = field(default_factory=dict)
    size: float = 1.0
    latency: float | None = None
    latency_interval: Interval | None = None
    predicted: float | None = None
    drop: float | None = None
    drop_interval: Interval | None = None
    samples: int = 0
    verdict: str = "failed"
    sqnr_db: float | None = None
    seconds: float = 0.0
    running: float = 0.0
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Plans of one model from the fastest to the most exact, by what was measured before any was made.

    Attributes:
        kept: What stays out of calibrated integers, for each plan.
        noises: What each is predicted to lose, relative to each other; descending.
        seconds: What each is predicted to take, as a multiple of float's time; empty: not known.
        whole: Whether all plans are there, or the fastest only.
        dynamic: Whether any product has a kernel that quantizes what it reads as it comes.
    """

    kept: tuple[Mapping[str, Kept], ...]
    noises: tuple[float, ...]
    seconds: tuple[float, ...] = ()
    whole: bool = False
    dynamic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneFolder:
    """The folder of one search.

    Attributes:
        path: Where.
        identity: What tells this search from others: what differs is named when another one is found there.
    """

    path: Path
    identity: Mapping[str, Any]

    @property
    def prepared(self) -> Path:
        """Where the preparation is kept until the search is over."""
        return self.path / _WORK / "prepared"

    @property
    def bases(self) -> Path:
        """Where the models are that steps make."""
        return self.path / _BASES

    def base(self, before: tuple[str, ...]) -> Path:
        """Return the file of the model that steps make."""
        return self.bases / "+".join(before) / MODEL

    def check(self, *, again: bool) -> None:
        """Refuse a folder in which another search stands; `again`: what stands there is to go.

        Raises:
            UsageError: It is another model's, other data's, or has other settings.
        """
        before = self._read()
        if before is None:
            self._refuse_foreign(again=again)
            return
        if again:
            return
        known = before.get("identity", {})
        differ = [k for k, v in self.identity.items() if known.get(k) != json.loads(json.dumps(v))]
        if differ:
            raise UsageError(
                f"'{self.path}' holds a search with another {' and another '.join(differ)}: give another -o, or --again to "
                "start anew there."
            )

    def _refuse_foreign(self, *, again: bool) -> None:
        """Refuse a folder with files that would be overwritten and that no search wrote."""
        index = self.path / _INDEX
        if index.is_file() and b"quantkit.tune" in index.read_bytes():
            if not again:
                raise UsageError(
                    f"'{index}' cannot be read, or is another version's: give another -o, or --again to start anew there."
                )
            return
        for name in (_INDEX, _CANDIDATES, _BASES, *_OWN):
            if (self.path / name).exists():
                raise UsageError(
                    f"'{self.path / name}' was not written by a search, and would be overwritten: give another -o."
                )

    def begin(self, *, again: bool) -> None:
        """Make the folder, or take it up; `again`: without what stands there."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if again:
                self.clear()
            # First what tells that a search wrote the rest: a run may be killed at any point.
            if self._read() is None:
                self._write({})
            (self.path / _CANDIDATES).mkdir(exist_ok=True)
        except OSError as e:
            said = f"Cannot write into '{self.path}': {e.strerror or e}."
            raise as_os_error(OutputError(said), e) from e

    def clear(self) -> None:
        """Remove what a search wrote; last what tells that a search wrote it."""
        for name in (_CANDIDATES, _BASES, _WORK):
            shutil.rmtree(self.path / name, ignore_errors=True)
        own = (self.path / name for name in (*_OWN, _INDEX))
        for file in (*self.path.glob(f"{MODEL}.*.data"), *own):
            file.unlink(missing_ok=True)

    def give_up(self, *, made: bool) -> None:
        """Remove what was written where no candidate came of it; `made`: the folder itself was not there before."""
        if any(one.path is not None for one in self.candidates()):
            return
        self.clear()
        if made and not any(self.path.iterdir()):
            self.path.rmdir()

    def family(self) -> Family | None:
        """Return the plans that were found."""
        plain = (self._read() or {}).get("family")
        if plain is None:
            return None
        return Family(
            kept=tuple({n: _kept_of(**one) for n, one in plan.items()} for plan in plain["kept"]),
            noises=tuple(plain["noises"]),
            seconds=tuple(plain["seconds"]),
            whole=plain["whole"],
            dynamic=plain["dynamic"],
        )

    def put_family(self, family: Family) -> None:
        """Keep the plans: what is decided later is decided by these."""
        kept = [{name: _kept_record(one) for name, one in plan.items()} for plan in family.kept]
        self._write({"family": {**msgspec.to_builtins(replace(family, kept=())), "kept": kept}})

    def judged(self) -> list[str] | None:
        """Return the candidates that result.json is about."""
        found: list[str] | None = (self._read() or {}).get("judged")
        return found

    def put_judged(self, names: list[str]) -> None:
        """Note which candidates result.json is about; what was needed for more of them goes."""
        self._write({"judged": names})
        shutil.rmtree(self.path / _WORK, ignore_errors=True)

    def candidates(self) -> list[Candidate]:
        """Return what was made, in order; what is not whole is removed."""
        found = []
        for folder in sorted((self.path / _CANDIDATES).glob("[0-9]*")):
            one = self._candidate(folder)
            if one is None:
                shutil.rmtree(folder, ignore_errors=True)
            else:
                found.append(one)
        return found

    def _candidate(self, folder: Path) -> Candidate | None:
        try:
            plain = json.loads((folder / CANDIDATE).read_text(encoding="utf-8"))
            one = msgspec.convert(plain, Candidate, dec_hook=lambda kind, text: kind(text))
            if one.path is None:
                return one
            path = folder / MODEL
            return replace(one, path=path) if digest_of(path) == one.sha256 else None
        except (OSError, ValueError, msgspec.ValidationError):
            return None

    @contextmanager
    def new_candidate(self, name: str) -> Iterator[Path]:
        """Make a folder that becomes that of a candidate when the block ends: whole, or not at all."""
        with scratch(self.path) as place:
            whole = place / name
            whole.mkdir()
            yield whole
            final = self.place(name)
            shutil.rmtree(final, ignore_errors=True)
            whole.rename(final)

    def place(self, name: str) -> Path:
        """Return the folder of a candidate."""
        return self.path / _CANDIDATES / name

    def put_best(self, best: Candidate, recipe: str) -> None:
        """Put the best candidate's files where the user looks for them; the model last.

        Args:
            best: The candidate.
            recipe: The text of its quantkit.toml, as it reads there; "": it has none.
        """
        if best.path is None:
            return
        for name in _MAKING:
            own = best.path.parent / name
            if own.is_file():
                text = recipe if name == RECIPE_NAME else own.read_text(encoding="utf-8")
                replace_text(self.path / name, text)
            else:
                (self.path / name).unlink(missing_ok=True)
        external = [file for file in model_files(best.path) if file != best.path]
        for file in (*external, best.path):
            _copy(file, self.path / file.name)

    def _read(self) -> dict[str, Any] | None:
        try:
            plain = json.loads((self.path / _INDEX).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return plain if isinstance(plain, dict) and plain.get("format") == _FORMAT else None

    def _write(self, more: Mapping[str, Any]) -> None:
        index = {**(self._read() or {}), "format": _FORMAT, "identity": self.identity, **more}
        replace_text(self.path / _INDEX, json.dumps(index, indent=1) + "\n")


def _kept_record(one: Kept) -> dict[str, Any]:
    reason = {} if one.reason is None else one.reason.to_json()
    return {**reason, "mode": one.mode and one.mode.value}


def _kept_of(mode: str | None, **reason: Any) -> Kept:
    return Kept(
        Reason.from_json(**reason) if reason else None, None if mode is None else Mode(mode)
    )


def check_place(output: Path, read: Sequence[Path]) -> None:
    """Refuse a folder in which a search would overwrite what is read, or that is none."""
    check_folder(output, (*_OWN, _INDEX), read)


def places_in(folder: Path) -> tuple[Path, ...]:
    """Return the files and folders that a search writes in its folder."""
    return tuple(folder / name for name in (_INDEX, _CANDIDATES, _BASES, _WORK, *_OWN))


def _copy(source: Path, target: Path) -> None:
    if target.is_file() and digest_of(target) == digest_of(source):
        return
    with replacing(target) as file, source.open("rb") as read:
        shutil.copyfileobj(read, file, _BLOCK)
