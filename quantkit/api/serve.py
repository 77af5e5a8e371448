"""Serving a model as a recipe says. Apart from other calls: a server needs neither onnx nor a pipeline."""

from quantkit.deploy.serve import serve as serve_recipe

__all__ = ["serve_recipe"]
