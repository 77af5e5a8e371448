"""Channels, neurons and heads that carry least are removed, and the rest makes up for them."""
