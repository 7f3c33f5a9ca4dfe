"""Options that commands share."""

from __future__ import annotations

import click

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
