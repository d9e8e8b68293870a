"""The options of source and sink, read once: names and meanings are those of Spark's Kafka source and sink.

Guards: an option that cannot be meant is refused before anything starts, with its name and what is allowed. Spark hands keys
over in lower case, so they are looked up that way; Kafka's own settings (`kafka.*`) are in lower case anyway.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ottla.client import COLUMNS, SCHEMA, InvalidSetting, TopicPartition
from ottla.client.admin.offsets import EARLIEST, LATEST
from ottla.client.settings import parse

_PREFIX = "kafka."
_REFUSED = {
    "kafka.auto.offset.reset": "set startingOffsets instead",
    "kafka.key.deserializer": "keys are bytes; decode them with DataFrame operations",
    "kafka.value.deserializer": "values are bytes; decode them with DataFrame operations",
    "kafka.key.serializer": "keys are bytes or text; encode them with DataFrame operations",
    "kafka.value.serializer": "values are bytes or text; encode them with DataFrame operations",
    "kafka.enable.auto.commit": "set commitGroup to have offsets committed after each batch",
    "kafka.interceptor.classes": "there are no interceptors here",
}
_ENDS = {"earliest": EARLIEST, "latest": LATEST}
_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
BATCH_TASK_RECORDS = 1_000_000
"""What a task of a batch query reads at most of one partition, unless an option says otherwise: a hot partition keeps all
cores busy. A stream is split only if asked: what its sink writes would lose the order of a partition."""
STREAM_TASK_RECORDS = 500
"""What a task of a stream reads at least, if there are small ranges to share it: with fewer it costs more than they do."""


@dataclass(frozen=True, slots=True)
class End:
    """An end of the log, the same for every partition."""

    offset: int


@dataclass(frozen=True, slots=True)
class Offsets:
    """An offset (or -2 and -1, the ends) for each partition."""

    of: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Times:
    """A time in milliseconds for each partition, or (`every`) for all."""

    of: Mapping[TopicPartition, int] = field(default_factory=dict)
    every: int | None = None


Bound: TypeAlias = End | Offsets | Times


class Given:
    """The options as they came, with messages that name them as the user writes them."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = {key.lower(): value for key, value in options.items()}
        for name, why in _REFUSED.items():
            if name in self._options:
                raise InvalidSetting(f"Option {name} is not supported: {why}.")
        self.settings = {key[len(_PREFIX) :]: value for key, value in self._options.items() if key.startswith(_PREFIX)}
        if "bootstrap.servers" not in self.settings:
            raise InvalidSetting("Option kafka.bootstrap.servers is missing: give HOST:PORT, several separated by commas.")
        parse(self.settings)

    def text(self, name: str) -> str | None:
        return self._options.get(name.lower())

    def flag(self, name: str, default: bool) -> bool:
        text = self.text(name)
        if text is None:
            return default
        if text.lower() not in ("true", "false"):
            raise InvalidSetting(f"Option {name}: {text!r} is not valid, allowed is true or false.")
        return text.lower() == "true"

    def number(self, name: str, default: int | None = None, least: int = 1) -> int | None:
        text = self.text(name)
        if text is None:
            return default
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least:
            raise InvalidSetting(f"Option {name}: {text!r} is not valid, allowed is a number of at least {least}.")
        return number

    def duration_ms(self, name: str, default: int) -> int:
        text = self.text(name)
        if text is None:
            return default
        match = re.fullmatch(r"\s*(\d+)\s*([a-z]*)\s*", text.lower())
        if match is None or (match[2] or "ms") not in _UNITS:
            raise InvalidSetting(f"Option {name}: {text!r} is not valid, allowed is a time such as 500ms, 30s or 15m.")
        return int(match[1]) * _UNITS[match[2] or "ms"]

    def choice(self, name: str, default: str, *allowed: str) -> str:
        text = (self.text(name) or default).lower()
        if text not in allowed:
            raise InvalidSetting(f"Option {name}: {text!r} is not valid, allowed is {' or '.join(allowed)}.")
        return text

    def json(self, name: str, example: str) -> Any:
        try:
            return json.loads(self.text(name) or "")
        except ValueError:
            raise InvalidSetting(f"Option {name} is not JSON: write it like {example}.") from None


