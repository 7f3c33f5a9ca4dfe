"""The licence that a distribution's metadata states.

Three fields state it, from three ages: License-Expression (an SPDX expression), License (free text), and classifiers.
Source: "Core metadata specifications" of packaging.python.org.
"""

from __future__ import annotations

from email.message import Message

from imagegen.audit.model import Licence

_ABOVE = "License :: "
_LONGEST = 64 << 10  # characters of one field; the GPL has half as many
_MOST = 20  # classifiers


def read_licence(metadata: Message) -> Licence:
    """Return the licence fields of METADATA; a missing field is None, as is the placeholder word of tools."""
    classifiers = (" ".join(str(value).split()) for value in metadata.get_all("Classifier", ()))
    return Licence(
        " ".join(_field(metadata, "License-Expression").split()) or None,
        _field(metadata, "License") or None,
        tuple(sorted({classifier.removeprefix(_ABOVE) for classifier in classifiers if classifier.startswith(_ABOVE)}))[
            :_MOST
        ],
    )


def _field(metadata: Message, name: str) -> str:
    """Return a field of one or many lines, without the indentation that tools give to later lines."""
    value = str(metadata.get(name, ""))[:_LONGEST]
    lines = [line.strip().removeprefix("|").strip() for line in value.splitlines()]
    text = "\n".join(lines).strip()
    return "" if text.upper() == "UNKNOWN" else text
