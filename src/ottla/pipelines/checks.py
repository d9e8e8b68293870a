"""What is wrong with a pipeline as a whole: references, cycles, SQL, schemas. Pure: a table can test it.

Guards: nothing starts that could be known to fail. What only a cluster knows (topics) is in `topics`, what only Spark knows
(columns, types) it says itself when the frames are built, which is before the first query starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter

from ottla.pipelines.spec import Pipeline, Place, Problem, Source, Step
from ottla.pipelines.sql import NotSql, fields, references

SESSION = "spark"
"""The name of a parameter that gets Spark's session."""


def check(pipeline: Pipeline) -> tuple[Pipeline, list[Problem]]:
    """The pipeline with each step knowing what it reads, and what is wrong."""
    problems: list[Problem] = []
    steps = {name: _resolved(step, problems) for name, step in pipeline.steps.items()}
    known = {**pipeline.sources, **steps}
    for step in steps.values():
        for name in step.needs or ():
            if name not in known and not (step.function is not None and name == SESSION):
                how = "SQL reads" if step.sql is not None else "the function asks for"
                problems.append(Problem(step.place, f"step {step.name}: {how} {name}, {_unknown(known)}"))
    for sink in pipeline.sinks.values():
        if sink.input not in known:
            problems.append(Problem(sink.place, f"sink {sink.name} is fed from {sink.input}, {_unknown(known)}"))
    problems += _cycles(steps)
    for source in pipeline.sources.values():
        problems += _schemas(source)
    if not pipeline.cluster.get("bootstrap.servers"):
        topics = [one for one in pipeline.sources.values() if one.is_topic]
        written = [one for one in pipeline.sinks.values() if one.topic is not None]
        if topics or written:
            words = "topics are read or written, but no cluster is named: set cluster, or give --bootstrap-server"
            problems.append(Problem(pipeline.place, words))
    return replace(pipeline, steps=steps), problems


def order(pipeline: Pipeline, sink: str) -> list[str]:
    """What a sink is made of, in the order in which it can be built; the pipeline has been checked."""
    graph: dict[str, tuple[str, ...]] = {}
    todo = [pipeline.sinks[sink].input]
    while todo:
        name = todo.pop()
        if name not in graph:
            step = pipeline.steps.get(name)
            graph[name] = tuple(one for one in (step.needs or ()) if one != SESSION) if step is not None else ()
            todo += graph[name]
    return list(TopologicalSorter(graph).static_order())


def _unknown(known: Mapping[str, object]) -> str:
    return f"which is no source and no step: there are {', '.join(sorted(known)) or 'none'}"


def _resolved(step: Step, problems: list[Problem]) -> Step:
    if step.sql is None or step.needs is not None:
        return step
    place = step.sql_place or step.place
    try:
        return replace(step, needs=references(step.sql))
    except NotSql as problem:
        words = f"the SQL of step {step.name} does not parse: {problem}"
        problems.append(Problem(Place(place.file, place.line + problem.line - 1), words))
        return replace(step, needs=())


def _cycles(steps: Mapping[str, Step]) -> list[Problem]:
    """The first cycle: more of them are mostly the same one seen from elsewhere."""
    graph = {name: [one for one in step.needs or () if one in steps] for name, step in steps.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as problem:
        names: list[str] = problem.args[1]
        first = steps[names[0]]
        return [Problem(first.place, f"steps go round in a circle: {' -> '.join(reversed(names))}")]
    return []


def _schemas(source: Source) -> list[Problem]:
    decode = source.decode
    if decode is None or decode.schema is None or decode.format not in ("json", "csv"):
        return []
    try:
        names = [field.name.lower() for field in fields(decode.schema)]
    except NotSql as problem:
        return [Problem(source.place, f"the schema of source {source.name} does not parse: {problem}")]
    taken = sorted({name for name in names if name in RESERVED or names.count(name) > 1})
    if taken:
        return [Problem(source.place, f"the schema of source {source.name}: {', '.join(taken)} is taken, use another name")]
    return []


RESERVED = frozenset({"_key", "_topic", "_partition", "_offset", "_timestamp", "_headers", "_bad", "_value"})
"""Columns that decoding adds."""
