"""The same files run by Spark's own declarative pipelines: a project for `spark-pipelines` is written, and run once.

Sources and steps become temporary views of Spark's graph, sinks become its sinks with one flow each; there are no tables, so
no catalog has to outlive a run. Guards: what these pipelines cannot do (go on, update) is refused before anything starts;
columns and types are checked by a plain session first, because Spark lets nobody ask for columns while it builds its graph.
Checkpoints lie in the project, apart from those of the usual runner: change the runner, and a pipeline begins anew.

Life: `refusals`, `emit`, `run_project` here; `define` in the process that Spark starts, called by the project's definitions.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla.pipelines import state as states
from ottla.pipelines.checks import SESSION, order
from ottla.pipelines.files import load
from ottla.pipelines.keeping import keep
from ottla.pipelines.spec import Pipeline, Problem, Sink

if TYPE_CHECKING:
    from ottla.pipelines.running import Running

_PLAN = "plan.json"
_LOOK_SECONDS = 0.5
_DEFINITIONS = """\
# Written by `ottla pipeline run --runner declarative`; `spark-pipelines run` here does the same.
from ottla.pipelines.declarative import define

define(spark, {folder!r})
"""
Types = Mapping[str, str]
"""Columns with their types, as Spark calls them."""


class DeclarativeFailed(Exception):
    """The run ended with an error; the text says which, in one line."""


def missing() -> str | None:
    """What has to be installed; None if nothing."""
    for module in ("grpc", "grpc_status", "pandas", "google.rpc"):
        try:
            found = find_spec(module)
        except ModuleNotFoundError:
            found = None
        if found is None:
            return f'{module} is not installed: pip install "ottla[declarative]"'
    return None


def refusals(pipeline: Pipeline, *, once: bool, metrics: bool, master: str) -> list[Problem]:
    """What this runner cannot do, a line each."""
    problems = []
    if not once:
        words = "the declarative runner takes what is there and ends: add --once, or run it without --runner declarative"
        problems.append(Problem(pipeline.place, words))
    if metrics:
        problems.append(Problem(pipeline.place, "the declarative runner serves no metrics: leave out --metrics-port"))
    if not master.startswith(("local", "sc://")):
        words = f"the declarative runner needs Spark Connect: --master is local[N] or sc://HOST:PORT, and not {master}"
        problems.append(Problem(pipeline.place, words))
    for sink in pipeline.sinks.values():
        unable = {
            f"mode {sink.mode}": sink.mode != "append",
            "trigger": sink.trigger is not None,
            "batches": sink.batches,
            "partition_by": bool(sink.partition_by),
        }
        for what, wanted in unable.items():
            if wanted:
                problems.append(Problem(sink.place, f"sink {sink.name}: the declarative runner has no {what}"))
    return problems


def emit(running: Running, path: str, types: Mapping[str, Types], conf: Mapping[str, str]) -> Path:
    """Write the project; where it is. The plan may hold passwords, so it is its owner's alone."""
    project = running.directory / "declarative"
    project.mkdir(exist_ok=True)
    storage = (project / "storage").absolute()
    plan = {"path": os.path.abspath(path), "cluster": dict(running.pipeline.cluster), "types": types}
    (project / _PLAN).touch(mode=0o600)
    (project / _PLAN).write_text(json.dumps(plan, indent=1), encoding="utf-8")
    settings = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "4",
        **running.pipeline.spark,
        **conf,
        # Streams are named in SQL like anything else: steps are the same for both runners.
        "pipelines.incompatibleViewCheck.enabled": "false",
    }
    spec = {
        "name": running.pipeline.name,
        "storage": storage.as_uri(),
        "libraries": [{"glob": {"include": "definitions.py"}}],
        "configuration": settings,
    }
    keep(project / "spark-pipeline.yml", json.dumps(spec, indent=1))  # JSON is YAML
    keep(project / "definitions.py", _DEFINITIONS.format(folder=str(project)))
    return project


def run_project(project: Path, master: str, stopping: threading.Event) -> None:
    """Run it to its end; raises `DeclarativeFailed`."""
    import pyspark  # noqa: PLC0415 - only a pipeline that runs needs it

    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-pipelines"), "run", "--remote", master]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    log = project.parent / "spark.log"
    with open(log, "ab") as words:
        begin = words.tell()
        process = subprocess.Popen(command, cwd=project, env=environment, stdout=words, stderr=words)
        while process.poll() is None:
            if stopping.wait(_LOOK_SECONDS):
                process.terminate()
                process.wait()
                return
    if process.returncode:
        told = log.read_bytes()[begin:].decode(errors="replace")
        raise DeclarativeFailed(f"{_reason(told)} (more in {log})")


def _reason(told: str) -> str:
    """The line of a log that says what went wrong: the first error of a flow, else the last exception."""
    from ottla.pipelines.running import cause  # noqa: PLC0415 - with Spark

    lines = told.splitlines()
    at = next((number for number, line in enumerate(lines) if line.startswith("Error: ")), None)
    if at is not None:
        return cause("\n".join(lines[at:])).removeprefix("Error: ")
    return next((line.strip() for line in reversed(lines) if "Exception" in line or "Error" in line), "it says nothing")


# ---- in the process that Spark starts ------------------------------------------------------------------------------------


def define(spark: Any, folder: str) -> None:
    """Declare the graph of a project to Spark."""
    from pyspark import pipelines as declared  # noqa: PLC0415 - of the process that Spark starts

    from ottla.pipelines.frames import beside, encoded  # noqa: PLC0415
    from ottla.pipelines.running import Running, dead_letter_sink  # noqa: PLC0415
    from ottla.pipelines.writing import topic_options  # noqa: PLC0415

    plan = json.loads(Path(folder, _PLAN).read_text(encoding="utf-8"))
    pipeline = load(plan["path"], plan["cluster"])
    running = Running(pipeline, Path(folder).parent, states.new_state(pipeline.name, plan["path"]))
    running.ask_cluster()
    frames = running.frames(spark)

    def view(name: str) -> None:
        source, step = pipeline.sources.get(name), pipeline.steps.get(name)

        def make() -> Any:
            if source is not None:
                return frames.of_source(source, None)
            assert step is not None
            return frames.of_step(step, {one: spark.table(one) for one in step.needs or () if one != SESSION})

        declared.temporary_view(name=name)(make)

    def flow(sink: Sink, make: Any) -> None:
        name = re.sub(r"\W", "_", sink.name) + "_sink"  # views and sinks share one space of names here
        if sink.topic is not None:
            declared.create_sink(name, "ottla", topic_options(pipeline, sink))
        else:
            path = {} if sink.path is None else {"path": beside(sink.place, sink.path)}
            declared.create_sink(name, sink.format or "", {**sink.options, **path})
        declared.append_flow(target=name, name=f"{name}_flow")(make)

    for name in dict.fromkeys(one for sink in pipeline.sinks for one in order(pipeline, sink)):
        view(name)
    for source in pipeline.sources.values():
        letters = dead_letter_sink(source)
        if letters is not None:
            flow(letters, lambda one=source: frames.of_dead_letters(one, None))
    for sink in pipeline.sinks.values():
        types = plan["types"][sink.name]
        if sink.topic is None:
            flow(sink, lambda one=sink: spark.table(one.input))
        else:
            flow(sink, lambda one=sink, known=types: encoded(spark.table(one.input), one, known))
