from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data.makers import IMAGE, Array, picture, spec
from PIL import Image

from quantkit.data import open_data
from quantkit.errors import DataError, UsageError
from quantkit.settings import DataSettings, ImageSettings


def read(path: Path, inputs: Any = IMAGE, **image: Any) -> Any:
    return open_data(path, inputs, DataSettings(image=ImageSettings(**image)))


def first(path: Path, inputs: Any = IMAGE, **image: Any) -> Array:
    (array,) = read(path, inputs, **image)[0].feeds.values()
    return np.asarray(array)


def reference(pixels: Array, unit: float, mean: Any, std: Any) -> Array:
    x = pixels.astype(np.float32) / np.float32(unit)
    x = (x - np.float32(mean)) / np.float32(std)
    return x.transpose(2, 0, 1)[np.newaxis]


@pytest.mark.parametrize(
    ("preset", "unit", "mean", "std"),
    [
        ("imagenet", 255, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ("symmetric", 1, 127.5, 127.5),
        ("unit", 255, 0, 1),
        ("raw", 1, 0, 1),
    ],
)
def test_presets_are_the_reference_to_the_last_bit(
    preset: str, unit: float, mean: Any, std: Any, tmp_path: Path
) -> None:
    pixels = picture(tmp_path / "a.png")
    found = read(tmp_path, preset=preset)
    np.testing.assert_array_equal(found[0].feeds["input"], reference(pixels, unit, mean, std))
    assert found.description.warnings == ()


def test_imagenet_is_torchvisions_resize_and_crop(tmp_path: Path) -> None:
    pixels = picture(tmp_path / "a.png", (400, 300))
    small = Image.fromarray(pixels).resize((341, 256), Image.Resampling.BILINEAR)
    expected = np.asarray(small)[16:240, 58:282]
    found = first(tmp_path, [spec("input", None, 3, None, None)], preset="imagenet")
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    np.testing.assert_allclose(found, reference(expected, 255, mean, std), atol=0.02)
    assert (found == reference(expected, 255, mean, std)).mean() > 0.99


def test_a_preset_for_large_images_keeps_the_size_of_a_small_model(tmp_path: Path) -> None:
    pixels = picture(tmp_path / "a.png")
    found = read(tmp_path, preset="imagenet")
    assert found[0].feeds["input"].shape == (1, 3, 8, 8)
    assert not any("256" in line for line in found.description.preprocessing)
    assert found[0].feeds["input"].max() == pytest.approx(
        reference(pixels, 255, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)).max()
    )


def test_a_field_overrides_the_preset(tmp_path: Path) -> None:
    pixels = picture(tmp_path / "a.png")
    found = first(tmp_path, preset="imagenet", std=(0.5,))
    mean = (0.485, 0.456, 0.406)
    np.testing.assert_array_equal(found, reference(pixels, 255, mean, 0.5))


def test_without_settings_pixels_are_0_to_1_and_a_warning_says_so(tmp_path: Path) -> None:
    pixels = picture(tmp_path / "a.png")
    found = read(tmp_path)
    np.testing.assert_array_equal(found[0].feeds["input"], reference(pixels, 255, 0, 1))
    (warning,) = found.description.warnings
    assert "gets pixels of 0-1" in warning
    assert all(flag in warning for flag in ("--mean", "--std", "--preset"))


def test_a_mean_above_1_means_0_to_255_and_the_lines_say_so(tmp_path: Path) -> None:
    pixels = picture(tmp_path / "a.png")
    found = read(tmp_path, mean=(127.0,), std=(128.0,))
    np.testing.assert_array_equal(found[0].feeds["input"], reference(pixels, 1, 127, 128))
    assert found.description.preprocessing == (
        "smaller than 8x8: enlarged to cover it; over 1.5 times larger: reduced to 1.14 times",
        "centre crop 8x8",
        "pixels of 0-255 (because of a mean or std of 128), subtract mean 127, divide by std 128; resulting range -0.9922 to 1",
        "RGB, NCHW",
    )


