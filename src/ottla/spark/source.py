"""`format("ottla")`: which class does what for Spark."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from ottla.client import InvalidSetting
from ottla.spark.options import columns_of, sink_options, source_options
from ottla.spark.reader import BatchReader, batch_reader
from ottla.spark.stream_reader import StreamReader
from ottla.spark.writer import BatchWriter, StreamWriter, batch_writer

_TYPES = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key: string, value: binary>>",
}


def schema_of(columns: Iterable[str]) -> str:
    """The chosen columns with Spark's types."""
    return ", ".join(f"{name} {_TYPES[name]}" for name in columns)


def check_schema(given: StructType, columns: Iterable[str]) -> None:
    """A schema that a program gives must be the one there is: records are bytes, and decoded with DataFrame operations."""
    there = {name: _TYPES[name].replace(": ", ":").replace(", ", ",") for name in columns}
    if {field.name: field.dataType.simpleString() for field in given.fields} != there:
        raise InvalidSetting(
            f"The schema {given.simpleString()} is not that of topics, which is {schema_of(there)}: leave it out, choose"
            " columns with option columns, and decode value with from_json or the like."
        )


class OttlaDataSource(DataSource):
    """Topics of Ottla and of Apache Kafka."""

    @classmethod
    def name(cls) -> str:
        return "ottla"

    def schema(self) -> str:
        return schema_of(columns_of(self.options))

    def reader(self, schema: StructType) -> BatchReader:
        check_schema(schema, columns_of(self.options))
        return batch_reader(source_options(self.options, streaming=False))

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802  (Spark's name)
        check_schema(schema, columns_of(self.options))
        return StreamReader(source_options(self.options, streaming=True))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        return batch_writer(sink_options(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        return StreamWriter(sink_options(self.options), schema)
