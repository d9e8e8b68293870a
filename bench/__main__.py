"""`python -m bench`: run the scenarios on both brokers, show the table, write the page, the picture and the raw figures."""

from __future__ import annotations

import datetime
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

import click

from bench import compaction, machine, picture, report, sitting
from bench.brokers import KAFKA_HEAP, KAFKA_LARGE_HEAP, KAFKA_VERSION, ROOT, BrokerError, Ottla, apache_kafka
from bench.cluster import clusters
from bench.coordinators import loading
from bench.figures import Samples, Subject
from bench.monitoring import monitoring
from bench.scenarios import FULL, QUICK, Maker, ScenarioError, Sizes, start_times
from bench.sitting import sit

SCENARIOS = ("start", *sitting.SCENARIOS, "monitoring", "clusters")
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
@click.option("--keep", is_flag=True, help="Keep the figures of scenarios that are not run, as they stand in --out.")
@click.option("--heap", default=KAFKA_HEAP, show_default=True, help="Apache Kafka's largest heap.")
def main(
    only: tuple[str, ...], brokers: tuple[str, ...], quick: bool, out: Path | None, work: Path | None, keep: bool, heap: str
) -> None:
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
    say(f"memory was touched once, in {machine.make_memory_real():.0f} s")
    try:
        with ExitStack() as stack:
            makers: dict[Subject, Maker] = {}
            zookeeper: str | None = None
            if not brokers or "apache" in brokers or "clusters" in wanted:
                try:
                    apache = stack.enter_context(apache_kafka(place, heap))
                    zookeeper = apache.zookeeper
                    if not brokers or "apache" in brokers:
                        makers[Subject.APACHE] = apache
                    facts["Apache Kafka"] = f"{KAFKA_VERSION}, ZooKeeper mode, -Xmx{heap}"
                except BrokerError as problem:
                    samples.note(f"Apache Kafka could not be measured: {problem}")
                    say(samples.notes[-1])
            if not brokers or "ottla" in brokers:
                makers[Subject.OTTLA] = Ottla(place)
            measure(makers, wanted, sizes, samples, zookeeper)
    except (BrokerError, ScenarioError) as problem:
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
    if keep:
        report.keep_earlier(out, samples)
    report.write(out, samples, facts)
    drawn = picture.draw(out / "bench.svg", samples)
    say(f"written: {out}/bench.md, bench.json{', bench.svg' if drawn else '; no picture, as only one broker was measured'}")


def measure(
    makers: Mapping[Subject, Maker], wanted: tuple[str, ...], sizes: Sizes, samples: Samples, zookeeper: str | None
) -> None:
    """All wanted scenarios on all brokers."""
    left_out = [name for name in SCENARIOS if name not in wanted]
    if left_out:
        samples.note(f"Left out of this run: {', '.join(left_out)}")
    if Subject.APACHE in makers and {"partitions", "groups"} & set(wanted):
        samples.note(
            f"Apache Kafka has -Xmx{KAFKA_LARGE_HEAP} where topics have up to 1,000 partitions (with {KAFKA_HEAP} it ran out of"
            " memory there) and where 1,000,000 offsets are loaded"
        )
    if "compaction" in wanted:
        samples.note(compaction.explained(sizes))
    if {"client", "spark"} & set(wanted):
        samples.note("The clients and Spark are measured, not the brokers: Apache Kafka is not warmed up for them")
    if sizes is QUICK:
        samples.note(
            f"With the sizes of --quick (and {QUICK.offset_records:,} offsets to load): these figures say that it works"
        )
    if "start" in wanted:
        alone("start", start_times, makers, sizes, samples)
    sit(makers, wanted, sizes, samples, say)
    if "groups" in wanted:
        alone("loading offsets", loading, makers, sizes, samples)
    if "monitoring" in wanted:
        alone("monitoring", monitoring, makers, sizes, samples)
    if "clusters" in wanted and zookeeper is not None:
        alone("clusters", clusters(zookeeper), makers, sizes, samples)


def alone(
    name: str,
    scenario: Callable[[Maker, Subject, Sizes, Samples, Callable[[str], None]], None],
    makers: Mapping[Subject, Maker],
    sizes: Sizes,
    samples: Samples,
) -> None:
    """A scenario that starts brokers of its own, one after the other."""
    for subject, maker in makers.items():
        say(f"{subject.value}: {name}")
        try:
            scenario(maker, subject, sizes, samples, say)
        except (BrokerError, ScenarioError) as problem:
            samples.note(f"{subject.value}, {name}: not measured to its end: {problem}")
            say(f"  {samples.notes[-1]}")


def _end(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
