"""Serve a model over HTTP: start, reload, stop, from settings to the exit code.

Stopping loses no request: on SIGTERM the server is not ready at once, goes on answering for `drain_s` seconds with
"Connection: close", so that balancers and callers turn to others, then stops listening, answers what it holds and ends
with 0. Ctrl-C leaves out the waiting. SIGHUP, or a changed file, loads the model again beside the old one.
"""

import argparse
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from threading import Event, Thread
from types import FrameType
from typing import Any

from quantkit.errors import OutputError, QuantkitError, UsageError, as_os_error
from quantkit.installation import install_command
from quantkit.settings import GateSettings, Recipe, ServeSettings, load_recipe
from quantkit.settings.declare import Declared, declared, override
from quantkit.settings.gate import LIVE_RULES
from quantkit.settings.serve import SERVE_KINDS

_LOOKS = 1.0  # seconds between looks at the model's file
# Seconds; longer than balancers keep connections, so that they close them, and not we.
_KEEP_ALIVE = 75
# Seconds until a thread that runs the model may interrupt the one that talks to callers. With Python's 0.005 it waits
# that long several times a run when callers that were sent away come back at once: half as many are answered then.
_SWITCH = 0.001
# When a file changed, its size and its number; and of those beside it.
_Stamp = tuple[tuple[int, int, int], ...]


def serve(model: Path, recipe: Recipe) -> int:
    """Serve a model until a signal ends it; return the exit code.

    Args:
        model: Its file.
        recipe: `serve` says how, `data` how inputs are prepared, `gate` what a second model must keep.

    Raises:
        QuantkitError: The model cannot be loaded, the address is taken, or a package is missing.
    """
    try:
        import uvicorn

        from quantkit.deploy.serve.app import make_app
        from quantkit.deploy.serve.calls import MOST_HEADERS, Calls
        from quantkit.deploy.serve.service import ForwardedWarnings, Log, start_service
        from quantkit.deploy.serve.wire import Connection
    except ImportError as e:
        raise UsageError(
            f"Serving needs more packages: {install_command('serve')} (missing: {e.name})."
        ) from e
    # A secret that comes from a file ends with a line break.
    told = os.environ.get("QUANTKIT_TOKEN", "").strip()
    settings = replace(recipe.serve, token=recipe.serve.token or told or None)
    if settings.require_token and settings.token is None:
        raise UsageError("A token is required and none is set: set QUANTKIT_TOKEN.")
    logging.getLogger().addHandler(ForwardedWarnings(Log(level=settings.log_level)))
    logging.captureWarnings(capture=True)
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # it warns of what clients send
    sys.setswitchinterval(_SWITCH)
    before = _stamp(model)  # a file that changes while it is loaded has changed
    with _stoppable(), _listening(settings) as listener:
        service = start_service(model, settings, recipe)
        port = listener.getsockname()[1]
        service.settings = replace(settings, port=port)
        calls = Calls(service)
        config = uvicorn.Config(
            make_app(calls),
            http=partial(Connection, calls),  # type: ignore[arg-type]
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE,
            timeout_graceful_shutdown=int(settings.limits.timeout_s) + 1,
            h11_max_incomplete_event_size=MOST_HEADERS,
        )
        with _Watch(service, before):
            _server(config, service).run(sockets=[listener])
    service.close()
    service.log("info", "stopped", {})
    return 0


