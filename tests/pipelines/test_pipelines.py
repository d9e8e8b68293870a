"""Pipelines as they run: what comes out, bad records, restarts, and what is told before anything starts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from ottla import client
from ottla.client import Cluster
from ottla.client.admin.topics import create_partitions
from ottla.pipelines.frames import encoded
from ottla.pipelines.running import Failed
from ottla.pipelines.spec import Place, Refused, Sink
from pipelines.conftest import Run


def produce(cluster: Cluster, topic: str, values: list[Any], *, partitions: int = 2, create: bool = True) -> None:
    """Records of JSON, or the very bytes; keys are numbers."""
    if create:
        client.create_topic(cluster, topic, partitions, 1)
    rows = [one if isinstance(one, bytes) or one is None else json.dumps(one).encode() for one in values]
    client.write(
        topic, pa.table({"key": [b"%d" % n for n in range(len(rows))], "value": pa.array(rows, pa.binary())}), cluster=cluster
    )


def rows(cluster: Cluster, topic: str, *columns: str) -> list[dict[str, Any]]:
    wanted = columns or ("key", "value")
    return client.read(topic, cluster=cluster, isolation="read_committed", columns=wanted).table().to_pylist()


def values(cluster: Cluster, topic: str) -> list[Any]:
    return sorted((json.loads(row["value"]) for row in rows(cluster, topic)), key=str)


BAD = [b"nonsense", b'{"n":"x"}', b'{"n":1} {"n":2}', b'{"n":1,"s":"\xff"}', b"", None, b'{"s":"no n"}', b'{"n":3000000000}']
REASONS = [
    "the value is not JSON",
    "the value does not fit the schema: n is no INT",
    "the value is not JSON",
    "the value is not UTF-8",
    "the value is empty",
    "the value is null",
    "field n is missing",
    "the value does not fit the schema: n is no INT",
]
DECODING = """
sources:
  s:
    topic: {topic}
    decode: {{format: json, schema: "n INT NOT NULL, s STRING", {bad}}}
sinks:
  out: {{from: s, topic: {topic}-out, key: n, create: {{partitions: 2}}}}
"""


def test_bad_records_go_to_the_dead_letter_topic_once(cluster: Cluster, topic: str, tmp_path: Path, run_once: Run) -> None:
    produce(cluster, topic, [{"n": 1, "s": "a"}, *BAD, {"n": 2}])
    client.create_topic(cluster, f"{topic}-bad", 1, 1)
    file = tmp_path / "p.yaml"
    file.write_text(DECODING.format(topic=topic, bad=f"bad: dead-letter, dead_letter: {topic}-bad"))
    for _ in range(2):  # again: nothing twice
        state = run_once(file)
        assert {one.name: one.state for one in state.queries} == {"s_dead_letters": "done", "out": "done"}
    assert values(cluster, f"{topic}-out") == [{"n": 1, "s": "a"}, {"n": 2, "s": None}]
    assert sorted(row["key"] for row in rows(cluster, f"{topic}-out")) == [b"1", b"2"]
    found = {}
    for row in rows(cluster, f"{topic}-bad", "key", "value", "headers"):
        headers = {one["key"]: one["value"].decode() for one in row["headers"]}
        assert headers["ottla.topic"] == topic
        found[int(row["key"])] = (row["value"], headers["ottla.reason"])
    assert found == {number + 1: (value, REASONS[number]) for number, value in enumerate(BAD)}
    # Lag tools see how far the sink is.
    group = client.committed_offsets(cluster, "pipeline-p-out")
    assert sum(one.offset for tp, one in group.items() if tp.topic == topic) == 10


def test_dead_letters_begin_where_their_sink_does(cluster: Cluster, topic: str, tmp_path: Path, run_once: Run) -> None:
    """`latest` is one place for both, however far apart they ask for it."""
    produce(cluster, topic, [{"n": 1}, b"before"], partitions=1)
    client.create_topic(cluster, f"{topic}-bad", 1, 1)
    file = tmp_path / "p.yaml"
    file.write_text(
        DECODING.format(topic=topic, bad=f"bad: dead-letter, dead_letter: {topic}-bad").replace(
            "  s:\n", "  s:\n    start: latest\n"
        )
    )
    run_once(file, lambda: produce(cluster, topic, [{"n": 2}, b"nonsense"], create=False))
    assert values(cluster, f"{topic}-out") == [{"n": 2, "s": None}]
    assert [row["value"] for row in rows(cluster, f"{topic}-bad")] == [b"nonsense"]
    # As if it had been killed before its first batch, while the sink went on: it begins where the sink did, not at the end.
    shutil.rmtree(tmp_path / "pipelines" / "p" / "checkpoints" / "s_dead_letters")
    create_partitions(cluster, {topic: 2})
    produce(cluster, topic, [b"more"] * 4, create=False)
    run_once(file)
    assert values(cluster, f"{topic}-out") == [{"n": 2, "s": None}]
    assert sorted(row["value"] for row in rows(cluster, f"{topic}-bad")) == [*[b"more"] * 4, b"nonsense", b"nonsense"]


def test_bad_records_fail_or_are_told_in_a_column(cluster: Cluster, topic: str, tmp_path: Path, run_once: Run) -> None:
    produce(cluster, topic, [{"n": 1}, b"nonsense"], partitions=1)
    file = tmp_path / "failing.yaml"
    file.write_text(DECODING.format(topic=topic, bad="bad: fail"))
    with pytest.raises(Failed, match=f"Record {topic}-0 at offset 1 cannot be decoded: the value is not JSON"):
        run_once(file)
    assert values(cluster, f"{topic}-out") == []
    file = tmp_path / "column.yaml"
    step = "steps: {t: {sql: 'SELECT n, _bad AS reason, decode(_value, \"UTF-8\") AS text FROM s'}}\n"
    file.write_text(DECODING.format(topic=topic, bad="bad: column").replace("from: s", "from: t") + step)
    run_once(file)
    told = {"n": None, "reason": "the value is not JSON", "text": "nonsense"}
    assert values(cluster, f"{topic}-out") == [{"n": 1, "reason": None, "text": None}, told]


def test_csv_and_inferred_json(cluster: Cluster, topic: str, tmp_path: Path, run_once: Run) -> None:
    produce(cluster, f"{topic}-csv", [b'1,"a,b"', b"2,c"])
    produce(cluster, f"{topic}-json", [{"id": 1, "more": {"x": 1.5}}, {"id": 2, "more": {"x": 2, "tags": ["t"]}}])
    file = tmp_path / "p.yaml"
    file.write_text(f"""
