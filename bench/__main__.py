"""`python -m bench`: run the scenarios on both brokers, show the table, write the page, the picture and the raw figures."""

from __future__ import annotations

import datetime
import shutil
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

import click

from bench import machine, picture, report
from bench.brokers import KAFKA_HEAP, KAFKA_VERSION, ROOT, BrokerError, Ottla, apache_kafka
from bench.figures import Samples, Subject
from bench.load import LoadError
from bench.scenarios import FULL, QUICK, Bench, Maker, ScenarioError, Sizes, start_times

SCENARIOS = ("start", "load", "partitions", "connections", "cold-reader")
_STARTED = time.monotonic()


def say(words: str) -> None:
    """Progress, for whoever waits."""
    click.echo(f"[{time.monotonic() - _STARTED:6.1f} s] {words}", err=True)


@click.command()
@click.option("--only", multiple=True, type=click.Choice(SCENARIOS), help="Run this scenario alone. Repeatable.")
@click.option("--broker", "brokers", multiple=True, type=click.Choice(["apache", "ottla"]), help="Run this broker alone.")
@click.option("--quick", is_flag=True, help="Little of everything: does it all work? Not for figures.")
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="Where bench.md, .svg and .json go. [docs, if all was run]"
)
@click.option(
    "--work",
    type=click.Path(file_okay=False, path_type=Path),
    help="A directory on a real disk for the brokers' data. [.cache]",
)
@click.option("--heap", default=KAFKA_HEAP, show_default=True, help="Apache Kafka's largest heap.")
def main(only: tuple[str, ...], brokers: tuple[str, ...], quick: bool, out: Path | None, work: Path | None, heap: str) -> None:
    """Run the same load on Apache Kafka and on Ottla, and compare."""
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGINT, _end)  # also where a shell started us in the background and had it ignored
    sizes = QUICK if quick else FULL
    wanted = only or SCENARIOS
    if out is None and not (only or brokers or quick):
        out = ROOT / "docs"
    base = work or ROOT / ".cache"
    base.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix="bench-", dir=base))
    samples = Samples()
    facts = {"date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")} | machine.describe()
    try:
        with ExitStack() as stack:
            if not brokers or "apache" in brokers:
                try:
                    apache = stack.enter_context(apache_kafka(place, heap))
                    facts["Apache Kafka"] = f"{KAFKA_VERSION}, ZooKeeper mode, -Xmx{heap}"
                    measure(apache, Subject.APACHE, wanted, sizes, samples)
                except BrokerError as problem:
                    samples.note(f"Apache Kafka could not be measured: {problem}")
                    say(samples.notes[-1])
        if not brokers or "ottla" in brokers:
            measure(Ottla(place), Subject.OTTLA, wanted, sizes, samples)
    except (BrokerError, ScenarioError, LoadError) as problem:
        raise click.ClickException(str(problem)) from None
    except KeyboardInterrupt:
        raise click.ClickException("ended before the end; nothing was written") from None
    finally:
        shutil.rmtree(place, ignore_errors=True)
    facts["took"] = f"{(time.monotonic() - _STARTED) / 60:.1f} minutes{' (--quick)' if quick else ''}"
    click.echo(report.terminal(samples))
    if out is None:
        say("not all was run: nothing is written without --out")
        return
    report.write(out, samples, facts)
    drawn = picture.draw(out / "bench.svg", samples)
    say(f"written: {out}/bench.md, bench.json{', bench.svg' if drawn else '; no picture, as only one broker was measured'}")


def measure(maker: Maker, subject: Subject, wanted: tuple[str, ...], sizes: Sizes, samples: Samples) -> None:
    """All wanted scenarios on one broker."""
    if "start" in wanted:
        start_times(maker, subject, sizes, samples, say)
    if not set(wanted) - {"start"}:
        return
    with maker.broker() as broker:
        bench = Bench(broker, subject, sizes, samples, say)
        if subject is Subject.APACHE and "load" in wanted:
            bench.cold_round()
        bench.warm_up()
        scenarios = {
            "load": bench.side_by_side,
            "partitions": bench.partitions,
            "connections": bench.connections,
            "cold-reader": bench.cold_reader,
        }
        for name, scenario in scenarios.items():
            if name in wanted:
                say(f"{subject.value}: {name}")
                try:
                    scenario()
                except ScenarioError as problem:  # the other scenarios still have something to say
                    samples.note(f"{subject.value}, {name}: not measured to its end: {problem}")
                    say(f"  {samples.notes[-1]}")


def _end(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
