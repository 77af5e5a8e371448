"""What people have, an image, a text or a row, made into the model's inputs, and its outputs into classes or embeddings.

Prepared by the code that calibration and evaluation run, with the settings that stand in the model, else in quantkit.toml.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec
import numpy as np

from quantkit.data.model import InputSpec
from quantkit.data.pixels import ImageSizeError, read_image
from quantkit.data.preprocessing import Preprocessing, image_input, preprocessing
from quantkit.data.text import looks_like_text, text_encoder
from quantkit.deploy.serve.engine import Engine
from quantkit.deploy.serve.protocol import (
    DTYPES,
    Array,
    Port,
    RequestError,
    checked,
    from_json,
    plain_values,
    read_json,
)
from quantkit.errors import DataError, QuantkitError, UsageError
from quantkit.settings import DataSettings, ImageSettings
from quantkit.settings.record import carried_by

Mode = Literal["mean", "cls", "none"]
POOLINGS: tuple[Mode, ...] = get_args(Mode)
_TOKENS = 3  # axes of an output with a vector for each token
_ENCODED = ("hidden_state", "token_embedding")  # in the name of such an output
_FILE = Path("1_Pooling/config.json")  # as sentence-transformers writes it


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooling:
    """How vectors of tokens become one.

    Attributes:
        mode: One of `POOLINGS`.
        output: The output with the vectors; "": there is none.
        mask: The input that is 0 where a token is padding; "": there is none.
    """

    mode: str = "none"
    output: str = ""
    mask: str = ""


def stored_pooling(model: Path) -> Mode | None:
    """Return the mode that stands next to a model, or above its folder; None if none of `POOLINGS` does."""
    for folder in (model.parent, model.resolve().parent.parent):
        with suppress(OSError, ValueError):
            plain = json.loads((folder / _FILE).read_text(encoding="utf-8"))
            chosen = [key for key, value in plain.items() if value is True and "mode" in key]
            modes: dict[str, Mode] = {
                "pooling_mode_mean_tokens": "mean",
                "pooling_mode_cls_token": "cls",
            }
            return modes.get(chosen[0]) if len(chosen) == 1 else None
    return None


def choose_pooling(mode: str | None, model: Path, outputs: Sequence[Port], mask: str) -> Pooling:
    """Return how a text encoder's answers are pooled.

    Args:
        mode: What the user set; None: as the file next to the model says, else the mean if the first output is named as
            that of an encoder.
        model: The model file.
        outputs: Its outputs.
        mask: The input that is 0 where a token is padding.
    """
    tokens = [p.name for p in outputs if len(p.shape) == _TOKENS and p.datatype[:2] == "FP"]
    named = [name for name in tokens if any(word in name.lower() for word in _ENCODED)]
    output = next(iter(named or tokens), "")
    usual = "mean" if outputs and outputs[0].name in named else "none"
    found = mode or (stored_pooling(model) if tokens else None) or usual
    return Pooling(mode=found, output=output, mask=mask)


def embedded(
    runs: Sequence[tuple[Mapping[str, Array], Mapping[str, Array]]], how: Pooling, *, unit: bool
) -> dict[str, Any]:
    """Return the answer with one vector for each row.

    Args:
        runs: Inputs and outputs of each.
        how: The mode, which is not "none".
        unit: Divide each vector by its length.

    Raises:
        RequestError: The model has no output with a vector for each token.
    """
    if not how.output:
        raise RequestError("pooling needs a vector for each token, and no output has three axes.")
    vectors = np.concatenate(
        [_pooled(outputs[how.output], feeds.get(how.mask), how.mode) for feeds, outputs in runs]
    )
    if unit:
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)
    return {
        "output": how.output,
        "pooling": how.mode,
        "normalized": unit,
        "embeddings": vectors.astype(np.float32).tolist(),
    }


def _pooled(tokens: Array, mask: Array | None, mode: str) -> Array:
    values = tokens.astype(np.float64)
    if mask is None or mask.shape != values.shape[:2]:
        mask = np.ones(values.shape[:2])
    if mode == "cls":
        first = np.argmax(mask != 0, axis=1)  # padding may stand on the left
        found: Array = values[np.arange(len(values)), first]
        return found
    weights = (mask != 0).astype(np.float64)[..., np.newaxis]
    return np.asarray((values * weights).sum(axis=1) / np.maximum(weights.sum(axis=1), 1.0))


# Characters of a text: tokenizers read all of it before they cut it, at some megabytes a second or less.
_LONGEST = 1 << 18
_MOST_TEXTS = 256  # in one request
_MOST_COLONS = 1 << 16
_MOST_PARTS = 64  # of a form
_SCORES = 2  # axes of an output that scores classes
_TOP, _MOST_CLASSES = 5, 1000  # in an answer
_JSON, _BYTES = "application/json", "application/octet-stream"
_UNSAID = "neither the model nor quantkit.toml says how inputs are prepared"

Feeds = dict[str, Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What came in: its type (without parameters) and its bytes."""

    kind: str
    content: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a caller asks of an answer.

    Attributes:
        top: How many classes; None: not asked.
        softmax: Make probabilities of scores.
        pooling: One of `POOLINGS`; None: as the server is set up.
        normalize: Divide embeddings by their length.
    """

    top: int | None = None
    softmax: bool = False
    pooling: str | None = None
    normalize: bool = True

    @property
    def classes(self) -> bool:
        """Whether scores of classes are asked for."""
        return self.softmax or self.top is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictor:
    """How a model is asked and what its answers mean.

    Attributes:
        inputs: What the model takes.
        image: Image file -> inputs; None: it takes no images, and `no_image` says why.
        text: Text -> inputs; None: likewise.
        no_image: Why it takes no images.
        no_text: Why it takes no texts.
        labels: Names of the classes; empty: not known.
        lines: How inputs are prepared, for people.
        notes: What may be wrong with that.
        pooling: How vectors of tokens become one.
    """

    inputs: tuple[Port, ...]
    image: Callable[[bytes], Feeds] | None = None
    text: Callable[[str], Feeds] | None = None
    no_image: str = _UNSAID
    no_text: str = _UNSAID
    labels: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    pooling: Pooling = field(default_factory=Pooling)

    def runs(self, sent: Sent) -> list[Feeds]:
        """Return the inputs of each run: one for each text of a list, else one.

        A text is answered as if it came alone: other texts change neither its length nor its ranges.

        Raises:
            RequestError: As `feeds`, or there are too many texts.
        """
        raw = bytes(read_json(sent.content, _ASKED).text) if sent.kind == _JSON else b""
        if raw[:1] != b"[":
            return [self.feeds(sent)]
        texts = from_json(raw, Port(name="text", datatype="BYTES", shape=(None,)))
        if texts.ndim != 1 or len(texts) > _MOST_TEXTS:
            raise RequestError(f"text is one text, or a list of up to {_MOST_TEXTS}.", 413)
        self._check_length(sum(map(len, texts)))
        return [self._of_text(text) for text in texts]

    def reply(
        self, runs: Sequence[tuple[Feeds, Mapping[str, Array]]], wanted: "Wanted"
    ) -> dict[str, Any]:
        """Return what the outputs of runs mean; raises `RequestError` if they cannot mean what is wanted.

        Args:
            runs: Inputs and outputs of each.
            wanted: What the caller asked for.
        """
        mode = wanted.pooling or self.pooling.mode
        if mode != "none" and not wanted.classes:
            return embedded(runs, replace(self.pooling, mode=mode), unit=wanted.normalize)
        found = [
            answer(outputs, self.labels, wanted.top, softmax=wanted.softmax) for _, outputs in runs
        ]
        if len(found) == 1:
            return found[0]
        if all("predictions" in one for one in found):
            rows = [row for one in found for row in one["predictions"]]
            return {**found[0], "predictions": rows}
        return {"results": found}

    def feeds(self, sent: Sent) -> Feeds:
        """Return the model's inputs.

        Raises:
            RequestError: The model takes no such thing, or it cannot be read.
        """
        # Bytes of no said type are what the model takes.
        text = sent.kind == "text/plain" or (sent.kind == _BYTES and self.text is not None)
        if sent.kind.startswith("image/") or (sent.kind == _BYTES and not text):
            return self._of_image(sent.content)
        if text:
            return self._of_text(_utf8(sent.content))
        if sent.kind == _JSON:
            return self._of_json(sent.content)
        raise RequestError(
            f"'{sent.kind}' is no content type of /predict: send image/..., text/plain, application/json or a form "
            "with a file.",
            415,
        )

    def _of_image(self, content: bytes) -> Feeds:
        if self.image is None:
            raise RequestError(f"Images are not taken: {self.no_image}.", 415)
        try:
            return self.image(content)
        except ImageSizeError as e:
            raise RequestError("The image has more pixels than are taken here.", 413) from e
        except ValueError as e:
            raise RequestError(f"The image cannot be read: {_line(e)}.") from e

    def _of_text(self, text: str) -> Feeds:
        if self.text is None:
            raise RequestError(f"Texts are not taken: {self.no_text}.", 415)
        self._check_length(len(text))
        try:
            return self.text(text)
        except (DataError, ValueError) as e:
            raise RequestError(f"The text cannot be used: {_line(e)}.") from e

    def _check_length(self, characters: int) -> None:
        if characters > _LONGEST:
            raise RequestError(
                f"The text has {characters} characters; up to {_LONGEST} are taken.", 413
            )

    def _of_json(self, content: bytes) -> Feeds:
        """Read {"text": ...}, {"input": [...]}, or {"inputs": {name: [...]}}."""
        asked: _Asked = read_json(content, _ASKED)
        text, single, named = (bytes(raw) for raw in (asked.text, asked.input, asked.inputs))
        if text:
            return self._of_text(read_json(text, _TEXT))
        if single and len(self.inputs) == 1:
            return {self.inputs[0].name: _row(self.inputs[0], single)}
        # Their names are few; a colon may also stand in a text.
        if named[:1] == b"{" and named.count(b":") <= _MOST_COLONS:
            given = read_json(named, _NAMED)
            if set(given) == {port.name for port in self.inputs}:
                return {port.name: _row(port, bytes(given[port.name])) for port in self.inputs}
        takes = "; ".join(str(port) for port in self.inputs)
        raise RequestError(
            'Send {"text": "..."}, {"text": ["...", "..."]}, {"input": [...]} or {"inputs": {"name": [...]}}; the model takes '
            f"{takes}."
        )


class _Asked(msgspec.Struct):
    """A request of JSON; the parts are read when it is known which of them is meant."""

    text: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()
    inputs: msgspec.Raw = msgspec.Raw()


_ASKED = msgspec.json.Decoder(_Asked)
_NAMED = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TEXT = msgspec.json.Decoder(str)


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")[:300]


def _utf8(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as e:
        raise RequestError("The text is no UTF-8.") from e


def _row(port: Port, raw: bytes) -> Array:
    """Return a row, or several, as the model takes them: the batch axis may be left out."""
    array = from_json(raw, port)
    return checked(port, array[np.newaxis] if array.ndim == len(port.shape) - 1 else array)


def read_labels(file: Path | None) -> tuple[str, ...]:
    """Return the names of the classes, one on each line of a file; none without one.

    Raises:
        UsageError: It cannot be read, or is empty.
    """
    if file is None:
        return ()
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        why = (e.strerror if isinstance(e, OSError) else "") or e
        raise UsageError(f"Cannot read the labels '{file}': {why}.") from e
    found = tuple(line.strip() for line in text.splitlines() if line.strip())
    if not found:
        raise UsageError(f"The labels '{file}' are empty: write the name of a class on each line.")
    return found


def predictor(
    engine: Engine,
    data: DataSettings,
    labels: Sequence[str],
    memory: int,
    pooling: str | None = None,
) -> Predictor:
    """Return how a model is asked.

    Args:
        engine: The model.
        data: What quantkit.toml says of samples.
        labels: Names of the classes, over those in the model.
        memory: Bytes that a decoded image may take.
        pooling: How vectors of tokens become one; None: as the model's folder says, else by the names of outputs.

    Raises:
        UsageError: quantkit.toml prepares inputs otherwise than the model says.
    """
    specs = tuple(
        InputSpec(name=port.name, dtype=DTYPES[port.datatype], shape=port.shape)
        for port in engine.inputs
    )
    carried = carried_by(engine.metadata)
    names = tuple(labels) or (carried.labels if carried else ())
    found = Predictor(inputs=engine.inputs, labels=names, notes=_misnamed(names, engine.outputs))
    if looks_like_text(specs):
        text = carried.data.text if carried else data.text
        text = replace(
            text,
            tokenizer=data.text.tokenizer,
            search=(engine.path.parent, *data.text.search),
        )
        return _for_text(found, replace(data, text=text), specs, engine, pooling)
    image = carried.data.image if carried else ImageSettings()
    # A model that was calibrated on arrays carries settings that say nothing of images.
    return _for_images(
        found, specs, data.image, image if image != ImageSettings() else None, memory
    )


def _misnamed(labels: Sequence[str], outputs: Sequence[Port]) -> tuple[str, ...]:
    """Say that there are more or fewer labels than classes, in which case none is used."""
    widths = [port.shape[-1] for port in outputs if len(port.shape) == _SCORES]
    if not labels or not widths or any(n in (None, len(labels)) for n in widths):
        return ()
    given = "; ".join(str(port) for port in outputs)
    said = f"There are {len(labels)} labels and no output with as many classes ({given})"
    return (f"{said}: /predict names no classes.",)


def _for_images(
    found: Predictor,
    specs: Sequence[InputSpec],
    told: ImageSettings,
    carried: ImageSettings | None,
    memory: int,
) -> Predictor:
    takes = "the model takes no images"
    try:
        spec = image_input(specs)
        steps = preprocessing(told if carried is None else carried, spec)
        if carried is not None and told != ImageSettings():
            _check_same(steps, preprocessing(told, spec))
    except DataError:
        return replace(found, no_image=takes, no_text="the model takes no texts")
    except UsageError as e:
        if carried is not None:
            raise
        return replace(found, no_image=_line(e), no_text="the model takes no texts")
    return replace(
        found,
        image=lambda content: {spec.name: read_image(BytesIO(content), steps, memory)},
        no_text="the model takes images",
        lines=steps.lines,
        notes=(*found.notes, *(steps.warnings if carried is None else ())),
    )


def _check_same(carried: Preprocessing, told: Preprocessing) -> None:
    if carried.identity() == told.identity():
        return
    there, here = carried.settings(), told.settings()
    name = next((n for n in there if there[n] != here[n]), "size")
    raise UsageError(
        f"The settings prepare images otherwise than the model was calibrated with ({name}: {here[name]}, the model "
        f"{there[name]}): leave out the flag or [data.image] in quantkit.toml, or calibrate again."
    )


def _for_text(
    found: Predictor,
    data: DataSettings,
    specs: Sequence[InputSpec],
    engine: Engine,
    pooling: str | None,
) -> Predictor:
    takes = "the model takes texts"
    try:
        encoder = text_encoder(data.text, specs, None)
    except QuantkitError as e:
        return replace(found, no_image=takes, no_text=_line(e))
    mask = next((n for n, field in encoder.fields.items() if field == "attention_mask"), "")
    how = choose_pooling(pooling, engine.path, engine.outputs, mask)
    said = f"embeddings: {how.mode} of '{how.output}', length 1" if how.mode != "none" else ""
    return replace(
        found,
        text=lambda text: encoder.feeds([text], threads=True),
        no_image=takes,
        lines=(*encoder.lines, *([said] if said else [])),
        pooling=how,
    )


def part_of(content: bytes, content_type: str) -> Sent:
    """Return the first file of a form (multipart/form-data), else its first field.

    Raises:
        RequestError: It is not such a form, or an empty one.
    """
    from python_multipart.exceptions import FormParserError
    from python_multipart.multipart import Field, File, FormParser, parse_options_header

    found: list[Field | File] = []

    def take(part: Field | File) -> None:
        found.append(part)
        if len(found) > _MOST_PARTS:
            said = f"The form has more than {_MOST_PARTS} parts: send one with the file."
            raise RequestError(said)

    boundary = parse_options_header(content_type)[1].get(b"boundary")
    if not boundary:
        raise RequestError("The form has no boundary in its content type.")
    in_memory = {"MAX_MEMORY_FILE_SIZE": len(content) + 1}
    try:
        form = FormParser("multipart/form-data", take, take, boundary=boundary, config=in_memory)
        form.write(content)
        form.finalize()
    except FormParserError as e:
        raise RequestError(f"The form is damaged: {_line(e)}.") from e
    if not found:
        raise RequestError("The form is damaged or empty: send one part with the file.")
    first = next((part for part in found if isinstance(part, File)), found[0])
    if isinstance(first, File):  # many clients send a file without saying what it is
        first.file_object.seek(0)
        usual, sent = _BYTES, first.file_object.read()
    else:
        usual, sent = "text/plain", first.value or b""
    kind = (first.content_type or usual).partition(";")[0].strip().lower()
    return Sent(kind=kind, content=sent)


def answer(
    outputs: Mapping[str, Array], labels: Sequence[str], top: int | None, *, softmax: bool
) -> dict[str, Any]:
    """Return what the outputs mean: the best classes of each row, where there are scores of classes; else the values.

    A table of floats has scores if classes have names, if it is called so, or if the caller asks for the best.

    Args:
        outputs: Of the model.
        labels: Names of the classes.
        top: How many classes; None: nobody asked.
        softmax: Make probabilities of scores.

    Raises:
        RequestError: Classes are asked for, and there are none.
    """
    asked = softmax or top is not None
    tables = {n: a for n, a in outputs.items() if _is_table(a)}
    name = next((n for n, a in tables.items() if asked or _has_scores(n, a, labels)), None)
    if name is None:
        if asked:
            raise RequestError("top_k and softmax need scores of classes, and no output has them.")
        return {"outputs": {n: plain_values(a) for n, a in outputs.items()}}
    scores = np.asarray(outputs[name], np.float64)
    kind = "as the model gives them"
    if softmax:
        with np.errstate(invalid="ignore"):  # of scores that are not finite nothing can be said
            scores = np.exp(scores - scores.max(axis=1, keepdims=True))
            scores /= scores.sum(axis=1, keepdims=True)
        kind = "softmax of what the model gives"
    rows = _best_classes(scores, labels, min(top or _TOP, _MOST_CLASSES))
    return {"output": name, "scores": kind, "predictions": rows}


def _best_classes(scores: Array, labels: Sequence[str], most: int) -> list[list[dict[str, Any]]]:
    """Return the best classes of each row, named where there is a label for each."""
    order = np.argsort(-scores, axis=1, kind="stable")[:, :most]
    named = labels if len(labels) == scores.shape[1] else ()
    return [
        [
            {"class": int(i), **({"label": named[i]} if named else {}), "score": float(row[i])}
            for i in best
        ]
        for row, best in zip(scores, order, strict=True)
    ]


def _is_table(array: Array) -> bool:
    return array.dtype.kind == "f" and array.ndim == _SCORES and array.shape[1] > 1


def _has_scores(name: str, array: Array, labels: Sequence[str]) -> bool:
    called = any(word in name.lower() for word in ("logit", "score", "prob", "softmax", "class"))
    return called or len(labels) == array.shape[1]
