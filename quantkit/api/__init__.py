"""The calls of the public API, one file for each group of them.

`quantkit` names the module of each call and imports it when the call is first used: to judge a result.json needs
neither onnx nor onnxruntime.
"""
