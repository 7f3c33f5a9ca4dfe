"""Package metadata from an index, with the metadata of one wheel of each release."""
