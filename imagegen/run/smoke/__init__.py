"""Prove an image: run the checks of `suite/` in a container of it and report."""

from imagegen.run.smoke.report import Report, Result
from imagegen.run.smoke.run import run

__all__ = ["Report", "Result", "run"]
