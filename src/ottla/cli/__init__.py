"""The command `ottla`. Subcommands are loaded when they are used: a broker that starts should not pay for the others."""

from __future__ import annotations

from importlib import import_module

import click

from ottla import __version__

_COMMANDS = {"server": "Run a broker in the foreground."}


class _Lazy(click.Group):
    """Finds `ottla NAME` in the module `ottla.cli.NAME`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        command: click.Command = import_module(f"ottla.cli.{name.replace('-', '_')}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(_COMMANDS.items()))


@click.command(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ottla")
def main() -> None:
    """Ottla: Apache Kafka's system in Python."""
