"""How Spark finds `format("ottla")` without a call: it looks into every module whose name begins with `pyspark_`."""

from ottla.spark import OttlaDataSource as DefaultSource

__all__ = ["DefaultSource"]
