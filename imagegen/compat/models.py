"""Model types of Hugging Face checkpoints, with the first releases that support them (matrices/models.json).

    {"read": DATE, "since": {PACKAGE: VERSION}, "source": {PACKAGE: TEXT}, "models": {TYPE: {PACKAGE: VERSION}}}

A type that the oldest release read (`since`) supports has that version: an older release may support it too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path

from packaging.version import Version

from imagegen.compat import harvested
from imagegen.core.data import parse_json
from imagegen.core.deferred import dataclass

FILE = "models.json"
PACKAGES = ("transformers", "vllm")


@dataclass(frozen=True)
class Models:
    """The table of models. `first` maps a model type to the first release of each package that supports it."""

    read: str  # date of the harvest
    since: Mapping[str, str] = field(default_factory=dict)  # package -> the oldest release that was read
    source: Mapping[str, str] = field(default_factory=dict)  # package -> where in its wheels the types stand
    first: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def load(directories: Sequence[Path]) -> Models:
    """Return the types of the last of the directories of matrices that has the file; no types if none has it.

    Raises MatrixError for a file that cannot be read.
    """
    with harvested.opened(directories, FILE) as file:
        return parse(file[0]) if file else Models("")


def parse(raw: bytes) -> Models:
    """Raises ValueError for anything that the harvest does not write."""
    try:
        fields = parse_json(raw)
        texts = {name: {str(key): str(value) for key, value in fields[name].items()} for name in ("since", "source")}
        first = {
            str(name): {str(k): str(v) for k, v in releases.items()} for name, releases in fields["models"].items()
        }
        for version in [
            *texts["since"].values(),
            *(release for versions in first.values() for release in versions.values()),
        ]:
            Version(version)
        return Models(str(fields["read"]), texts["since"], texts["source"], first)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"it is not a table of model types: {error}") from error
