"""`ottla server`: a broker in the foreground, configured as Apache Kafka's is."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import sys

import click

from ottla.broker import Broker, StartError
from ottla.config import BrokerConfig, ConfigError, parse_properties

log = logging.getLogger("ottla.broker")


_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))} | {0x2028: "\\u2028", 0x2029: "\\u2029"}


class OneLine(logging.Formatter):
    """A message is one line, whatever names a client sent: they may hold line ends and terminal codes."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        return super().formatMessage(record).translate(_CONTROL)


@click.command("server")
@click.argument("properties", required=False, type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--override", "overrides", multiple=True, metavar="KEY=VALUE", help="A setting that replaces the file's. Repeatable."
)
@click.option("--log-level", default="INFO", show_default=True, help="DEBUG, INFO, WARNING or ERROR.")
def command(properties: str | None, overrides: tuple[str, ...], log_level: str) -> None:
    """Run a broker in the foreground.

    PROPERTIES is a file in the format of Apache Kafka's server.properties, with the same setting names. Without one, the broker
    listens on 127.0.0.1:9092, keeps its data in ./ottla-data, and needs no other process. SIGTERM or Ctrl-C stops it cleanly;
    a second one stops it at once.
    """
    if not isinstance(getattr(logging, log_level.upper(), None), int):
        raise click.BadParameter(f"{log_level} is not a log level: DEBUG, INFO, WARNING or ERROR", param_hint="--log-level")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine("[%(asctime)s] %(levelname)s %(message)s (%(name)s)"))
    logging.basicConfig(level=log_level.upper(), handlers=[handler])
    try:
        config = BrokerConfig(_settings(properties, overrides))
        for name in config.unknown:
            log.warning("Unknown setting %s is ignored", name)
        asyncio.run(_run(config))
    except (ConfigError, StartError) as problem:
        click.echo(f"ottla server: {problem}", err=True)
        sys.exit(1)


def _settings(properties: str | None, overrides: tuple[str, ...]) -> dict[str, str]:
    settings: dict[str, str] = {}
    if properties is not None:
        settings = parse_properties(_read_text(properties))
    for override in overrides:
        key, separator, value = override.partition("=")
        if not separator or not key:
            raise ConfigError(f"--override {override} is not valid: allowed is KEY=VALUE")
        settings[key.strip()] = value.strip()
    return settings


def _read_text(path: str) -> str:
    """A file in UTF-8, or in the Latin-1 that Java's properties files were once defined in."""
    with open(path, "rb") as file:
        content = file.read()
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content.decode("latin-1")


def _allow_many_files() -> None:
    """Each connection and each partition needs a descriptor: take as many as the system gives without asking."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _run(config: BrokerConfig) -> None:
    _allow_many_files()
    broker = Broker(config)
    stop = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            log.warning("Stopping at once; the next start will recover")
            os._exit(130)
        log.info("Stopping; once more stops at once")
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    await broker.start()
    gc.freeze()  # what was built for good need not be looked at by every collection
    try:
        await stop.wait()
    finally:
        await broker.stop()
