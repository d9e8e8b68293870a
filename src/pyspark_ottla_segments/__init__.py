"""How Spark finds `format("ottla.segments")` without a call."""

from ottla.spark.segments import SegmentsDataSource as DefaultSource

__all__ = ["DefaultSource"]
