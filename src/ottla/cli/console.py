"""`ottla console`: a cluster in the browser. The web framework is loaded here and nowhere else in the commands."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import click

from ottla.cli.tool import Failure, OneLine, read_properties

if TYPE_CHECKING:
    from ottla.console.state import Console


@click.command("console", cls=OneLine)
@click.option("--bootstrap-server", default="127.0.0.1:9092", show_default=True, metavar="HOST:PORT", help="The cluster.")
@click.option("--command-config", type=click.Path(), metavar="FILE", help="Properties of a client: TLS, SASL, timeouts.")
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Where to listen. Beyond this machine, a token is required."
)
@click.option("--port", default=8080, show_default=True, type=click.IntRange(0, 65535), help="0 is any that is free.")
@click.option("--token", envvar="OTTLA_CONSOLE_TOKEN", help="What a browser has to know. Better in OTTLA_CONSOLE_TOKEN.")
@click.option("--allow-host", multiple=True, metavar="NAME", help="A name that the console is called by. Repeatable.")
@click.option("--read-only", is_flag=True, help="Look, and change nothing.")
@click.option("--log-dirs", default="", metavar="DIRS", help="Directories of a broker on this machine, to see its segments.")
@click.option("--sample-seconds", default=5.0, show_default=True, type=click.FloatRange(0.1), help="How often to look.")
@click.option("--until-stdin-ends", is_flag=True, hidden=True)
def command(
    bootstrap_server: str,
    command_config: str | None,
    host: str,
    port: int,
    token: str | None,
    allow_host: tuple[str, ...],
    read_only: bool,
    log_dirs: str,
    sample_seconds: float,
    until_stdin_ends: bool,
) -> None:
    """Show a cluster in the browser: topics, messages, groups, transactions, disks. Ottla's or Apache Kafka's."""
    logging.basicConfig(level=logging.WARNING, format="[%(asctime)s] %(levelname)s %(message)s (%(name)s)")
    try:
        from ottla.console import security, serving  # noqa: PLC0415 - no other command needs it
        from ottla.console.state import Console  # noqa: PLC0415
    except ImportError as missing:
        raise Failure(f'The console needs {missing.name}: pip install "ottla[console]"') from None
    if not token and not security.is_local(host):
        raise Failure(f"--host {host} can be reached by others: set --token, or OTTLA_CONSOLE_TOKEN, to what they must know.")
    settings = read_properties(command_config, "--command-config") if command_config is not None else {}
    listener = serving.take_address(host, port)
    port = listener.getsockname()[1]
    rules = security.Rules(host, port, token or None, read_only, tuple(name.lower() for name in allow_host))
    paths = tuple(filter(None, map(str.strip, log_dirs.split(","))))
    console = Console({**settings, "bootstrap.servers": bootstrap_server}, rules, sample_seconds, paths)
    serving.serve(console, listener, lambda: _announce(console), until_stdin_ends=until_stdin_ends)


def _announce(console: Console) -> None:
    rules = console.rules
    host = f"[{rules.host}]" if ":" in rules.host else rules.host
    name = "localhost" if rules.host in ("0.0.0.0", "::") else host
    what = "read-only " if rules.read_only else ""
    click.echo(f"The {what}console is at http://{name}:{rules.port}/", err=True)
