"""Python imports this when it starts with this folder on its path; see `simulated`."""

import simulated  # noqa: F401 - simulates the system that the environment names
