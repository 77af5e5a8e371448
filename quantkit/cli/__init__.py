"""The command line: one file a command. Heavy modules are imported when a command runs."""

import sys

from quantkit.cli.app import run

__all__ = ["main"]


def main() -> None:
    """Run the command line and exit."""
    sys.exit(run(sys.argv[1:]))
