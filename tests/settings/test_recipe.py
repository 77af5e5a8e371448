import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quantkit.errors import UsageError
from quantkit.settings import (
    PRESETS,
    CalibrateSettings,
    DataSettings,
    ImageSettings,
    Recipe,
    TextSettings,
    load_recipe,
    parse_memory,
)

FULL = """
model = "model.onnx"
[data]
path = "images/"
batch = 2
limit = 500
shuffle = false
seed = 3
label = "label"
memory = "1.5GB"
[data.image]
preset = "imagenet"
resize = 256
crop = [224, 192]
pixels = "0-255"
mean = 127
std = [1.0, 2, 3]
layout = "NCHW"
channels = "BGR"
[data.text]
column = ["a", "b"]
tokenizer = "../tokenizer.json"
max_length = 128
[calibrate]
method = "percentile"
percentile = 99.99
output = "model.calibration"
workers = 2
"""


def write(folder: Path, text: str) -> Path:
    file = folder / "quantkit.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_a_full_recipe(tmp_path: Path) -> None:
    recipe = load_recipe(write(tmp_path, FULL))
    assert recipe.calibrated == recipe.evaluated == recipe.data
    recipe = replace(recipe, calibrated=DataSettings(), evaluated=DataSettings())
    assert recipe == Recipe(
        model=tmp_path / "model.onnx",
        data=DataSettings(
            path=tmp_path / "images",
            batch=2,
            limit=500,
            shuffle=False,
            seed=3,
            label="label",
            memory=1_500_000_000,
            image=ImageSettings(
                preset="imagenet",
                resize=256,
                crop=(224, 192),
                pixels="0-255",
                mean=(127.0,),
                std=(1.0, 2.0, 3.0),
                layout="NCHW",
                channels="BGR",
            ),
            text=TextSettings(
                column=("a", "b"), tokenizer=tmp_path / "../tokenizer.json", max_length=128
            ),
        ),
        calibrate=CalibrateSettings(
            method="percentile",
            percentile=99.99,
            output=tmp_path / "model.calibration",
            workers=2,
        ),
        folder=tmp_path,
        file=tmp_path / "quantkit.toml",
        text=FULL,
    )


def test_an_empty_recipe_is_the_defaults(tmp_path: Path) -> None:
    assert load_recipe(write(tmp_path, "")) == Recipe(
        folder=tmp_path, file=tmp_path / "quantkit.toml"
    )


def test_without_a_path_the_working_directory_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_recipe() == Recipe()
    write(tmp_path, 'model = "m.onnx"')
    assert load_recipe().model == Path("m.onnx")


def test_absolute_paths_stay(tmp_path: Path) -> None:
    assert load_recipe(write(tmp_path, 'model = "/m.onnx"')).model == Path("/m.onnx")


