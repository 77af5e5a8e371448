"""Rules of a release, and what came of them."""
