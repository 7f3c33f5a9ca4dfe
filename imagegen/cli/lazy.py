"""Groups of commands, each imported when it runs, so that `--help` is fast."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click

from imagegen.core.errors import UsageError
from imagegen.core.text import did_you_mean


class Lazy(click.Group):
    """A group that imports a command's module on first use. `known` maps a command to its line in `--help`; `module` is
    the pattern of module names: "imagegen.cli.{}_command".
    """

    def __init__(self, *args: Any, known: Mapping[str, str], module: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._known, self._module = known, module

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(self._known)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._known:
            if ctx.resilient_parsing:  # a shell completes
                return None
            fix = did_you_mean(cmd_name, self._known) or f"known are {', '.join(self._known)}"
            raise UsageError(f'there is no command "{cmd_name}"', code="usage-unknown-command", fix=fix)
        module = importlib.import_module(self._module.format(cmd_name))
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(self._known.items()))
