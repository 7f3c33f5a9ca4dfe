"""Package metadata from an index: the releases of a package, and the metadata of one wheel of each."""
