"""Groups of commands, each imported when it runs, so that `--help` is fast."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click

from imagegen.core.errors import UsageError
from imagegen.core.text import did_you_mean

LAST_COMMAND = "imagegen.command"  # key of the last command in a context's meta, which all contexts of a run share


class CommandGroup(click.Group):
    """A group that suggests a command for an unknown one."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        names = self.list_commands(ctx)
        if cmd_name in names:
            ctx.meta[LAST_COMMAND] = f"{ctx.command_path} {cmd_name}"
            return self._load(cmd_name)
        if ctx.resilient_parsing:  # shell completion
            return None
        fix = did_you_mean(cmd_name, names) or f"known are {', '.join(names)}"
        raise UsageError(f'there is no command "{cmd_name}"', code="usage-unknown-command", fix=fix)

    def _load(self, name: str) -> click.Command:
        return self.commands[name]


class LazyGroup(CommandGroup):
    """A group that imports a command's module on first use.

    `known` maps a command to its line in `--help`; `module` is the pattern of module names, "imagegen.cli.{}_command".
    """

    def __init__(self, *args: Any, known: Mapping[str, str], module: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._known, self._module = known, module

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(self._known)

    def _load(self, name: str) -> click.Command:
        command: click.Command = importlib.import_module(self._module.format(name)).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(self._known.items()))
