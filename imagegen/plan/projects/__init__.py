"""Files in which Python projects declare their packages: what an image's entry can take over, and what it cannot."""
