"""`quantkit gate`: exit codes, where rules come from, what it writes."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import fromstring

import pytest
from result_cases import example_result

from quantkit.cli.app import run
from quantkit.evaluate.gate import rules_of
from quantkit.result import OutputDrift, Result, save_result
from quantkit.settings import GateSettings


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    save_result(example_result(), Path("result.json"))


def _recipe(text: str, name: str = "quantkit.toml") -> None:
    Path(name).write_text(f"[gate]\n{text}\n", encoding="utf-8")


def _json(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    run(["gate", "result.json", "--json", *flags])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def _limits(plain: dict[str, Any]) -> dict[str, tuple[float, float | None]]:
    rules = [r["rule"] for r in plain["verdicts"][0]["rules"]]
    return {r["key"]: (r["limit"], r["confidence"]) for r in rules}


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (["--max-drop", "10%"], 0),
        (["--max-drop", "0.01"], 1),  # ort default drops by 5 points
        (["--max-drop", "1%", "--candidate", "static"], 0),
        (["--max-drop", "1%", "--candidate", "static", "--candidate", "ort default"], 1),
        (["--max-drop", "0.5%", "--confidence", "95%", "--candidate", "static"], 1),
        (
            [
                "--max-drop",
                "0.5%",
                "--confidence",
                "95%",
                "--candidate=static",
                "--allow-undecided",
            ],
            0,
        ),
    ],
)
def test_exit_codes(flags: list[str], code: int) -> None:
    assert run(["gate", "result.json", *flags]) == code


def test_prints_rules_with_figures_and_margins(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--max-drop", "0.5%", "--max-latency-ratio", "0.8", "--confidence", "0.95"]
    assert run(["gate", "result.json", *flags]) == 1
    shown = capsys.readouterr().out
    for text in ("static", "ort default", "<= 0.5 pt", "0.7 pt", "-0.2 pt", "0.13", "undecided"):
        assert text in shown
    assert "8,000 samples would settle it." in " ".join(shown.split())
    assert shown.splitlines()[-1] == (
        "quantkit gate: failed (undecided static: max_drop; failed ort default: max_drop)"
    )


def test_flags_go_over_the_recipe_and_the_recipe_over_the_result(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stored = rules_of(GateSettings(max_drop=0.2, max_flips=0.3, confidence=0.9))
    save_result(replace(example_result(), rules=stored), Path("result.json"))
    assert _limits(_json(capsys)) == {"max_drop": (0.2, 0.9), "max_flips": (0.3, 0.9)}
    assert _limits(_json(capsys, "--max-drop", "5%")) == {
        "max_drop": (0.05, 0.9),
        "max_flips": (0.3, 0.9),
    }
    _recipe("max_drop = 0.01\nmin_int8_share = 0.5")
    assert _limits(_json(capsys)) == {"max_drop": (0.01, 0.95), "min_int8_share": (0.5, 0.95)}
    assert _limits(_json(capsys, "--max-drop", "0", "--confidence", "99%")) == {
        "max_drop": (0.0, 0.99),
        "min_int8_share": (0.5, 0.99),
    }
    _recipe("max_flips = 0.5", "other.toml")
    assert _limits(_json(capsys, "--recipe", "other.toml")) == {"max_flips": (0.5, 0.95)}
    _recipe("confidence = 0.8")
    assert _limits(_json(capsys)) == {"max_drop": (0.2, 0.8), "max_flips": (0.3, 0.8)}


def test_recipe_may_allow_what_is_undecided(capsys: pytest.CaptureFixture[str]) -> None:
    _recipe("max_drop = 0.005\nconfidence = 0.95\nallow_undecided = true")
    plain = _json(capsys, "--candidate", "static")
    assert plain["outcome"] == "pass"
    assert plain["allow_undecided"] is True
    assert plain["verdicts"][0]["outcome"] == "undecided"
    assert run(["gate", "result.json", "--candidate", "static"]) == 0


def test_files_are_written_also_if_it_fails() -> None:
    flags = ["--max-drop", "1%", "--junit", "gate.xml", "--badge", "badge.txt"]
    assert run(["gate", "result.json", *flags]) == 1
    written = fromstring(Path("gate.xml").read_text(encoding="utf-8"))  # noqa: S314 - our own
    assert written.get("failures") == "1"
    assert Path("badge.txt").read_text(encoding="utf-8") == (
        "quantkit gate: failed (passed static; failed ort default: max_drop)\n"
    )


def _without_candidates() -> Result:
    found = example_result()
    return replace(found, models=(found.float_model,))


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["nothing.json", "--max-drop", "1%"], "Cannot read the result 'nothing.json'"),
        (["quantkit.toml", "--max-drop", "1%"], "it is not JSON"),
        (["empty.json", "--max-drop", "1%"], "holds no candidate: evaluate one"),
        (["result.json"], "no rule to judge by: add --max-drop 0.01, or [gate] with a line"),
        (["result.json", "--max-drop", "much"], "--max-drop = 'much': --max-drop takes a number"),
        (
            ["result.json", "--max-drop", "-1"],
            '--max-drop takes a number, or a text such as "1%", at least 0',
        ),
        (["result.json", "--max-flips", "100%"], "below 1"),
        (["result.json", "--confidence", "95"], "(0.95 is 95 %)"),
        (["result.json", "--max-drop", "1%", "--candidate", "statc"], "did you mean 'static'?"),
        (["result.json", "--max-drop", "1%", "--recipe", "no.toml"], "no recipe 'no.toml'"),
        (["result.json", "--max-drop", "1%", "--junit", "no/gate.xml"], "does not exist"),
    ],
)
def test_bad_input(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _recipe("")
    save_result(_without_candidates(), Path("empty.json"))
    assert run(["gate", *arguments]) == 2
    shown = capsys.readouterr().err
    assert complaint in shown
    assert "Traceback" not in shown
    assert len(shown.strip().splitlines()) == 1


def test_unknown_key_in_the_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    _recipe("max_dropp = 0.01")
    assert run(["gate", "result.json"]) == 2
    assert "unknown key 'max_dropp' (did you mean 'max_drop'?)" in capsys.readouterr().err


def test_json_is_strict_also_where_nothing_changed(capsys: pytest.CaptureFixture[str]) -> None:
    result = example_result()
    model = result.models[1]
    assert model.drift is not None
    exact = OutputDrift(output="logits", sqnr_db=None)
    same = replace(model, drift=replace(model.drift, outputs=(exact,)))
    save_result(replace(result, models=(result.models[0], same)), Path("result.json"))
    assert run(["gate", "result.json", "--json", "--min-sqnr-db", "20"]) == 0

    def refuse(word: str) -> None:
        pytest.fail(f"{word} is not JSON")

    plain = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert plain["outcome"] == "pass"


def test_loads_no_model_library() -> None:
    program = (
        "import sys; from quantkit.cli.app import run; "
        "run(['gate', 'result.json', '--max-drop', '10%', '--badge', 'b.txt', '--junit', 'j.xml']); "
        "heavy = {'onnx', 'onnx_ir', 'onnxruntime', 'numpy', 'scipy'} & set(sys.modules); "
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
