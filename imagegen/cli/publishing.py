"""Shared by the commands that publish."""

from __future__ import annotations

from pathlib import Path

import click

from imagegen.app.publisher import KEY_VARIABLE

key_option = click.option(
    "--key",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help=f"Sign with this private key, whose password is in COSIGN_PASSWORD; else {KEY_VARIABLE} can name one.",
)
