"""What differs between two models, or two results."""
