"""The error of the worker."""

from __future__ import annotations


class Refused(Exception):
    """The build's input is invalid: `what` is a sentence, `cause` a stable word for programs."""

    def __init__(self, what: str, cause: str = "refused") -> None:
        super().__init__(what)
        self.cause = cause
