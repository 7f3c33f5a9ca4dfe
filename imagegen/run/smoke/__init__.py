"""Smoke-test an image: run the checks of `incontainer.smoke` in a container of it and report."""

from imagegen.run.smoke.report import CheckResult, SmokeFailed, SmokeReport
from imagegen.run.smoke.run import run

__all__ = ["CheckResult", "SmokeFailed", "SmokeReport", "run"]