@contextmanager
def _stoppable() -> Iterator[None]:
    """End with 0 on a signal to stop that comes while the model is loaded: the first process of a container ignores it otherwise."""

    def end(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise SystemExit(0)

    # No process of Windows is sent a SIGTERM: Ctrl-Break takes its place.
    names = ("SIGTERM", "SIGBREAK")
    before = {
        number: signal.signal(number, end)
        for name in names
        if (number := getattr(signal, name, None))
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _listening(settings: ServeSettings) -> socket.socket:
    """Return a socket at the address; it is bound before the model is loaded, and listens only afterwards."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # The protocol is named: asyncio sends without delay only where it is, and answers would take 40 ms more.
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    # On Windows SO_REUSEADDR would let a second server take an address that is in use, and answer its callers.
    exclusive = getattr(socket, "SO_EXCLUSIVEADDRUSE", None)
    found.setsockopt(socket.SOL_SOCKET, exclusive or socket.SO_REUSEADDR, 1)
    try:
        found.bind((settings.host, settings.port))
    except OSError as e:
        found.close()
        said = f"Cannot listen on {settings.host}:{settings.port}: {e.strerror or e}; choose --host or --port."
        raise as_os_error(OutputError(said), e) from e
    return found


def _say_started(service: Any, listener: socket.socket) -> None:
    settings, engine = service.settings, service.loaded.engine
    host, port = listener.getsockname()[:2]
    facts = {
        "address": f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}",
        "model": service.name,
        "sha256": engine.digest,
        "provider": engine.provider,
        "workers": service.line.rules.workers,
        "batch": 1 if engine.unbatched else service.line.rules.rows,
        "token": "needed"
        if settings.token
        else "none: anyone who can reach this address can send requests",
        "preprocessing": service.loaded.predictor.lines,
    }
    service.log("info", "started", facts)
    for note in service.notes():
        service.log("warning", "note", {"note": note})
    if not settings.token and not _is_loopback(host):
        said = f"{host} is reached from other machines and no token is set: set QUANTKIT_TOKEN."
        service.log("warning", "note", {"note": said})


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _server(config: Any, service: Any) -> Any:
    import asyncio

    import uvicorn

    class Server(uvicorn.Server):
        """Ends with 0 when it is told to end, and not before callers could turn away."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            _say_started(service, (sockets or [])[0])

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            del frame
            if service.stopping or sig == signal.SIGINT:
                self.force_exit = service.stopping and sig == signal.SIGINT
                service.stopping = self.should_exit = True
                return
            service.stopping = True
            # Not here: a signal may come in the middle of a line of the log.
            asyncio.get_running_loop().call_soon_threadsafe(self._drain)

        def _drain(self) -> None:
            seconds = service.settings.limits.drain_s
            service.log("info", "stopping", {"drain_s": seconds})
            asyncio.get_running_loop().call_later(seconds, self._end)

        def _end(self) -> None:
            self.should_exit = True

    return Server(config)


class _Watch:
    """Looks at the model's file from time to time, and loads it again when it has changed or SIGHUP came."""

    def __init__(self, service: Any, seen: _Stamp) -> None:
        self._service = service
        self._seen = seen  # of the file, before it was loaded
        self._told = Event()
        self._asked = self._ended = False
        self._thread = Thread(target=self._look, name="watch", daemon=True)

    def __enter__(self) -> None:
        if hasattr(signal, "SIGHUP"):
            signal.signal(signal.SIGHUP, self._hang_up)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self._told.set()
        self._thread.join()

    def _hang_up(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._asked = True
        self._told.set()

    def _look(self) -> None:
        file = self._service.loaded.engine.path
        seen = settled = self._seen
        while not self._ended:
            self._told.wait(_LOOKS)
            self._told.clear()
            now = _stamp(file)
            # A file that is still being written changes from look to look, and one that is gone has no stamp.
            changed = self._service.settings.reload and now and now != settled and now == seen
            if not self._ended and (self._asked or changed):
                self._asked, settled = False, now
                self._service.reload()
            seen = now


def _stamp(file: Path) -> _Stamp:
    """Return what tells that a file, or the weights beside it, changed."""
    found = []
    for one in (file, file.with_name(f"{file.name}.data"), file.with_name(f"{file.name}_data")):
        try:
            stat = one.stat()
        except OSError:
            continue
        found.append((stat.st_mtime_ns, stat.st_size, stat.st_ino))
    return tuple(found)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``python -m quantkit.deploy.serve``; return the exit code."""
    try:
        given = vars(_parser().parse_args(arguments))
        model, file = given.pop("model"), given.pop("recipe")
        recipe = load_recipe(file)
        found = {
            name: one.read(given[name], f"--{_dashed(name)}", text=True)
            for name, one in _flags().items()
            if given[name] is not None
        }
        recipe = replace(
            recipe, serve=override(recipe.serve, found), gate=override(recipe.gate, found)
        )
        return serve(model, recipe)
    except QuantkitError as e:
        sys.stderr.write(f"error: {e}\n")
        return 2
    except KeyboardInterrupt:
        return 130  # by Ctrl-C, before it listened


def _parser() -> argparse.ArgumentParser:
    """Return the parser of the same flags as ``quantkit serve`` has, without its packages."""
    parser = argparse.ArgumentParser(
        prog="python -m quantkit.deploy.serve",
        description="Answer requests with a model, over HTTP.",
    )
    parser.add_argument("model", type=Path, metavar="MODEL", help="The model.")
    parser.add_argument("--recipe", type=Path, metavar="FILE", help="Its quantkit.toml.")
    for name, one in _flags().items():
        text = one.setting.text.replace("%", "%%")
        how: Any = {"action": argparse.BooleanOptionalAction}
        if one.type is not bool:
            how = {"metavar": one.setting.metavar}
        parser.add_argument(f"--{_dashed(name)}", default=None, help=text, **how)
    return parser


def _flags() -> dict[str, Declared]:
    """Return what the flags set: how it serves, and the rules that a second model must keep."""
    found = {name: one for kind in SERVE_KINDS for name, one in declared(kind).items()}
    return found | {name: declared(GateSettings)[name] for name in LIVE_RULES}


def _dashed(name: str) -> str:
    return name.replace("_", "-")
