"""`python -m quantkit.serve MODEL`: the server with what a container needs and nothing else."""

import sys

from quantkit.serve.main import main

__all__: list[str] = []

sys.exit(main())
