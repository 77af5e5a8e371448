"""`python -m quantkit`: the command line, where the command itself is not on the path."""

from quantkit.cli import main

main()
