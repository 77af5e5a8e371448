"""A smaller vocabulary: the tokens that texts use, and what the tokenizer needs for all others.

What is left computes what it did: the result is compared with the model as it was, both as onnxruntime runs them by default, on texts of the
corpus; all values must be equal, bit for bit.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantkit.calibration.origin import samples_origin
from quantkit.data.text import TextEncoder
from quantkit.errors import ModelError, NothingToQuantizeError, VerifyError
from quantkit.files import replacing, scratch
from quantkit.model.graph.save import copy_of
from quantkit.model.graph.view import view_of
from quantkit.pipeline.form import (
    Attempt,
    Draft,
    FloatModel,
    Form,
    LoadedModel,
    Prepared,
    Provenance,
    Reference,
)
from quantkit.pipeline.prepared import Job
from quantkit.pipeline.trim_result import TrimPlan, TrimResult
from quantkit.pipeline.trim_texts import Texts, open_texts
from quantkit.reduce.trim.corpus import FEW, Counts
from quantkit.reduce.trim.files import TOKENIZER, ids_beside
from quantkit.reduce.trim.graph import Tokens, token_uses, trim_graph
from quantkit.reduce.trim.pieces import Pieces
from quantkit.runtime.runs import run_session
from quantkit.runtime.session import make_session
from quantkit.settings import TrimSettings
from quantkit.settings.record import settings_record

_JUDGED, _UNCOVERED = 40, 32  # texts that both models run on; uncovered texts
_MATRIX = 2
_LOGITS_DB = 80.0  # products of other widths may add up in another order
_ON = "texts of the corpus"
_WIDER = 1.2  # times the bytes of a token
_UNPACKED = "A token takes more bytes than before, as blocks of bits run along tokens in this file: trim before you quantize."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared(Prepared):
    """With the texts, the tokens that they use, and those that stay in any case."""

    texts: Texts
    pieces: Pieces
    counts: Counts
    rows: int
    named: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _TrimDraft(Draft):
    """A plan, and the graph that it leads to."""

    plan: TrimPlan
    model: ir.Model
    tokenizer: TextEncoder | None


_Attempt = Attempt[_Prepared, _TrimDraft]


class TrimForm(Form[_Prepared, _TrimDraft]):
    """Leaves out the tokens that no text uses."""

    kind = "trim"
    reports = TrimResult
    job: Job[TrimSettings]

    @cached_property
    def folder(self) -> Path:
        """Where files are until the result has its place."""
        return self.files.enter_context(scratch())

    def prepare(self, source: LoadedModel) -> _Prepared:
        """Find the tables, and count the tokens of the texts."""
        texts = open_texts(source, self.job)
        pieces = Pieces.read(texts.encoder.file)
        model = copy_of(source.model)
        uses = token_uses(model, texts.ids, same_ids=self.job.options.keep_tokenizer)
        rows = uses.lookups[0].rows
        self.monitor.data_found(texts.samples.description)
        counts = texts.count(max(rows, 1 + max(pieces.names)), self.monitor)
        named = {texts.padding} | (ids_beside(texts.encoder.file) & pieces.names.keys())
        judged = [texts.feeds(one) for one in texts.some(_JUDGED)]
        ready = FloatModel(model=model, view=view_of(model, read_weights=False))
        return _Prepared(
            job=self.job,
            source=source,
            ready=ready,
            judged=judged,
            on=_ON,
            texts=texts,
            pieces=pieces,
            counts=counts,
            rows=rows,
            named=frozenset(named | uses.ids),
        )

    def plan(self, prepared: _Prepared) -> _TrimDraft:
        """Decide which tokens stay."""
        pieces, counts, options = prepared.pieces, prepared.counts, self.job.options
        ids = self._closed(prepared, counts.used)
        _require_rows(pieces, ids, prepared)
        coverage = counts.coverage(pieces)
        unknown = prepared.texts.padding if pieces.unknown is None else pieces.unknown
        kept = Tokens(
            ids=ids,
            rows=prepared.rows,
            unknown=unknown,
            inputs=prepared.texts.ids,
            logits=(),
            same_ids=options.keep_tokenizer,
        )
        if len(ids) >= prepared.rows:
            raise NothingToQuantizeError(
                f"Nothing to trim in {prepared.source.name}: all of its {prepared.rows:,} tokens are needed"
            )
        if self.writes and coverage.low < options.min_coverage:
            raise VerifyError(
                f"{coverage}: the lower end is below {options.min_coverage:.0%}. Nothing was written: give more texts, or allow it "
                "with --min-coverage."
            )
        model = copy_of(prepared.ready.model)
        kept, cuts = trim_graph(model, kept)
        tokenizer = None
        if not options.keep_tokenizer:
            tokenizer = prepared.texts.smaller(pieces, ids, self.folder)
        plan = TrimPlan(kept=kept, cuts=cuts, coverage=coverage)
        wider = any(cut.after / cut.before > _WIDER * len(ids) / prepared.rows for cut in cuts)
        return _TrimDraft(
            plan=plan, model=model, tokenizer=tokenizer, warnings=(_UNPACKED,) if wider else ()
        )

    def _closed(self, prepared: _Prepared, ids: list[int]) -> tuple[int, ...]:
        """Return what stays if these tokens do, in order."""
        return tuple(sorted(prepared.pieces.closed({*ids, *prepared.named})))

    def emit(self, prepared: _Prepared, draft: _TrimDraft) -> ir.Model:
        """Return the graph that was planned."""
        self.monitor.stage("Writing and comparing")
        return draft.model

    def record(self, prepared: _Prepared, draft: _TrimDraft) -> dict[str, Any]:
        """Return the options, what translates inputs and outputs, and the digest of the new tokenizer."""
        file = self.folder / TOKENIZER
        digest = sha256(file.read_bytes()).hexdigest() if draft.tokenizer else ""
        return {
            **settings_record(self.job.options, prepared.texts.settings),
            "tokens": draft.plan.kept.record(),
            "tokenizer": digest,
            "verify": self.output.verify,
            "external_data": self.output.external_data,
            "skip_bad": self.job.calibrate.skip_bad,
        }

    def origin(self, prepared: _Prepared) -> Provenance:
        """Add the texts to the origin."""
        found, texts = prepared.texts.samples, prepared.texts
        chosen = texts.settings
        order = {"limit": chosen.limit, "shuffle": chosen.shuffle, "seed": chosen.seed}
        data = samples_origin(found.description, found.fingerprint(), (), order, "tokens in use")
        return replace(super().origin(prepared), data=replace(data, samples=prepared.counts.texts))

    def reference(self, prepared: _Prepared, draft: _TrimDraft, reference: Reference) -> Reference:
        """Run the full model as the result is run: optimized; translate its inputs and outputs."""
        session = _session(prepared.source)
        runs = [(feeds, run_session(session, feeds)) for feeds, _ in reference.runs]
        feeds, outputs = runs[0]
        same = replace(reference, feeds=feeds, outputs=outputs, others=tuple(runs[1:]))
        return draft.plan.kept.translated(same)

    def check(self, attempt: _Attempt) -> None:
        """Refuse a result that computes anything else.

        Raises:
            VerifyError: An output differs.
        """
        checked, kept = attempt.checked, attempt.draft.plan.kept
        if checked is None:
            return
        least = {name: _LOGITS_DB if name in kept.logits else inf for name in checked.compared}
        wrong = [
            f"'{name}' ({db:.1f} dB)" for name, db in checked.compared.items() if db < least[name]
        ]
        wrong += [f"'{name}'" for name, found in checked.agreement.items() if found.share < 1]
        if wrong:
            raise VerifyError(
                f"Outputs differ from those of the full vocabulary: {', '.join(wrong)}. Nothing was written."
            )

    def inspect(self, attempt: _Attempt) -> dict[str, Any]:
        """Cut texts by both tokenizers, and find what uncovered texts lose."""
        self.monitor.stage("Cutting texts by both tokenizers")
        prepared, draft = attempt.prepared, attempt.draft
        found: dict[str, Any] = {}
        if draft.tokenizer is not None:
            unknown, ids = prepared.pieces.unknown, draft.plan.kept.ids
            found |= prepared.texts.require_same_pieces(draft.tokenizer, ids, unknown)
        self.monitor.stage("Running uncovered texts")
        return found | self._uncovered(prepared, draft)

    def _uncovered(self, prepared: _Prepared, draft: _TrimDraft) -> dict[str, Any]:
        """Return how near outputs stay for texts without the tokens that no other text has."""
        texts, places = prepared.texts, prepared.counts.uncovered(prepared.pieces)
        some = texts.some(_UNCOVERED, places)
        if not some:
            return {}
        session, unknown = _session(prepared.source), draft.plan.kept.unknown
        base = self._closed(prepared, np.flatnonzero(prepared.counts.common).tolist())
        smaller, cosines = None, []
        if draft.tokenizer is not None:
            smaller = texts.smaller(prepared.pieces, base, self.files.enter_context(scratch()))
        for one in some:
            feeds = texts.feeds(one)
            other = (
                texts.without(feeds, base, unknown)
                if smaller is None
                else texts.feeds_by(smaller, base, one)
            )
            cosines.append(_cosine(run_session(session, feeds), run_session(session, other)))
        return {"uncovered": len(some), "cosine": float(np.mean(cosines))}

    def place(self, attempt: _Attempt, path: Path) -> None:
        """Put the list of kept ids, and the new tokenizer, beside the model."""
        kept = self.folder / kept_file(path)
        ids = {"kept_ids": attempt.draft.plan.kept.ids, "written_by": "quantkit trim"}
        kept.write_text(json.dumps(ids) + "\n", encoding="utf-8")
        names = [kept.name, *([TOKENIZER] if attempt.draft.tokenizer else [])]
        for name in names:
            with replacing(path.with_name(name)) as file:
                file.write((self.folder / name).read_bytes())

    def warnings(self, attempt: _Attempt, common: list[str]) -> list[str]:
        """Return what the user should know."""
        coverage = attempt.draft.plan.coverage
        found = [*attempt.draft.warnings]
        if coverage.texts < FEW:
            found.append(
                f"Only {coverage.texts} texts: the next ones will use tokens that these do not. Give {FEW} or more."
            )
        return [*found, *common]


def kept_file(model: Path) -> str:
    """Return the name of the file beside a model that lists its kept ids."""
    return f"{model.stem}.kept_ids.json"


def _require_rows(pieces: Pieces, ids: Sequence[int], prepared: _Prepared) -> None:
    """Refuse tokens that the table has no row for."""
    if ids[-1] >= prepared.rows:
        named = pieces.names.get(ids[-1], "")
        raise ModelError(
            f"Token '{named}' has id {ids[-1]}, and the table of {prepared.source.name} has {prepared.rows} rows: the tokenizer "
            f"'{prepared.texts.encoder.file}' belongs to another model."
        )


def _session(source: LoadedModel) -> Any:
    """Load the full model as users do."""
    if source.path is not None:
        return make_session(str(source.path))
    assert source.proto is not None  # noqa: S101 - one of the two is given
    return make_session(source.proto.SerializeToString())


def _cosine(expected: Mapping[str, Any], actual: Mapping[str, Any]) -> float:
    """Return the cosine of the first output of floats, averaged over tokens, whose number may differ."""
    name = next(n for n, y in expected.items() if y.dtype.kind == "f")
    x, y = (_pooled(one[name]) for one in (expected, actual))
    return float(x @ y / max(np.linalg.norm(x) * np.linalg.norm(y), np.finfo(np.float32).tiny))


def _pooled(output: NDArray[Any]) -> NDArray[np.float64]:
    wide = output.astype(np.float64)
    return (wide.mean(axis=1) if wide.ndim > _MATRIX else wide).reshape(-1)
