"""The forms of quantization: one file each, see `quantkit.pipeline.quantize.Form`."""
