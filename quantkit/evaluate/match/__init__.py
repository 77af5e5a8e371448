"""Which tensor of one model is which tensor of another, from the two files alone."""
