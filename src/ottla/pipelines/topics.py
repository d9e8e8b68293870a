"""What a cluster knows of a pipeline: whether its topics are there, and how they are made where it says so.

Guards: a misspelt topic is found before Spark is started. A topic that another sink of the same pipeline makes counts as there.
"""

from __future__ import annotations

from ottla.client import Cluster, create_topic
from ottla.pipelines.spec import Pipeline, Place, Problem, Sink


def check_topics(pipeline: Pipeline, cluster: Cluster) -> list[Problem]:
    """Which topics are not there."""
    there = set(cluster.topics())
    made = {sink.topic for sink in pipeline.sinks.values() if sink.create is not None}
    problems = []
    for place, who, topic in _named(pipeline):
        if topic not in there and topic not in made:
            problems.append(
                Problem(place, f"{who}: topic {topic} does not exist on {_address(pipeline)}: check its name, or create it")
            )
    return problems


def create_topics(pipeline: Pipeline, cluster: Cluster) -> list[str]:
    """Make what sinks say is to be made; the names of what was not there."""
    there = set(cluster.topics())
    made = []
    for sink in pipeline.sinks.values():
        if sink.create is not None and sink.topic is not None and sink.topic not in there:
            create_topic(cluster, sink.topic, sink.create.partitions, -1, sink.create.config)
            made.append(sink.topic)
    return made


def _address(pipeline: Pipeline) -> str:
    return pipeline.cluster["bootstrap.servers"]


def _named(pipeline: Pipeline) -> list[tuple[Place, str, str]]:
    named = [(one.place, f"source {one.name}", topic) for one in pipeline.sources.values() for topic in one.topics]
    for source in pipeline.sources.values():
        if source.decode is not None and source.decode.dead_letter is not None:
            named.append((source.place, f"dead letters of source {source.name}", source.decode.dead_letter))
    sinks: list[Sink] = list(pipeline.sinks.values())
    return named + [(one.place, f"sink {one.name}", one.topic) for one in sinks if one.topic is not None]
