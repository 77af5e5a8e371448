"""Images, texts and rows come to the model as in calibration, and its scores come back as classes."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import graph, model, node, save, weight
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto
from PIL import Image
from serve_cases import Server, linear, serving

from quantkit.data import InputSpec, open_data
from quantkit.deploy.serve.engine import load_engine
from quantkit.deploy.serve.predict import Predictor, Sent, Wanted, answer, part_of, predictor
from quantkit.deploy.serve.protocol import RequestError
from quantkit.errors import UsageError
from quantkit.settings import DataSettings, ImageSettings, TextSettings
from quantkit.settings.record import CARRIED, Carried, carried_text

IMAGE = ImageSettings(resize=10, crop=8, mean=(0.5,), std=(0.25,), channels="BGR")
FORM = "multipart/form-data; boundary=zz"
LABELS = ("cat", "dog", "owl", "fox")
MEMORY = 1 << 24


def photo_model(folder: Path, carried: Carried | None = None) -> Path:
    """Return a model that gives back what it gets: x [batch, 3, 8, 8] -> y; and scores of four classes."""
    made = model(
        graph(
            [
                node("Identity", ["x"], ["seen"]),
                node("Flatten", ["x"], ["f"]),
                node("MatMul", ["f", "w"], ["logits"]),
            ],
            {"x": ["batch", 3, 8, 8]},
            {"seen": ["batch", 3, 8, 8], "logits": ["batch", 4]},
            {"w": weight(192, 4)},
        )
    )
    if carried is not None:
        made.metadata_props.add(key=CARRIED, value=carried_text(carried))
    return save(made, folder / "photo.onnx")


def picture(size: tuple[int, int] = (30, 20), kind: str = "PNG") -> bytes:
    pixels = np.random.default_rng(1).integers(0, 256, (*size[::-1], 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def made(path: Path, data: DataSettings | None = None, labels: tuple[str, ...] = ()) -> Predictor:
    return predictor(load_engine(path), data or DataSettings(), labels, MEMORY)


def test_an_image_comes_to_the_model_as_in_calibration(tmp_path: Path) -> None:
    content = picture()
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").write_bytes(content)
    spec = InputSpec(name="x", dtype=np.dtype(np.float32), shape=(None, 3, 8, 8))
    samples: Any = open_data(tmp_path / "images", [spec], DataSettings(image=IMAGE))
    expected = samples[0].feeds["x"]
    carried = Carried(data=DataSettings(image=IMAGE), labels=LABELS)
    path = photo_model(tmp_path, carried)
    sent = Sent(kind="image/png", content=content)
    for predicts in (made(path), made(photo_model(tmp_path), DataSettings(image=IMAGE))):
        assert np.array_equal(predicts.feeds(sent)["x"], expected)
    with serving(photo_model(tmp_path, carried)) as server:
        _ask_for_an_image(server, content, expected)


def _ask_for_an_image(server: Server, content: bytes, expected: Any) -> None:
    form = b'--bb\r\nContent-Disposition: form-data; name="note"\r\n\r\nhello\r\n--bb\r\nContent-Disposition: form-data; '
    form += (
        b'name="f"; filename="a.png"\r\nContent-Type: image/png\r\n\r\n'
        + content
        + b"\r\n--bb--\r\n"
    )
    kinds = (("image/png", content), ("multipart/form-data; boundary=bb", form))
    found = []
    for kind, body in kinds:
        status, said = server.json(
            "POST", "/v1/predict?top_k=2", body=body, headers={"Content-Type": kind}
        )
        assert status == 200
        found.append(said["predictions"])
        best = said["predictions"][0]
        assert [one["label"] for one in best] == [LABELS[one["class"]] for one in best]
    assert found[0] == found[1]
    tensor = {"name": "x", "datatype": "FP32", "shape": expected.shape, "data": expected.tolist()}
    body = json.dumps({"inputs": [tensor], "outputs": [{"name": "logits"}]}).encode()
    said = server.json("POST", "/v2/models/photo/infer", body=body)[1]
    scores = said["outputs"][0]["data"]
    assert found[0][0][0]["score"] == pytest.approx(max(scores))


def test_a_recipe_that_prepares_otherwise_than_the_model_is_refused(tmp_path: Path) -> None:
    path = photo_model(tmp_path, Carried(data=DataSettings(image=IMAGE)))
    made(path, DataSettings(image=IMAGE))
    with pytest.raises(UsageError, match="otherwise than the model was calibrated with"):
        made(path, DataSettings(image=ImageSettings(preset="imagenet")))


def test_a_model_that_says_nothing_of_images_gets_a_note(tmp_path: Path) -> None:
    path = photo_model(tmp_path, Carried(data=DataSettings()))  # calibrated on arrays
    assert "No preprocessing is set" in made(path).notes[0]
    assert made(path, DataSettings(image=IMAGE)).notes == ()


def test_bombs_and_what_is_no_image_are_refused(tmp_path: Path) -> None:
    predicts = made(photo_model(tmp_path, Carried(data=DataSettings(image=IMAGE))))
    file = io.BytesIO()
    Image.new("1", (20_000, 20_000)).save(file, "PNG")
    with pytest.raises(RequestError, match="more pixels") as refused:
        predicts.feeds(Sent(kind="image/png", content=file.getvalue()))
    assert refused.value.status == 413
    for content in (b"", b"\x89PNG\r\n\x1a\n", picture()[:200], b"GIF89a"):
        with pytest.raises(RequestError, match="cannot be read") as refused:
            predicts.feeds(Sent(kind="image/png", content=content))
        assert refused.value.status == 400


def words_model(folder: Path) -> Path:
    shape = ["batch", "length"]
    made = model(
        graph(
            [
                node("Gather", ["table", "input_ids"], ["e"], axis=0),
                node("ReduceMean", ["e"], ["logits"], axes=[1], keepdims=0),
            ],
            {"input_ids": shape},
            {"logits": ["batch", 4]},
            {"table": weight(200, 4)},
            types={"input_ids": TensorProto.INT64},
        )
    )
    return save(made, folder / "words.onnx")


def test_a_text_goes_through_the_tokenizer_beside_the_model(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    path = words_model(tmp_path)
    sent = Sent(kind="text/plain", content=b"a cat and a dog")
    with pytest.raises(RequestError, match=r"tokenizer\.json"):
        made(path).feeds(sent)
    vocabulary = {word: i for i, word in enumerate(["[UNK]", "a", "cat", "and", "dog"])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))  # noqa: S106 - of words
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    predicts = made(path, DataSettings(text=TextSettings(max_length=4)))
    assert predicts.feeds(sent)["input_ids"].tolist() == [[1, 2, 3, 1]]
    as_json = Sent(kind="application/json", content=b'{"text": "a dog"}')
    assert predicts.feeds(as_json)["input_ids"].tolist() == [[1, 4]]
    for bad in (b"\xff", b""):
        with pytest.raises(RequestError):
            predicts.feeds(Sent(kind="text/plain", content=bad))
    with pytest.raises(RequestError, match="takes texts"):
        predicts.feeds(Sent(kind="image/png", content=picture()))


def encoder_model(folder: Path, output: str = "last_hidden_state") -> Path:
    """Return a model that has a vector for each token, with a tokenizer of single letters beside it."""
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    made = model(
        graph(
            [
                node("Gather", ["table", "input_ids"], ["e"], axis=0),
                node("Cast", ["attention_mask"], ["m"], to=TensorProto.FLOAT),
                node("Unsqueeze", ["m", "last"], ["n"]),
                node("Add", ["e", "n"], [output]),
            ],
            {"input_ids": ["batch", "length"], "attention_mask": ["batch", "length"]},
            {output: ["batch", "length", 4]},
            {"table": weight(200, 4), "last": np.array([2])},
            types={"input_ids": TensorProto.INT64, "attention_mask": TensorProto.INT64},
        )
    )
    vocabulary = {word: i for i, word in enumerate(["[UNK]", "a", "cat", "and", "dog"])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))  # noqa: S106 - of words
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return save(made, folder / "encoder.onnx")


def test_texts_of_a_list_are_answered_one_by_one(tmp_path: Path) -> None:
    predicts = made(encoder_model(tmp_path))
    texts = ["a cat", "dog", "a cat and a dog"]
    content = json.dumps({"text": texts}).encode()
    found = predicts.runs(Sent(kind="application/json", content=content))
    assert [feeds["input_ids"].tolist() for feeds in found] == [[[1, 2]], [[4]], [[1, 2, 3, 1, 4]]]
    one = predicts.runs(Sent(kind="application/json", content=b'{"text": "dog"}'))
    assert [feeds["input_ids"].tolist() for feeds in one] == [[[4]]]
    for wrong in ([], ["a", 1], [["a"]], ["a"] * 257, ["a" * 200_000] * 2):
        content = json.dumps({"text": wrong}).encode()
        with pytest.raises(RequestError):
            predicts.runs(Sent(kind="application/json", content=content))


def test_an_encoder_gives_one_vector_of_length_1_for_each_text(tmp_path: Path) -> None:
    path = encoder_model(tmp_path)
    predicts, engine = made(path), load_engine(path)
    assert predicts.lines[-1] == "embeddings: mean of 'last_hidden_state', length 1"
    feeds = predicts.runs(Sent(kind="application/json", content=b'{"text": ["a cat", "dog"]}'))
    runs = [(one, engine.run(one)) for one in feeds]
    tokens = [outputs["last_hidden_state"][0] for _, outputs in runs]
    means = np.stack([one.mean(axis=0) for one in tokens])
    said = predicts.reply(runs, Wanted())
    assert (said["pooling"], said["normalized"]) == ("mean", True)
    lengths = np.linalg.norm(means, axis=1, keepdims=True)
    assert np.allclose(said["embeddings"], means / lengths, atol=1e-6)
    said = predicts.reply(runs, Wanted(pooling="cls", normalize=False))
    assert np.allclose(said["embeddings"], [one[0] for one in tokens], atol=1e-6)
    said = predicts.reply(runs, Wanted(pooling="none"))
    assert [np.shape(one["outputs"]["last_hidden_state"]) for one in said["results"]] == [
        (1, 2, 4),
        (1, 1, 4),
    ]
    padded = {"input_ids": np.array([[1, 2, 0]]), "attention_mask": np.array([[1, 1, 0]])}
    said = predicts.reply([(padded, engine.run(padded))], Wanted(normalize=False))
    assert np.allclose(said["embeddings"], means[:1], atol=1e-6)  # padding does not count


def test_pooling_is_as_the_folder_of_the_model_says(tmp_path: Path) -> None:
    path = encoder_model(tmp_path, "tagged")
    assert made(path).pooling.mode == "none"  # it may be a label for each token
    (tmp_path / "1_Pooling").mkdir()
    plain = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    (tmp_path / "1_Pooling/config.json").write_text(json.dumps(plain))
    assert made(path).pooling.mode == "cls"
    linear_model = predictor(load_engine(linear(tmp_path)), DataSettings(), (), 1 << 20)
    with pytest.raises(RequestError, match="no output has three axes"):
        linear_model.reply([({}, {})], Wanted(pooling="mean"))


def test_a_row_may_leave_out_the_batch_axis(tmp_path: Path) -> None:
    predicts = made(linear(tmp_path))
    for plain in ({"input": [0] * 8}, {"input": [[0] * 8]}, {"inputs": {"x": [0] * 8}}):
        sent = Sent(kind="application/json", content=json.dumps(plain).encode())
        assert predicts.feeds(sent)["x"].shape == (1, 8)
    wrong: list[Any] = [{"input": [0] * 7}, {"input": ["a"] * 8}, {"input": [1e99] * 8}]
    wrong += [{"input": []}, [], {"inputs": {"y": [1]}}]
    for plain in wrong:
        with pytest.raises(RequestError):
            predicts.feeds(Sent(kind="application/json", content=json.dumps(plain).encode()))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=10,
)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    return made(linear(tmp_path_factory.mktemp("rows")))


@given(plain=JSON)
def test_any_row_is_read_or_refused(rows: Predictor, plain: Any) -> None:
    content = json.dumps({"input": plain}).encode(errors="surrogatepass")
    try:
        found = rows.feeds(Sent(kind="application/json", content=content))
    except RequestError as e:
        assert e.status in {400, 415}  # noqa: PT017 - either is right
    else:
        assert found["x"].shape[1:] == (8,)


@given(st.binary(max_size=200), st.text(st.characters(max_codepoint=255), max_size=8))
def test_any_form_is_read_or_refused(content: bytes, boundary: str) -> None:
    try:
        part_of(content, f"multipart/form-data; boundary={boundary}")
    except RequestError as e:
        assert e.status == 400  # noqa: PT017 - either is right


@given(st.binary(max_size=500))
def test_a_file_comes_out_of_a_form_as_it_went_in(content: bytes) -> None:
    head = b'--zz\r\nContent-Disposition: form-data; name="f"; filename="a"\r\nContent-Type: image/png\r\n\r\n'
    sent = part_of(head + content + b"\r\n--zz--\r\n", FORM)
    assert sent == Sent(kind="image/png", content=content) or b"\r\n--zz" in content


def test_parts_and_headers_of_a_form_are_bounded() -> None:
    part = b'--zz\r\nContent-Disposition: form-data; name="f"\r\n\r\nx\r\n'
    assert part_of(part * 64 + b"--zz--", FORM).content == b"x"
    with pytest.raises(RequestError, match="more than 64 parts"):
        part_of(part * 65 + b"--zz--", FORM)
    with pytest.raises(RequestError, match="damaged"):
        part_of(b"--zz\r\n" + b"a\n" * 10_000 + b"\r\n\r\nx\r\n--zz--", FORM)


def test_a_file_of_no_said_type_is_what_the_model_takes(tmp_path: Path) -> None:
    """As many clients send it: a part with a file's name and no type."""
    head = b'--zz\r\nContent-Disposition: form-data; name="f"; filename="a.png"\r\n\r\n'
    sent = part_of(head + picture() + b"\r\n--zz--\r\n", FORM)
    path = photo_model(tmp_path, Carried(data=DataSettings(image=IMAGE)))
    assert list(made(path).feeds(sent)) == ["x"]
    words = Predictor(inputs=(), text=lambda text: {"ids": np.array([len(text)])})
    with pytest.raises(RequestError, match="300000 characters") as refused:
        words.feeds(Sent(kind="text/plain", content=b"a " * 150_000))
    assert refused.value.status == 413
    assert words.feeds(part_of(head + b"abc\r\n--zz--\r\n", FORM))["ids"].tolist() == [3]


