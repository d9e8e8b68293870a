"""A pipeline as Spark's DataFrames: each sink gets the frames that it is made of, built before the first query starts.

Guards: what Spark refuses (a column that is not there, types that do not fit) is told with the file and line of the step that
it is about, and nothing has run by then. Frames are built once for each sink, so that each query has a source of its own, with
its own position and its own group.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (as everybody calls it)

from ottla.pipelines.checks import RESERVED, SESSION, order
from ottla.pipelines.decode import dead_letters, decoded
from ottla.pipelines.formats import missing_format
from ottla.pipelines.schemas import Schema
from ottla.pipelines.spec import Pipeline, Place, Problem, Refused, Sink, Source, Step

_LINE = re.compile(r"\(?line (\d+),? ?pos \d+\)?")


class Frames:
    """The frames of a pipeline in a session."""

    def __init__(
        self, spark: SparkSession, pipeline: Pipeline, schemas: Mapping[str, Schema], starts: Mapping[str, str]
    ) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._schemas = schemas
        self._starts = starts
        self.types: dict[str, dict[str, str]] = {}
        """The columns that each sink gets, before they are encoded, with their types."""

    def of_sink(self, sink: Sink, group: str | None) -> DataFrame:
        """What a sink writes; `group` is told how far its sources are."""
        self._check_format(sink)
        made: dict[str, DataFrame] = {}
        for name in order(self._pipeline, sink.name):
            source = self._pipeline.sources.get(name)
            if source is not None:
                self._check_format(source)
                made[name] = _blaming(source.place, f"source {name}", lambda one=source: self.of_source(one, group))
            else:
                step = self._pipeline.steps[name]
                made[name] = self.of_step(step, made)
            made[name].createOrReplaceTempView(name)
        frame = made[sink.input]
        self.types[sink.name] = dict(frame.dtypes)
        if not frame.isStreaming:
            raise Refused([Problem(sink.place, f"sink {sink.name} gets no stream: let one of its sources be a stream")])
        if sink.topic is not None:
            frame = _blaming(sink.place, f"sink {sink.name}", lambda: encoded(made[sink.input], sink, self.types[sink.name]))
        return frame

    def of_dead_letters(self, source: Source, group: str | None) -> DataFrame:
        """The bad records of a source."""
        raw = self._topic(source, group, headers=True)
        return dead_letters(raw, source, self._schemas[source.name], self._pipeline.name)

    def of_source(self, source: Source, group: str | None) -> DataFrame:
        """The rows of a source."""
        if source.function is not None:
            frame: DataFrame = source.function(*self._session(source.function))
        elif source.is_topic:
            frame = self._topic(source, group, headers=source.headers)
            if source.decode is not None:
                frame = decoded(frame, source, self._schemas[source.name])
        else:
            reader: Any = self._spark.readStream if source.stream else self._spark.read
            reader = reader.format(source.format).options(**source.options)
            if source.schema is not None:
                reader = reader.schema(source.schema)
            frame = reader.load(*([beside(source.place, source.path)] if source.path is not None else []))
        if source.watermark is not None:
            frame = frame.withWatermark(*source.watermark)
        return frame

    def of_step(self, step: Step, made: Mapping[str, DataFrame]) -> DataFrame:
        """The rows of a step, made of those that it reads."""
        if step.sql is not None:
            sql = step.sql
            made_of: DataFrame = _blaming(step.sql_place or step.place, f"step {step.name}", lambda: self._spark.sql(sql))
            return made_of
        assert step.function is not None
        function, given = step.function, {**made, SESSION: self._spark}
        frame = _blaming(step.place, f"step {step.name}", lambda: function(*(given[name] for name in step.needs or ())))
        if not isinstance(frame, DataFrame):
            raise Refused([Problem(step.place, f"step {step.name} returns {type(frame).__name__}: a DataFrame is expected")])
        return frame

    # ---- inside ----------------------------------------------------------------------------------------------------------

    def _check_format(self, one: Source | Sink) -> None:
        why = missing_format(self._spark, one.format) if one.format is not None else None
        if why is not None:
            what = "sink" if isinstance(one, Sink) else "source"
            raise Refused([Problem(one.place, f"{what} {one.name}: {why}")])

    def _session(self, function: Any) -> list[SparkSession]:
        return [self._spark] if function.__code__.co_argcount else []

    def _topic(self, source: Source, group: str | None, *, headers: bool) -> DataFrame:
        reader: Any = self._spark.readStream if source.stream else self._spark.read
        options = {**topic_options(self._pipeline, source), "includeHeaders": str(headers).lower()}
        if source.name in self._starts:
            options = {name: value for name, value in options.items() if not name.lower().startswith("starting")}
            options["startingOffsets"] = self._starts[source.name]
        if source.stream and group is not None:
            options["commitGroup"] = group
        frame: DataFrame = reader.format("ottla").options(**options).load()
        return frame


def encoded(frame: DataFrame, sink: Sink, types: Mapping[str, str]) -> DataFrame:
    """Rows as a topic takes them: as they are where there is a column value, else as JSON; with the key that the sink names.

    `types` are the frame's columns: it is not asked for them, because Spark's declarative pipelines allow that to nobody.
    """
    names = {name.lower(): name for name in types}
    if "value" in names:
        return frame if sink.key is None else frame.withColumn("key", _key(sink.key, types))
    columns = [name for name in types if name.lower() not in RESERVED]
    value = F.to_json(F.struct(*(F.col(f"`{name}`") for name in columns)), {"ignoreNullFields": "false"}).alias("value")
    if sink.key is not None:
        return frame.select(_key(sink.key, types).alias("key"), value)
    return frame.select(F.col("_key").alias("key"), value) if "_key" in names else frame.select(value)


def _key(name: str, types: Mapping[str, str]) -> Column:
    """A column as a key: bytes stay as they are, they need not be text."""
    is_bytes = any(kind == "binary" for known, kind in types.items() if known.lower() == name.lower())
    return F.col(name) if is_bytes else F.col(name).cast("string")


def topic_options(pipeline: Pipeline, source: Source) -> dict[str, str]:
    """What the source of a topic is told."""
    settings = {f"kafka.{name}": value for name, value in pipeline.cluster.items()}
    which = {"subscribePattern": source.pattern} if source.pattern is not None else {"subscribe": ",".join(source.topics)}
    return {**settings, **start_options(source.start), **source.options, **which}


def start_options(start: str) -> dict[str, str]:
    """Where a stream begins: an end, offsets as JSON, or a time."""
    try:
        time = datetime.fromisoformat(start)
    except ValueError:
        return {"startingOffsets": start}
    return {"startingTimestamp": str(int(time.timestamp() * 1000)), "startingOffsetsByTimestampStrategy": "latest"}


def beside(place: Place, path: str) -> str:
    """A path is meant from where the file is that names it."""
    if "://" in path or os.path.isabs(path):
        return path
    return os.path.join(os.path.dirname(os.path.abspath(place.file)), path)


def one_line(problem: BaseException) -> str:
    """What an exception of Spark's says, without plans and traces."""
    lines = [line.strip() for line in str(problem).splitlines()]
    return next((line for line in lines if line), type(problem).__name__).split(" SQLSTATE:")[0].rstrip(".;")


def _blaming(place: Place, what: str, make: Any) -> Any:
    """Run what belongs to a place; what goes wrong is told with it."""
    try:
        return make()
    except Refused:
        raise
    except PySparkException as problem:
        match = _LINE.search(str(problem))
        line = place.line + int(match[1]) - 1 if match is not None and what.startswith("step") else place.line
        words = _LINE.sub("", one_line(problem)).rstrip("; ")
        raise Refused([Problem(Place(place.file, line), f"{what}: {words}")]) from None
    except Exception as problem:  # whatever a user's function raises
        raise Refused([Problem(place, f"{what}: {type(problem).__name__}: {problem}")]) from None
