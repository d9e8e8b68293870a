"""From where to where a reader reads: offsets, times, or the ends of the log, for all partitions or for each.

Guards: what comes out are offsets that the log has, the first to read and the first not to; an offset that it does not have is
refused with the range. A time means the first record that is at least as late; where there is none, the end of the log.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from ottla.client.admin.offsets import EARLIEST, LATEST, list_offsets
from ottla.client.cluster import Cluster
from ottla.client.errors import InvalidSetting, OffsetOutOfRange, UnknownTopic
from ottla.model import TopicPartition


class At(NamedTuple):
    """A time, in milliseconds since 1970."""

    milliseconds: int


Bound: TypeAlias = str | int | At | datetime.datetime
"""`"earliest"`, `"latest"`, an offset (-2 and -1 are the ends too), or a time."""

Bounds: TypeAlias = Bound | Mapping[int, Bound] | Mapping[TopicPartition, Bound]
"""One bound for all partitions, or one for each."""

_ENDS = {"earliest": EARLIEST, "latest": LATEST}


class Range(NamedTuple):
    """What is to be read of a partition; without an end, on and on."""

    partition: TopicPartition
    start: int
    end: int | None


def resolve(
    cluster: Cluster,
    topics: str | Sequence[str],
    start: Bounds,
    end: Bounds | None,
    partitions: Sequence[int] | None,
    isolation: str,
) -> list[Range]:
    """The ranges of offsets that these bounds mean now. `end` None is a reader that follows."""
    names = [topics] if isinstance(topics, str) else list(topics)
    chosen = _partitions(cluster, names, start, partitions)
    starts = _of_each(chosen, start, "earliest", names)
    ends = {} if end is None else _of_each(chosen, end, "latest", names)
    exact = [tp for tp in chosen for bounds in (starts, ends) if _is_offset(bounds.get(tp))]
    lowest = list_offsets(cluster, dict.fromkeys(exact, EARLIEST)) if exact else {}
    highest = list_offsets(cluster, dict.fromkeys(exact, LATEST)) if exact else {}
    for tp in exact:
        for bounds in (starts, ends):
            offset = bounds.get(tp)
            least = lowest[tp] if bounds is starts else 0
            if _is_offset(offset) and not least <= offset <= highest[tp]:  # type: ignore[operator]
                raise OffsetOutOfRange(tp, int(offset), lowest[tp], highest[tp])  # type: ignore[arg-type]
    first = _offsets(cluster, starts, isolation)
    last = _offsets(cluster, ends, isolation)
    return [Range(tp, first[tp], last.get(tp)) for tp in chosen]


def _partitions(
    cluster: Cluster, names: Sequence[str], start: Bounds, partitions: Sequence[int] | None
) -> list[TopicPartition]:
    found = cluster.topics(names)
    everything = [TopicPartition(name, number) for name in names for number in found[name].partitions]
    wanted: list[TopicPartition] | None = None
    if partitions is not None:
        wanted = [TopicPartition(name, number) for name in names for number in partitions]
    elif isinstance(start, Mapping):
        wanted = [_key(names, key) for key in start]
    for tp in wanted or ():
        if tp not in everything:
            count = len(found[tp.topic].partitions) if tp.topic in found else 0
            raise UnknownTopic(f"Partition {tp} does not exist: the topic has {count} partitions, from 0 on.")
    return everything if wanted is None else wanted


def _of_each(
    chosen: Sequence[TopicPartition], bounds: Bounds, default: str, names: Sequence[str]
) -> dict[TopicPartition, int | At]:
    if isinstance(bounds, Mapping):
        named = {_key(names, key): _meant(bound) for key, bound in bounds.items()}
        return {tp: named.get(tp, _ENDS[default]) for tp in chosen}
    return dict.fromkeys(chosen, _meant(bounds))


def _key(names: Sequence[str], key: int | TopicPartition) -> TopicPartition:
    if isinstance(key, TopicPartition):
        return key
    if isinstance(key, tuple):
        return TopicPartition(*key)
    if len(names) != 1:
        raise InvalidSetting("With several topics a bound is given for a TopicPartition, not for a number.")
    return TopicPartition(names[0], key)


def _meant(bound: Bound) -> int | At:
    if isinstance(bound, At):
        return bound
    if isinstance(bound, datetime.datetime):
        return At(int(bound.timestamp() * 1000))
    if isinstance(bound, str):
        if bound in _ENDS:
            return _ENDS[bound]
    elif isinstance(bound, int) and not isinstance(bound, bool) and bound >= EARLIEST:
        return bound
    raise InvalidSetting(f"{bound!r} is not a bound: allowed are earliest, latest, an offset, a datetime or At(milliseconds).")


def _is_offset(bound: int | At | None) -> bool:
    return isinstance(bound, int) and bound >= 0


def _offsets(cluster: Cluster, bounds: Mapping[TopicPartition, int | At], isolation: str) -> dict[TopicPartition, int]:
    """Bounds as offsets. The broker answers times and ends; under `read_committed` the end is the last stable offset."""
    asked = {
        tp: bound.milliseconds if isinstance(bound, At) else bound for tp, bound in bounds.items() if not _is_offset(bound)
    }
    found = list_offsets(cluster, asked, isolation) if asked else {}
    nothing = {tp: LATEST for tp, offset in found.items() if offset < 0}
    if nothing:
        found.update(list_offsets(cluster, nothing, isolation))
    return {tp: found[tp] if tp in found else int(bound) for tp, bound in bounds.items()}  # type: ignore[arg-type]
