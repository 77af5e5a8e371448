"""What trimming a vocabulary plans and reports."""

from dataclasses import dataclass
from typing import Any

from quantkit.pipeline.result import FormResult
from quantkit.reduce.trim.corpus import Coverage
from quantkit.reduce.trim.graph import Cut, Tokens
from quantkit.text import human


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimPlan:
    """Which tokens stay, and what becomes smaller.

    Attributes:
        kept: The tokens.
        cuts: Parts of the file with a value or a row per token.
        coverage: How many of the next texts kept tokens cover.
    """

    kept: Tokens
    cuts: tuple[Cut, ...]
    coverage: Coverage

    def __str__(self) -> str:
        kept, rows = len(self.kept.ids), self.kept.rows
        ids = "the old ids" if self.kept.same_ids else "new ids"
        return f"{kept:,} of {rows:,} tokens kept ({kept / rows:.1%}), with {ids}; {self.coverage}"

    @property
    def changes(self) -> bool:
        """Whether it changes anything."""
        return len(self.kept.ids) < self.kept.rows

    def to_json(self) -> dict[str, Any]:
        """Return plain data; the ids themselves stand in the model."""
        cuts = [
            {"part": c.part, "constants": list(c.constants), "before": c.before, "after": c.after}
            for c in self.cuts
        ]
        return {
            "kept": len(self.kept.ids),
            **self.kept.record(),
            "parts": cuts,
            "coverage": self.coverage.to_json(),
        }


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TrimResult(FormResult):
    """What was trimmed, and what it costs texts that it does not cover.

    Attributes:
        compared: Texts that both tokenizers cut.
        differ: Of these, texts with unknown words that are cut differently.
        uncovered: Texts with a token that no other text has.
        cosine: Mean cosine of the outputs for them, without these tokens, to those with; None: there is no such text.
        files: What was written beside the model.
        left_out: Files of the folder that were not copied.
    """

    plan: TrimPlan
    compared: int = 0
    differ: int = 0
    uncovered: int = 0
    cosine: float | None = None
    files: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def parts(self) -> dict[str, tuple[int, int]]:
        """Bytes before and after, by part of the file."""
        found = {cut.part: (cut.before, cut.after) for cut in self.plan.cuts}
        before, after = (sum(side) for side in zip(*found.values(), strict=True))
        return found | {"rest": (self.input_bytes - before, self.output_bytes - after)}

    def _runs(self) -> list[str]:
        parts = (f"{name} {human(b)} -> {human(a)}" for name, (b, a) in self.parts.items())
        found = [", ".join(parts)]
        if self.cosine is not None:
            found.append(
                f"uncovered texts: cosine of outputs {self.cosine:.3f} on average ({self.uncovered} texts)"
            )
        return found

    def _inside(self) -> dict[str, Any]:
        return {
            "parts": {n: {"before": b, "after": a} for n, (b, a) in self.parts.items()},
            "tokenizer": {"compared": self.compared, "differ": self.differ},
            "uncovered": {"texts": self.uncovered, "cosine": self.cosine},
            "files": list(self.files),
            "left_out": list(self.left_out),
        }
