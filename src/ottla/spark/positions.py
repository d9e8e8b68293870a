"""What the cluster has of what a query wants: which partitions exist, where they begin and end, and what options mean there.

Guards: an option that names offsets or times names them for every partition that is read, as in Spark's Kafka source; a time
without a record is an error or the end, as the options say.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ottla import client
from ottla.client import Cluster, InvalidSetting, OffsetOutOfRange, TopicInfo, TopicPartition, UnknownTopic
from ottla.client.admin.offsets import EARLIEST, LATEST, list_offsets
from ottla.spark.offsets import OffsetRange, Position
from ottla.spark.options import Bound, End, Selection, SourceOptions, Times

_SAMPLE_RECORDS = 500
_SAMPLE_BYTES = 256 << 10


def selected(cluster: Cluster, selection: Selection, *, must_exist: bool = True) -> dict[TopicPartition, str]:
    """The partitions that a query is about, with the ids of their topics. Without `must_exist` what is gone is left out."""
    found = _topics(cluster, selection, must_exist)
    chosen: dict[TopicPartition, str] = {}
    for info in found.values():
        known = "" if not any(info.id) else info.id.hex()
        wanted = {tp.partition for tp in selection.partitions if tp.topic == info.name}
        for number in info.partitions:
            if not selection.partitions or number in wanted:
                chosen[TopicPartition(info.name, number)] = known
        missing = wanted - set(info.partitions)
        if missing and must_exist:
            tp = TopicPartition(info.name, min(missing))
            raise UnknownTopic(f"Partition {tp} does not exist: the topic has {len(info.partitions)} partitions, from 0 on.")
    return chosen


def _topics(cluster: Cluster, selection: Selection, must_exist: bool) -> dict[str, TopicInfo]:
    if selection.pattern is not None:
        matches = re.compile(selection.pattern).fullmatch
        return {name: info for name, info in cluster.topics().items() if not info.internal and matches(name)}
    names = selection.topics or tuple(dict.fromkeys(tp.topic for tp in selection.partitions))
    try:
        return cluster.topics(names)
    except UnknownTopic:
        if must_exist:
            raise
        return {name: info for name, info in cluster.topics().items() if name in names}


def latest(cluster: Cluster, options: SourceOptions, *, must_exist: bool = True) -> Position:
    """Where every partition ends now; under `read_committed` at the last stable offset."""
    partitions = selected(cluster, options.selection, must_exist=must_exist)
    offsets = list_offsets(cluster, dict.fromkeys(partitions, LATEST), options.isolation) if partitions else {}
    return Position(offsets, {tp.topic: known for tp, known in partitions.items() if known})


def earliest(cluster: Cluster, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Where these partitions begin now; those that are gone are left out."""
    wanted = list(partitions)
    if not wanted:
        return {}
    try:
        return list_offsets(cluster, dict.fromkeys(wanted, EARLIEST))
    except UnknownTopic:
        there = {(name, number) for name, info in cluster.topics().items() for number in info.partitions}
        left = [tp for tp in wanted if tp in there]
        return list_offsets(cluster, dict.fromkeys(left, EARLIEST)) if left else {}


def bound(
    cluster: Cluster, options: SourceOptions, partitions: Mapping[TopicPartition, str], wanted: Bound, *, is_start: bool
) -> dict[TopicPartition, int]:
    """The offsets that an option means."""
    asked: dict[TopicPartition, int]
    if isinstance(wanted, End):
        asked = dict.fromkeys(partitions, wanted.offset)
        return list_offsets(cluster, asked, options.isolation) if asked else {}
    if isinstance(wanted, Times):
        return _at_times(cluster, options, partitions, wanted, is_start)
    _must_name(partitions, wanted.of, "startingOffsets" if is_start else "endingOffsets")
    ends = {tp: offset for tp, offset in wanted.of.items() if offset < 0}
    found = list_offsets(cluster, ends, options.isolation) if ends else {}
    return {tp: found.get(tp, offset) for tp, offset in wanted.of.items()}


def _at_times(
    cluster: Cluster, options: SourceOptions, partitions: Mapping[TopicPartition, str], wanted: Times, is_start: bool
) -> dict[TopicPartition, int]:
    which = "starting" if is_start else "ending"
    if wanted.every is None:
        _must_name(partitions, wanted.of, f"{which}OffsetsByTimestamp")
    times = dict(wanted.of) if wanted.every is None else dict.fromkeys(partitions, wanted.every)
    found = list_offsets(cluster, times, options.isolation) if times else {}
    without = sorted(tp for tp, offset in found.items() if offset < 0)
    if without and is_start and not options.latest_if_no_time:
        raise InvalidSetting(
            f"Partition {without[0]} has no record at or after time {times[without[0]]}: choose an earlier one, or set"
            " startingOffsetsByTimestampStrategy to latest."
        )
    if without:
        found |= list_offsets(cluster, dict.fromkeys(without, LATEST), options.isolation)
    return found


def _must_name(partitions: Mapping[TopicPartition, str], named: Mapping[TopicPartition, int], option: str) -> None:
    missing = sorted(set(partitions) - set(named))
    unknown = sorted(set(named) - set(partitions))
    if missing:
        raise InvalidSetting(
            f"Option {option} does not name partition {missing[0]}: name all that are read (-2 is the earliest)."
        )
    if unknown:
        raise InvalidSetting(f"Option {option} names partition {unknown[0]}, which is not read: leave it out.")


def sample_sizes(cluster: Cluster, ranges: Iterable[OffsetRange], isolation: str) -> dict[TopicPartition, float]:
    """About how many bytes a record has, where each range begins; left out where that is gone by now."""
    sizes: dict[TopicPartition, float] = {}
    for one in ranges:
        start, end = {one.partition: one.start}, {one.partition: min(one.end, one.start + _SAMPLE_RECORDS)}
        try:
            with client.read(
                one.partition.topic,
                start,
                end,
                cluster=cluster,
                columns=("key", "value"),
                isolation=isolation,
                max_bytes=_SAMPLE_BYTES,
            ) as reader:
                batch = next(reader, None)
        except (OffsetOutOfRange, UnknownTopic):
            continue
        if batch is not None and batch.num_rows:
            sizes[one.partition] = batch.nbytes / batch.num_rows
    return sizes