sources:
  c: {{topic: {topic}-csv, decode: {{format: csv, schema: "id BIGINT, name STRING"}}}}
  j: {{topic: {topic}-json, stream: false, decode: {{format: json}}}}
steps:
  both:
    sql: SELECT c.id, c.name, j.more.x, j.more.tags FROM c JOIN j USING (id)
sinks:
  both: {{topic: {topic}-out, create: {{partitions: 1}}}}
""")
    run_once(file)
    one = {"id": 1, "name": "a,b", "x": 1.5, "tags": None}
    assert values(cluster, f"{topic}-out") == [one, {"id": 2, "name": "c", "x": 2.0, "tags": ["t"]}]


def test_an_updating_topic_gets_each_batch_once(cluster: Cluster, topic: str, tmp_path: Path, run_once: Run) -> None:
    """Counts go on over restarts; a batch that Spark runs again is left out."""
    file = tmp_path / "p.py"
    file.write_text(f"""
from ottla import pipelines

pipelines.source("s", topic="{topic}", decode={{"format": "json", "schema": "word STRING"}})

@pipelines.sink(topic="{topic}-out", key="word", mode="update", create={{"config": {{"cleanup.policy": "compact"}}}})
def counts(s):
    return s.groupBy("word").count()
""")
    produce(cluster, topic, [{"word": "a"}, {"word": "b"}])
    run_once(file)
    produce(cluster, topic, [{"word": "a"}], create=False)
    run_once(file)
    expected = [{"word": "a", "count": 1}, {"word": "a", "count": 2}, {"word": "b", "count": 1}]
    assert values(cluster, f"{topic}-out") == sorted(expected, key=str)
    # As if the driver had died before Spark noted the last batch.
    commits = tmp_path / "pipelines" / "p" / "checkpoints" / "counts" / "commits"
    last = max(int(one.name) for one in commits.iterdir() if one.name.isdigit())
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)
    run_once(file)
    assert values(cluster, f"{topic}-out") == sorted(expected, key=str)


def test_parquet_goes_on_where_it_was(spark: SparkSession, cluster: Cluster, topic: str, tmp_path: Path, run_once: Run) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(f"""
sources: {{s: {{topic: {topic}, decode: {{format: json, schema: "n INT, day STRING"}}}}}}
sinks: {{files: {{from: s, format: parquet, path: out, partition_by: [day]}}}}
""")
    for first in (0, 3):
        produce(cluster, topic, [{"n": first + n, "day": f"d{n}"} for n in range(3)], create=first == 0)
        run_once(file)
    assert sorted(row.n for row in spark.read.parquet(str(tmp_path / "out")).collect()) == [0, 1, 2, 3, 4, 5]
    assert (tmp_path / "out" / "day=d1").is_dir()


def test_a_database_is_written_batch_by_batch(
    spark: SparkSession, cluster: Cluster, topic: str, tmp_path: Path, run_once: Run
) -> None:
    """With the database that comes in Spark's own jars."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    jvm.System.setProperty("derby.stream.error.file", f"{tmp_path}/derby.log")
    produce(cluster, topic, [{"n": n} for n in range(3)])
    database = {
        "url": f"jdbc:derby:{tmp_path}/db;create=true",
        "driver": "org.apache.derby.iapi.jdbc.AutoloadedDriver",
        "dbtable": "numbers",
    }
    file = tmp_path / "p.yaml"
    file.write_text(f"""
sources: {{s: {{topic: {topic}, decode: {{format: json, schema: "n INT"}}}}}}
steps: {{numbers: {{sql: SELECT n FROM s}}}}
sinks: {{numbers: {{format: jdbc, batches: true, options: {json.dumps(database)}}}}}
""")
    run_once(file)
    assert sorted(row[0] for row in spark.read.format("jdbc").options(**database).load().collect()) == [0, 1, 2]


