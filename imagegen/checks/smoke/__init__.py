"""Smoke checks that run inside an image, on its own interpreter: the standard library and what the image holds.

Nothing here imports imagegen, and imagegen imports only the table. The folder is copied into a container as the
package `smoke`; `python -m smoke.runner SPEC` runs every check of the table that applies. It keeps to Python 3.10.
"""
