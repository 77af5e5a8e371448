"""What a user decided, as it stands in models already written: read and written the same for ever.

The files in records/ are the whole records of models that version 0.1.0 wrote. They are never written anew: a model in
somebody's hands cannot be either.
"""

import json
from pathlib import Path

import pytest
from settings.record_cases import CASES, written

from quantkit import (
    DataSettings,
    ImageSettings,
    NodeRule,
    QdqSettings,
    RecoverSettings,
    StaticSettings,
    TensorRule,
    TextSettings,
)
from quantkit.errors import ModelError
from quantkit.model.provenance import is_sealed, provenance_from_text, read_entry
from quantkit.settings import DynamicSettings, Float16Settings
from quantkit.settings.record import (
    CARRIED,
    PROVENANCE,
    Carried,
    carried_by,
    carried_text,
    data_settings_of,
    recorded_settings,
    settings_record,
)

RECORDS = Path(__file__).parent / "records"


def as_written(options: object) -> str:
    return json.dumps(options, sort_keys=True, separators=(",", ":"))


def record(case: str) -> str:
    return (RECORDS / f"{case}.json").read_text(encoding="utf-8").rstrip("\n")


@pytest.mark.parametrize("case", CASES)
def test_a_record_already_written_is_read(case: str) -> None:
    text = record(case)
    assert is_sealed(text)
    assert as_written(provenance_from_text(text, "it").to_json()) == text


@pytest.mark.parametrize("case", CASES)
def test_the_same_choices_are_recorded_in_the_same_words(case: str, tmp_path: Path) -> None:
    text = read_entry(written(case, tmp_path))
    assert text is not None
    found, before = json.loads(text), json.loads(record(case))
    if case == "static_plan":  # only the hash of a plan is told, and plans may change
        assert len(found["options"].pop("plan")) == len(before["options"].pop("plan"))
    if case == "optimize":  # passes are added; a record names those that were there
        assert set(before["options"].pop("passes")) <= set(found["options"].pop("passes"))
    assert as_written(found["options"]) == as_written(before["options"])
    assert found["kind"] == before["kind"]
    assert found["float"] == before["float"]


STATIC = {
    "static": StaticSettings(target="cpu", format="qdq", per_channel=True),
    "static_everything": StaticSettings(
        target="arm64",
        format="qoperator",
        activation_type="int8",
        weight_type="int8",
        per_channel=False,
        symmetric_activations=True,
        include=("first", "second", "relu"),
        exclude=("relu", "bias"),  # a rule that leaves a node float excludes it
        op_types=("MatMul",),
        recover=RecoverSettings(equalize=True, smooth=False, adaptive=True, rounding=False),
        tensors=(
            TensorRule(tensor="x", range=(-4.0, 4.5)),
            TensorRule(tensor="r", method="minmax"),
        ),
        nodes=(NodeRule(node="second", mode="integer"),),
    ),
    "static_rules": StaticSettings(
        target="cpu",
        format="qdq",
        per_channel=True,
        tensors=(
            TensorRule(tensor="*", dtype="uint8"),
            TensorRule(tensor="y", keep_float=True),
            TensorRule(tensor="*", method="minmax"),
            TensorRule(tensor="r", method="entropy"),
        ),
        recover=RecoverSettings(empirical=True, ranges=True),
    ),
}
SAMPLES = {
    "static": DataSettings(),
    "static_everything": DataSettings(
        batch=2,
        limit=12,
        shuffle=False,
        seed=3,
        image=ImageSettings(
            preset="imagenet", resize=(8, 9), crop=7, mean=(0.5,), exif=False, layout="NCHW"
        ),
        text=TextSettings(column=("a", "b"), max_length=9),  # no tokenizer: it is looked for again
    ),
    "static_letterbox": DataSettings(
        image=ImageSettings(letterbox=(6, 8), pixels="0-255", std=(1.0, 2.0, 3.0), channels="BGR")
    ),
}


@pytest.mark.parametrize("case", STATIC)
def test_a_record_gives_the_settings_that_were_chosen(case: str) -> None:
    assert recorded_settings(json.loads(record(case))["options"], StaticSettings) == STATIC[case]


@pytest.mark.parametrize("case", SAMPLES)
def test_a_record_tells_how_samples_were_prepared(case: str) -> None:
    assert data_settings_of(json.loads(record(case))["options"]) == SAMPLES[case]


