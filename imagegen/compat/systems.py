"""Systems and images of NVIDIA that a question can name as its base."""

from __future__ import annotations

from typing import Annotated

from imagegen.core import types as t
from imagegen.core.deferred import dataclass
from imagegen.core.matrix_entry import MatrixEntry
from imagegen.core.validation import doc


@dataclass(frozen=True)
class System(MatrixEntry):
    """A distribution's release, as far as wheels depend on it."""

    REQUIRED = ("source",)

    name: str  # "ubuntu22.04"
    glibc: Annotated[t.Minor, doc("0.0 for a system with musl, on which no manylinux wheel runs.")]
    python: Annotated[t.Minor, doc("Version of its own packages' Python.")] = "0.0"
    libstdcxx: Annotated[t.NodeVersion | None, doc("The newest version node of its libstdc++, 3.4.30.")] = None
    aliases: Annotated[tuple[t.Alias, ...], doc("Other names that users type: codenames, systems like it.")] = ()
    source: t.Text = ""


@dataclass(frozen=True)
class NgcImage(MatrixEntry):
    """The contents of nvcr.io/nvidia/pytorch, by its tag: 25.03."""

    REQUIRED = ("source",)

    tag: str
    torch: t.CanonicalVersion  # "2.7.0a0+7c8ec84dab": NVIDIA's own build of a commit
    cuda: t.Minor  # "12.8"
    system: t.Name  # "ubuntu24.04"
    source: t.Text = ""