@pytest.mark.parametrize(
    ("key", "columns", "expected"),
    [
        ("n", "7 n, 'v' value", (b"7", b"v")),  # rows that have a value of their own
        ("n", "7 n, 'k' key, 'v' value", (b"7", b"v")),
        (None, "7 n, 'k' key, 'v' value", (b"k", b"v")),
        ("key", "x'ff' key, 'v' value", (b"\xff", b"v")),  # bytes need not be text
        ("n", "7 n", (b"7", b'{"n":7}')),
    ],
)
def test_the_key_that_a_sink_names(spark: SparkSession, key: str | None, columns: str, expected: tuple[bytes, bytes]) -> None:
    sink = Sink("out", Place("p.yaml", 1), "s", topic="t", key=key)
    frame = spark.sql(f"SELECT {columns}")
    made = encoded(frame, sink, dict(frame.dtypes))
    (row,) = made.selectExpr("cast(key as binary)", "cast(value as binary)").collect()
    assert (bytes(row.key), bytes(row.value)) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sources: {s: {topic: TOPIC-none}}\nsinks: {s: {format: noop}}\n", r"p.yaml:1: source s: topic .*-none does not"),
        ("sources: {s: {topic: TOPIC}}\nsteps:\n  t:\n    sql: |\n      SELECT *\n      FROM s WHERE nothing = 1\n"
         "sinks: {t: {format: noop}}\n",
         r"p.yaml:6: step t: .*`nothing` cannot be resolved"),
        ("sources: {s: {topic: TOPIC, decode: {format: json}}}\nsinks: {s: {format: noop}}\n",
         r"p.yaml:1: source s has no schema, and its topic no records"),
        ("sources: {s: {topic: TOPIC}}\nsinks:\n  s: {format: delta, path: out}\n",
         r"p.yaml:3: sink s: format delta is not in this Spark: install its package with"
         r" --conf spark.jars.packages=io.delta:delta-spark_4.2_2.13:VERSION$"),
        ("sources: {s: {topic: TOPIC}}\nsinks: {s: {format: iceberg, path: a.b}}\n",
         r"p.yaml:2: sink s: format iceberg is not in .*=org.apache.iceberg:iceberg-spark-runtime-4.2_2.13:VERSION$"),
        ("sources: {s: {format: strange.format}}\nsinks: {s: {format: noop}}\n",
         r"p.yaml:1: source s: format strange.format is not in this Spark: check its name, or install its package"),
        ("sources: {s: {topic: TOPIC, start: tomorrow}}\nsinks: {s: {format: noop}}\n",
         r"p.yaml:1: source s: Option startingOffsets is not JSON"),
        ("sources: {s: {topic: TOPIC}}\nsinks: {s: {topic: TOPIC, key: nothing}}\n",
         r"p.yaml:2: sink s: .*`nothing` cannot be resolved"),
        ("sources: {s: {topic: TOPIC, stream: false}}\nsinks: {s: {format: noop}}\n", r"p.yaml:2: sink s gets no stream"),
    ],
)  # fmt: skip
def test_what_is_told_before_anything_starts(
    cluster: Cluster, topic: str, tmp_path: Path, run_once: Run, text: str, message: str
) -> None:
    client.create_topic(cluster, topic, 1, 1)
    (tmp_path / "p.yaml").write_text(text.replace("TOPIC", topic))
    with pytest.raises(Refused, match=message):
        run_once(tmp_path / "p.yaml")
