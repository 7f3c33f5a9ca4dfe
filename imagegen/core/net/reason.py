"""The reason of a failed request, for messages."""

from __future__ import annotations

import socket
import ssl
from datetime import UTC, datetime

from imagegen.core.errors import ImagegenError
from imagegen.core.text import cut, redact

_MAX_REASON = 300  # characters of an error of another program
_UNTIMELY = {9: "is not valid yet", 10: "is not valid any more"}  # OpenSSL's X509_V_ERR codes
_MEANINGS: tuple[tuple[type[BaseException], str], ...] = (
    (socket.gaierror, "no host of that name is known here: "),
    (ConnectionRefusedError, "no server listens there: "),
)


def reason_of(error: BaseException) -> str:
    """The innermost cause in one line: urllib3 wraps it several times, with addresses of objects."""
    cause = innermost(error)
    text = " ".join(str(cause).split()) or type(cause).__name__
    meaning = next((words for kind, words in _MEANINGS if isinstance(cause, kind)), "")
    return meaning + cut(redact(text), _MAX_REASON)


def distrust(error: ssl.SSLCertVerificationError) -> str:
    """Why a certificate is not trusted, and what may help."""
    if error.verify_code in _UNTIMELY:
        now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        return f"it {_UNTIMELY[error.verify_code]}, if this machine's clock is right, which says {now}"
    return f"{reason_of(error)}; SSL_CERT_FILE can name the CA bundle of your network"


def innermost(error: BaseException) -> BaseException:
    """Return the cause at the end of an error's chain, without the errors of requests that were answered before."""
    is_of_another_request = isinstance(error.__context__, ImagegenError) or error.__suppress_context__
    cause = error.__cause__ or (None if is_of_another_request else error.__context__)
    cause = cause or next(iter(error.args), None)  # urllib3 passes some as an argument
    return innermost(cause) if isinstance(cause, Exception) else error
