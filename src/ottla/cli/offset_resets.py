"""Where a group is to begin: the strategies of `ottla consumer-groups --reset-offsets`.

Guards: an offset that is asked for by number never leaves the log; it is moved to the nearer end, and that is told. Nothing is
written here: a plan comes out, and the command shows it or carries it out.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from ottla.cli.tool import Failure
from ottla.client.admin.groups import committed_offsets
from ottla.client.admin.offsets import EARLIEST, LATEST, list_offsets
from ottla.client.cluster import Cluster
from ottla.model import UNKNOWN_OFFSET, TopicPartition

Plan = dict[TopicPartition, int]
_DURATION = re.compile(
    r"(?P<sign>[-+]?)P(?:(?P<days>[-+]?\d+)D)?"
    r"(?P<time>T(?:(?P<hours>[-+]?\d+)H)?(?:(?P<minutes>[-+]?\d+)M)?(?:(?P<seconds>[-+]?\d+(?:[.,]\d{0,9})?)S)?)?",
    re.IGNORECASE,
)
_SECONDS = {"days": 86_400, "hours": 3600, "minutes": 60, "seconds": 1}


class Resets(NamedTuple):
    """What a strategy works with: the cluster, and where to tell what it met."""

    cluster: Cluster
    warn: Callable[[str], None]
    """Part of the output."""
    log: Callable[[str], None]
    """Beside the output."""

    def to_offset(self, partitions: Iterable[TopicPartition], offset: int) -> Plan:
        return self.within_log(dict.fromkeys(partitions, offset))

    def to_end(self, partitions: Iterable[TopicPartition], end: int) -> Plan:
        """To the earliest or the latest offset."""
        return self._offsets(dict.fromkeys(partitions, end))

    def to_time(self, partitions: Collection[TopicPartition], milliseconds: int) -> Plan:
        """To the first record that is not older; to the end where all are."""
        found = self._offsets(dict.fromkeys(partitions, milliseconds))
        missing = [tp for tp, offset in found.items() if offset == UNKNOWN_OFFSET]
        for tp in missing:
            self.warn(f"Partition {tp.partition} from topic {tp.topic} is empty. Falling back to latest known offset.")
        return found | self.to_end(missing, LATEST)

    def shifted(self, group: str, partitions: Iterable[TopicPartition], by: int) -> Plan:
        """Forward or back from where the group is."""
        committed = committed_offsets(self.cluster, group)
        wanted = {}
        for tp in partitions:
            if tp not in committed:
                raise Failure(f"Cannot shift offset for partition {tp} since there is no current committed offset")
            wanted[tp] = committed[tp].offset + by
        return self.within_log(wanted)

    def to_current(self, group: str, partitions: Collection[TopicPartition]) -> Plan:
        """Where the group is; the end where it has not been."""
        committed = committed_offsets(self.cluster, group)
        here = {tp: committed[tp].offset for tp in partitions if tp in committed}
        return here | self.to_end([tp for tp in partitions if tp not in committed], LATEST)

    def within_log(self, wanted: Mapping[TopicPartition, int]) -> Plan:
        """The same offsets, except for those outside of the log."""
        first, last = self.to_end(wanted, EARLIEST), self.to_end(wanted, LATEST)
        plan = {}
        for tp, offset in wanted.items():
            plan[tp] = min(max(offset, first[tp]), last[tp])
            if plan[tp] != offset:
                side = "higher than latest" if offset > last[tp] else "lower than earliest"
                self.log(
                    f"WARN New offset ({offset}) is {side} offset for topic partition {tp}. Value will be set to {plan[tp]}"
                )
        return plan

    def _offsets(self, times: Mapping[TopicPartition, int]) -> Plan:
        return list_offsets(self.cluster, times) if times else {}


def parse_datetime(text: str) -> int:
    """Milliseconds since the epoch of `YYYY-MM-DDTHH:mm:SS.sss`, in UTC unless a zone is given."""
    if "T" not in text:
        raise ValueError("it does not contain a 'T' according to ISO8601 format")
    at = datetime.fromisoformat(text)
    return round((at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp() * 1000)


def parse_duration(text: str) -> int:
    """Milliseconds of `PnDTnHnMnS`."""
    match = _DURATION.fullmatch(text)
    if match is None or not any(match[part] for part in _SECONDS) or match["time"] in {"T", "t"}:
        raise ValueError("allowed is PnDTnHnMnS, such as P1DT12H or PT30M")
    seconds = sum(float((match[part] or "0").replace(",", ".")) * unit for part, unit in _SECONDS.items())
    return round(seconds * 1000) * (-1 if match["sign"] == "-" else 1)


def read_plans(path: str, groups: Sequence[str]) -> dict[str, Plan]:
    """The plans in a CSV file: `topic,partition,offset` for one group, or `group,topic,partition,offset`."""
    plans: dict[str, Plan] = {}
    try:
        with open(path, encoding="utf-8", newline="") as file:
            rows = [row for row in csv.reader(file) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        raise Failure(f"--from-file {path} cannot be read: {problem}") from None
    plain = len(groups) == 1 and bool(rows) and len(rows[0]) == 3
    for number, row in enumerate(rows, 1):
        try:
            group, topic, partition, offset = (groups[0], *row) if plain else row
            plans.setdefault(group, {})[TopicPartition(topic, int(partition))] = int(offset)
        except ValueError:
            shape = "topic,partition,offset" if plain else "group,topic,partition,offset"
            raise Failure(f"--from-file {path} is not valid in line {number}: allowed is {shape}") from None
    return plans


def write_plans(plans: Mapping[str, Plan], *, with_group: bool) -> str:
    """The same file, from plans."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for group, plan in plans.items():
        for tp, offset in sorted(plan.items()):
            writer.writerow((group, *tp, offset) if with_group else (*tp, offset))
    return text.getvalue()


def parse_topic(text: str) -> tuple[str, list[int] | None]:
    """`topic`, or `topic:0,1,2`."""
    topic, colon, numbers = text.partition(":")
    if not colon:
        return topic, None
    if not topic or not numbers or ":" in numbers:
        raise Failure(f"Invalid topic arg '{text}', expected topic name and partitions")
    partitions = []
    for number in numbers.split(","):
        if not number.isascii() or not number.isdigit():
            raise Failure(f"Invalid partition '{number}' specified in topic arg '{text}'")
        partitions.append(int(number))
    return topic, partitions