def test_one_text_column(tmp_path: Path) -> None:
    recipe = load_recipe(write(tmp_path, '[data.text]\ncolumn = "text"'))
    assert recipe.data.text.column == ("text",)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("modle = 'x'", "unknown key 'modle' (did you mean 'model'?): known here are model, data"),
        ("[calibrat]", "unknown table 'calibrat' (did you mean 'calibrate'?)"),
        ("[budget]", "unknown table 'budget'"),
        ("[data]\nlimits = 3", "[data] unknown key 'limits' (did you mean 'limit'?)"),
        ("[data.images]", "[data] unknown table 'images' (did you mean 'image'?)"),
        ("[data.image]\nstdev = 1", "[data.image] unknown key 'stdev' (did you mean 'std'?)"),
        (
            "[data.text]\ncolumns = 'a'",
            "[data.text] unknown key 'columns' (did you mean 'column'?)",
        ),
        ("model = 3", "model = 3: model takes the path of a file or folder"),
        ("model = ''", "model = '': model takes the path of a file or folder"),
        ("data = 3", "'data' must be a table: write [data] on a line of its own"),
        ("[data]\nimage = 3", "'data.image' must be a table"),
        ("[data]\nbatch = '1'", "[data] batch = '1': batch takes a whole number"),
        ("[data]\nbatch = true", "[data] batch = True: batch takes a whole number"),
        ("[data]\nbatch = 0", "[data] batch = 0: batch takes a whole number, at least 1"),
        ("[data]\nlimit = 0", "[data] limit = 0: limit takes "),
        ("[data]\nseed = -1", "[data] seed = -1: seed takes "),
        ('[data]\nmemory = "much"', 'memory takes an amount of memory: "500MB", "1GB"'),
        ("[data]\nshuffle = 1", "[data] shuffle = 1: shuffle takes true or false"),
        (
            f"[data]\nlimit = 1{'0' * 30}",
            "limit takes a whole number, at least 1, at most 18 digits",
        ),
        (f"[data]\nlimit = 1{'0' * 400}", "0000: limit takes a whole number"),
        (f"[data]\nlimit = 1{'0' * 5000}", "this is no TOML: Exceeds the limit"),
        (
            f"[calibrate]\npercentile = 1{'0' * 400}",
            "percentile takes a number",
        ),
        ("[data.image]\nmean = nan", "mean = nan: mean takes a number"),
        ("[data.image]\nstd = inf", "std takes a number"),
        (
            "[data.image]\nresize = 100000",
            "resize takes a whole number, or [height, width], at least 1 and at most 8,192",
        ),
        ("[calibrate]\nworkers = 100000", "workers takes "),
        ("[evaluate]\nbatches = 1000000", "batches takes "),
        ("[evaluate]\nthreads = [1, 1000000]", "threads takes "),
        (f"[evaluate]\nbatches = {[1] * 50}", "batches has 50 numbers: give at most 16"),
        ("[data]\npath = 'a\\u0000b'".replace("'", '"'), "path takes the path of a file or folder"),
        ("[data]\npath = '~nobody_of_this_name/x'", "path takes the path of a file or folder"),
        (f"model = {'y' * 200!r}\ndata = 3", "'data' must be a table"),
        (f"[data]\nlimit = '{'y' * 5000}'", "yyy': limit takes a whole number"),
        (f"a = {'[' * 9999}{']' * 9999}", "lists or tables are nested too deeply"),
        (
            "[data.image]\npreset = 'imagnet'",
            "preset 'imagnet' is unknown (did you mean 'imagenet'?)",
        ),
        ("[data.image]\npixels = '0..1'", "pixels '0..1' is unknown: use one of 0-1, 0-255"),
        ("[data.image]\nlayout = 'nchw'", "layout 'nchw' is unknown (did you mean 'NCHW'?)"),
        ("[data.image]\nchannels = 'RBG'", "channels 'RBG' is unknown"),
        ("[data.image]\nresize = [1, 2, 3]", "resize takes a whole number, or [height, width]"),
        ("[data.image]\ncrop = 2.5", "crop takes a whole number, or [height, width]"),
        ("[data.image]\ncrop = [0, 3]", "crop takes "),
        ("[data.image]\nmean = 'x'", "mean takes a number, or a list with one for each channel"),
        (
            "[data.image]\nmean = [1, 2]",
            "mean '[1.0, 2.0]' has 2 numbers: give one, or one for each",
        ),
        (
            "[data.image]\nstd = 0",
            "std = 0: std takes a number, or a list with one for each channel, above 0",
        ),
        ("[data.text]\ncolumn = ['a', 'b', 'c']", "names 3 columns: give one, or two for a pair"),
        ("[data.text]\ncolumn = [1]", "column takes a column's name, or a list of two"),
        ("[data.text]\nmax_length = 0", "max_length takes "),
        (
            "[calibrate]\npercentile = 'x'",
            "[calibrate] percentile = 'x': percentile takes a number",
        ),
        (
            "[calibrate]\npercentile = 5",
            "percentile = 5: percentile takes a number, above 50 and at most 100",
        ),
        ("[calibrate]\nworkers = 0", "workers takes "),
        ("model = ", "this is no TOML: Invalid value (at end of document)"),
        ("a = 1\nb = [1,\n", "this is no TOML"),
        ("x y = 1", "(at line 1, column 3)"),
    ],
)
def test_what_is_wrong_is_said_with_the_file(text: str, says: str, tmp_path: Path) -> None:
    file = write(tmp_path, text)
    with pytest.raises(UsageError) as e:
        load_recipe(file)
    assert str(e.value).startswith(f"{file}: ")
    assert says in str(e.value)
    assert "\n" not in str(e.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"There is no recipe '.*nope.toml'"):
        load_recipe(tmp_path / "nope.toml")
    with pytest.raises(UsageError, match="Cannot read the recipe"):
        load_recipe(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b'model = "\xe9"')
    with pytest.raises(UsageError, match="no UTF-8 text"):
        load_recipe(tmp_path / "latin.toml")


