"""Text through a `tokenizer.json` into a text encoder's inputs.

Truncated to `max_length`; padded only where the model's sequence extent is fixed. Whatever padding
tokenizer.json has stored is switched off: a batch is padded to its longest text when it is made
(`quantkit.data.model.collate`), and a text run alone needs none.
"""

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from quantkit.data.model import Array, InputSpec, Padding
from quantkit.data.rows import quoted
from quantkit.errors import DataError, UsageError
from quantkit.installation import install_command
from quantkit.settings import TextSettings

_LONGEST = 512  # BERT's limit, for a tokenizer and a model that state none
_TEXT_RANK = 2
_SHOWN = 12  # digits of a digest
# The fields of tokenizers.Encoding, and the names that exported models give to them.
_FIELDS: Mapping[str, frozenset[str]] = {
    "ids": frozenset(
        ("ids", "input_ids", "input", "inputs", "input_word_ids", "token_ids", "tokens", "x")
    ),
    "attention_mask": frozenset(("attention_mask", "input_mask", "mask", "padding_mask")),
    "type_ids": frozenset(
        ("type_ids", "token_type_ids", "segment_ids", "input_type_ids", "token_types")
    ),
    "special_tokens_mask": frozenset(("special_tokens_mask",)),
    "position_ids": frozenset(("position_ids", "positions")),
}
_PAD_TOKENS = ("[PAD]", "<pad>", "<|pad|>", "<|endoftext|>", "</s>")


def _field(spec: InputSpec) -> str | None:
    """Return the field that feeds an input: by its name, less a path before and ":0" after it."""
    name = spec.name.rpartition("/")[2].partition(":")[0].lower().replace("-", "_")
    return next((field for field, names in _FIELDS.items() if name in names), None)


def id_inputs(inputs: Sequence[InputSpec]) -> tuple[str, ...]:
    """Return the names of the inputs that take token ids."""
    return tuple(spec.name for spec in inputs if _is_text(spec) and _field(spec) == "ids")


def _is_text(spec: InputSpec) -> bool:
    return (
        len(spec.shape) == _TEXT_RANK
        and spec.dtype.kind in "iu"
        and spec.dtype.itemsize >= np.dtype(np.int32).itemsize
        and _field(spec) is not None
    )


def looks_like_text(inputs: Sequence[InputSpec]) -> bool:
    """Return True if some input takes token ids."""
    return bool(id_inputs(inputs))


@dataclass(frozen=True, slots=True, kw_only=True)
class TextEncoder:
    """A tokenizer set up for a model. Encoding changes nothing in it, so threads may share it.

    Attributes:
        tokenizer: `tokenizers.Tokenizer`, truncating and perhaps padding.
        file: The tokenizer.json that it was read from.
        fields: Input name -> field of the encoding.
        dtypes: Input name -> dtype.
        padding: How a batch is padded; None where the model's extent is fixed.
        lines: The steps in words.
    """

    tokenizer: Any
    file: Path
    fields: Mapping[str, str]
    dtypes: Mapping[str, np.dtype[Any]]
    padding: Padding | None
    lines: tuple[str, ...]

    def feeds(self, texts: Sequence[str], *, threads: bool = False) -> dict[str, Array]:
        """Return the arrays for a text or a pair of texts, each of shape [1, length].

        Args:
            texts: One, or a pair.
            threads: Let other threads run meanwhile. tokenizers keeps Python's lock but for batches, after which it
                complains of processes that fork.
        """
        if threads:
            encoding = self.tokenizer.encode_batch([texts[0] if len(texts) == 1 else tuple(texts)])[
                0
            ]
        else:
            encoding = self.tokenizer.encode(*texts)
        if not encoding.ids:
            raise DataError("the text has no tokens")
        return {
            name: np.asarray(
                [range(len(encoding)) if field == "position_ids" else getattr(encoding, field)],
                self.dtypes[name],
            )
            for name, field in self.fields.items()
        }

    def settings(self) -> dict[str, str]:
        """Return what tells two encoders apart, by name; the tokenizer by its digest, whatever its file is called."""
        plain = json.loads(self.tokenizer.to_str())
        length = (plain.pop("truncation", None) or {}).get("max_length")
        plain.pop("padding", None)
        digest = sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
        return {"tokenizer": digest[:_SHOWN], "max_length": str(length)}

    def identity(self) -> str:
        """Return what tells two encoders apart, for a fingerprint."""
        return repr((self.tokenizer.to_str(), sorted(self.fields.items())))


