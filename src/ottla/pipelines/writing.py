"""One query for each sink: how rows get from a frame into a topic or another format of Spark's.

Guards: a topic gets each batch once, whatever dies between. Spark lets sinks in Python append and replace, but not update;
where a sink updates, its batches are written one by one (`foreachBatch`) by the batch writer, which leaves out what it has
written already. It knows a batch by its name (option `batchName`): that of the query, and the number of the batch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from ottla.pipelines.frames import beside
from ottla.pipelines.spec import Pipeline, Sink

_QUERY = "sql.streaming.queryId"
"""Spark's own name for the id of the stream that a thread works for."""


def updates_topic(sink: Sink) -> bool:
    """Whether a sink needs `foreachBatch`."""
    return sink.topic is not None and sink.mode == "update"


def start_query(
    pipeline: Pipeline, sink: Sink, frame: DataFrame, checkpoint: Path, group: str, *, once: bool
) -> StreamingQuery:
    """Start the query of a sink; it goes on where its checkpoint says."""
    writer: Any = frame.writeStream.queryName(sink.name).outputMode(sink.mode)
    writer = writer.option("checkpointLocation", str(checkpoint))
    if once:
        writer = writer.trigger(availableNow=True)
    elif sink.trigger is not None:
        writer = writer.trigger(processingTime=sink.trigger)
    if sink.batches:
        started = writer.foreachBatch(_appending(sink)).start()
    elif updates_topic(sink):
        started = writer.foreachBatch(_updating(topic_options(pipeline, sink))).start()
    elif sink.topic is not None:
        options = {**topic_options(pipeline, sink), "commitGroup": group}
        started = writer.format("ottla").options(**options).start()
    else:
        if sink.partition_by:
            writer = writer.partitionBy(*sink.partition_by)
        path = [beside(sink.place, sink.path)] if sink.path is not None else []
        started = writer.format(sink.format).options(**sink.options).start(*path)
    query: StreamingQuery = started
    return query


def topic_options(pipeline: Pipeline, sink: Sink) -> dict[str, str]:
    """What the sink's format is told."""
    settings = {f"kafka.{name}": value for name, value in pipeline.cluster.items()}
    return {**settings, "topic": sink.topic or "", "exactlyOnce": str(sink.exactly_once).lower(), **sink.options}


def _appending(sink: Sink) -> Any:
    """For formats such as jdbc: at least once, because they do not know which batches they have."""

    def write(batch: DataFrame, _number: int) -> None:
        writer = batch.write.format(sink.format or "").mode("append").options(**sink.options)
        if sink.partition_by:
            writer = writer.partitionBy(*sink.partition_by)
        writer.save(beside(sink.place, sink.path) if sink.path is not None else None)

    return write


def _updating(options: dict[str, str]) -> Any:
    def write(batch: DataFrame, number: int) -> None:
        query = batch.sparkSession.sparkContext.getLocalProperty(_QUERY)
        chosen = {"transactionalId": f"ottla-{query}", **options, "batchName": f"{query}/{number}"}
        batch.write.format("ottla").mode("append").options(**chosen).save()

    return write
