"""Formats that Spark does not bring along: whether one is there, and what to add where it is not.

Guards: a pipeline that needs a package says so in one line, with the name of the package, before its first query starts.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

_SCALA = "2.13"
_OF_THE_WRITER = ("memory",)
"""What Spark's writer knows without looking for it."""
_SIGNS = ("DATA_SOURCE_NOT_FOUND", "Failed to find data source")


def missing_format(spark: SparkSession, name: str) -> str | None:
    """What to say of a format that this Spark does not have; None where it does."""
    if name.lower() in _OF_THE_WRITER:
        return None
    inner: Any = spark
    try:
        sources = inner._jvm.org.apache.spark.sql.execution.datasources.DataSource
        sources.lookupDataSource(name, inner._jsparkSession.sessionState().conf())
    except Exception as problem:  # of Java, in several clothes
        if any(sign in str(problem) for sign in _SIGNS):
            return f"format {name} is not in this Spark: {_advice(name.lower(), spark.version)}"
    return None


def _advice(name: str, version: str) -> str:
    short = ".".join(version.split(".")[:2])
    known = {
        "delta": f"io.delta:delta-spark_{short}_{_SCALA}:VERSION",
        "iceberg": f"org.apache.iceberg:iceberg-spark-runtime-{short}_{_SCALA}:VERSION",
        "avro": f"org.apache.spark:spark-avro_{_SCALA}:{version}",
        "kafka": f"org.apache.spark:spark-sql-kafka-0-10_{_SCALA}:{version}",
    }
    if name in known:
        return f"install its package with --conf spark.jars.packages={known[name]}"
    return "check its name, or install its package with --conf spark.jars.packages=GROUP:ARTIFACT:VERSION (in Python: with pip)"
