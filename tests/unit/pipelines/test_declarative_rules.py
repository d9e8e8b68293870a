"""What Spark's declarative pipelines cannot do is told before anything starts, a line each."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.pipelines.declarative import refusals
from ottla.pipelines.files import load


@pytest.mark.parametrize(
    ("sink", "given", "words"),
    [
        ("topic: t", {}, None),
        ("format: parquet, path: out", {"master": "sc://spark:15002"}, None),
        ("topic: t", {"once": False}, "p.yaml:1: the declarative runner takes what is there and ends: add --once"),
        ("topic: t, mode: update", {}, "p.yaml:3: sink s: the declarative runner has no mode update"),
        ("topic: t, trigger: 1 minute", {}, "p.yaml:3: sink s: the declarative runner has no trigger"),
        ("format: jdbc, batches: true", {}, "p.yaml:3: sink s: the declarative runner has no batches"),
        ("format: csv, path: a, partition_by: b", {}, "p.yaml:3: sink s: the declarative runner has no partition_by"),
        ("topic: t", {"metrics": True}, "p.yaml:1: the declarative runner serves no metrics: leave out --metrics-port"),
        ("topic: t", {"master": "yarn"}, "p.yaml:1: the declarative runner needs Spark Connect"),
    ],
)
def test_what_it_cannot_do(tmp_path: Path, sink: str, given: dict[str, object], words: str | None) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(f"cluster: 127.0.0.1:1\nsources: {{s: {{topic: t}}}}\nsinks: {{s: {{{sink}}}}}\n")
    told = [str(one) for one in refusals(load(str(file)), **{"once": True, "metrics": False, "master": "local[2]", **given})]  # type: ignore[arg-type]
    if words is None:
        assert told == []
    else:
        (line,) = told
        assert words in line
