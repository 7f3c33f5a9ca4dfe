"""Run an image on a host without a container engine: `python -m tools.run_image export CELL -o DIR`.

`export` writes the image as files, `run_image` is the program that runs them on the host, and `results` reads the
results of its smoke checks.
"""
