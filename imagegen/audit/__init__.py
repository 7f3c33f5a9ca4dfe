"""Static analysis of a stack's files, without running them and without a GPU.

`elf`, `fatbin`, `examine` and `collect` read files into `model`. The checks are pure functions from a Subject to
findings.
"""
