"""One file per check: check(image, machine) gives its findings."""