def test_what_is_returned_is_said() -> None:
    logits = np.array([[1.0, 3.0, 2.0]], np.float32)
    plain = answer({"logits": logits}, ("a", "b", "c"), top=2, softmax=False)
    assert plain["scores"] == "as the model gives them"
    assert [(one["label"], one["score"]) for one in plain["predictions"][0]] == [
        ("b", 3.0),
        ("c", 2.0),
    ]
    soft = answer({"logits": logits}, (), top=3, softmax=True)
    assert soft["scores"] == "softmax of what the model gives"
    assert sum(one["score"] for one in soft["predictions"][0]) == pytest.approx(1)
    assert "label" not in soft["predictions"][0][0]
    raw = answer({"embedding": logits}, (), top=None, softmax=False)
    assert raw == {"outputs": {"embedding": [[1.0, 3.0, 2.0]]}}
    with pytest.raises(RequestError, match="need scores"):
        answer({"y": np.zeros((1, 2, 3), np.float32)}, (), top=1, softmax=False)


def test_labels_come_from_a_file_or_the_model(tmp_path: Path) -> None:
    path = photo_model(tmp_path, Carried(data=DataSettings(image=IMAGE), labels=LABELS))
    assert made(path).labels == LABELS
    assert made(path, labels=("w", "x", "y", "z")).labels == ("w", "x", "y", "z")
    assert onnx.load(path).metadata_props[0].key == CARRIED


def test_labels_that_do_not_fit_the_classes_are_told(tmp_path: Path) -> None:
    path = linear(tmp_path)  # of 4 classes
    assert made(path, labels=LABELS).notes == ()
    (note,) = made(path, labels=("a", "b", "c")).notes
    assert "3 labels" in note
    assert "logits FP32[?, 4]" in note
