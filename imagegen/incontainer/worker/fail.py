"""The one error of the worker."""

from __future__ import annotations


class Refused(Exception):
    """What was given cannot be built: `what` is a sentence, `cause` a word for programs."""

    def __init__(self, what: str, cause: str = "refused") -> None:
        super().__init__(what)
        self.cause = cause
