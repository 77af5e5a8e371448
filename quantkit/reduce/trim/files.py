"""The files beside a model that name token ids: config.json and its like, and the vocabulary in other formats."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from quantkit.errors import DataError

TOKENIZER = "tokenizer.json"
_CONFIGS = ("config.json", "generation_config.json", "tokenizer_config.json")
_ID_ENDS = ("_token_id", "_token_ids", "suppress_tokens", "bad_words_ids")
# Weights in other formats belong to the full vocabulary, and so do binary vocabularies, which cannot be cut.
LEFT_OUT = (".onnx", ".onnx_data", ".data", ".bin", ".safetensors", ".model", ".msgpack", ".h5")


def ids_beside(tokenizer: Path) -> set[int]:
    """Return the token ids that config files beside a tokenizer name."""
    return {i for name in _CONFIGS[:2] for i in _named(read_object(tokenizer.with_name(name)))}


def rewritten(
    file: Path, number: Mapping[int, int], rows: int, tokenizer: Mapping[str, Any]
) -> str | None:
    """Return the text of a file beside a model with new ids; None for a file that names none.

    Args:
        file: The file.
        number: New ids by old ones.
        rows: How many tokens there were.
        tokenizer: The new tokenizer.json.
    """
    vocabulary, merges = tokenizer["model"]["vocab"], tokenizer["model"].get("merges", [])
    if file.name == "vocab.txt":
        lines = file.read_text(encoding="utf-8").splitlines()
        return "".join(f"{lines[old]}\n" for old in number if old < len(lines))
    if file.name == "merges.txt":
        return "".join(f"{m if isinstance(m, str) else ' '.join(m)}\n" for m in merges)
    if file.name == "vocab.json":
        return _text(vocabulary)
    if file.name == "added_tokens.json":
        return _text({token: number[i] for token, i in read_object(file).items() if i in number})
    return _text(_renumbered(read_object(file), number, rows)) if file.name in _CONFIGS else None


def read_object(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file; an empty one if there is no file.

    Raises:
        DataError: It cannot be read.
    """
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as e:
        raise DataError(f"Cannot read '{file}': {e}.") from e
    return found if isinstance(found, dict) else {}


def _text(plain: Any) -> str:
    return json.dumps(plain, ensure_ascii=False, indent=2) + "\n"


def _named(plain: Any, key: str = "") -> Iterator[int]:
    """Yield the ids that settings name."""
    if isinstance(plain, dict):
        for name, value in plain.items():
            yield from _named(value, name)
    for value in plain if isinstance(plain, list) else [plain]:
        if isinstance(value, list):
            yield from _named(value, key)
        elif isinstance(value, int) and key.endswith(_ID_ENDS):
            yield value


def _renumbered(plain: Any, number: Mapping[int, int], rows: int, key: str = "") -> Any:
    if isinstance(plain, dict):
        found = {name: _renumbered(value, number, rows, name) for name, value in plain.items()}
        if key != "added_tokens_decoder":
            return found
        return {str(number[int(i)]): value for i, value in found.items() if int(i) in number}
    if isinstance(plain, list):
        return [_renumbered(value, number, rows, key) for value in plain]
    if key == "vocab_size":
        return len(number) if plain == rows else plain
    return number.get(plain, plain) if key.endswith(_ID_ENDS) else plain
