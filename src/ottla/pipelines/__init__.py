"""Pipelines: topics in, transformations in SQL or Python, topics and tables out; a thin declaration over Spark's streams.

    from ottla import pipelines

    pipelines.source("clicks", topic="clicks", decode={"format": "json", "schema": "page STRING, at TIMESTAMP"})

    @pipelines.sink(topic="pages", key="page")
    def pages(clicks):
        return clicks.select("page")

`ottla pipeline run FILE` runs it; files in YAML do the same for those who only have SQL. `docs/pipelines.md` has all keys.
Needs `pip install "ottla[pipelines]"`, and to run (not to be checked) Java 17.
"""

from __future__ import annotations

from ottla.pipelines.declaring import pipeline, sink, source, step

__all__ = ["pipeline", "sink", "source", "step"]
