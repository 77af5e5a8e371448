"""A form of quantization in one place: what it takes, and what the pipeline does for it."""