def test_a_mean_above_1_for_pixels_of_0_to_1_is_doubted(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    found = read(tmp_path, mean=(127.0,), std=(128.0,), pixels="0-1")
    assert "--pixels 0-255" in found.description.warnings[0]


@pytest.mark.parametrize(
    ("size", "scaled"),
    [
        ((8, 8), (8, 8)),
        ((12, 10), (12, 10)),
        ((4, 6), (8, 12)),
        ((5, 4), (10, 8)),
        ((40, 20), (18, 9)),
        ((12, 12), (12, 12)),
        ((13, 13), (9, 9)),
    ],
    ids=["same", "crop only", "enlarge", "enlarge wide", "reduce", "1.5 times", "above 1.5"],
)
def test_size_by_the_crop(size: tuple[int, int], scaled: tuple[int, int], tmp_path: Path) -> None:
    pixels = picture(tmp_path / "a.png", size)
    whole = Image.fromarray(pixels).resize(scaled, Image.Resampling.BILINEAR)
    left, top = round((scaled[0] - 8) / 2), round((scaled[1] - 8) / 2)
    expected = np.asarray(whole)[top : top + 8, left : left + 8]
    found = first(tmp_path, preset="raw")
    assert np.abs(found - reference(expected, 1, 0, 1)).max() <= 1


@pytest.mark.parametrize(
    ("settings", "shape"),
    [
        ({"resize": 10}, (10, 20)),
        ({"resize": (6, 5)}, (6, 5)),
        ({"resize": 10, "crop": 6}, (6, 6)),
        ({"resize": (9, 9), "crop": (4, 6)}, (4, 6)),
        ({"crop": (4, 6)}, (4, 6)),
        ({}, (20, 40)),
    ],
    ids=["shorter side", "exact", "and crop", "exact and crop", "crop", "as it is"],
)
def test_size_of_a_model_that_takes_any(
    settings: dict[str, Any], shape: tuple[int, int], tmp_path: Path
) -> None:
    picture(tmp_path / "a.png", (40, 20))
    found = first(tmp_path, [spec("input", None, 3, None, None)], preset="raw", **settings)
    assert found.shape == (1, 3, *shape)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"crop": 9}, "crop '9x9' does not fit the input 'input float32[?, 3, 8, 8]'"),
        ({"resize": 6}, "resize '6' is smaller than the crop 8x8"),
        ({"resize": (9, 6)}, "resize '9x6' is smaller than the crop 8x8"),
        (
            {"mean": (1.0, 2.0, 3.0, 4.0)},
            "mean '[1.0, 2.0, 3.0, 4.0]' has 4 numbers and the model 3",
        ),
        ({"layout": "NHWC"}, "has 8 channels in layout 'NHWC' and images have 1, 3 or 4"),
    ],
)
def test_settings_that_contradict_the_model(
    settings: dict[str, Any], says: str, tmp_path: Path
) -> None:
    picture(tmp_path / "a.png")
    with pytest.raises(UsageError) as e:
        read(tmp_path, **settings)
    assert says in str(e.value)


def test_a_layout_that_cannot_be_told(tmp_path: Path) -> None:
    pixels = picture(tmp_path / "a.png")
    free = [spec("input", None, None, None, None)]
    with pytest.raises(UsageError, match="set --layout NCHW or --layout NHWC"):
        read(tmp_path, free)
    found = first(tmp_path, free, layout="NHWC", preset="raw")
    np.testing.assert_array_equal(found[0], pixels)
    with pytest.raises(UsageError, match="leaves one side of the image free: set --crop"):
        read(tmp_path, [spec("input", None, 3, None, 8)])


