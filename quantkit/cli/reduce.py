"""The commands that write a smaller model without quantizing it; `quantkit.cli.app` lists them."""

from quantkit.cli.distill import distill
from quantkit.cli.optimize import optimize
from quantkit.cli.prune import prune
from quantkit.cli.trim import trim

__all__ = ["distill", "optimize", "prune", "trim"]
