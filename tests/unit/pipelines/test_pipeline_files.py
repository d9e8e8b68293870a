"""Pipelines as they are written: what files in YAML and Python mean, and what is wrong with them, with file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.pipelines.checks import order
from ottla.pipelines.files import load
from ottla.pipelines.spec import Pipeline, Refused

GOOD = """\
name: activity
cluster: localhost:9092
spark: {spark.sql.shuffle.partitions: 2}
sources:
  clicks:
    topic: clicks
    decode: {format: json, schema: "page STRING NOT NULL, at TIMESTAMP", bad: dead-letter, dead_letter: clicks-bad}
    watermark: {column: at, delay: 10 minutes}
  pages: {format: parquet, path: pages, stream: false}
steps:
  known:
    sql: SELECT clicks.* FROM clicks JOIN pages USING (page)
  per_page:
    sql: |
      WITH recent AS (SELECT * FROM known)
      SELECT page, count(*) AS clicks FROM recent GROUP BY page
sinks:
  per_page: {topic: page-counts, key: page, mode: update, trigger: 10 seconds, create: {partitions: 4}}
  archive: {from: clicks, format: parquet, path: out/clicks, partition_by: [page]}
"""


def load_text(tmp_path: Path, text: str, name: str = "p.yaml") -> Pipeline:
    (tmp_path / name).write_text(text)
    return load(str(tmp_path / name))


def test_yaml(tmp_path: Path) -> None:
    found = load_text(tmp_path, GOOD)
    assert (found.name, found.cluster, found.spark) == (
        "activity", {"bootstrap.servers": "localhost:9092"}, {"spark.sql.shuffle.partitions": "2"})  # fmt: skip
    clicks = found.sources["clicks"]
    assert clicks.decode is not None
    assert (clicks.topics, clicks.start, clicks.decode.dead_letter) == (("clicks",), "earliest", "clicks-bad")
    assert found.steps["known"].needs == ("clicks", "pages")
    assert found.steps["per_page"].needs == ("known",)
    assert found.sinks["per_page"].input == "per_page"
    assert found.sinks["archive"].partition_by == ("page",)
    assert order(found, "per_page")[-2:] == ["known", "per_page"]
    assert order(found, "archive") == ["clicks"]


PYTHON = """\
from ottla import pipelines

pipelines.pipeline("activity", cluster="localhost:9092")
pipelines.source("clicks", topic="clicks", decode={"format": "json", "schema": "page STRING"})
pipelines.step("pages", sql="SELECT page FROM clicks")

@pipelines.step
def counted(pages, spark):
    return pages.groupBy("page").count()

@pipelines.sink(topic="page-counts", key="page", mode="complete")
def page_counts(counted):
    return counted

