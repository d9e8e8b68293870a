"""What `test_delta` runs, in a session that has Delta's jars: a pipeline, once, and then what its table holds."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pipelines.conftest import run_pipeline
from spark.conftest import open_session


def main(bootstrap: str, file: str, table: str, work: str, jars: str) -> None:
    conf = {
        "spark.jars": jars,
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.ui.showConsoleProgress": "false",
    }
    spark = open_session(str(Path(work, "warehouse")), "local[2]", **conf)
    for _ in range(2):
        run_pipeline(spark, Path(work), file, bootstrap)
        # As if the driver had died before Spark noted that the batch is done: the next run has the same once more.
        for one in Path(work).glob("**/commits/*"):
            one.unlink()
        for one in Path(work).glob("**/commits/.*.crc"):
            one.unlink()
    rows = spark.read.format("delta").load(table)
    commits = spark.sql(f"DESCRIBE HISTORY delta.`{table}`").where("operation = 'STREAMING UPDATE'").count()
    print(json.dumps({"rows": sorted(row.n for row in rows.collect()), "commits": commits}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