def test_channels_last_and_bgr(tmp_path: Path) -> None:
    pixels = picture(tmp_path / "a.png")
    nhwc = first(tmp_path, [spec("input", 1, 8, 8, 3)], preset="raw")
    np.testing.assert_array_equal(nhwc[0], pixels)
    bgr = first(tmp_path, preset="raw", channels="BGR", mean=(1.0, 2.0, 3.0))
    expected = reference(pixels[:, :, ::-1], 1, (1, 2, 3), 1)
    np.testing.assert_array_equal(bgr, expected)


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
def test_every_mode_becomes_what_the_model_wants(mode: str, channels: int, tmp_path: Path) -> None:
    picture(tmp_path / "a.png", mode=mode)
    picture(tmp_path / "big.png", (40, 30), mode=mode)
    found = read(tmp_path, [spec("input", None, channels, 8, 8)], preset="raw")
    assert found[0].feeds["input"].shape == (1, channels, 8, 8)
    assert found[1].feeds["input"].shape == (1, channels, 8, 8)
    if mode == "L" and channels == 3:
        assert (found[0].feeds["input"][0, 0] == found[0].feeds["input"][0, 2]).all()


def test_deep_and_palette_images(tmp_path: Path) -> None:
    deep = np.full((8, 8), 0x1234, np.uint16)
    Image.fromarray(deep).save(tmp_path / "a.png")
    assert set(first(tmp_path, preset="raw").flat) == {0x12}
    Image.fromarray(np.zeros((8, 8), np.uint8)).convert("P").save(tmp_path / "a.png")
    assert first(tmp_path, preset="raw").shape == (1, 3, 8, 8)
    Image.fromarray(np.zeros((8, 8), np.float32)).save(tmp_path / "b.tif")
    with pytest.raises(
        DataError, match=r"Cannot read the image '.*b.tif': its pixels have 32 bits"
    ):
        _ = read(tmp_path, preset="raw")[1]


@pytest.mark.parametrize("suffix", ["jpg", "jpeg", "png", "bmp", "webp", "gif", "tif", "JPG"])
def test_every_format(suffix: str, tmp_path: Path) -> None:
    Image.fromarray(np.full((8, 8, 3), 100, np.uint8)).save(tmp_path / f"a.{suffix}")
    assert abs(first(tmp_path, preset="raw") - 100).max() <= 2


