"""What a distribution's metadata states of its licence. Source: "Core metadata specifications" of packaging.python.org.

Three fields say it, from three ages: License-Expression (an SPDX expression), License (free text), and classifiers.
"""

from __future__ import annotations

from email.message import Message

from imagegen.audit.model import Licence

_ABOVE = "License :: "
_LONGEST = 64 << 10  # characters of one field; the GPL has half as many
_MOST = 20  # classifiers


def stated(metadata: Message) -> Licence:
    """What the headers of METADATA say; what they do not say is None, as is the word that tools put where it is."""
    classifiers = (" ".join(str(each).split()) for each in metadata.get_all("Classifier", ()))
    return Licence(
        " ".join(_field(metadata, "License-Expression").split()) or None,
        _field(metadata, "License") or None,
        tuple(sorted({each.removeprefix(_ABOVE) for each in classifiers if each.startswith(_ABOVE)}))[:_MOST],
    )


def _field(metadata: Message, name: str) -> str:
    """A field of one or many lines, without the indentation that tools give to the second line and those after it."""
    value = str(metadata.get(name, ""))[:_LONGEST]
    lines = [line.strip().removeprefix("|").strip() for line in value.splitlines()]
    text = "\n".join(lines).strip()
    return "" if text.upper() == "UNKNOWN" else text
