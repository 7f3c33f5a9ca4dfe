"""Prove an image: run the checks of `suite/` in a container of it and report."""

from imagegen.smoke.report import Report, Result
from imagegen.smoke.run import run

__all__ = ["Report", "Result", "run"]
