"""Balances out of events: what happened is kept in `account-events`, what follows from it in `balances`."""

from __future__ import annotations

import os

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from ottla import pipelines

pipelines.pipeline("event-sourcing", cluster=os.environ.get("BOOTSTRAP", "127.0.0.1:9092"))

pipelines.source(
    "events",
    topic="account-events",
    decode={"format": "json", "schema": "account STRING NOT NULL, kind STRING NOT NULL, amount BIGINT NOT NULL"},
)


@pipelines.step
def changes(events: DataFrame) -> DataFrame:
    sign = F.when(F.col("kind") == "deposited", 1).when(F.col("kind") == "withdrawn", -1).otherwise(0)
    return events.select("account", (sign * F.col("amount")).alias("change"))


@pipelines.sink(topic="balances", key="account", mode="update", create={"config": {"cleanup.policy": "compact"}})
def balances(changes: DataFrame) -> DataFrame:
    return changes.groupBy("account").agg(F.sum("change").alias("balance"), F.count("*").alias("events"))
