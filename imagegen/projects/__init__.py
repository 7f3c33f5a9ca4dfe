"""Read the files in which Python projects declare their packages, for the entry of an image."""
