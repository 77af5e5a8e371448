"""Where the bytes of a model file go, by cause."""
