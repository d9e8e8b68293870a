"""Values as columns, in Spark: and for each value that does not decode, why.

Guards: no value becomes null silently. A record is bad where it is no text, no JSON (or CSV) as a whole, does not fit the
schema, or lacks a field that is NOT NULL; a field that a JSON object does not have is null, as JSON means it. Avro and Protobuf
are decoded in workers, in batches of Arrow (`values`), and say themselves why a value is none. Every bad record, of whichever
format, fails the query, is told in a column, or goes to the dead-letter topic with its own bytes.

Columns after decoding: the schema's, then `_key`, `_topic`, `_partition`, `_offset`, `_timestamp` and, if asked for,
`_headers`.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (as everybody calls it)
from pyspark.sql.pandas.functions import arrow_udf

from ottla.pipelines.kinds import columns as names_in
from ottla.pipelines.schemas import Schema
from ottla.pipelines.spec import Decode, Source
from ottla.pipelines.sql import Field, fields
from ottla.pipelines.values import Reader, decode_values, row_of
from ottla.spark.options import columns_of

_CORRUPT = "_ottla_corrupt"
_DECODED, _REASON, _BOTH = "_ottla_decoded", "_ottla_reason", "_ottla_both"
_TAKEN_ALONG = ("key", "topic", "partition", "offset", "timestamp", "headers")


def decoded(frame: DataFrame, source: Source, schema: Schema) -> DataFrame:
    """The rows of a topic as columns; bad ones as the source says."""
    decode = _decode_of(source)
    judged = _judged(frame, decode, schema)
    reason = F.col(_REASON)
    if decode.bad == "fail":
        where = F.concat_ws("-", "topic", "partition")
        message = F.concat(
            F.lit("Record "), where, F.lit(" at offset "), F.col("offset"), F.lit(" cannot be decoded: "), reason,
            F.lit(f". Correct the schema of source {source.name}, or set bad to dead-letter or column"),
        )  # fmt: skip
        # In a filter: a column that nobody reads would be left out, and the error with it.
        judged = judged.filter(F.when(reason.isNotNull(), F.raise_error(message).cast("boolean")).otherwise(F.lit(True)))
    elif decode.bad == "dead-letter":
        judged = judged.filter(reason.isNull())
    names = [field.name for field in fields(schema.text)] if schema.reader is None else names_in(row_of(schema.reader))
    wanted = [F.col(_DECODED)[name].alias(name) for name in names]
    there = columns_of({**source.options, "includeHeaders": str(source.headers).lower()})
    wanted += [F.col(name).alias(f"_{name}") for name in _TAKEN_ALONG if name in there]
    if decode.bad == "column":
        wanted += [reason.alias("_bad"), F.when(reason.isNotNull(), F.col("value")).alias("_value")]
    return judged.select(*wanted)


def dead_letters(frame: DataFrame, source: Source, schema: Schema, pipeline: str) -> DataFrame:
    """The bad records as they came, with where they came from and the reason in headers of their own."""
    bad = _judged(frame, _decode_of(source), schema).filter(F.col(_REASON).isNotNull())

    def header(name: str, value: Column) -> Column:
        return F.struct(F.lit(f"ottla.{name}").alias("key"), F.encode(value.cast("string"), "UTF-8").alias("value"))

    own = F.array(
        header("reason", F.col(_REASON)),
        header("pipeline", F.lit(pipeline)),
        header("topic", F.col("topic")),
        header("partition", F.col("partition")),
        header("offset", F.col("offset")),
    )
    kept = F.coalesce(F.col("headers"), F.array().cast("array<struct<key:string,value:binary>>"))
    return bad.select("key", "value", F.concat(kept, own).alias("headers"))


def _decode_of(source: Source) -> Decode:
    assert source.decode is not None
    return source.decode


def _judged(frame: DataFrame, decode: Decode, schema: Schema) -> DataFrame:
    """The rows with what was decoded, and the reason where it could not be."""
    if decode.tombstones == "drop":
        frame = frame.filter(F.col("value").isNotNull())
    if schema.reader is not None:
        return _judged_binary(frame, decode, schema.reader)
    text = F.col("value").cast("string")
    columns = fields(schema.text)
    whole = ", ".join(f"`{one.name}` {one.type}" for one in columns) + f", `{_CORRUPT}` STRING"
    options = {**decode.options, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    read = F.from_json(text, whole, options) if decode.format == "json" else F.from_csv(text, whole, options)
    known = frame.withColumn(_DECODED, read)
    return known.withColumn(_REASON, _reason(decode, columns, text))


def _judged_binary(frame: DataFrame, decode: Decode, reader: Reader) -> DataFrame:
    def decode_batch(values: pa.Array) -> pa.Array:
        return decode_values(values, reader)

    # Spark takes what is not deterministic for worth computing once: it would decode for the filter, and again for the columns.
    make_udf: Any = arrow_udf  # its kind is told by the annotations above
    by_batch = make_udf(decode_batch, f"decoded {row_of(reader).sql}, reason STRING")
    both = frame.withColumn(_BOTH, by_batch.asNondeterministic()(F.col("value")))
    reason = _if_null(decode).otherwise(F.col(_BOTH)["reason"])
    return both.withColumns({_DECODED: F.col(_BOTH)["decoded"], _REASON: reason})


def _if_null(decode: Decode) -> Column:
    return F.when(F.col("value").isNull(), _nothing() if decode.tombstones == "keep" else F.lit("the value is null"))


def _reason(decode: Decode, columns: tuple[Field, ...], text: Column) -> Column:
    """Why a record is bad, null where it is not; the first reason counts."""
    found = F.col(_DECODED)
    case = _if_null(decode)
    case = case.when(~F.is_valid_utf8(text), "the value is not UTF-8").when(F.trim(text) == "", "the value is empty")
    if decode.format == "json":
        # As the only one in an array: what stands behind the first object would be passed over otherwise.
        count = F.json_array_length(F.concat(F.lit("["), text, F.lit("]")))
        case = case.when(count.isNull(), "the value is not JSON").when(count != 1, "the value is not one JSON object")
    misfit = found.isNull() | found[_CORRUPT].isNotNull()
    case = case.when(misfit, F.concat(F.lit("the value does not fit the schema"), _which(decode, columns, text)))
    for column in columns:
        if column.required:
            case = case.when(found[column.name].isNull(), f"field {column.name} is missing")
    return case.otherwise(_nothing())


def _nothing() -> Column:
    return F.lit(None).cast("string")


def _which(decode: Decode, columns: tuple[Field, ...], text: Column) -> Column:
    """The fields that have a value and did not become one."""
    if decode.format != "json":
        return F.lit("")
    found = F.col(_DECODED)
    names = [
        F.when(
            found[one.name].isNull() & F.get_json_object(text, f"$['{one.name}']").isNotNull(), f"{one.name} is no {one.type}"
        )
        for one in columns
        if "'" not in one.name
    ]
    told = F.concat_ws(", ", *names)
    return F.when(told != "", F.concat(F.lit(": "), told)).otherwise("")
