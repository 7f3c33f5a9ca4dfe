"""Text on its way to people: nothing secret in it, and nothing that acts on a terminal or reads otherwise than it is.

What people write (matrices, locks) and what others answer (servers, programs, wheels' members) ends up in messages.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable

# Controls, formats (right-to-left marks, zero-width characters, byte order marks), lone surrogates, line separators.
_UNPRINTABLE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_SECRETS = (
    # user:password@, or a token; but for ssh://user@, without which a command is of no use
    (re.compile(r"(?<=://)(?!(?<=ssh://)[\w.-]+@[^@/\s'\"<>]*+(?!@))[^/\s'\"<>]*@"), "***@"),
    (re.compile(r"(?<=://)[^/\s'\"<>:@\[]+:(?!\d*(?:[/?#\s]|$))[^\s'\"<>]*@"), "***@"),  # with a slash in the password
    (re.compile(r"(://[^\s'\"<>?]*\?)[^\s'\"<>#]+"), r"\1***"),  # signatures of redirects, tokens
)


def counted(count: int, noun: str) -> str:
    """A number and its noun: "1 wheel", "2 wheels"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def unprintable(text: str) -> str | None:
    """The first character that is not seen for what it is: a control (line breaks too), a direction mark, or None."""
    return next((c for c in text if not c.isprintable() and unicodedata.category(c) in _UNPRINTABLE), None)


def redact(text: str) -> str:
    """`text` without the credentials of the addresses in it: fit for errors and logs."""
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


def shown(text: str) -> str:
    """`text` as it may be printed: redacted, and whatever a terminal would obey in the form of Python's escapes."""
    text = redact(text)
    if text.isprintable():
        return text
    return "".join(c if c in "\n\t" or unprintable(c) is None else c.encode("unicode_escape").decode() for c in text)


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """A sentence that offers the nearest known word, if one is near."""
    near = nearest(word, known)
    return f'did you mean "{near}"?' if near else None


def nearest(word: str, known: Iterable[str], likeness: float = 0.6) -> str | None:
    """Return the shortest of the known words that begin with `word`, else one that is spelled much like it.

    `likeness` is the least ratio of difflib's that counts as that, from 0 to 1.
    """
    words = sorted(known)
    begun = sorted((each for each in words if len(word) > 2 and each.startswith(word)), key=len)
    near = begun or difflib.get_close_matches(word, words, n=1, cutoff=likeness)
    return near[0] if near else None
