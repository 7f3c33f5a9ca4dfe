"""Read files that are audited, without anything of images and locks."""
