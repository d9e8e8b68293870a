"""`ottla pipeline`: check pipelines, run them on Spark, and look at those that run."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ottla.cli.output import Column, on_terminal, one_line, print_rows
from ottla.cli.tool import Failure, Tool, json_option, read_properties

if TYPE_CHECKING:
    from rich.table import Table

    from ottla.pipelines.spec import Pipeline, Refused
    from ottla.pipelines.state import State

_DIRECTORY = "./ottla-pipelines"
_COLUMNS = (
    Column("SINK", "name"),
    Column("INTO", "what"),
    Column("STATE", "state"),
    Column("BATCH", "batch"),
    Column("ROWS", "rows"),
    Column("ROWS/S", "rate"),
    Column("BATCH MS", "batchMs"),
    Column("LAG", "lag"),
    Column("LAST ERROR", "error"),
)


@click.group("pipeline", cls=Tool, no_args_is_help=True)
@click.option("--directory", default=_DIRECTORY, show_default=True, help="Where pipelines keep their checkpoints and state.")
@click.pass_context
def command(ctx: click.Context, directory: str) -> None:
    """Run pipelines on Spark: topics in, SQL or Python, topics (exactly once) and tables out.

    A pipeline is a file in YAML or Python, or a directory of them. Running needs Java 17 and `pip install "ottla[pipelines]"`;
    checking needs no Java.
    """
    ctx.obj = Path(os.path.abspath(directory))


def _cluster_options(work: Callable[..., None]) -> Callable[..., None]:
    work = click.option("--command-config", metavar="FILE", help="A properties file of a client: TLS, SASL.")(work)
    return click.option("--bootstrap-server", metavar="HOST:PORT[,...]", help="Instead of the file's cluster.")(work)


@command.command()
@click.argument("path", metavar="FILE|DIR")
@_cluster_options
@click.option("--offline", is_flag=True, help="Do not ask the cluster for topics, nor registries for schemas.")
def validate(path: str, bootstrap_server: str | None, command_config: str | None, offline: bool) -> None:
    """Say what is wrong with a pipeline, without Spark: keys, names, references, cycles, SQL, schemas, topics."""
    pipeline = _load(path, bootstrap_server, command_config)
    if pipeline.cluster and not offline:
        from ottla.client.cluster import Cluster  # noqa: PLC0415 - one that is only read asks nobody
        from ottla.pipelines.schemas import check_schemas  # noqa: PLC0415
        from ottla.pipelines.spec import Refused  # noqa: PLC0415
        from ottla.pipelines.topics import check_topics  # noqa: PLC0415

        with Cluster(pipeline.cluster) as cluster:
            problems = check_topics(pipeline, cluster) + check_schemas(pipeline, ask=True)
        if problems:
            _tell(Refused(problems))
    counts = f"{len(pipeline.sources)} sources, {len(pipeline.steps)} steps, {len(pipeline.sinks)} sinks"
    click.echo(f"Pipeline {pipeline.name} is valid: {counts}")


@command.command()
@click.argument("path", metavar="FILE|DIR")
@_cluster_options
@click.option("--once", is_flag=True, help="Take what is there now, and end.")
@click.option("--master", default="local[*]", show_default=True, help="Spark's master.")
@click.option("--conf", multiple=True, metavar="KEY=VALUE", help="A setting of Spark's. Repeatable.")
@click.option(
    "--runner",
    type=click.Choice(["streaming", "declarative"]),
    default="streaming",
    show_default=True,
    help="What runs it: queries of Structured Streaming, or (with --once) Spark's declarative pipelines.",
)
@click.option("--metrics-port", type=click.IntRange(0, 65535), help="Serve /metrics for Prometheus there; 0: any.")
@click.pass_obj
def run(
    directory: Path,
    path: str,
    bootstrap_server: str | None,
    command_config: str | None,
    once: bool,
    master: str,
    conf: tuple[str, ...],
    runner: str,
    metrics_port: int | None,
) -> None:
    """Run a pipeline until it is stopped; it goes on where it was."""
    settings = {}
    for one in conf:
        key, separator, value = one.partition("=")
        if not separator:
            raise Failure(f"--conf {one} is not valid: allowed is KEY=VALUE")
        settings[key] = value
    pipeline = _load(path, bootstrap_server, command_config)
    from ottla.pipelines.session import NoSpark, missing, open_session  # noqa: PLC0415 - whoever looks at a list needs none of this

    why = missing()
    if why is not None:
        raise Failure(why)
    if runner == "declarative":
        _check_declarative(pipeline, once, metrics_port, master)
    from ottla.pipelines import declarative  # noqa: PLC0415
    from ottla.pipelines import state as states  # noqa: PLC0415
    from ottla.pipelines.metrics import MetricsServer  # noqa: PLC0415
    from ottla.pipelines.running import Failed, Running  # noqa: PLC0415
    from ottla.pipelines.spec import Refused  # noqa: PLC0415

    home = directory / pipeline.name
    try:
        click.get_current_context().with_resource(states.held(home))
    except states.Held as other:
        process = f", as process {other}" if str(other) else ""
        raise Failure(f"pipeline {pipeline.name} runs already{process}: `ottla pipeline stop {pipeline.name}`") from None
    state = states.new_state(pipeline.name, os.path.abspath(path))
    running = Running(pipeline, home, state, once=once)
    server = session = None
    if metrics_port is not None:
        try:
            server = MetricsServer(state, metrics_port)
        except OSError as problem:
            raise Failure(f"--metrics-port {metrics_port} cannot be used: {problem.strerror}") from None
        state.metrics = f"http://127.0.0.1:{server.port}/metrics"
        click.echo(f"Metrics at {state.metrics}")
    error = ""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: running.stopping.set())
    states.write(home, state)  # from now on `status` and `stop` know it
    try:
        if not running.stopping.is_set():
            running.ask_cluster()
            session = open_session(pipeline.name, home, master, {**pipeline.spark, **settings})
            running.build(session)
            for number in (signal.SIGTERM, signal.SIGINT):  # Spark has put its own in place
                signal.signal(number, lambda *_: running.stopping.set())
            if runner == "declarative":
                session.stop()  # it has checked everything; the project starts a Spark of its own
                project = declarative.emit(running, path, running.types, settings)
                declarative.run_project(project, master, running.stopping)
            else:
                running.start()
                with _shown() as shown:
                    running.watch(shown)
    except Refused as refused:
        error = str(refused.problems[0])
        _tell(refused)
    except (Failed, NoSpark, declarative.DeclarativeFailed) as failed:
        error = str(failed)
        raise Failure(error) from None
    except Exception as problem:
        if not running.spark_ended(within=1):  # what it held open is closed before it counts as ended
            error = str(problem)
            raise
        if not running.stopping.is_set():  # else whoever stops us has stopped it too, as systemd does
            error = f"Spark's process has ended, was it killed? Its last words are in {home / 'spark.log'}; a new run goes on"
            raise Failure(error) from None
    finally:
        running.close(error)
        if session is not None and not running.spark_ended():
            session.stop()
        if server is not None:
            server.close()
    counted = "" if runner == "declarative" else f": {sum(one.rows for one in state.queries)} rows"
    click.echo(f"Pipeline {pipeline.name} {state.state}{counted}")


@command.command()
@click.argument("name")
@json_option
@click.pass_obj
def status(directory: Path, name: str, as_json: bool) -> None:
    """Show the queries of a pipeline, with their rates and lag."""
    state = _known(directory, name)
    if not as_json:
        error = f": {state.error}" if state.error else ""
        process = f", process {state.pid}" if state.alive() else ""
        click.echo(one_line(f"Pipeline {state.name}: {state.shown()}{process}{error}"))
    print_rows(_COLUMNS, _rows(state, None if as_json else "-"), as_json=as_json)


@command.command("list")
@json_option
@click.pass_obj
def list_(directory: Path, as_json: bool) -> None:
    """Show which pipelines have run here."""
    from ottla.pipelines.state import read_all  # noqa: PLC0415

    columns = (Column("NAME", "name"), Column("STATE", "state"), Column("PROCESS", "pid"), Column("FILE", "file"))
    none = None if as_json else "-"
    rows = [(one.name, one.shown(), one.pid if one.alive() else none, one.file) for one in read_all(directory)]
    print_rows(columns, rows, as_json=as_json)


@command.command()
@click.argument("name")
@click.option("--timeout", default=60, show_default=True, type=click.IntRange(1), help="Seconds to wait for its end.")
@click.pass_obj
def stop(directory: Path, name: str, timeout: int) -> None:
    """Stop a pipeline when its batches in hand are done."""
    state = _known(directory, name)
    if not state.alive():
        raise Failure(f"pipeline {name} does not run: it is {state.shown()}")
    os.kill(state.pid, signal.SIGTERM)
    deadline = time.monotonic() + timeout
    while state.alive():
        if time.monotonic() > deadline:
            raise Failure(f"pipeline {name} has not ended after {timeout} s: process {state.pid}")
        time.sleep(0.1)
    click.echo(f"stopped {name}")


# ---- inside --------------------------------------------------------------------------------------------------------------


def _load(path: str, bootstrap: str | None, command_config: str | None) -> Pipeline:
    try:
        from ottla.pipelines.files import load  # noqa: PLC0415
        from ottla.pipelines.spec import Refused  # noqa: PLC0415
    except ImportError as problem:
        raise Failure(f'{problem.name} is not installed: pip install "ottla[pipelines]"') from None
    settings = read_properties(command_config, "--command-config") if command_config is not None else {}
    try:
        return load(path, {**settings, **({"bootstrap.servers": bootstrap} if bootstrap is not None else {})})
    except Refused as refused:
        _tell(refused)
        raise


def _check_declarative(pipeline: Pipeline, once: bool, metrics_port: int | None, master: str) -> None:
    from ottla.pipelines.declarative import missing, refusals  # noqa: PLC0415 - only for this runner
    from ottla.pipelines.spec import Refused  # noqa: PLC0415

    why = missing()
    if why is not None:
        raise Failure(why)
    problems = refusals(pipeline, once=once, metrics=metrics_port is not None, master=master)
    if problems:
        _tell(Refused(problems))


def _tell(refused: Refused) -> None:
    """All that is wrong, a line each."""
    for problem in refused.problems:
        click.echo(one_line(str(problem)), err=True)
    raise click.exceptions.Exit(1)


def _known(directory: Path, name: str) -> State:
    from ottla.pipelines.state import read  # noqa: PLC0415

    state = read(directory / name)
    if state is None:
        raise Failure(f"there is no pipeline {name} in {directory}: `ottla pipeline list` shows those that are")
    return state


def _rows(state: State, none: str | None = "-") -> list[tuple[str | int | float | None, ...]]:
    return [
        (
            one.name,
            one.what,
            one.state,
            one.batch,
            one.rows,
            round(one.rate, 1),
            one.batch_ms,
            none if one.lag is None else one.lag,
            one.error,
        )
        for one in state.queries
    ]


@contextmanager
def _shown() -> Iterator[Callable[[State], None]]:
    """A table that is kept up to date on a terminal, a line for each batch elsewhere."""
    if not on_terminal():
        yield _Lines()
        return
    from rich.live import Live  # noqa: PLC0415 - on a terminal only

    with Live(refresh_per_second=4) as live:
        yield lambda state: live.update(_table(state))


def _table(state: State) -> Table:
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415 - on a terminal only
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=SIMPLE_HEAD, title=f"{state.name}: {state.state} (Ctrl-C stops)", title_justify="left")
    for column in _COLUMNS:
        table.add_column(column.title, overflow="fold")
    for row in _rows(state):
        table.add_row(*(Text(one_line(str(cell))) for cell in row))
    return table


class _Lines:
    """Progress for a file or a pipe: one line when a query has finished a batch."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def __call__(self, state: State) -> None:
        for one in state.queries:
            if one.batch > self._seen.get(one.name, -1):
                self._seen[one.name] = one.batch
                lag = "" if one.lag is None else f", lag {one.lag}"
                click.echo(f"{one.name}: batch {one.batch}, {one.rows} rows, {one.rate:.0f} rows/s{lag}")
        sys.stdout.flush()
