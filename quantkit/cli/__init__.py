"""The command line: one file per command. Heavy modules are imported when a command runs."""

from quantkit.cli.process import main

__all__ = ["main"]
