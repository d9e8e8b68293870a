"""The command `ottla`. Subcommands are loaded when they are used: a broker that starts should not pay for the others."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from ottla import __version__
from ottla.cli.tool import in_one_line, nearest

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

COMMANDS = {
    "Run": {
        "server": "Run a broker in the foreground.",
        "cluster": "Run a cluster on this machine; ask any cluster for its id and brokers.",
        "console": "Look at a cluster in a browser.",
    },
    "Topics and data": {
        "topics": "Create, list, describe, alter and delete topics.",
        "console-producer": "Write lines from the terminal to a topic.",
        "console-consumer": "Read a topic to the terminal.",
        "get-offsets": "Show where partitions begin and end, or what was written when.",
        "delete-records": "Delete the oldest records of partitions.",
        "export": "Write a topic as Parquet files, and later what has come since.",
    },
    "Pipelines": {
        "pipeline": "Check and run pipelines on Spark: topics in, SQL or Python, topics and tables out.",
    },
    "Groups and transactions": {
        "consumer-groups": "List and describe groups, see their lag, reset their offsets.",
        "transactions": "Look at transactions; find and abort those that hang.",
    },
    "Cluster": {
        "configs": "Show and change settings of topics, brokers, clients and users.",
        "reassign-partitions": "Move replicas between brokers and directories.",
        "leader-election": "Hand partitions back to their preferred leaders.",
        "log-dirs": "Show what lies in the log directories of brokers.",
        "broker-api-versions": "Show which requests brokers serve.",
    },
    "Measure": {
        "producer-perf-test": "Write records as fast as it goes, and show how fast that was.",
        "consumer-perf-test": "Read records as fast as it goes, and show how fast that was.",
        "verifiable-producer": "Write numbers, and tell in JSON what became of each.",
        "verifiable-consumer": "Read in a group, and tell in JSON what was seen.",
    },
    "Look inside": {
        "dump-log": "Show what stands in the files of a log.",
    },
    "This command": {
        "completion": "Print the script that completes `ottla` in a shell.",
    },
}
"""Every command with what it does, by what a person wants to do."""

_HELP = {name: words for commands in COMMANDS.values() for name, words in commands.items()}


class _Lazy(click.Group):
    """Finds `ottla NAME` in the module `ottla.cli.NAME`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_HELP)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _HELP:
            return None
        command: click.Command = import_module(f"ottla.cli.{name.replace('-', '_')}").command
        return command

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        with in_one_line(None):
            return super().make_context(info_name, args, parent, **extra)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        with in_one_line(None):
            if args[0] not in _HELP and not args[0].startswith("-"):
                raise click.UsageError(f"No such command {args[0]!r}{nearest(args[0], _HELP)}", ctx)
            return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        widest = max(map(len, _HELP))
        for title, commands in COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:<{widest}}", words) for name, words in commands.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names and words come from the table: to load every command for them would be felt at each key."""
        from click.shell_completion import CompletionItem  # noqa: PLC0415 - at a completion only

        found = [CompletionItem(name, help=words) for name, words in _HELP.items() if name.startswith(incomplete)]
        return found + click.Command.shell_complete(self, ctx, incomplete)


@click.command(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ottla")
def main() -> None:
    """Ottla: Apache Kafka's system in Python.

    Commands take the flags of the Apache Kafka script of the same name, and print what it prints; they work with every Kafka
    cluster. On a terminal they print tables; --json is for programs.
    """