pipelines.sink("raw", input="clicks", format="parquet", path="out")
"""


def test_python(tmp_path: Path) -> None:
    found = load_text(tmp_path, PYTHON, "p.py")
    assert order(found, "page_counts") == ["clicks", "pages", "counted", "page_counts"]
    assert found.steps["counted"].place.line == 7
    assert found.sinks["raw"].input == "clicks"


def test_a_directory_is_one_pipeline(tmp_path: Path) -> None:
    folder = tmp_path / "both"
    folder.mkdir()
    (folder / "a.yaml").write_text("cluster: c:1\nsources: {clicks: {topic: clicks}}\n")
    (folder / "b.py").write_text(
        "from ottla import pipelines\n@pipelines.sink(format='noop')\ndef out(clicks):\n    return clicks\n"
    )
    (folder / "generate.py").write_text("raise SystemExit('not part of the pipeline')\n")
    found = load(str(folder))
    assert (found.name, order(found, "out")) == ("both", ["clicks", "out"])


def test_the_environment_and_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPIC", "seen")
    text = "sources: {s: {topic: '${TOPIC}-${SUFFIX:-x}'}}\nsinks: {s: {format: noop}}\n"
    (tmp_path / "p.yaml").write_text(text)
    found = load(str(tmp_path / "p.yaml"), {"bootstrap.servers": "c:1"})
    assert found.sources["s"].topics == ("seen-x",)
    assert found.cluster == {"bootstrap.servers": "c:1"}
    with pytest.raises(Refused, match=r"p.yaml:1: the environment has no NOWHERE"):
        load_text(tmp_path, "cluster: ${NOWHERE}\n")


@pytest.mark.parametrize(
    ("change", "line", "message"),
    [
        (("topic: clicks\n", "topics: clicks\n    topic: clicks\n"), 5, "source clicks needs one of topic"),
        (("topic: page-counts, ", ""), 18, "sink per_page needs one of topic and format"),
        (("watermark: {column: at, delay: 10 minutes}", "watermark: {column: at, delay: soon}"), 8, "delay 'soon'"),
        (("    topic: clicks\n", "    topic: clicks\n    tpic: x\n"), 7, "source clicks has no key 'tpic': allowed"),
        (("format: json", "format: xml"), 7, "format 'xml' of decode is not valid: allowed is json, csv"),
        (("format: json", "format: avro"), 7, "page STRING NOT NULL, at TIMESTAMP cannot be read: No such file"),
        ((", dead_letter: clicks-bad", ""), 7, "bad dead-letter needs dead_letter"),
        (("page STRING NOT NULL", "page STRNG NOT NULL"), 5, "the schema of source clicks does not parse"),
        (("page STRING NOT NULL", "_key STRING"), 5, "_key is taken"),
        (("FROM recent GROUP", "FORM recent GROUP"), 16, "the SQL of step per_page does not parse"),
        (("FROM known)", "FROM knwn)"), 13, "step per_page: SQL reads knwn, which is no source"),
        (("FROM clicks JOIN", "FROM per_page AS clicks JOIN"), 11, "steps go round in a circle: "),
        (("SELECT clicks.*", "DELETE"), 12, "does not parse"),
        (("from: clicks, format", "from: click, format"), 19, "sink archive is fed from click, which is no source"),
        (("mode: update", "mode: upsert"), 18, "mode 'upsert' is not valid: allowed is append, update, complete"),
        (("partitions: 4", "partitions: none"), 18, "partitions 'none' is not valid"),
        (("  known:", "  kno-wn:"), 11, "the name of step kno-wn is not valid"),
        (("  known:", "  clicks:"), 11, "step clicks has a name that is taken at"),
        (("cluster: localhost:9092\n", "\n"), 1, "no cluster is named"),
        (("sinks:", "outputs:"), 17, "'outputs' is not known here"),
        (("steps:", "steps: ["), 12, "this is not YAML"),
        (("name: activity", "name: a b"), 1, "name 'a b' is not valid"),
        (("  pages: {", "  clicks: {"), 9, "clicks is there twice"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, change: tuple[str, str], line: int, message: str) -> None:
    assert change[0] in GOOD
    with pytest.raises(Refused) as refused:
        load_text(tmp_path, GOOD.replace(*change, 1))
    told = [one for one in refused.value.problems if message in one.message]
    assert [one.place.line for one in told] == [line], str(refused.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import nowhere\n", r"p.py:1: ModuleNotFoundError: No module named 'nowhere'"),
        ("x = 1\ndef (\n", r"p.py:2: this is not Python"),
        ("from ottla import pipelines\n\npipelines.sink('s', format='noop')\n", r"p.py:3: sink s is fed from s"),
        (
            "from ottla import pipelines\n@pipelines.sink(format='noop')\ndef s(a):\n    return a\n",
            r"p.py:2: step s: the function asks for a",
        ),
        ("x = 1\n", "has no sink: nothing would run"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_python(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(Refused, match=message):
        load_text(tmp_path, text, "p.py")


def test_sql_that_only_spark_knows(tmp_path: Path) -> None:
    """A step that says what it reads is left to Spark."""
    text = GOOD.replace("sql: SELECT clicks.* FROM clicks JOIN pages USING (page)", "sql: FORM clicks\n    needs: [clicks]")
    assert load_text(tmp_path, text).steps["known"].needs == ("clicks",)


UNION = '{"type": "record", "name": "R", "fields": [{"name": "f", "type": ["int", "string"]}]}'


@pytest.mark.parametrize(
    ("decode", "line", "message"),
    [
        ("format: avro", 4, "avro needs schema (a file or JSON), schema_registry, or both"),
        ("format: avro\n      schema: none.avsc", 5, "the schema of source s: none.avsc cannot be read: No such file"),
        ("format: avro\n      schema: bad.avsc", 5,
         "source s: bad.avsc cannot be columns: it is not JSON: Expecting ',' delimiter: line 2 column 1 (char 18)"),
        (f"format: avro\n      schema: '{UNION}'", 5,
         "the schema of source s: the schema cannot be columns: field f: a union of int and string is no column"),
        (f"format: avro\n      schema: {UNION}", 5, "field f: a union of int and string is no column"),
        ('format: avro\n      schema: {type: record, name: R, fields: [{name: _key, type: int}]}', 5, "_key is taken"),
        ("format: avro\n      schema_registry: registry:8081", 5, "schema_registry is to be written like http://host:8081"),
        ("format: avro\n      schema: a.avsc\n      options: {a: b}", 6, "options is not for avro: leave it out"),
        ("format: json\n      schema_registry: http://r:8081", 5, "schema_registry is not for json: leave it out"),
        ("format: protobuf", 4, "protobuf needs descriptor (a file of protoc's) and message, schema_registry, or both"),
        ("format: protobuf\n      descriptor: bad.avsc", 5, "descriptor needs message"),
        ("format: protobuf\n      message: a.B\n      descriptor: bad.avsc", 6,
         "bad.avsc cannot be columns: it is no FileDescriptorSet"),
        ("format: protobuf\n      schema: a INT\n      message: a.B\n      schema_registry: http://r", 5,
         "schema is not for protobuf"),
    ],
)  # fmt: skip
def test_schemas_of_avro_and_protobuf_are_checked_with_their_line(tmp_path: Path, decode: str, line: int, message: str) -> None:
    (tmp_path / "bad.avsc").write_text('{"type": "record"\n"name": "R"}')
    text = (
        f"sources:\n  s:\n    decode:\n      {decode}\n    topic: t\nsinks: {{out: {{from: s, format: noop}}}}\ncluster: h:1\n"
    )
    with pytest.raises(Refused) as refused:
        load_text(tmp_path, text)
    assert [one.place.line for one in refused.value.problems if message in one.message] == [line], str(refused.value)


def test_a_schema_may_be_written_as_it_is_or_lie_beside(tmp_path: Path) -> None:
    (tmp_path / "r.avsc").write_text('{"type": "record", "name": "R", "fields": [{"name": "f", "type": "int"}]}')
    given = ["r.avsc", '{"type": "record", "name": "R", "fields": [{"name": "f", "type": "int"}]}',
             "'{\"type\": \"record\", \"name\": \"R\", \"fields\": [{\"name\": \"f\", \"type\": \"int\"}]}'"]  # fmt: skip
    for one in given:
        load_text(
            tmp_path,
            f"""
cluster: h:1
sources: {{s: {{topic: t, decode: {{format: avro, schema: {one}}}}}}}
sinks: {{out: {{from: s, format: noop}}}}
""",
        )


@pytest.mark.parametrize(
    ("name", "message"), [("nowhere.yaml", "there is no such file"), ("p.txt", "a pipeline is a file that")]
)
def test_a_file_as_a_whole_has_no_line(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "p.txt").touch()
    with pytest.raises(Refused) as refused:
        load(str(tmp_path / name))
    assert str(refused.value).startswith(f"{tmp_path / name}: {message}")
