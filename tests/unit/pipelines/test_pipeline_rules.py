"""Inference, progress, state and metrics: rules that need no Spark."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ottla.pipelines import state as states
from ottla.pipelines.infer import infer
from ottla.pipelines.metrics import exposition
from ottla.pipelines.progress import Progress
from ottla.pipelines.running import cause


@pytest.mark.parametrize(
    ("values", "schema"),
    [
        ([b'{"a":1,"b":"x","c":true}'], "`a` BIGINT, `b` STRING, `c` BOOLEAN"),
        ([b'{"a":1}', b'{"a":1.5}'], "`a` DOUBLE"),
        ([b'{"a":1}', b'{"a":"x"}'], "`a` STRING"),
        ([b'{"a":null}', b'{"b":2}'], "`a` STRING, `b` BIGINT"),
        ([b'{"a":{"x":1}}', b'{"a":{"y":[1,2.5]}}'], "`a` STRUCT<`x`: BIGINT, `y`: ARRAY<DOUBLE>>"),
        ([b'{"a":99999999999999999999}'], "`a` DOUBLE"),
        ([b'{"a":[]}', b'{"a":{}}'], "`a` STRING"),
        ([b"nonsense", None, b"[1]", b'{"a":1}'], "`a` BIGINT"),
        ([b"nonsense"], None),
        ([], None),
    ],
)
def test_infer(values: list[bytes | None], schema: str | None) -> None:
    assert infer(values) == schema


def report(batch: int, rows: int, end: dict[str, Any], latest: dict[str, Any]) -> dict[str, Any]:
    source = {"endOffset": end, "latestOffset": latest}
    return {"batchId": batch, "numInputRows": rows, "processedRowsPerSecond": 10.0, "durationMs": {"triggerExecution": 7},
            "sources": [source]}  # fmt: skip


def test_progress_counts_a_batch_once_and_knows_the_lag() -> None:
    progress = Progress("out", "topic out")
    one = report(0, 5, {"t": {"0": 5}}, {"t": {"0": 8, "1": 2}})
    progress.note(one)
    progress.note(one)
    assert (progress.rows, progress.batch, progress.lag, progress.rate, progress.batch_ms) == (5, 0, 5, 10.0, 7)
    progress.note(report(1, 0, {"t": {"0": 8, "1": 2}}, {"t": {"0": 8, "1": 2}}))
    assert (progress.rows, progress.batch, progress.lag) == (5, 0, 0)
    progress.note({"batchId": 2, "numInputRows": 1, "sources": [{"endOffset": 3, "latestOffset": 4}]})
    assert progress.lag is None


def test_state_is_of_the_process_that_wrote_it(tmp_path: Path) -> None:
    home = tmp_path / "p"
    home.mkdir()
    state = states.new_state("p", "p.yaml")
    state.state, state.queries = "running", [Progress("out", "topic out", rows=3, lag=2)]
    states.write(home, state)
    found = states.read(home)
    assert found == state
    assert found.alive()
    assert [one.name for one in states.read_all(tmp_path)] == ["p"]
    stranger = states.State("p", "p.yaml", os.getpid(), "1", "running")  # the number went to another process
    assert (stranger.alive(), stranger.shown()) == (False, "died")
    (home / "state.json").write_text("{")
    assert states.read(home) is None


def test_metrics() -> None:
    state = states.State(
        "p", "p.yaml", queries=[Progress("out", "topic out", "running", 4, 30, 2.5, 12, 7), Progress("x", "y")]
    )
    found = {
        (one.name, one.labels["query"]): one.value
        for family in text_string_to_metric_families(exposition(state))
        for one in family.samples
    }
    assert found["ottla_pipeline_rows_total", "out"] == 30
    assert found["ottla_pipeline_lag_records", "out"] == 7
    assert found["ottla_pipeline_running", "x"] == 0
    assert ("ottla_pipeline_lag_records", "x") not in found  # not known


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Query [id = 1] terminated with exception: no. SQLSTATE: XXKST\n=== Plan", "no."),
        (
            "[STREAM_FAILED] x\norg.apache.spark.SparkRuntimeException: [USER_RAISED_EXCEPTION] Record t-0. SQLSTATE: P0001",
            "Record t-0.",
        ),
        ("[X] a\nottla.client.errors.UnknownTopic: Topic t does not exist", "UnknownTopic: Topic t does not exist"),
    ],
)  # fmt: skip
def test_the_cause_of_a_failure(text: str, told: str) -> None:
    assert cause(text) == told
