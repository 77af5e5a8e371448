"""`python -m quantkit.deploy.serve MODEL`: the server with what a container needs and nothing else."""

import sys

from quantkit.deploy.serve import main

sys.exit(main())
