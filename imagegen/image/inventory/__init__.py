"""Making subjects of an audit: from a lock's wheels, an image, an installed environment, loose wheels."""
