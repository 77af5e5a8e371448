"""Float model in, float model out: simplify, equalize, smooth."""
