"""Netron, which others make, on this machine alone: a server on a free port of the loopback interface, until it is told to end."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path

from quantkit.errors import UsageError
from quantkit.installation import install_command
from quantkit.model.graph.load import model_files

_HOST = "127.0.0.1"


@contextmanager
def netron_server(model: Path, *, browse: bool = True) -> Iterator[tuple[str, Callable[[], None]]]:
    """Serve a model; yield the address, and what waits until somebody presses Ctrl-C.

    Args:
        model: The file.
        browse: Open it in a browser.

    Raises:
        UsageError: Netron is not installed.
        ModelError: There is no such file, or it is no model.
    """
    try:
        netron = import_module("netron")
    except ImportError as e:
        raise UsageError(
            f"Netron is not installed: {install_command('view')}, or leave out --netron: quantkit's own page needs nothing."
        ) from e
    model_files(model)
    with socket.socket() as free:
        free.bind((_HOST, 0))
        port = free.getsockname()[1]
    address = (_HOST, port)
    netron.start(str(model), address=address, browse=browse)
    try:
        yield f"http://{_HOST}:{port}", lambda: _wait(netron.wait)
    finally:
        netron.stop(address)


def _wait(wait: Callable[[], None]) -> None:
    with suppress(KeyboardInterrupt):
        wait()
