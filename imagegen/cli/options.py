"""Options that commands share."""

from __future__ import annotations

import click

from imagegen.core.errors import OptionConflictError

builder_option = click.option(
    "--builder",
    metavar="NAME",
    help="Compile with this builder of `docker buildx ls` (remote, Kubernetes), instead of the engine's.",
)
platform_option = click.option(
    "--platform",
    metavar="PLATFORMS",
    help="CELL on these platforms: all, or linux/amd64,linux/arm64. Several get one image index.",
)
all_option = click.option("--all", "include_shipped", is_flag=True, help="Take the shipped cells too, as '*' does.")


def glob_of(pattern: str | None, *, include_shipped: bool) -> str | None:
    """Return the glob of a command line with `all_option`; None for the project's cells."""
    if pattern and include_shipped:
        raise OptionConflictError("--all and a name exclude each other", fix="leave out one of the two")
    return "*" if include_shipped else pattern
