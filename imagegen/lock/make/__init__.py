"""Resolve a cell to a lock: uv's resolution, the choice of wheels, source builds."""
