from pathlib import Path

import pytest

from quantkit.errors import UsageError
from quantkit.settings import EvaluateSettings, load_recipe


def recipe(folder: Path, text: str) -> EvaluateSettings:
    file = folder / "quantkit.toml"
    file.write_text(text, encoding="utf-8")
    return load_recipe(file).evaluate


def test_everything(tmp_path: Path) -> None:
    found = recipe(
        tmp_path,
        """
        [evaluate]
        metric = "spearman"
        pairs = true
        confidence = 0.9
        batches = [1, 8]
        threads = 1
        output = "out"
        """,
    )
    assert found == EvaluateSettings(
        metric="spearman",
        pairs=True,
        confidence=0.9,
        batches=(1, 8),
        threads=(1,),
        output=tmp_path / "out",
    )
    assert recipe(tmp_path, "") == EvaluateSettings()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("metrics = 'f1'", "[evaluate] unknown key 'metrics' (did you mean 'metric'?)"),
        ("metric = 'F-1'", "[evaluate] metric 'F-1' is unknown (did you mean 'f1'?)"),
        ("metric = 'mse'\npairs = true", "pairs are judged by spearman, not by 'mse'"),
        ("confidence = 95", "above 0.5 and below 1 (0.95 is 95 %)."),
        ("batches = [0]", "batches takes "),
        ("batches = []", "batches '[]' is empty"),
        ("threads = -1", "threads takes "),
        ("batches = 'one'", "batches takes a whole number, or a list of them, at least 1"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(UsageError) as e:
        recipe(tmp_path, f"[evaluate]\n{line}\n")
    assert message in str(e.value)
    assert "\n" not in str(e.value)
