"""What commands have in common: where the cluster is, and how they end when something is wrong.

Guards: one line on stderr that says what and what to do, exit code 1 as Apache Kafka's tools have it, never a traceback. What
talks to brokers is loaded when it is needed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ottla.cli.output import one_line
from ottla.model import KafkaError

if TYPE_CHECKING:
    from ottla.client.cluster import Cluster

Work = Callable[..., None]
_NO_ARGUMENTS: tuple[type[click.UsageError], ...] = tuple(
    getattr(click.exceptions, name) for name in ("NoArgsIsHelpError",) if hasattr(click.exceptions, name)
)
"""What newer versions of click raise where a group is called with nothing."""


class Failure(Exception):
    """The command cannot go on. The text says in one line what happened, where, and what to do."""


class WholeNumber(click.IntRange):
    """A number between two others, which a message calls so."""

    name = "whole number"


INT16 = WholeNumber(0, (1 << 15) - 1)
INT32 = WholeNumber(0, (1 << 31) - 1)
INT64 = WholeNumber(0, (1 << 63) - 1)


# ---- endings -------------------------------------------------------------------------------------------------------------


class OneLine(click.Command):
    """A command that ends in one line where it cannot go on."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        with in_one_line(self.name):
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with in_one_line(self.name):
            return super().invoke(ctx)


class Tool(OneLine, click.Group):
    """The same with subcommands."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"no_args_is_help": False, **options})


@contextmanager
def in_one_line(name: str | None) -> Iterator[None]:
    """Whatever goes wrong is told in one line, with the command's name before it."""
    try:
        yield
    except click.UsageError as problem:
        if isinstance(problem, _NO_ARGUMENTS):
            raise  # it is the help, and stays one
        words = " ".join(problem.format_message().split()).rstrip(".")
        see = f" (see {problem.ctx.command_path} --help)" if problem.ctx is not None else ""
        _end(name, words + see)
    except (Failure, KafkaError) as problem:
        _end(name, str(problem))


def _end(name: str | None, words: str) -> None:
    click.echo(one_line(f"ottla {name}: {words}" if name else f"ottla: {words}"), err=True)
    raise click.exceptions.Exit(1)


def nearest(word: str, known: Iterable[str]) -> str:
    """What somebody may have meant, as the end of a sentence; empty where nothing is near."""
    from difflib import get_close_matches  # noqa: PLC0415 - where something is wrong already

    names = list(known)
    # The beginning of one, or one inside another (kafka-topics.sh), before what is only spelt alike.
    found = [one for one in names if one.startswith(word) or one in word]
    found = found or get_close_matches(word, names, n=1, cutoff=0.6)
    return f". Did you mean {max(found, key=len)!r}?" if found else ""


# ---- options -------------------------------------------------------------------------------------------------------------

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


def cluster_options(work: Work) -> Work:
    """Give a command --bootstrap-server, --command-config and --json, and call it with the cluster that they name."""
    return cluster_options_with("--command-config")(work)


def cluster_options_with(config_option: str) -> Callable[[Work], Work]:
    """The same, where Apache's tool has another name for --command-config."""

    def decorate(work: Work) -> Work:
        @click.pass_context
        def run(ctx: click.Context, /, bootstrap_server: str | None, command_config: str | None, **options: Any) -> None:
            if bootstrap_server is None:
                raise click.UsageError("Missing option '--bootstrap-server': give HOST:PORT of a broker", ctx)
            with connect(bootstrap_server, command_config) as cluster:
                work(cluster, **options)

        names = dict.fromkeys((config_option, "--command-config"))
        config = click.option(*names, "command_config", metavar="FILE", help="A properties file of an admin client.")
        decorated = config(json_option(update_wrapper(run, work)))
        return click.option("--bootstrap-server", metavar="HOST:PORT[,...]", help="Brokers to ask first.")(decorated)

    return decorate


class Target(NamedTuple):
    """Which cluster a tool with subcommands was told to work with: the object of its context."""

    bootstrap: str | None
    command_config: str | None


def with_cluster(work: Work) -> Work:
    """Hand a subcommand its cluster when it runs, and not before: its help needs none."""

    @click.pass_context
    def run(ctx: click.Context, /, **options: Any) -> None:
        target: Target = ctx.obj
        if target.bootstrap is None:
            raise click.UsageError("Missing option '--bootstrap-server'", ctx.parent)
        with connect(target.bootstrap, target.command_config) as cluster:
            work(cluster, **options)

    return update_wrapper(run, work)


def connect(bootstrap: str, command_config: str | None) -> Cluster:
    """The cluster that the options name, with the properties of an admin client: TLS, SASL, timeouts."""
    from ottla.client.cluster import Cluster  # noqa: PLC0415 - commands that ask nobody do without

    settings = read_properties(command_config, "--command-config") if command_config is not None else {}
    return Cluster({"client.id": "ottla", **settings, "bootstrap.servers": bootstrap})


def one_action(**given: bool) -> str:
    """The one action of several that was asked for."""
    chosen = [name for name, wanted in given.items() if wanted]
    if len(chosen) != 1:
        names = [f"--{name}" for name in given]
        raise click.UsageError(
            f"Command must include exactly one action: {', '.join(names[:-1])} or {names[-1]}", click.get_current_context()
        )
    return chosen[0]


def only_with(action: str, **allowed: str) -> None:
    """Refuse options that were given with an action that they have no meaning for: a silent one would mislead."""
    ctx = click.get_current_context()
    flags = {one.name: one.opts[0] for one in ctx.command.params}
    for option, actions in allowed.items():
        if ctx.params.get(option) not in (None, False, ()) and action not in actions.split():
            raise click.UsageError(f"Option '{flags[option]}' can't be used with '--{action}'", ctx)


def needed(**options: object) -> None:
    """Refuse to go on without these options."""
    for option, value in options.items():
        if value in (None, ()):
            raise click.UsageError(f"Missing option '--{option.replace('_', '-')}'", click.get_current_context())


# ---- files ---------------------------------------------------------------------------------------------------------------


def read_properties(path: str, option: str) -> dict[str, str]:
    """A properties file that an option names."""
    from ottla.config import parse_properties  # noqa: PLC0415 - the tables of all settings come with it

    try:
        with open(path, encoding="utf-8") as file:
            return parse_properties(file.read())
    except (OSError, ValueError) as problem:
        raise Failure(f"{option} {path} cannot be read: {problem}") from None


def read_json(path: str, option: str) -> dict[str, Any]:
    """A JSON object in a file that an option names."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except OSError as problem:
        raise Failure(f"{option} {path} cannot be read: {problem.strerror}") from None
    except ValueError as problem:
        raise Failure(f"{option} {path} is not JSON: {problem}") from None
    if not isinstance(found, dict):
        raise Failure(f"{option} {path} does not hold a JSON object.")
    return found
