"""Compare two images, locks or cells; and verify an image against its lock."""
