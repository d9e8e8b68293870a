"""`ottla export TOPIC --to parquet DIR`: a topic as Parquet files, and later what has come since.

From a cluster, or with `--log-dirs` from the data directories of brokers that need not run any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.tool import Failure, OneLine, connect

if TYPE_CHECKING:
    from ottla.client.parquet import Exported


@click.command("export", cls=OneLine)
@click.argument("topic")
@click.option("--to", "target", nargs=2, required=True, metavar="parquet DIR", help="The format, and where its files go.")
@click.option("--bootstrap-server", metavar="HOST:PORT", help="The cluster to read from.")
@click.option("--command-config", metavar="FILE", help="A properties file with a client's settings (TLS, SASL).")
@click.option("--log-dirs", metavar="DIR[,DIR]", help="Read from these data directories instead, without a broker.")
@click.option(
    "--isolation-level",
    type=click.Choice(["read_committed", "read_uncommitted"]),
    default="read_committed",
    show_default=True,
    help="Whether to leave out what transactions did not commit.",
)
@click.option("--file-records", type=click.IntRange(min=1), default=1_000_000, show_default=True, help="Records in one file.")
def command(
    topic: str,
    target: tuple[str, str],
    bootstrap_server: str | None,
    command_config: str | None,
    log_dirs: str | None,
    isolation_level: str,
    file_records: int,
) -> None:
    """Write TOPIC as Parquet files. Run again, it goes on with what has come since."""
    kind, directory = target
    if kind != "parquet":
        raise click.UsageError(f"--to {kind} is not known: allowed is parquet")
    if (bootstrap_server is None) == (log_dirs is None):
        raise click.UsageError("Give either --bootstrap-server or --log-dirs")
    try:
        from ottla.client import parquet  # noqa: PLC0415  (Arrow takes its time, and need not be installed)
    except ImportError as problem:
        raise click.UsageError(str(problem)) from None
    wishes: dict[str, Any] = {"isolation": isolation_level, "file_records": file_records}
    try:
        if log_dirs is not None:
            _show(parquet.export_directories(log_dirs.split(","), topic, directory, **wishes))
            return
        with connect(bootstrap_server or "", command_config) as cluster:
            _show(parquet.export_topic(cluster, topic, directory, **wishes))
    except OSError as problem:
        raise Failure(f"{problem.filename or 'a file'} cannot be used: {problem.strerror or problem}") from None


def _show(exported: Iterator[Exported]) -> None:
    records = files = 0
    for one in exported:
        click.echo(f"{one.partition}: offsets {one.start} to {one.end}, {one.records} records in {one.files} files")
        records += one.records
        files += one.files
    click.echo(f"{records} records in {files} files")
