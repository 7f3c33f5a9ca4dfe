"""Use cases: each reads as a list of steps."""
