"""Ask a server what it was asked when this folder was made, and compare the answers.

    ./smoke                              http://127.0.0.1:8000
    ./smoke https://models.example.org   another address; QUANTKIT_TOKEN is sent if it is set
    ./smoke --wait 120                   seconds to wait until the server is ready

Exit code 0: it answers as recorded. 1: it does not. 2: it cannot be asked. Needs Python alone.
"""

import argparse
import http.client
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Tuple  # noqa: UP035 - also for older versions of Python
from urllib.parse import urlsplit

_MOST = 10000  # values of an output that are kept
_TINY = 1e-30
_OK = 200


def values(answer: Dict[str, Any]) -> Dict[str, List[Any]]:  # noqa: UP006
    """Return the values of an answer by name; of very large outputs, some.

    Classes of /predict are names, so that it does not matter in which order they come.
    """
    found = {}
    for row, best in enumerate(answer.get("predictions", ())):
        for one in best:
            found[f"row {row}, class {one['class']} {one.get('label', '')}".strip()] = [
                one["score"]
            ]
    outputs = answer.get("outputs", {})
    if isinstance(outputs, list):
        outputs = {one["name"]: one["data"] for one in outputs}
    for name, data in outputs.items():
        flat = _flat(data)
        found[name] = flat[:: len(flat) // _MOST + 1]
    return found


def _flat(data: Any) -> List[Any]:  # noqa: UP006
    found = data if isinstance(data, list) else [data]
    while found and isinstance(found[0], list):
        found = [one for inner in found for one in inner]
    return found


def compared(recorded: Dict[str, List[Any]], found: Dict[str, List[Any]]) -> Tuple[float, str]:  # noqa: UP006
    """Return how far an answer is from the recorded one, as a share of the largest value, and where; infinite: elsewhere."""
    worst, where = 0.0, "nowhere"
    classes = all(name.startswith("row ") for name in recorded)
    everything = [value for one in recorded.values() for value in one]
    for name, wanted in recorded.items():
        given = found.get(name, [])
        if len(given) != len(wanted):
            return float("inf"), f"'{name}' is missing, or has another size"
        numbers = [abs(v) for v in (everything if classes else wanted) if isinstance(v, float)]
        far = _distance(wanted, given) / max([_TINY, *numbers])
        if far > worst:
            worst, where = far, f"'{name}'"
    return worst, where


def _distance(wanted: List[Any], given: List[Any]) -> float:  # noqa: UP006
    """Return the largest difference of two lists of values; infinite where a value other than a number differs."""
    far = 0.0
    for want, have in zip(wanted, given):  # noqa: B905 - of one length
        if isinstance(want, float) and isinstance(have, (int, float)):
            far = max(far, abs(have - want))
        elif want != have:
            return float("inf")
    return far


def _address(text: str) -> Any:
    """Return the parts of an address; None: it is none."""
    try:
        url = urlsplit(text)
        known = url.scheme in ("http", "https") and url.hostname and url.port != 0
    except ValueError:  # a port that is no number
        return None
    return url if known and text.isprintable() and " " not in text else None


def _ask(url: Any, path: str, body: Any = None, headers: Any = None) -> Tuple[int, bytes]:  # noqa: UP006
    kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    connection = kind(url.hostname, url.port, timeout=60)
    token = os.environ.get("QUANTKIT_TOKEN", "").strip()  # a file's last line break is none of it
    sent = dict(headers or {}, **({"Authorization": f"Bearer {token}"} if token else {}))
    try:
        connection.request(
            "POST" if body is not None else "GET", url.path.rstrip("/") + path, body, sent
        )
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def _wait(url: Any, seconds: float) -> str:
    """Wait until the server is ready; return why it is not."""
    end = time.monotonic() + seconds
    while True:
        try:
            status, _ = _ask(url, "/v2/health/ready")
            said = "" if status == _OK else f"it says {status}"
        except (OSError, http.client.HTTPException) as e:
            said = str(e) or type(e).__name__
        if not said or time.monotonic() > end:
            return said
        time.sleep(0.2)


class _SmokeError(Exception):
    """Why it is not as recorded (1), or cannot be asked (2)."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def _recorded() -> Tuple[Dict[str, Any], bytes]:  # noqa: UP006
    """Return what is sent and was answered, and the sample."""
    folder = Path(__file__).resolve().parent
    try:
        record = json.loads((folder / "answer.json").read_text(encoding="utf-8"))
        return record, (folder / record["sample"]).read_bytes()
    except (OSError, ValueError) as e:
        raise _SmokeError(f"what was recorded cannot be read: {e}", 2) from e


def _answered(url: Any, record: Dict[str, Any], sample: bytes) -> Dict[str, List[Any]]:  # noqa: UP006
    """Ask, and return the values of the answer."""
    try:
        status, body = _ask(url, record["path"], sample, record["headers"])
    except (OSError, http.client.HTTPException) as e:
        raise _SmokeError(f"{url.geturl()} does not answer: {e}", 2) from e
    if status != _OK:
        raise _SmokeError(f"{record['sample']} is answered with {status}: {body[:300]!r}", 1)
    try:
        return values(json.loads(body))
    except (AttributeError, KeyError, TypeError, ValueError) as e:
        raise _SmokeError(f"the answer is not of this kind of server: {body[:300]!r}", 1) from e


def _tried(address: str, patience: float) -> str:
    """Ask the server and compare; return what is said of an answer as recorded."""
    url = _address(address)
    if url is None:
        raise _SmokeError(f"'{address}' is no address: write http://host:port", 2)
    record, sample = _recorded()
    start = time.monotonic()
    said = _wait(url, patience)
    if said:
        raise _SmokeError(f"{address} is not ready after {patience:g} s: {said}", 2)
    ready = time.monotonic() - start
    worst, where = compared(record["values"], _answered(url, record, sample))
    far = f"the answer differs from the recorded one by {worst:.3g} of the largest value"
    allowed = f"(allowed: {record['tolerance']:g})"
    if worst > record["tolerance"]:
        raise _SmokeError(f"{far}: {where} {allowed}", 1)
    return f"ready after {ready:.1f} s; {far} {allowed}"


def main() -> int:
    """Run the command; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:8000")
    parser.add_argument("--wait", type=float, default=60.0, metavar="SECONDS")
    given = parser.parse_args()
    try:
        sys.stdout.write(f"ok: {_tried(given.url, given.wait)}\n")
    except _SmokeError as e:
        sys.stderr.write(f"error: {e}\n")
        return e.code
    return 0


if __name__ == "__main__":
    sys.exit(main())
