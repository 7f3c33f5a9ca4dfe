"""A Docker engine from Debian packages for machines without one; only the engine connection uses it."""