def text_encoder(
    settings: TextSettings, inputs: Sequence[InputSpec], beside: Path | None
) -> TextEncoder:
    """Return the encoder for a model.

    Args:
        settings: The tokenizer and its length.
        inputs: What the model wants.
        beside: The data's folder, where tokenizer.json may stand.

    Raises:
        DataError: There is no tokenizer, or an input that text cannot feed.
    """
    strange = [str(spec) for spec in inputs if not _is_text(spec)]
    if strange:
        raise DataError(
            f"Text cannot feed the model's input {quoted(strange)}: give --data .npz files with an "
            "array for each input."
        )
    file = find_tokenizer(settings, beside)
    tokenizer = _load(file)
    fixed = _fixed_length(inputs)
    length = _length(settings, tokenizer, fixed)
    pad_id, pad_type, left = _pad(tokenizer)
    tokenizer.no_padding()
    tokenizer.enable_truncation(length)
    if fixed is not None:
        tokenizer.enable_padding(
            direction="left" if left else "right", pad_id=pad_id, pad_type_id=pad_type, length=fixed
        )
    fields = {spec.name: _field(spec) or "" for spec in inputs}
    fill = {"ids": pad_id, "type_ids": pad_type, "special_tokens_mask": 1}
    values = {name: fill.get(field, 0) for name, field in fields.items()}
    return TextEncoder(
        tokenizer=tokenizer,
        file=file,
        fields=fields,
        dtypes={spec.name: spec.dtype for spec in inputs},
        padding=Padding(values=values, left=left) if fixed is None else None,
        lines=(
            f"tokens by {file.name}, at most {length}",
            f"padded to {fixed}" if fixed else f"batches padded with {pad_id}, mask 0",
        ),
    )


def find_tokenizer(settings: TextSettings, beside: Path | None) -> Path:
    """Return the tokenizer.json that is set, else the one beside the data or the model.

    Raises:
        DataError: There is none.
    """
    if settings.tokenizer is not None:
        given = settings.tokenizer
        file = given / "tokenizer.json" if given.is_dir() else given
        if not file.is_file():
            raise DataError(f"There is no tokenizer '{file}': set --tokenizer FILE.")
        return file
    # A model of the Hub is in a folder of its own, onnx/, below its tokenizer.
    temporary = Path(tempfile.gettempdir()).resolve()
    above = (folder.resolve().parent for folder in settings.search)
    near = [folder for folder in above if folder != temporary]
    folders = [*([beside] if beside else []), *settings.search, *near, Path.cwd()]
    folders = list(dict.fromkeys(folders))
    for folder in folders:
        if (folder / "tokenizer.json").is_file():
            return folder / "tokenizer.json"
    looked = quoted([str(folder) for folder in folders]) or "no folder"
    raise DataError(
        f"A text column needs a tokenizer.json: --tokenizer FILE (there is none in {looked})."
    )


def _load(file: Path) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError as e:
        raise DataError(f"Text needs the package 'tokenizers': {install_command('text')}.") from e
    try:
        return Tokenizer.from_file(str(file))
    except Exception as e:  # tokenizers raises no narrower class
        raise DataError(f"Cannot read the tokenizer '{file}': {e}.") from e


def _fixed_length(inputs: Sequence[InputSpec]) -> int | None:
    extents = {spec.shape[1] for spec in inputs} - {None}
    if len(extents) > 1:
        named = quoted([str(spec) for spec in inputs])
        raise DataError(f"The inputs {named} have different lengths: give --data .npz files.")
    return next(iter(extents), None)


def _length(settings: TextSettings, tokenizer: Any, fixed: int | None) -> int:
    if settings.max_length is not None:
        if fixed is not None and settings.max_length > fixed:
            raise UsageError(
                f"max_length '{settings.max_length}' is more than the model's fixed length of "
                f"{fixed}: set {fixed} or less."
            )
        return settings.max_length
    own = tokenizer.truncation["max_length"] if tokenizer.truncation else (fixed or _LONGEST)
    return int(own if fixed is None else min(own, fixed))


def _pad(tokenizer: Any) -> tuple[int, int, bool]:
    """Return pad id, pad type id, and whether to pad on the left."""
    stored = tokenizer.padding
    if stored:
        return stored["pad_id"], stored["pad_type_id"], stored["direction"] == "left"
    ids = (tokenizer.token_to_id(token) for token in _PAD_TOKENS)
    # Without any pad token the mask alone tells padding apart.
    return next((i for i in ids if i is not None), 0), 0, False