@dataclass(frozen=True, slots=True)
class Selection:
    """Which partitions are read: one of the three is given."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[TopicPartition, ...] = ()

    def names(self, tp: TopicPartition) -> bool:
        """Whether a partition is meant, be it there or not."""
        if self.pattern is not None:
            return re.fullmatch(self.pattern, tp.topic) is not None
        return tp in self.partitions if self.partitions else tp.topic in self.topics


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What a query reads, and how."""

    settings: Mapping[str, str]
    selection: Selection
    start: Bound
    end: Bound
    columns: tuple[str, ...]
    fail_on_data_loss: bool = True
    latest_if_no_time: bool = False
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    min_records_per_partition: int = STREAM_TASK_RECORDS
    max_offsets: int | None = None
    min_offsets: int | None = None
    max_bytes: int | None = None
    max_trigger_delay_ms: int = 900_000
    commit_group: str | None = None
    push_filters: bool = False

    @property
    def isolation(self) -> str:
        return parse(self.settings).isolation


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Where a query writes, and what is promised."""

    settings: Mapping[str, str]
    topic: str | None
    exactly_once: bool
    transactional_id: str | None
    transactions: str
    commit_group: str | None
    checkpoint: str | None
    batch_name: str | None = None
    """What a batch is known by when it is written again under the same transactional id."""


def columns_of(options: Mapping[str, str]) -> tuple[str, ...]:
    """The columns that a query gets: those that were chosen, or Spark's, with the headers if they are included."""
    folded = {key.lower(): value for key, value in options.items()}
    chosen = tuple(filter(None, map(str.strip, folded.get("columns", "").split(","))))
    if chosen:
        known = {name.lower(): name for name in SCHEMA.names}
        for name in chosen:
            if name.lower() not in known:
                raise InvalidSetting(f"Option columns: there is no column {name}, allowed are {', '.join(SCHEMA.names)}.")
        return tuple(dict.fromkeys(known[name.lower()] for name in chosen))
    headers = folded.get("includeheaders", "false").lower() == "true"
    return (*COLUMNS, "headers") if headers else COLUMNS


