"""A pipeline while it runs: one Spark session, one query for each sink and one for each dead-letter topic.

Guards: nothing starts unless all of it can be built. A query that fails ends the pipeline, with its error in one line; a stop
waits for the batches in hand. Dead letters start first: no bad record is passed over by a sink before somebody keeps it. After
a restart every query goes on where its checkpoint in the pipeline's directory says. Spark's own process may die under it; that
is told as what it is, and asked nothing any more.

Life: `ask_cluster` (topics, schemas, first offsets), `build` (frames), `start`, `watch` until the end, `close`.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.client import Cluster, InvalidSetting
from ottla.pipelines.frames import Frames, one_line, topic_options
from ottla.pipelines.jvm import Jvm
from ottla.pipelines.progress import Progress
from ottla.pipelines.schemas import Schema, schema_of
from ottla.pipelines.spec import Pipeline, Place, Problem, Refused, Sink, Source
from ottla.pipelines.starts import first_offsets
from ottla.pipelines.state import State, write
from ottla.pipelines.topics import check_topics, create_topics
from ottla.pipelines.writing import start_query, updates_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_LOOK_SECONDS = 0.5
_DEAD_LETTERS = "_dead_letters"


class Failed(Exception):
    """A query that ended with an error; the text names it."""


class Running:
    """One run of a pipeline."""

    def __init__(self, pipeline: Pipeline, directory: Path, state: State, *, once: bool = False) -> None:
        self.pipeline = pipeline
        self.directory = directory
        self.state = state
        self.once = once
        self.stopping = threading.Event()
        self._schemas: dict[str, Schema] = {}
        self._starts: dict[str, str] = {}
        self.types: dict[str, dict[str, str]] = {}
        self._jvm: Jvm | None = None
        self._planned: list[tuple[Sink, DataFrame]] = []
        self._queries: list[tuple[StreamingQuery, Progress, Place]] = []
        directory.mkdir(parents=True, exist_ok=True)

    def ask_cluster(self) -> None:
        """Have topics made and checked, and find the schema and the first offsets of every source; raises `Refused`."""
        decoding = [one for one in self.pipeline.sources.values() if one.decode is not None]
        if not self.pipeline.cluster:
            return
        with Cluster(self.pipeline.cluster) as cluster:
            create_topics(self.pipeline, cluster)
            problems = check_topics(self.pipeline, cluster)
            if problems:
                raise Refused(problems)
            self._schemas = {one.name: schema_of(one, self.directory, cluster) for one in decoding}
            for source in self.pipeline.sources.values():
                if source.is_topic and source.stream:
                    self._find_start(source, cluster)

    def frames(self, spark: SparkSession) -> Frames:
        """What makes the frames, by what the cluster said."""
        return Frames(spark, self.pipeline, self._schemas, self._starts)

    def build(self, spark: SparkSession) -> None:
        """Build every frame; raises `Refused`."""
        self._jvm = Jvm.of(spark)
        frames = self.frames(spark)
        self.types = frames.types
        for source in self.pipeline.sources.values():
            sink = dead_letter_sink(source)
            if sink is not None:
                self._planned.append((sink, frames.of_dead_letters(source, None)))
        problems: list[Problem] = []
        for sink in self.pipeline.sinks.values():
            # The sink's own transaction tells the group where it can; else the source does, after each batch.
            group = None if sink.topic is not None and not updates_topic(sink) else self.group(sink)
            try:
                self._planned.append((sink, frames.of_sink(sink, group)))
            except Refused as refused:
                problems += refused.problems
        if problems:
            raise Refused(set(problems))

    def start(self) -> None:
        """Start all queries."""
        from pyspark.errors import PySparkException  # noqa: PLC0415 - Spark is there by now

        for sink, frame in self._planned:
            what = f"topic {sink.topic}" if sink.topic is not None else f"{sink.format} {sink.path or ''}".strip()
            progress = Progress(sink.name, what)
            self.state.queries.append(progress)
            checkpoint = self.directory / "checkpoints" / sink.name
            try:
                query = start_query(self.pipeline, sink, frame, checkpoint, self.group(sink), once=self.once)
            except PySparkException as problem:
                progress.state, progress.error = "failed", one_line(problem)
                raise Refused([Problem(sink.place, f"sink {sink.name}: {progress.error}")]) from None
            progress.state = "running"
            self._queries.append((query, progress, sink.place))
        self.state.state = "running"
        self._write()

    def watch(self, shown: Callable[[State], None]) -> None:
        """Look after the queries until all have ended or a stop is asked for; raises `Failed`."""
        while True:
            self._note()
            failed = next(((p, place) for _, p, place in self._queries if p.state == "failed"), None)
            self._write()
            shown(self.state)
            if failed is not None:
                raise Failed(f"{failed[1]}: sink {failed[0].name} failed: {failed[0].error}")
            if all(progress.state == "done" for _, progress, _ in self._queries):
                return
            if self.stopping.wait(_LOOK_SECONDS):
                return

    def close(self, error: str = "", patience: float = 30) -> None:
        """Let the batches in hand come to their end, stop the queries, and leave a last word."""
        self.state.state = "stopping"
        self._write()
        deadline = time.monotonic() + patience
        gone = self.spark_ended()
        for query, _, _ in () if gone else self._queries:
            while not self.once and query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
                time.sleep(0.05)
            if query.isActive:
                query.stop()
        if not gone:
            self._note()
        for _, progress, _ in self._queries:
            if progress.state == "running":
                progress.state = "failed" if error else "stopped"
        self.state.error = error
        self.state.state = "failed" if error else "done" if self.once and not self.stopping.is_set() else "stopped"
        self._write()

    def spark_ended(self, within: float = 0) -> bool:
        """Whether Spark's own process is gone: then nothing in it can be asked any more."""
        return self._jvm is not None and self._jvm.ended(within)

    def group(self, sink: Sink) -> str:
        """The group that lag tools see."""
        return f"pipeline-{self.pipeline.name}-{sink.name}"

    # ---- inside ----------------------------------------------------------------------------------------------------------

    def _find_start(self, source: Source, cluster: Cluster) -> None:
        kept = self.directory / "starts" / f"{source.name}.json"
        try:
            first = first_offsets(topic_options(self.pipeline, source), kept, cluster)
        except InvalidSetting as problem:
            raise Refused([Problem(source.place, f"source {source.name}: {problem}")]) from None
        if first is not None:
            self._starts[source.name] = first

    def _note(self) -> None:
        for query, progress, _ in self._queries:
            active = query.isActive
            for report in query.recentProgress[-20:]:
                progress.note(json.loads(report.json))
            if not active and progress.state == "running":
                problem = query.exception()
                progress.state = "done" if problem is None else "failed"
                progress.error = "" if problem is None else cause(str(problem))

    def _write(self) -> None:
        write(self.directory, self.state)


def dead_letter_sink(source: Source) -> Sink | None:
    """The sink of a source's bad records, where it has one."""
    if source.decode is None or source.decode.dead_letter is None:
        return None
    return Sink(source.name + _DEAD_LETTERS, source.place, source.name, topic=source.decode.dead_letter)


def cause(text: str) -> str:
    """The line of an error that says what happened: that of our own source and sink, or the first."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    marks = ("[USER_RAISED_EXCEPTION]", "ottla.pipelines.registry.RegistryFailed: ", "ottla.client.errors.", "ottla.spark.")
    for line in lines:
        for mark in marks:
            if mark in line:
                return line.split(mark, 1)[1].split(" SQLSTATE:")[0].strip()
    first = lines[0] if lines else "unknown"
    return first.split(" SQLSTATE:")[0].split("terminated with exception: ", 1)[-1]
