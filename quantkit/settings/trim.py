"""The table [trim]: a smaller vocabulary."""

from dataclasses import dataclass

from quantkit.settings.declare import Settings, Share, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimSettings(Settings):
    """Which form a smaller vocabulary has, and how many of the next texts it must cover.

    Uncovered texts of MiniLM have a cosine of .905 to those of the full vocabulary (60 sentences, PRUNING.md). With one in ten of them the
    average text loses .0095, about as much as by 8-bit dynamic quantization (.0074): hence a `min_coverage` of 90 %.
    """

    keep_tokenizer: bool = setting(
        "Keep the tokenizer and its ids: the model maps them to rows. Default: a new tokenizer.json with new ids.",
        default=False,
        flag="--keep-tokenizer",
    )
    min_coverage: Share = setting(
        "Least share of the next texts that kept tokens must cover, judged by the lower end of the 95% interval. Default: 90%; 0 allows any.",
        "SHARE",
        default=0.9,
        ge=0,
        le=1,
    )
