"""What a model costs: bytes, milliseconds, memory."""