def test_a_flag_overrides_by_replace_and_is_checked_too() -> None:
    settings = replace(ImageSettings(preset="imagenet"), crop=192)
    assert settings.resolved().crop == 192
    assert settings.resolved().mean == PRESETS["imagenet"].mean
    with pytest.raises(UsageError, match="preset 'foo' is unknown: use one of imagenet"):
        replace(settings, preset="foo")


@pytest.mark.parametrize(
    ("settings", "pixels"),
    [
        ({}, "0-1"),
        ({"mean": (0.5,)}, "0-1"),
        ({"mean": (127.0,)}, "0-255"),
        ({"std": (58.0,)}, "0-255"),
        ({"mean": (127.0,), "pixels": "0-1"}, "0-1"),
        ({"preset": "raw"}, "0-255"),
        ({"preset": "imagenet"}, "0-1"),
        ({"preset": "imagenet", "mean": (123.7, 116.3, 103.5), "std": (58.4, 57.1, 57.4)}, "0-255"),
    ],
)
def test_pixels_are_told_from_mean_and_std(settings: dict[str, Any], pixels: str) -> None:
    assert ImageSettings(**settings).resolved().pixels == pixels


def test_a_resolved_setting_resolves_to_itself() -> None:
    for name in PRESETS:
        once = ImageSettings(preset=name).resolved()
        assert once.resolved() == once


def test_only_the_standard_library_is_imported() -> None:
    code = "import sys, quantkit.settings; sys.exit(int('numpy' in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("500MB", 500_000_000),
        ("1GB", 10**9),
        ("1gb", 10**9),
        ("1GiB", 2**30),
        ("1.5 GiB", 3 * 2**29),
        ("64M", 64_000_000),
        ("2e9", 2 * 10**9),
        (2**31, 2**31),
    ],
)
def test_memory_is_written_as_people_write_it(text: str | int, nbytes: int) -> None:
    assert parse_memory(text) == nbytes


@pytest.mark.parametrize("text", ["much", "", "-1GB", "1XB", "1e999", "nan", "inf", True])
def test_what_is_no_amount_of_memory_is_refused(text: str | int) -> None:
    with pytest.raises(UsageError, match="is no amount of memory: write 500MB, 1GB, 1GiB or"):
        parse_memory(text)


def test_a_limit_that_lacks_its_unit_is_refused() -> None:
    with pytest.raises(UsageError, match=r"memory takes an amount of memory.*at least 1,000,000"):
        DataSettings(memory=1)


def test_without_a_limit_memory_is_bounded_by_the_machine() -> None:
    assert 1_000_000 <= DataSettings().memory_limit <= 2_000_000_000
    assert DataSettings(memory=5_000_000).memory_limit == 5_000_000


def test_a_limit_of_the_process_lowers_the_default() -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (4 * 10**8, -1));"
        "from quantkit.settings import DataSettings; print(DataSettings().memory_limit)"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert int(found.stdout) <= 10**8


def test_one_command_may_have_data_of_its_own(tmp_path: Path) -> None:
    text = "[data]\nlimit = 9\nseed = 1\n[calibrate.data]\nlimit = 3\n[evaluate.data]\nseed = 2\n"
    recipe = load_recipe(write(tmp_path, text))
    assert recipe.calibrated == DataSettings(limit=3, seed=1)
    assert recipe.evaluated == DataSettings(limit=9, seed=2)
    assert recipe.data == DataSettings(limit=9, seed=1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[evaluate.data]\nlimit = 0\n", r"\[evaluate\.data\] limit = 0: limit takes "),
        ("[calibrate.data]\nmean = 1\n", r"\[calibrate\.data\] unknown key 'mean'"),
        ("[evaluate]\ndata = 3\n", r"'evaluate\.data' must be a table"),
    ],
)
def test_what_is_wrong_in_it_is_said_with_its_place(
    text: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        load_recipe(write(tmp_path, text))


def test_a_recipe_that_an_editor_marked_as_utf8_is_read(tmp_path: Path) -> None:
    file = tmp_path / "quantkit.toml"
    file.write_bytes("model = 'm.onnx'".encode("utf-8-sig"))
    assert load_recipe(file).model == tmp_path / "m.onnx"
