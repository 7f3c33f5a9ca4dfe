"""Write data about released packages into matrices/: `python -m tools.harvest`, weekly in CI.

`metadata` reads the releases of packages, `scans` and `published` the contents of their wheels, `api` the names that
they share, `model_types`, `interpreters` and `torch_exports` one source each. `verdicts` shows the cells that change.
"""
