"""Spark: `format("ottla")` beside Spark's own connector, the same topic and queries, against each broker."""

from __future__ import annotations

from bench.figures import SPARK_TOPICS
from bench.scenarios import Bench
from bench.spark_load import WRITES

_PARTITIONS = 4


def spark(bench: Bench) -> None:
    """One round: every topic through every query, in a Spark of its own."""
    for key, (size, codec) in SPARK_TOPICS.items():
        records = bench.sizes.spark_records_100 if size == 100 else bench.sizes.spark_records_1024
        topics = [bench.create_topic(_PARTITIONS, {}) for _ in range(1 + len(WRITES))]
        what = {"pid": bench.broker.pid, "topic": topics[0], "out": topics[1:]}
        figures = bench.load("spark_queries", **what, records=records, size=size, codec=codec)
        for name, value in figures.items():
            bench.add(f"spark.{key}.{name}", value)
        bench.delete_topics(*topics)
