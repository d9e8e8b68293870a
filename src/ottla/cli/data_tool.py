"""What the commands that produce and consume have in common: how they are called, and how they are interrupted.

Guards: Ctrl-C and SIGTERM do not cut a command off: it sends or counts what it has, and ends with the code that a shell expects
of a signal.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

import click

from ottla.cli.output import one_line
from ottla.cli.tool import OneLine

_T = TypeVar("_T")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class HelpfulTool(OneLine):
    """For the tools of Apache's that answer a call without any words with their help."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args:
            click.echo(ctx.get_help())
            ctx.exit(0)
        return super().parse_args(ctx, args)


def say(words: str) -> None:
    """A line for the person, beside the output."""
    click.echo(one_line(words), err=True)


class Interrupted(BaseException):
    """Raised in the place where a signal found the program waiting."""


class Interruption:
    """Whether somebody asked for the end. A loop looks at `asked`; what blocks is called through `waiting_for`.

    A context manager: outside of it signals do what they did before.
    """

    __slots__ = ("_before", "_waiting", "number", "times")

    def __init__(self) -> None:
        self.number = 0
        self.times = 0
        """How often it was asked for: whoever asks again does not want to wait any more."""
        self._waiting = False
        self._before: dict[int, Any] = {}

    @property
    def asked(self) -> bool:
        return self.times > 0

    def waiting_for(self, work: Callable[[], _T]) -> _T | None:
        """What it returns; None where a signal comes first. Only calls that lose nothing by it are made so."""
        try:
            self._waiting = True
            return None if self.asked else work()
        except Interrupted:
            return None
        finally:
            self._waiting = False

    def end(self) -> None:
        """Leave with the code of the signal, if there was one."""
        if self.asked:
            raise click.exceptions.Exit(128 + self.number)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        self.times += 1
        if self._waiting:
            self._waiting = False
            raise Interrupted

    def __enter__(self) -> Interruption:
        self._before = {number: signal.signal(number, self._note) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


_Command = Callable[..., None]


def bootstrap_options(command: _Command) -> _Command:
    """--bootstrap-server, and the older name that Apache's tools still take."""
    for option in (
        click.option("--broker-list", metavar="HOST:PORT[,...]", help="An older name of --bootstrap-server."),
        click.option("--bootstrap-server", metavar="HOST:PORT[,...]", help="Brokers to ask first."),
    ):
        command = option(command)
    return command


def chosen_bootstrap(bootstrap_server: str | None, broker_list: str | None) -> str:
    """The newer name wins."""
    chosen = bootstrap_server if bootstrap_server is not None else broker_list
    if chosen is None:
        raise click.UsageError("Missing option '--bootstrap-server'", click.get_current_context())
    return chosen
