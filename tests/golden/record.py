"""Records the golden digests anew, or shows what is behind one.

    python tests/golden/record.py                      all of them; takes minutes
    python tests/golden/record.py sample messages      these families
    python tests/golden/record.py --show "graph 003 static cpu qdq"     everything that its digests are of, as text

A commit that changes digests says which and why; a move or a rename changes none.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

HOME = Path(__file__).parent


def golden_path(family: str) -> Path:
    return HOME / f"{family}.json"


def read_golden(family: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(golden_path(family).read_text(encoding="utf-8"))
    return found


def write_golden(family: str, found: dict[str, Any]) -> None:
    """One case per line, so that a diff names those that changed."""
    lines = [f" {json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in found.items()]
    golden_path(family).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def _record(families: list[str]) -> None:
    os.environ["QUANTKIT_MEASURE"] = "0"  # bytes that no clock decides, as in the tests
    from golden.golden_cases import FAMILIES, SHARED, here
    from golden.golden_messages import recorded_messages, surface

    known = [*FAMILIES, "messages", "surface"]
    if unknown := [family for family in families if family not in known]:
        sys.exit(f"'{unknown[0]}' is no family: {', '.join(known)}.")
    for family in families or known:
        if family in FAMILIES and (family != "shared" or SHARED.exists()):
            found: dict[str, Any] = {}
            for case in FAMILIES[family]():
                found[case.name] = case.digests()
                print(f"{family}: {case.name}: {found[case.name]}", flush=True)
            write_golden(family, {"recorded with": here()} | dict(sorted(found.items())))
        elif family == "shared":
            print(f"{family}: left as it is, the folder of real models is absent")
        else:
            texts = recorded_messages() if family == "messages" else surface()
            write_golden(family, dict(sorted(texts.items())))


def _show(name: str) -> None:
    from golden.golden_cases import FAMILIES

    for case in (c for cases in FAMILIES.values() for c in cases() if c.name == name):
        for part, text in case.texts().items():
            print(f"== {part}\n{text}")


if __name__ == "__main__":
    sys.path[:0] = [str(HOME.parent), str(HOME.parent / "helpers")]
    if sys.argv[1:2] == ["--show"]:
        _show(sys.argv[2])
    else:
        _record(sys.argv[1:])
