"""`format("ottla.segments")`: log directories as a batch source, without a broker. One task for each segment file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ottla.client import InvalidSetting
from ottla.client.segments import SegmentRange, plan_segments, read_segment, stored_partitions
from ottla.spark.log import log, speak
from ottla.spark.options import columns_of
from ottla.spark.source import check_schema, schema_of
from ottla.spark.workers import fit_in, settle


@dataclass
class SegmentPartition(InputPartition):
    """The segment that one task reads."""

    range: SegmentRange | None


class SegmentsReader(DataSourceReader):
    """Everything that is in the directories and may be read."""

    def __init__(self, options: dict[str, str]) -> None:
        given = {key.lower(): value for key, value in options.items()}
        self._directories = _names(given.get("path", ""))
        if not self._directories:
            raise InvalidSetting("Option path is missing: name the data directories (log.dirs), several separated by commas.")
        self._topics = _names(given.get("subscribe", "")) or None
        self._columns = columns_of(options)
        self._isolation = given.get("kafka.isolation.level", "read_uncommitted")
        if self._isolation not in ("read_uncommitted", "read_committed"):
            allowed = "allowed is read_uncommitted or read_committed"
            raise InvalidSetting(f"Option kafka.isolation.level: {self._isolation!r} is not valid, {allowed}.")

    def partitions(self) -> Sequence[InputPartition]:
        speak()
        ranges: list[SegmentRange] = []
        for tp, stored in sorted(stored_partitions(self._directories, self._topics).items()):
            if stored.high_watermark is None:
                log.warning("Partition %s: its directory names no high watermark, so its log is read to the end.", tp)
            ranges += plan_segments(stored, self._isolation)
        return [SegmentPartition(one) for one in ranges] or [SegmentPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SegmentPartition)
        fit_in()
        if partition.range is not None:
            yield from read_segment(partition.range, self._columns)
            settle()


class SegmentsDataSource(DataSource):
    """Log directories of Ottla and of Apache Kafka."""

    @classmethod
    def name(cls) -> str:
        return "ottla.segments"

    def schema(self) -> str:
        return schema_of(columns_of(self.options))

    def reader(self, schema: StructType) -> SegmentsReader:
        check_schema(schema, columns_of(self.options))
        return SegmentsReader(dict(self.options))


def _names(text: str) -> list[str]:
    return list(filter(None, map(str.strip, text.split(","))))
