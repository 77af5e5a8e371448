"""The commands, and what becomes of errors.

Exit codes: 0 success, 1 something that was asked is wrong, 2 bad usage or input, 130 interrupted (143 if it was told to end).
No traceback without ``--debug``.
"""

import subprocess
import traceback
from typing import Annotated, Any

import typer

from quantkit._version import __version__
from quantkit.cli.calibrate import calibrate
from quantkit.cli.console import errors, escape
from quantkit.cli.deploy import package, serve
from quantkit.cli.diff import diff
from quantkit.cli.evaluate import demo, evaluate
from quantkit.cli.export import export
from quantkit.cli.flags import Command, DebugOption, Group
from quantkit.cli.gate import gate
from quantkit.cli.inspect import inspect
from quantkit.cli.plan import plan
from quantkit.cli.quantize import quantize
from quantkit.cli.reduce import distill, optimize, prune, trim
from quantkit.cli.report import report
from quantkit.cli.targets import targets
from quantkit.cli.tune import compress, tune
from quantkit.cli.verify import verify
from quantkit.cli.view import view
from quantkit.errors import (
    InterruptedRunError,
    OutputError,
    QuantkitError,
    UnreachableError,
    UsageError,
)
from quantkit.text import printable

_INTERRUPTED = 130
_NAME = "quantkit"
_SHELLS = ("bash", "zsh", "fish", "powershell", "pwsh")


class _Commands(Group):
    """The commands in the order in which they are used; typer lists groups last."""

    def list_commands(self, ctx: Any) -> list[str]:
        names: list[str] = super().list_commands(ctx)
        names.insert(names.index("inspect") + 1, names.pop(names.index("quantize")))
        names.insert(names.index("tune"), names.pop(names.index("plan")))
        return names


app = typer.Typer(
    name="quantkit",
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Make float32 ONNX models small and fast: right on every CPU, never invalid, proved.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
_MAKING = (demo, export, inspect, calibrate, tune, compress, optimize, prune, distill, trim)
_JUDGING = (evaluate, report, gate, diff, view, verify, targets)
_RUNNING = (serve, package)
for _command in (*_MAKING, *_JUDGING, *_RUNNING):
    app.command(cls=Command)(_command)
app.add_typer(quantize, name="quantize")
app.add_typer(plan, name="plan")


# The base of all complaints about a command line. Older typers take it from click, newer ones bring
# their own, and export only what derives from it.
_USAGE_ERROR: Any = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


def _show_version(value: bool) -> None:  # noqa: FBT001 - typer's signature of a callback
    if value:
        typer.echo(f"quantkit {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
    debug: DebugOption = False,
) -> None:
    """Make float32 ONNX models small and fast: right on every CPU, never invalid, proved."""


def run(arguments: list[str]) -> int:
    """Run one command line; return the exit code."""
    debug = "--debug" in arguments
    arguments = [a for a in arguments if a != "--debug"]
    try:
        code = _dispatched(arguments)
    except QuantkitError as e:
        stopped = isinstance(e, InterruptedRunError)
        return _interrupted(str(e)) if stopped else _fail(e, str(e), debug=debug)
    except _USAGE_ERROR as e:
        message = e.format_message()  # empty if the help was shown for want of arguments
        stop = "" if message.endswith((".", "?")) else "."
        return _fail(e, f"{message}{stop} Try --help.", debug=debug) if message else 2
    except (typer.Abort, KeyboardInterrupt):
        return _interrupted()
    except Exception as e:  # noqa: BLE001 - the last resort: no traceback unless asked for
        return _fail(e, f"Unexpected {type(e).__name__}: {e} (run with --debug)", debug=debug)
    if code == _INTERRUPTED:  # typer's way to tell of Ctrl-C
        return _interrupted()
    return code if isinstance(code, int) else 0


def _dispatched(arguments: list[str]) -> object:
    if arguments[:1] in (["--install-completion"], ["--show-completion"]):
        return _completion(*arguments)  # typer's own cannot be told which shell
    return app(args=arguments, prog_name=_NAME, standalone_mode=False, obj=arguments)


def _completion(flag: str, shell: str = "", *_: str) -> int:
    """Show or install the completion for a shell: the one named, else the one that this runs in."""
    from typer import completion

    typers: Any = completion  # has these functions, but does not export them
    shell = shell or _running_shell()
    if shell not in _SHELLS:
        said = f"'{shell}' is not one of them" if shell else "which one this is cannot be told"
        raise UsageError(
            f"Completion is for {', '.join(_SHELLS)}; {said}: name it, as in quantkit {flag} bash."
        )
    variable = f"_{_NAME.upper()}_COMPLETE"
    if flag == "--show-completion":
        typer.echo(
            typers.get_completion_script(prog_name=_NAME, complete_var=variable, shell=shell)
        )
        return 0
    try:
        file = typers.install(shell=shell, prog_name=_NAME, complete_var=variable)[1]
    except (OSError, subprocess.CalledProcessError) as e:
        raise OutputError(f"Completion for {shell} cannot be installed: {e}.") from e
    typer.echo(f"{shell} completion written to {file}; it works in the next shell you open")
    return 0


def _running_shell() -> str:
    import shellingham

    try:
        name: str = shellingham.detect_shell()[0]
    except shellingham.ShellDetectionFailure:
        return ""
    return name


def _interrupted(message: str = "") -> int:
    message = message or "interrupted; nothing was written"
    errors().print(message, style="yellow", soft_wrap=True, markup=False, highlight=False)
    return _INTERRUPTED


def _fail(error: Exception, message: str, *, debug: bool) -> int:
    if debug:
        trace = "".join(traceback.format_exception(error))
        typer.echo(printable(trace, keep="\n"), err=True, nl=False)
    said = escape(" ".join(message.split()))
    errors().print(f"[bold red]error:[/] {said}", soft_wrap=True, highlight=False)
    return 1 if isinstance(error, UnreachableError) else 2
