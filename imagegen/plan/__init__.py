"""The inputs that decide an image: the matrix, the compatibility rules, package metadata and the lock."""
