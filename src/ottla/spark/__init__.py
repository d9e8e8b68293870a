"""Topics as Spark's data: `format("ottla")`, batch and streaming, read and write, from Ottla and from Apache Kafka.

    spark.read.format("ottla").option("kafka.bootstrap.servers", "127.0.0.1:9092").option("subscribe", "orders").load()

Nothing has to be registered: Spark finds the module `pyspark_ottla` by itself. Needs pyspark and pyarrow: `pip install
"ottla[spark]"`. Options have the names of Spark's Kafka source; `docs/pipelines.md` lists them.
"""

from __future__ import annotations

try:
    import pyspark as _pyspark  # noqa: F401  (asked for here, so that its absence is told in words)
except ImportError:
    raise ImportError('ottla.spark needs pyspark: pip install "ottla[spark]"') from None

from ottla.spark.source import OttlaDataSource

__all__ = ["OttlaDataSource"]
