"""Everything that makes a session, and what a session really runs."""
