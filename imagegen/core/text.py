"""Text on its way to users: nothing secret in it, and nothing that acts on a terminal or reads otherwise than it is.

Texts of users (matrices, locks) and of others (servers, programs, wheels' members) end up in messages.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Iterable

# Controls, formats (right-to-left marks, zero-width characters, byte order marks), lone surrogates, line separators.
_UNPRINTABLE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# Each pattern fails where it begins or goes on from where it ended, so that all of them take linear time.
_ADDRESS = re.compile(r"(?:ssh)?://[^\s'\"<>]+")  # from the scheme on
_SSH_USER = re.compile(r"ssh://[\w.-]+@[^@]*")  # a user name is not a secret, and a command needs it
_USER = re.compile(r"(?<=://)[^/]*@")  # user:password@
_PASSWORD = re.compile(r"(?<=://)[^/:@\[]+:(?!\d*(?:[/?#]|$))")  # user: and no port; the password may hold a slash
_QUERY = re.compile(r"\?[^#]+")  # signatures of redirects, tokens
_COMPARED = 1000  # words, each with the one that is wrong: more take longer than an answer is worth


def counted(count: int, noun: str) -> str:
    """A number and its noun: "1 wheel", "2 wheels"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return the first and the last number of each run of consecutive `numbers`, which are sorted."""
    groups = (list(group) for _, group in itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]))
    return [(group[0][1], group[-1][1]) for group in groups]


def unprintable(text: str) -> str | None:
    """Return the first character that does not appear as itself: a control (line breaks too), a direction mark, one
    of Unicode's noncharacters, which HTML forbids; None if there is none.
    """
    if text.isprintable():  # nearly all are, and Python tests that without a step for each character
        return None
    return next((c for c in text if not c.isprintable() and _is_unprintable(c)), None)


def _is_unprintable(character: str) -> bool:
    number = ord(character)
    is_noncharacter = number & 0xFFFE == 0xFFFE or 0xFDD0 <= number <= 0xFDEF  # Unicode 17, section 23.7
    return is_noncharacter or unicodedata.category(character) in _UNPRINTABLE


def redact(text: str) -> str:
    """Return `text` without the credentials of its addresses, for errors and logs."""
    return _ADDRESS.sub(lambda address: _redact_address(address[0]), text)


def _redact_address(address: str) -> str:
    """Redact one address from its "://", or "ssh://", up to white space, a quote or a bracket."""
    if not _SSH_USER.fullmatch(address):
        address = _USER.sub("***@", address)
    user, end = _PASSWORD.search(address), address.rfind("@")
    if user and user.end() <= end:
        address = f"{address[: user.start()]}***{address[end:]}"
    return _QUERY.sub("?***", address)


def cut(text: str, longest: int) -> str:
    """Return at most `longest` characters of `text`, and an ellipsis in place of the others.

    Redact first: a cut through an address can remove the mark of its credentials.
    """
    return text if len(text) <= longest else f"{text[:longest]}…"


def shown(text: str) -> str:
    """`text` as it may be printed: redacted, and whatever a terminal would obey in the form of Python's escapes."""
    text = redact(text)
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in "\n\t" or unprintable(c) is None else c.encode("unicode_escape").decode()
        for c in text
    )


def did_you_mean(word: str, candidates: Iterable[str]) -> str | None:
    """Return a sentence that offers the nearest known word, if one is near."""
    near = nearest(word, candidates)
    return f'did you mean "{near}"?' if near else None


def nearest(word: str, candidates: Iterable[str], likeness: float = 0.6) -> str | None:
    """Return the shortest of the known words that begin with `word`, else one that is spelled similarly.

    `likeness` is the minimum of difflib's ratio, from 0 to 1.
    """
    import difflib  # late: few runs have a word that nothing is called

    words = sorted(candidates)
    begun = sorted((candidate for candidate in words if len(word) > 2 and candidate.startswith(word)), key=len)
    near = begun or (len(words) <= _COMPARED and difflib.get_close_matches(word, words, n=1, cutoff=likeness))
    return near[0] if near else None
