"""What is shown: the samples that were taken, the lines of the report, and the bars that Ottla has to clear. Pure.

Guards: a figure is the median of its samples and its spread is shown; a line is compared with the warmed-up Apache Kafka only;
a line that lacks a side says so and never counts as met.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import median

PARTITIONS = (1, 10, 100, 1000)
CONNECTIONS = (1, 100, 5000)


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
    """The most that a figure may be."""

    limit: float
    text: str
    against: Against = Against.RATIO


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
SECTIONS = (SIDE_BY_SIDE, MORE_PARTITIONS, MORE_CONNECTIONS, COLD_READER)


def ratio(samples: Samples, line: Line, to: Subject = Subject.APACHE) -> float | None:
    """Ottla's figure divided by Apache Kafka's."""
    ours, theirs = samples.figure(line.key, Subject.OTTLA), samples.figure(line.key, to)
    return ours / theirs if ours is not None and theirs else None


def met(samples: Samples, line: Line) -> bool | None:
    """Whether the bar is cleared; None where there is no bar, or nothing to hold against it."""
    if line.bar is None:
        return None
    held = ratio(samples, line) if line.bar.against is Against.RATIO else samples.figure(line.key, Subject.OTTLA)
    return None if held is None else held <= line.bar.limit


def missed(samples: Samples) -> list[Line]:
    """The lines whose bar was not cleared."""
    return [line for section in SECTIONS for line in section.lines if met(samples, line) is False]
