"""The artifacts between a lock and its image."""
