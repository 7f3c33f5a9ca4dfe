"""Why an exchange failed, in a line."""

from __future__ import annotations

from imagegen.text import redact

_MAX_REASON = 300  # characters of what others say


def reason_of(error: BaseException) -> str:
    """The innermost cause in one line: urllib3 wraps it several times, with addresses of objects."""
    cause = innermost(error)
    text = " ".join(str(cause).split()) or type(cause).__name__
    return redact(text if len(text) <= _MAX_REASON else f"{text[:_MAX_REASON]}…")


def innermost(error: BaseException) -> BaseException:
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    cause = cause or next(iter(error.args), None)  # urllib3 hands some over so
    return innermost(cause) if isinstance(cause, Exception) else error
