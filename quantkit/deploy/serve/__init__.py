"""A model behind HTTP: the Open Inference Protocol, and a plain /predict, in one process.

    quantkit serve model.int8.onnx
    python -m quantkit.deploy.serve model.int8.onnx      the same, with what a container needs and nothing else

From the bottom: `protocol` (bytes <-> arrays), `engine` (the session), `batch` (who runs when), `predict` (images, texts and
rows <-> arrays), `drift` (two models on live requests), `metrics`, `pages`, `service` (what the server knows), `calls` (a
request through the service), `guard` (limits of a request), `app` (addresses), `wire` (limits of a connection), `main`
(start, reload, stop).

Imports onnxruntime, numpy, msgspec, uvicorn and prometheus-client, and Pillow, tokenizers or python-multipart where images,
texts or forms come in; neither onnx nor scipy, so that an image with a server in it stays small.
"""