def test_a_large_jpeg_is_decoded_small_and_stays_the_same_picture(tmp_path: Path) -> None:
    y, x = np.mgrid[:800, :1000]
    smooth = np.stack([x * 255 // 1000, y * 255 // 800, (x + y) * 255 // 1800], -1)
    Image.fromarray(smooth.astype(np.uint8)).save(tmp_path / "a.jpg", quality=95)
    whole = Image.open(tmp_path / "a.jpg").resize((11, 9), Image.Resampling.BILINEAR)
    expected = np.asarray(whole)[0:8, 2:10]
    assert np.abs(first(tmp_path, preset="raw") - reference(expected, 1, 0, 1)).max() <= 6


def test_integer_inputs_take_pixels_as_they_are(tmp_path: Path) -> None:
    pixels = picture(tmp_path / "a.png")
    inputs = [spec("input", None, 3, 8, 8, dtype="uint8")]
    found = read(tmp_path, inputs)
    assert found.description.warnings == ()
    np.testing.assert_array_equal(found[0].feeds["input"], pixels.transpose(2, 0, 1)[np.newaxis])
    signed = [spec("input", None, 3, 8, 8, dtype="int8")]
    np.testing.assert_array_equal(
        first(tmp_path, signed, mean=(128.0,))[0, 0], pixels[:, :, 0].astype(int) - 128
    )
    with pytest.raises(UsageError, match=r"Pixels from 0 to 255 make no sense .* int8"):
        read(tmp_path, signed)
    with pytest.raises(UsageError, match="Pixels from 0 to 1 make no sense"):
        read(tmp_path, inputs, preset="unit")


def test_half_precision(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    assert first(tmp_path, [spec("input", None, 3, 8, 8, dtype="float16")]).dtype == np.float16


@pytest.mark.parametrize(
    "content", [b"", b"no image", b"\x89PNG\r\n\x1a\n\x00\x00\x00\x0dIHDR"], ids=repr
)
def test_a_broken_image_is_named_when_it_is_read(content: bytes, tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(content)
    found = read(tmp_path, preset="raw")
    assert len(found) == 2
    with pytest.raises(
        DataError, match=r"Cannot read the image '.*b\.png': .*replace or remove it"
    ):
        found[1]


def test_a_broken_first_image_does_not_stop_the_opening(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"no image")
    picture(tmp_path / "b.png")
    found = read(tmp_path, preset="raw")
    assert found.description.inputs == ("input float32[1, 3, 8, 8]",)
    with pytest.raises(DataError, match=r"a\.png"):
        found[0]


def test_images_beside_and_inside_of_folders_have_no_labels(tmp_path: Path) -> None:
    for name in ("a.png", "cat/b.png", "dog/c.png"):
        picture(tmp_path / name)
    found = read(tmp_path, preset="raw")
    assert found.description.labels == "none"
    assert found.description.warnings == (
        "Images lie both beside and inside of folders: no labels.",
    )


def test_a_truncated_jpeg_is_named(tmp_path: Path) -> None:
    picture(tmp_path / "a.jpg", (64, 64))
    (tmp_path / "a.jpg").write_bytes((tmp_path / "a.jpg").read_bytes()[:1500])
    with pytest.raises(DataError, match=r"a\.jpg': .*truncated"):
        read(tmp_path, preset="raw")


def test_one_image_file(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    picture(tmp_path / "b.png")
    found = read(tmp_path / "b.png", preset="raw")
    assert (len(found), found[0].name) == (1, "b.png")
    assert found.description.location == str(tmp_path / "b.png")


@pytest.mark.parametrize(
    "inputs",
    [(spec("x", None, 4),), (*IMAGE, spec("shape", None, 2))],
    ids=["rank", "two inputs"],
)
def test_a_model_that_takes_no_images(inputs: Any, tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    with pytest.raises(DataError, match=r"Images cannot feed the model's input '(x|shape) "):
        read(tmp_path, inputs)


def test_folders_are_classes_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name in ("dog/1.png", "cat/2.png", "ant/sub/3.png"):
        picture(tmp_path / name)
    found = read(tmp_path)
    assert {found[i].name: found[i].label for i in range(3)} == {
        "ant/sub/3.png": 0,
        "cat/2.png": 1,
        "dog/1.png": 2,
    }


def test_folders_named_by_numbers_are_those_numbers(tmp_path: Path) -> None:
    for name in ("2", "10", "0"):
        picture(tmp_path / name / "a.png")
    found = read(tmp_path)
    assert {found[i].name: found[i].label for i in range(3)} == {
        "0/a.png": 0,
        "10/a.png": 10,
        "2/a.png": 2,
    }


def test_one_folder_tells_nothing(tmp_path: Path) -> None:
    picture(tmp_path / "images" / "a.png")
    assert read(tmp_path).description.labels == "none"


@pytest.mark.parametrize(
    ("table", "labels", "line"),
    [
        ("file,label\na.png,7\nb.png,3\n", [7, 3], "2 classes from labels.csv"),
        ("file,label\na.png,7\nb.png,cat\n", ["7", "cat"], "2 classes from labels.csv"),
        ("a.png,7\nb.png,3\n", [7, 3], "2 classes from labels.csv"),
        ("\ufeffLabel,FileName\n7,a.png\n7,./b.png\n", [7, 7], "1 class from labels.csv"),
        ("file,label\na.png,7\n", [7, None], "1 class from labels.csv"),
    ],
    ids=["numbers", "texts", "no header", "other order", "incomplete"],
)
def test_labels_csv(table: str, labels: list[Any], line: str, tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    picture(tmp_path / "b.png")
    (tmp_path / "labels.csv").write_text(table, encoding="utf-8")
    found = read(tmp_path, preset="raw")
    assert [found[i].label for i in range(2)] == labels
    assert found.description.labels == line
    assert found.description.warnings == (
        ("1 image not in labels.csv: no label.",) if None in labels else ()
    )


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ("", "is empty: give it a column 'file'"),
        ("name,klass\na.png,1\n", "has no column 'label' for the label: it has 'name' and 'klass'"),
        ("foo,label\na.png,1\n", "has no column 'file' for the file"),
        ("file,label\nb.png,1\n", "names no image of the folder: it has 'b.png' (did you mean"),
        ("file,label\na.png\n", "row 0 has 1 columns"),
    ],
)
def test_broken_labels_csv(table: str, says: str, tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    (tmp_path / "labels.csv").write_text(table)
    with pytest.raises(DataError) as e:
        read(tmp_path)
    assert says in str(e.value)


def test_the_label_column_can_be_set(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    (tmp_path / "labels.csv").write_text("file,label,breed\na.png,1,pug\n")
    found: Any = open_data(tmp_path, IMAGE, DataSettings(label="breed"))
    assert found[0].label == "pug"


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n"


def test_what_is_named_like_an_image_is_never_given_to_another_program(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(POSTSCRIPT)
    with pytest.raises(DataError, match=r"a\.jpg': it is no image that quantkit reads \(JPEG, PNG"):
        read(tmp_path, preset="raw")


def test_an_image_larger_than_memory_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    Image.new("1", (2000, 2000)).save(tmp_path / "a.png")
    small = DataSettings(memory=1_000_000)
    with pytest.raises(DataError, match="2000x2000 pixels take 16 MB and quantkit may hold 1 MB"):
        open_data(tmp_path, IMAGE, small)
    Image.new("1", (20_000, 20_000)).save(tmp_path / "a.png")
    with pytest.raises(DataError, match="decompression bomb"):
        read(tmp_path)


def test_a_large_photograph_is_read_without_a_word(tmp_path: Path) -> None:
    Image.new("1", (9500, 9500)).save(
        tmp_path / "a.png"
    )  # PIL warns of more than 89 million pixels
    assert first(tmp_path, preset="raw").shape == (1, 3, 8, 8)


def photograph(file: Path, turn: int, size: tuple[int, int] = (64, 32)) -> None:
    y, x = np.mgrid[: size[1], : size[0]]
    pixels = np.stack([x * 255 // size[0], y * 255 // size[1], x * 0 + 40], -1).astype(np.uint8)
    image = Image.fromarray(pixels)
    exif = image.getexif()
    exif[0x0112] = turn
    image.save(file, exif=exif, quality=95)


@pytest.mark.parametrize("turn", range(1, 9))
@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tif"])
def test_photographs_are_turned_upright_as_exif_says(
    turn: int, suffix: str, tmp_path: Path
) -> None:
    from PIL import ImageOps

    file = tmp_path / f"a.{suffix}"
    photograph(file, turn)
    upright = ImageOps.exif_transpose(Image.open(file))
    expected = reference(np.asarray(upright.convert("RGB")), 1, 0, 1)
    found = first(file, [spec("input", None, 3, None, None)], preset="raw")
    np.testing.assert_allclose(found, expected, atol=2)


def test_a_turned_photograph_is_decoded_small_and_cropped_as_an_upright_one(tmp_path: Path) -> None:
    photograph(tmp_path / "a.jpg", 6, (800, 400))
    inputs = [spec("input", None, 3, 40, 20)]
    found = first(tmp_path, inputs, preset="raw")
    with Image.open(tmp_path / "a.jpg") as image:
        upright = image.transpose(Image.Transpose.ROTATE_270).resize((22, 45))
    expected = reference(np.asarray(upright)[2:42, 1:21], 1, 0, 1)
    assert np.abs(found - expected).max() <= 12


def test_a_rotation_is_said_and_can_be_left_out(tmp_path: Path) -> None:
    photograph(tmp_path / "a.jpg", 6)
    photograph(tmp_path / "b.jpg", 1)
    free = [spec("input", None, 3, None, None)]
    found = read(tmp_path, free, preset="raw", resize=8)
    says = "1 of 2 images looked at have an EXIF rotation and are turned upright: set --no-exif if"
    assert any(words.startswith(says) for words in found.description.warnings)
    stored = read(tmp_path, free, preset="raw", resize=8, exif=False)
    assert stored[0].feeds["input"].shape == (*found[0].feeds["input"].shape[:2], 8, 16)
    assert "pixels as stored: EXIF is not looked at" in stored.description.preprocessing
    assert stored.fingerprint() != found.fingerprint()


def test_damaged_tags_do_not_spoil_an_image(tmp_path: Path) -> None:
    image = Image.new("RGB", (8, 8))
    image.save(tmp_path / "a.jpg", exif=b"Exif\0\0II*\0\xff\xff\xff\xff nonsense")
    assert first(tmp_path, preset="raw").shape == (1, 3, 8, 8)


@pytest.mark.parametrize(
    ("size", "inner"),
    [
        ((40, 20), (2, 6, 0, 8)),
        ((10, 40), (0, 8, 3, 5)),
        ((8, 8), (0, 8, 0, 8)),
        ((8, 5), (1, 6, 0, 8)),
    ],
    ids=["wide", "tall", "square", "an odd pixel below"],
)
def test_a_letterbox_keeps_the_aspect_between_grey_borders(
    size: tuple[int, int], inner: tuple[int, int, int, int], tmp_path: Path
) -> None:
    Image.new("RGB", size, (10, 20, 30)).save(tmp_path / "a.png")
    expected = np.full((8, 8, 3), 114)
    top, bottom, left, right = inner
    expected[top:bottom, left:right] = (10, 20, 30)
    free = [spec("input", None, 3, None, None)]
    for inputs in (IMAGE, free):
        found = first(tmp_path, inputs, preset="raw", letterbox=8)
        np.testing.assert_array_equal(found, reference(expected, 1, 0, 1))
    assert (
        "letterbox 8x8, borders of 114"
        in read(tmp_path, preset="imagenet", letterbox=8).description.preprocessing
    )


def test_a_letterbox_stands_alone_and_fits_the_model(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    with pytest.raises(
        UsageError, match="letterbox sets the size alone: leave out resize and crop"
    ):
        read(tmp_path, letterbox=8, resize=9)
    with pytest.raises(UsageError, match=r"letterbox '9x7' does not fit the input 'input float32"):
        read(tmp_path, letterbox=(9, 7))
    plain = read(tmp_path, preset="raw")
    boxed = read(tmp_path, preset="raw", letterbox=8)
    assert plain.fingerprint() != boxed.fingerprint()
    assert plain.description.settings != boxed.description.settings


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
def test_a_letterbox_takes_every_mode(mode: str, channels: int, tmp_path: Path) -> None:
    picture(tmp_path / "a.png", (40, 30), mode=mode)
    inputs = [spec("input", None, channels, 8, 8)]
    assert first(tmp_path, inputs, preset="raw", letterbox=8).shape == (1, channels, 8, 8)


def test_images_of_their_own_sizes_are_said_before_anything_runs(tmp_path: Path) -> None:
    picture(tmp_path / "a.png", (40, 20))
    picture(tmp_path / "b.png", (24, 24))
    free = [spec("input", None, 3, None, None)]
    found = read(tmp_path, free, preset="raw")
    assert found.description.warnings[0].startswith(
        "Images differ in size (24x24, 20x40, ...) and are fed as they are: set --letterbox HxW"
    )
    assert "--letterbox 640x640 or --resize 640x640" in found[0].advice
    sized = read(tmp_path, free, preset="raw", letterbox=32)
    assert (sized.description.warnings, sized[0].advice) == ((), "")
    assert sized[0].feeds["input"].shape == sized[1].feeds["input"].shape == (1, 3, 32, 32)


def test_labels_of_images_that_are_not_there_are_said_and_passed_over(tmp_path: Path) -> None:
    picture(tmp_path / "1.png")
    picture(tmp_path / "0.png")
    rows = "".join(f"{i}.png,{i + 5}\n" for i in range(20))
    (tmp_path / "labels.csv").write_text(f"file,label\n{rows}")
    found = read(tmp_path, preset="raw")
    assert [found[i].label for i in range(2)] == [5, 6]
    (says,) = found.description.warnings
    assert says.startswith("18 rows of labels.csv without an image in the folder: '2.png', '3.png'")
    alone = read(tmp_path / "1.png", preset="raw")
    assert (alone[0].label, alone.description.warnings) == (6, ())


def test_one_image_beside_labels_of_others_is_read(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    (tmp_path / "labels.csv").write_text("file,label\nb.png,1\n")
    assert read(tmp_path / "a.png", preset="raw")[0].label is None
