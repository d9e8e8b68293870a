"""`ottla server`: a broker in the foreground, configured as Apache Kafka's is."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import logging
import os
import resource
import signal
import sys
from datetime import UTC, datetime

import click

from ottla.broker import Broker, StartError
from ottla.cli.beside import ConsoleProcess
from ottla.cli.output import one_line
from ottla.cli.tool import OneLine
from ottla.config import BrokerConfig, ConfigError, parse_properties
from ottla.network.loop import new_event_loop

log = logging.getLogger("ottla.broker")

_COLLECT_AFTER = (10_000, 20, 100)
"""Objects, and smaller collections, before the next collection. With thousands of partitions one look at everything takes a
tenth of a second, and Python's own numbers ask for it again and again while roles change; hardly anything here needs it."""
_ONE_WORD_S = 0.3
"""Signals so close together are one: `timeout` and supervisors tell a process, and then its group."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's numbers for them
_LARGE = 4 << 20
"""Bytes from which a block of memory comes from the system and goes back to it."""


class JsonLine(logging.Formatter):
    """One JSON object a line, for whoever collects logs; with the traceback where the mistake is ours."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        value = {"time": at, "level": record.levelname, "logger": record.name, "message": record.getMessage()}
        if record.exc_info:
            value["exception"] = self.formatException(record.exc_info)
        return json.dumps(value)


class OneLineEach(logging.Formatter):
    """A message is one line, whatever names a client sent: they may hold line ends and terminal codes."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        return one_line(super().formatMessage(record))


def _no_port(_ctx: click.Context, _param: click.Parameter, port: str | None) -> None:
    if port is not None:
        raise click.UsageError(f"the port is part of a listener: --override listeners=PLAINTEXT://127.0.0.1:{port}")


@click.command("server", cls=OneLine)
@click.argument("properties", required=False, type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--override", "overrides", multiple=True, metavar="KEY=VALUE", help="A setting that replaces the file's. Repeatable."
)
@click.option("--port", hidden=True, expose_value=False, callback=_no_port)
@click.option("--log-level", default="INFO", show_default=True, help="DEBUG, INFO, WARNING or ERROR.")
@click.option(
    "--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True, help="How lines are written."
)
@click.option("--console", is_flag=True, help="Show the cluster in the browser too, from a process of its own.")
@click.option("--console-port", default=8080, show_default=True, type=click.IntRange(0, 65535), help="Where, on this machine.")
def command(
    properties: str | None, overrides: tuple[str, ...], log_level: str, log_format: str, console: bool, console_port: int
) -> None:
    """Run a broker in the foreground.

    PROPERTIES is a file in the format of Apache Kafka's server.properties, with the same setting names. Without one, the broker
    listens on 127.0.0.1:9092, keeps its data in ./ottla-data, and needs no other process. SIGTERM or Ctrl-C stops it cleanly;
    a second one stops it at once.
    """
    if not isinstance(getattr(logging, log_level.upper(), None), int):
        raise click.BadParameter(f"{log_level} is not a log level: DEBUG, INFO, WARNING or ERROR", param_hint="--log-level")
    handler = logging.StreamHandler(sys.stderr)
    text = OneLineEach("[%(asctime)s] %(levelname)s %(message)s (%(name)s)")
    handler.setFormatter(JsonLine() if log_format == "json" else text)
    logging.basicConfig(level=log_level.upper(), handlers=[handler])
    try:
        config = BrokerConfig(_settings(properties, overrides))
        for name in config.unknown:
            log.warning("Unknown setting %s is ignored", name)
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(_run(config, console_port if console else None))
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


def _give_memory_back() -> None:
    """Left alone, glibc learns from the first large block that is freed to keep all later ones: up to 64 MB, for good."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGE)
        mallopt(_TRIM_THRESHOLD, 2 * _LARGE)


async def _run(config: BrokerConfig, console_port: int | None = None) -> None:
    _allow_many_files()
    _give_memory_back()
    gc.set_threshold(*_COLLECT_AFTER)
    broker = Broker(config)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    first = 0.0

    def on_signal() -> None:
        nonlocal first
        if stop.is_set():
            if loop.time() - first < _ONE_WORD_S:
                return
            log.warning("Stopping at once; the next start will recover")
            os._exit(130)
        log.info("Stopping; once more stops at once")
        first = loop.time()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    await broker.start()
    gc.freeze()  # what was built for good need not be looked at by every collection
    beside = await _start_console(broker, config, console_port) if console_port is not None else None
    signalled, failed = asyncio.ensure_future(stop.wait()), asyncio.ensure_future(broker.failed.wait())
    try:
        await asyncio.wait([signalled, failed], return_when=asyncio.FIRST_COMPLETED)
    finally:
        signalled.cancel()
        failed.cancel()
        if beside is not None:
            await beside.stop()
        await broker.stop()
    if broker.failed.is_set():
        raise StartError("every log directory has failed; the log says how")


async def _start_console(broker: Broker, config: BrokerConfig, port: int) -> ConsoleProcess | None:
    for listener in broker.advertised:
        if listener.protocol == "PLAINTEXT":
            return await ConsoleProcess.start(str(listener).partition("://")[2], port, config.log_dirs)
    log.warning("No console: it would need a listener without TLS and SASL. Run `ottla console --command-config` instead")
    return None