def source_options(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Read the options of a source."""
    given = Given(options)
    start = _bound(given, "starting", LATEST if streaming else EARLIEST)
    end = _bound(given, "ending", LATEST)
    if streaming:
        for name in ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"):
            if given.text(name) is not None:
                raise InvalidSetting(f"Option {name} is not for streams: a stream goes on, so leave it out.")
    else:
        _refuse_end(start, LATEST, "startingOffsets", "a batch that begins at the latest offset reads nothing")
        _refuse_end(end, EARLIEST, "endingOffsets", "a batch that ends at the earliest offset reads nothing")
    given.flag("includeHeaders", False)
    strategy = given.choice("startingOffsetsByTimestampStrategy", "error", "error", "latest")
    return SourceOptions(
        settings=given.settings,
        selection=_selection(given),
        start=start,
        end=end,
        columns=columns_of(options),
        fail_on_data_loss=given.flag("failOnDataLoss", True),
        latest_if_no_time=strategy == "latest",
        min_partitions=given.number("minPartitions"),
        max_records_per_partition=given.number("maxRecordsPerPartition"),
        min_records_per_partition=given.number("minRecordsPerPartition", STREAM_TASK_RECORDS, least=0) or 0,
        max_offsets=given.number("maxOffsetsPerTrigger"),
        min_offsets=given.number("minOffsetsPerTrigger"),
        max_bytes=given.number("maxBytesPerTrigger"),
        max_trigger_delay_ms=given.duration_ms("maxTriggerDelay", 900_000),
        commit_group=given.text("commitGroup"),
        push_filters=given.flag("pushFilters", False),
    )


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Read the options of a sink."""
    given = Given(options)
    exactly_once = given.flag("exactlyOnce", False)
    if exactly_once and parse(given.settings).acks != -1:
        raise InvalidSetting("Option kafka.acks: exactlyOnce needs all.")
    batch_name = given.text("batchName")
    if batch_name is not None and given.text("transactionalId") is None:
        raise InvalidSetting("Option batchName needs option transactionalId: what was written is looked up under it.")
    return SinkOptions(
        settings=given.settings,
        topic=given.text("topic"),
        exactly_once=exactly_once,
        transactional_id=given.text("transactionalId"),
        transactions=given.choice("transactions", "auto", "auto", "shared", "task"),
        commit_group=given.text("commitGroup"),
        checkpoint=given.text("checkpointLocation"),
        batch_name=batch_name,
    )


def _selection(given: Given) -> Selection:
    ways = [name for name in ("subscribe", "subscribePattern", "assign") if given.text(name) is not None]
    if len(ways) != 1:
        found = " and ".join(ways) if ways else "none of them"
        raise InvalidSetting(f"Set one of the options subscribe, subscribePattern and assign: there is {found}.")
    if ways[0] == "assign":
        example = '{"orders":[0,1]}'
        assigned = given.json("assign", example)
        try:
            partitions = tuple(TopicPartition(topic, int(number)) for topic, some in assigned.items() for number in some)
        except (AttributeError, TypeError, ValueError):
            partitions = ()
        if not partitions:
            raise InvalidSetting(f"Option assign names no partitions: write it like {example}.")
        return Selection(partitions=partitions)
    if ways[0] == "subscribePattern":
        pattern = given.text("subscribePattern") or ""
        try:
            re.compile(pattern)
        except re.error as problem:
            raise InvalidSetting(f"Option subscribePattern: {pattern!r} is not a regular expression ({problem}).") from None
        return Selection(pattern=pattern)
    topics = tuple(dict.fromkeys(filter(None, map(str.strip, (given.text("subscribe") or "").split(",")))))
    if not topics:
        raise InvalidSetting("Option subscribe names no topic: give one, or several separated by commas.")
    return Selection(topics=topics)


def _bound(given: Given, which: str, default: int) -> Bound:
    """As in Spark, one time for all goes before times, and those before offsets."""
    time = given.number(f"{which}Timestamp", least=0)
    if time is not None:
        return Times(every=time)
    by_time = f"{which}OffsetsByTimestamp"
    if given.text(by_time) is not None:
        return Times(_by_partition(given, by_time, int, 0))
    name = f"{which}Offsets"
    text = given.text(name)
    if text is None:
        return End(default)
    if text.strip().lower() in _ENDS:
        return End(_ENDS[text.strip().lower()])
    return Offsets(_by_partition(given, name, int, EARLIEST))


def _by_partition(given: Given, name: str, convert: Callable[[Any], int], least: int) -> dict[TopicPartition, int]:
    example = '{"orders":{"0":23,"1":-2}}' if least < 0 else '{"orders":{"0":1793500000000}}'
    found = given.json(name, example)
    try:
        by_partition = {
            TopicPartition(topic, int(number)): convert(value)
            for topic, some in found.items()
            for number, value in some.items()
        }
    except (AttributeError, TypeError, ValueError):
        raise InvalidSetting(f"Option {name} cannot be read: write it like {example}.") from None
    for tp, value in by_partition.items():
        if value < least:
            raise InvalidSetting(f"Option {name}: {value} for partition {tp} is not valid, allowed is {least} or more.")
    return by_partition


def _refuse_end(bound: Bound, end: int, name: str, why: str) -> None:
    offsets = [bound.offset] if isinstance(bound, End) else list(bound.of.values()) if isinstance(bound, Offsets) else []
    if end in offsets:
        raise InvalidSetting(f"Option {name}: {'latest' if end == LATEST else 'earliest'} is not allowed, {why}.")
