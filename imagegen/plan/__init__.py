"""What decides an image: the matrix, the compatibility rules, package metadata and the lock."""