def test_a_record_gives_the_settings_of_dynamic_quantization() -> None:
    assert (
        recorded_settings(json.loads(record("dynamic"))["options"], DynamicSettings)
        == DynamicSettings()
    )
    assert recorded_settings(
        json.loads(record("dynamic_everything"))["options"], DynamicSettings
    ) == (
        DynamicSettings(
            weight_type="int8",
            per_channel=False,
            reduce_range=True,
            op_types=("MatMul",),
            include=("first",),
            exclude=("sec*",),
        )
    )


def test_a_record_gives_the_settings_of_16_bits() -> None:
    assert (
        recorded_settings(json.loads(record("float16"))["options"], Float16Settings)
        == Float16Settings()
    )
    options = json.loads(record("float16_everything"))["options"]
    assert recorded_settings(options, Float16Settings) == Float16Settings(
        compute=True, half_inputs=True, half_outputs=True, exclude=("bi*",), keep_inputs=True
    )
    assert data_settings_of(options) == DataSettings(batch=2, limit=12, shuffle=False, seed=3)


@pytest.mark.parametrize("case", [case for case in CASES if case != "optimize"])
def test_what_was_read_is_written_as_it_was(case: str) -> None:
    options = json.loads(record(case))["options"]
    if case.startswith("dynamic"):
        found = settings_record(recorded_settings(options, DynamicSettings))
    elif case.startswith("float16"):
        samples = data_settings_of(options) if "data" in options else None
        found = settings_record(recorded_settings(options, Float16Settings), samples)
    else:
        found = settings_record(
            recorded_settings(options, StaticSettings), data_settings_of(options)
        )
        tokenizer = options["data"]["text"]["tokenizer"]  # only its name is told
        found["data"]["text"]["tokenizer"] = tokenizer
    assert as_written(found) == as_written({key: options[key] for key in found})
    assert found.keys() >= options.keys() - {"format", "plan", "verify", "external_data"} - {
        "calibrate",
        "sample",
        "skip_bad",
    }


def test_what_is_covered_and_how_pairs_look_is_recorded_only_where_it_is_said() -> None:
    plain = settings_record(StaticSettings(format="qdq"), DataSettings())
    assert not {"coverage", "simplify", "qdq"} & plain["static"].keys()
    chosen = StaticSettings(
        target="cpu",
        format="qdq",
        per_channel=True,
        coverage="all",
        simplify=False,
        qdq=QdqSettings(weight_pairs=True, channel_axes=(("MatMul", 0),), float_outputs=("Conv",)),
    )
    record = json.loads(json.dumps(settings_record(chosen, DataSettings())))
    assert record["static"]["qdq"].keys() == {"weight_pairs", "channel_axes", "float_outputs"}
    assert recorded_settings({**record, "format": "qdq"}, StaticSettings) == chosen


def test_what_a_model_carries_is_read_as_it_was_written() -> None:
    image = ImageSettings(preset="imagenet", crop=(20, 30), mean=(1.0, 2.0, 3.0), exif=False)
    text = TextSettings(column=("a", "b"), tokenizer=Path("private/tokenizer.json"), max_length=64)
    carried = Carried(data=DataSettings(image=image, text=text), labels=("cat", "dög"))
    read = carried_by({CARRIED: carried_text(carried)})
    assert read is not None
    assert (read.data.image, read.labels) == (image, carried.labels)
    assert read.data.text == TextSettings(column=("a", "b"), max_length=64)
    assert "private" not in carried_text(carried)


def test_a_calibrated_model_says_how_its_samples_were_made() -> None:
    record = next(
        text for path in sorted(RECORDS.iterdir()) if '"mean"' in (text := path.read_text())
    )
    found = carried_by({PROVENANCE: record})
    assert found is not None
    assert found.data == data_settings_of(json.loads(record)["options"])
    assert carried_by({}) is None
    assert carried_by({PROVENANCE: '{"options":{}}'}) is None


@pytest.mark.parametrize(
    "entry", ["", "[]", '{"image":3}', '{"image":{"std":[0]}}', '{"labels":3}', "{", "null"]
)
def test_a_damaged_entry_is_one_line(entry: str) -> None:
    with pytest.raises(ModelError, match="preprocessing in the model's metadata is damaged"):
        carried_by({CARRIED: entry})
