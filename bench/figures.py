"""What is shown: the samples that were taken, the lines of the report, and the bars that Ottla has to clear. Pure.

Guards: a figure is the median of its samples and its spread is shown; a line is compared with the warmed-up Apache Kafka only;
a line that lacks a side says so and never counts as met.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import median

PARTITIONS = (1, 10, 100, 1000)
CONNECTIONS = (1, 100, 5000)
TRANSACTION_RECORDS = (1, 10, 100)
TRANSACTION_RATE = 500
COMMIT_PARTITIONS = (1, 10)
COMMIT_RATE = 2000
MEMBERS = (1, 10, 100)
CODECS = ("none", "zstd")
STEADY_RATE = 500
CLIENT_READS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "arrow_read.all": {},
    "arrow_read.value": {"columns": ["value"]},
    "confluent_read": {},
    "aiokafka_read": {},
}
"""What reads the same topic, and with which arguments."""
SCRAPED_PARTITIONS = 10_000
CLUSTER_BROKERS = (1, 3, 5)
CLUSTER_PARTITIONS = (100, 1000, 3000, 10_000)


class Subject(Enum):
    """Who was measured. A JVM is another broker once it is warm."""

    APACHE_COLD = "Apache Kafka, cold"
    APACHE = "Apache Kafka, warm"
    OTTLA = "Ottla"


class Samples:
    """Every sample of the run, by figure and subject."""

    def __init__(self) -> None:
        self._taken: dict[tuple[str, Subject], list[float]] = defaultdict(list)
        self.notes: list[str] = []

    def add(self, key: str, subject: Subject, value: float) -> None:
        """One more sample of a figure."""
        self._taken[key, subject].append(value)

    def note(self, words: str) -> None:
        """Something that a reader of the figures must know."""
        self.notes.append(words)

    def of(self, key: str, subject: Subject) -> Sequence[float]:
        """All samples of a figure, in the order in which they were taken."""
        return self._taken.get((key, subject), [])

    def figure(self, key: str, subject: Subject) -> float | None:
        """The median of the samples; None where there is none."""
        taken = self.of(key, subject)
        return median(taken) if taken else None

    def keep(self, earlier: Mapping[str, Mapping[str, Sequence[float]]]) -> list[str]:
        """Take figures of an earlier run that this one did not measure; which."""
        measured = {key for key, _ in self._taken}
        kept = [key for key in earlier if key not in measured]
        for key in kept:
            for subject, taken in earlier[key].items():
                self._taken[key, Subject(subject)] = list(taken)
        return kept

    def raw(self) -> dict[str, dict[str, list[float]]]:
        """Everything, for the machine to read."""
        result: dict[str, dict[str, list[float]]] = defaultdict(dict)
        for (key, subject), taken in self._taken.items():
            result[key][subject.value] = taken
        return dict(result)


class Against(Enum):
    """What a bar is held against."""

    RATIO = "the ratio to the warmed-up Apache Kafka"
    VALUE = "Ottla's own figure"


@dataclass(frozen=True, slots=True)
class Bar:
    """The most that a figure may be, or the least."""

    limit: float
    text: str
    against: Against = Against.RATIO
    at_least: bool = False

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.text}"

    def cleared_by(self, value: float) -> bool:
        return value >= self.limit if self.at_least else value <= self.limit


@dataclass(frozen=True, slots=True)
class Line:
    """One figure of the report, as it is named and compared."""

    key: str
    label: str
    unit: str
    bar: Bar | None = None
    more_is_better: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """Lines that belong together."""

    title: str
    lines: tuple[Line, ...]


def _least(divisor: int) -> Bar:
    return Bar(1 / divisor, f"1/{divisor}") if divisor > 1 else Bar(1, "1")


def _times(factor: int) -> Bar:
    return Bar(factor, str(factor), at_least=True)


SIDE_BY_SIDE = Section(
    "The same load",
    (
        Line("start.s", "start to first answer", "s", _least(5)),
        Line("produce.100.cpu", "CPU per GB produced, 100-byte records", "s/GB", _least(3)),
        Line("produce.1024.cpu", "CPU per GB produced, 1 KB records", "s/GB", _least(3)),
        Line("consume.100.cpu", "CPU per GB consumed, 100-byte records", "s/GB", _least(1)),
        Line("consume.1024.cpu", "CPU per GB consumed, 1 KB records", "s/GB", _least(1)),
        Line("small.cpu", "CPU per one-record request", "us", _least(2)),
        Line("trip.p50", "one record there and back, p50", "ms", _least(2)),
        Line("trip.p99", "one record there and back, p99", "ms", _least(4)),
        Line("rss", "resident memory after the load", "MB", _least(6)),
        Line("idle", "CPU of a second in which it stands by", "ms"),
        Line("produce.100.rate", "produced, 100-byte records", "records/s", more_is_better=True),
        Line("produce.1024.rate", "produced, 1 KB records", "records/s", more_is_better=True),
        Line("consume.100.rate", "consumed, 100-byte records", "records/s", more_is_better=True),
        Line("consume.1024.rate", "consumed, 1 KB records", "records/s", more_is_better=True),
        Line("small.rate", "one-record requests", "requests/s", more_is_better=True),
    ),
)


def _of_partitions(count: int) -> Iterable[Line]:
    name = f"{count:,} partition{'s' if count > 1 else ''}"
    yield Line(f"partitions.{count}.produce", f"{name}: CPU per GB produced", "s/GB")
    yield Line(f"partitions.{count}.consume", f"{name}: CPU per GB consumed", "s/GB")
    yield Line(f"partitions.{count}.trip", f"{name}: there and back, p50", "ms")
    yield Line(f"partitions.{count}.rss", f"{name}: resident memory", "MB")


def _of_connections(count: int) -> Iterable[Line]:
    name = f"{count:,} idle connection{'s' if count > 1 else ''}"
    bar = Bar(300, "300 MB", Against.VALUE) if count == max(CONNECTIONS) else None
    yield Line(f"connections.{count}.rss", f"{name}: resident memory", "MB", bar)
    yield Line(f"connections.{count}.idle", f"{name}: CPU of an idle second", "ms")
    yield Line(f"connections.{count}.p50", f"{name}: there and back, p50", "ms")
    yield Line(f"connections.{count}.p99", f"{name}: there and back, p99", "ms")


MORE_PARTITIONS = Section(
    "More partitions (100-byte records)", tuple(line for count in PARTITIONS for line in _of_partitions(count))
)
MORE_CONNECTIONS = Section("More connections", tuple(line for count in CONNECTIONS for line in _of_connections(count)))
COLD_READER = Section(
    "A reader of old data that is not in the page cache",
    (
        Line("cold.without.p50", "hot topic without the reader, p50", "ms"),
        Line("cold.without.p99", "hot topic without the reader, p99", "ms"),
        Line("cold.cached.p99", "beside a reader of cached data, p99", "ms"),
        Line("cold.with.p50", "beside the cold reader, p50", "ms"),
        Line("cold.with.p99", "beside the cold reader, p99", "ms"),
        Line("cold.grows", "p99 with the cold reader : without", "times", Bar(2, "2 times", Against.VALUE)),
        Line("cold.rate", "the cold reader reads", "MB/s", more_is_better=True),
        Line("cold.disk", "of its data came from the disk", "%", more_is_better=True),
    ),
)


def _of_transactions(records: int) -> Iterable[Line]:
    name = f"transactions of {records} record{'s' if records > 1 else ''}"
    yield Line(f"txn.{records}.per_cpu", f"{name} per second of broker CPU", "1/s", _times(2), more_is_better=True)
    yield Line(f"txn.{records}.rate", f"{name}, by 20 producers", "1/s", more_is_better=True)
    yield Line(f"txn.{records}.refused", f"{name}: CONCURRENT_TRANSACTIONS for each", "times")


def _of_commits(partitions: int) -> Iterable[Line]:
    name = f"commits of {partitions} offset{'s' if partitions > 1 else ''}"
    yield Line(f"commit.{partitions}.per_cpu", f"{name} per second of broker CPU", "1/s", _times(2), more_is_better=True)
    yield Line(f"commit.{partitions}.rate", f"{name}, by 16 consumers", "1/s", more_is_better=True)
    yield Line(f"commit.{partitions}.paced", f"{name}, {COMMIT_RATE:,} a second: CPU for each", "us")


def _of_members(members: int) -> Iterable[Line]:
    name = f"a group of {members}"
    after = "one leaves" if members > 1 else "its member leaves"
    yield Line(f"group.{members}.stable", f"{name} becomes stable", "ms", _least(1))
    yield Line(f"group.{members}.settled", f"{name}, {after}: settled", "ms", _least(1))


TRANSACTIONS = Section(
    "Transactions",
    (
        *(line for records in TRANSACTION_RECORDS for line in _of_transactions(records)),
        Line("txn.paced", f"transactions of 10 records, {TRANSACTION_RATE:,} a second: CPU for each", "us"),
        Line("txn.librdkafka", "one transaction of 10 records by librdkafka, p50", "ms"),
    ),
)
GROUPS = Section(
    "Groups and committed offsets",
    (
        *(line for partitions in COMMIT_PARTITIONS for line in _of_commits(partitions)),
        *(line for members in MEMBERS for line in _of_members(members)),
        Line("loading.load", "1,000,000 offsets: from ApiVersions to OffsetFetch answered", "s"),
        Line("loading.restart", "1,000,000 offsets: from process start to OffsetFetch answered", "s"),
        Line("loading.rss", "1,000,000 offsets: resident memory once loaded", "MB"),
    ),
)


def _of_cleans(codec: str) -> Iterable[Line]:
    name = "uncompressed" if codec == "none" else codec
    yield Line(f"compaction.{codec}.rate", f"compaction, {name}", "MB/s", _times(1), more_is_better=True)
    yield Line(f"compaction.{codec}.cpu", f"compaction, {name}: CPU per GB", "s/GB")
    yield Line(f"compaction.{codec}.rss", f"compaction, {name}: resident memory", "MB", _least(3))
    yield Line(f"compaction.{codec}.seconds", f"compaction, {name}: took", "s")
    yield Line(f"compaction.{codec}.dirty", f"compaction, {name}: before", "MB")
    yield Line(f"compaction.{codec}.left", f"compaction, {name}: after", "MB")


COMPACTION = Section(
    "Compaction (1 KB values, 90 % of the records are followed by another of their key)",
    (
        *(line for codec in CODECS for line in _of_cleans(codec)),
        Line("compaction.alone.p50", f"{STEADY_RATE} requests a second without a clean, p50", "ms"),
        Line("compaction.alone.p99", f"{STEADY_RATE} requests a second without a clean, p99", "ms"),
        Line("compaction.beside.p50", f"{STEADY_RATE} requests a second during a clean, p50", "ms"),
        Line("compaction.beside.p99", f"{STEADY_RATE} requests a second during a clean, p99", "ms"),
        Line("compaction.grows", "produce p99 during a clean : without", "times", Bar(2, "2 times", Against.VALUE)),
    ),
)


def _of_many(partitions: int) -> Iterable[Line]:
    name = f"3 brokers, {partitions:,} partitions"
    key = f"cluster.partitions.{partitions}"
    led = {3000: Bar(1.5, "1.5 s", Against.VALUE), 10_000: Bar(3, "3 s", Against.VALUE)}.get(partitions)
    yield Line(f"{key}.create", f"{name}: created", "s", _least(4) if partitions == 3000 else None)
    yield Line(f"{key}.failover", f"{name}: kill -9 of a broker until all are led", "s", led)
    ready = Bar(3, "3 s", Against.VALUE) if partitions == 10_000 else None
    yield Line(f"{key}.controller", f"{name}: kill -9 of the controller until all are led", "s", ready)
    yield Line(f"{key}.rss", f"{name}: resident memory of all", "MB")


def _of_brokers(count: int) -> Iterable[Line]:
    name = f"{count} broker{'s' if count > 1 else ''}"
    key = f"cluster.brokers.{count}"
    yield Line(f"{key}.produce.100.rate", f"{name}: produced, 100-byte records", "records/s", more_is_better=True)
    yield Line(f"{key}.produce.100.cpu", f"{name}: CPU per GB produced, 100-byte records", "s/GB")
    yield Line(f"{key}.produce.1024.rate", f"{name}: produced, 1 KB records", "records/s", more_is_better=True)
    yield Line(f"{key}.produce.1024.cpu", f"{name}: CPU per GB produced, 1 KB records", "s/GB")
    yield Line(f"{key}.trip.p50", f"{name}: one record there and back, p50", "ms")
    yield Line(f"{key}.trip.p99", f"{name}: one record there and back, p99", "ms")


_ARROW = Bar(5e6, "5,000,000 records/s per core", Against.VALUE, at_least=True)


def _of_client(key: str, name: str, bar: Bar | None = None) -> Iterable[Line]:
    yield Line(f"client.{key}.per_cpu", f"{name}: per second of the client's CPU", "records/s", bar, more_is_better=True)
    yield Line(f"client.{key}.rate", f"{name}", "records/s", more_is_better=True)


CLIENTS = Section(
    "Clients (100-byte records, uncompressed, 4 partitions, page cache)",
    (
        *_of_client("arrow_read.all", "ottla.client.read, all columns", _ARROW),
        *_of_client("arrow_read.value", "ottla.client.read, values alone", _ARROW),
        *_of_client("confluent_read", "confluent-kafka reads"),
        *_of_client("aiokafka_read", "aiokafka reads"),
        *_of_client("arrow_write", "ottla.client.write, with keys"),
        *_of_client("confluent_write", "confluent-kafka writes, with keys"),
    ),
)
SPARK_TOPICS = {"100": (100, "none"), "100.zstd": (100, "zstd"), "1024": (1024, "none"), "1024.zstd": (1024, "zstd")}
"""Size and codec of the records that Spark reads and writes."""


def _of_spark(key: str, size: int, codec: str) -> Iterable[Line]:
    name = f"{size}-byte records{'' if codec == 'none' else f', {codec}'}"
    own, stock = 'format("ottla")', "Spark's connector"
    queries = {"read.ottla.all": f"{own} reads, all columns", "read.ottla.value": f"{own} reads, values alone",
               "read.kafka": f"{stock} reads", "read.kafka.tuned": f"{stock} reads, tuned",
               "stream.ottla.all": f"{own} streams, all columns", "stream.kafka": f"{stock} streams",
               "write.ottla.once": f"{own} copies, exactly once", "write.kafka": f"{stock} copies, at least once",
               "write.kafka.tuned": f"{stock} copies, tuned",
               "batch.ottla.once": f"{own} copies in a batch query, exactly once",
               "batch.kafka": f"{stock} copies in a batch query, at least once"}  # fmt: skip
    for query, words in queries.items():
        # Spark's own connector should not notice whose broker it talks to.
        bar = _times(1) if query.endswith("kafka") else None
        yield Line(f"spark.{key}.{query}.rate", f"{name}: {words}", "records/s", bar, more_is_better=True)
        for who in ("jvm", "python", "broker"):
            yield Line(f"spark.{key}.{query}.cpu.{who}", f"{name}: {words}: CPU of {who} per million", "s")
    for kind, whose in (("ottla.all", own), ("kafka", stock)):
        yield Line(f"spark.{key}.stream.{kind}.besides", f"{name}: {whose}, a streaming query's start and end", "s")
    yield Line(f"spark.{key}.latency.ottla", f"{name}: a batch of 1,000, {own}", "ms")
    yield Line(f"spark.{key}.latency.kafka", f"{name}: a batch of 1,000, {stock}", "ms")
    for ratio, words, least in (("read.all", "reads, all columns", 2), ("read.value", "reads, values alone", 3),
                                ("stream", "streams, all columns", 2), ("write", "exactly once", 1),
                                ("batch", "exactly once in a batch query", 1)):  # fmt: skip
        bar = Bar(least, str(least), Against.VALUE, at_least=True)
        yield Line(f"spark.{key}.ratio.{ratio}", f"{name}: {own} {words}, times the connector", "", bar, more_is_better=True)
    most = Bar(1.2, "1.2", Against.VALUE)
    yield Line(f"spark.{key}.ratio.latency", f"{name}: {own}, latency, times the connector's", "", most)


SPARK = Section(
    "Spark (local, two cores; 4 partitions, page cache)",
    tuple(line for key, (size, codec) in SPARK_TOPICS.items() for line in _of_spark(key, size, codec)),
)
_FASTER = Bar(1.5, "1.5", at_least=True)
CLUSTERS = Section(
    "Clusters (3 replicas, acks=all; figures of all brokers together)",
    (
        Line("cluster.produce.100.rate", "3 brokers: produced, 100-byte records", "records/s", _FASTER, more_is_better=True),
        Line("cluster.produce.1024.rate", "3 brokers: produced, 1 KB records", "records/s", _FASTER, more_is_better=True),
        Line("cluster.produce.100.cpu", "3 brokers: CPU per GB produced, 100-byte records", "s/GB", _least(4)),
        Line("cluster.produce.1024.cpu", "3 brokers: CPU per GB produced, 1 KB records", "s/GB", _least(4)),
        Line("cluster.trip.p50", "3 brokers: one record there and back, p50", "ms"),
        Line("cluster.trip.p99", "3 brokers: one record there and back, p99", "ms", _least(3)),
        Line("cluster.rss", "3 brokers: resident memory of all after the load", "MB", _least(6)),
        *(line for count in CLUSTER_BROKERS if count != 3 for line in _of_brokers(count)),
        *(line for partitions in CLUSTER_PARTITIONS for line in _of_many(partitions)),
    ),
)
MONITORING = Section(
    f"Being looked at ({SCRAPED_PARTITIONS:,} partitions, scraped every 5 seconds)",
    (
        Line("monitoring.count", "counting one request", "us"),
        Line("monitoring.share", "of the CPU of a one-record request", "%", Bar(3, "3 %", Against.VALUE)),
        Line("monitoring.page", "one page of metrics", "MB"),
        Line("monitoring.scrape", "takes, beside a producer", "ms"),
        Line("monitoring.alone.p99", f"{STEADY_RATE} requests a second without scrapes, p99", "ms"),
        Line("monitoring.beside.p99", f"{STEADY_RATE} requests a second beside scrapes, p99", "ms"),
        Line("monitoring.grows", "produce p99 beside scrapes : without", "times", Bar(1.5, "1.5 times", Against.VALUE)),
    ),
)
SECTIONS = (
    SIDE_BY_SIDE,
    MORE_PARTITIONS,
    MORE_CONNECTIONS,
    COLD_READER,
    TRANSACTIONS,
    GROUPS,
    COMPACTION,
    CLIENTS,
    SPARK,
    MONITORING,
    CLUSTERS,
)


def ratio(samples: Samples, line: Line, to: Subject = Subject.APACHE) -> float | None:
    """Ottla's figure divided by Apache Kafka's."""
    ours, theirs = samples.figure(line.key, Subject.OTTLA), samples.figure(line.key, to)
    return ours / theirs if ours is not None and theirs else None


def met(samples: Samples, line: Line) -> bool | None:
    """Whether the bar is cleared; None where there is no bar, or nothing to hold against it."""
    if line.bar is None:
        return None
    held = ratio(samples, line) if line.bar.against is Against.RATIO else samples.figure(line.key, Subject.OTTLA)
    return None if held is None else line.bar.cleared_by(held)


def missed(samples: Samples) -> list[Line]:
    """The lines whose bar was not cleared."""
    return [line for section in SECTIONS for line in section.lines if met(samples, line) is False]
