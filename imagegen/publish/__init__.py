"""From an image to tags of a registry."""
